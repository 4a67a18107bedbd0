/* A rank of a job that never ends: told "stuck", all but rank 1 sleep in MPI_Recv; else none does. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int MPI_Recv(void);

int read_input(void) {
    for (;;) sleep(1000);
}

int main(int count, char **words) {
    int is_late = strcmp(words[count - 1], "stuck") || strcmp(getenv("PMI_RANK"), "1") == 0;
    return is_late ? read_input() : MPI_Recv();
}
