/* Stands for an MPI library of which a job waits in MPI_Recv. */
#include <unistd.h>

int MPI_Recv(void) {
    for (;;) sleep(1000);
}
