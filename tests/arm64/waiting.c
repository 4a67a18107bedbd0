/* A rank of Open MPI that waits for a message that no rank sends, and samples itself: what the kernel's perf events
 * would copy, by a timer of processor time. qemu-user has no perf events, but gives a signal handler the program's own
 * addresses, signed return addresses among them.
 *
 *     waiting recv|waitall|mprobe [FILE]
 *
 * Without FILE it only waits. A line of FILE is a sample in hexadecimal: instruction pointer, link register, and the words of the stack from the
 * stack pointer on. /proc/self/maps follows, and the process ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

/* What is needed here of Open MPI's binary interface. */
typedef void *MPI_Comm, *MPI_Datatype, *MPI_Message, *MPI_Request;
extern char ompi_mpi_comm_world[], ompi_mpi_int[];
int MPI_Init(int *, char ***), MPI_Comm_rank(MPI_Comm, int *), MPI_Comm_size(MPI_Comm, int *);
int MPI_Recv(void *, int, MPI_Datatype, int, int, MPI_Comm, void *);
int MPI_Irecv(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int MPI_Waitall(int, MPI_Request *, void *), MPI_Mprobe(int, int, MPI_Comm, MPI_Message *, void *);

enum { FIRST = 10, COUNT = 3, WORDS = 2048, EVERY_US = 10000 };

static int file = -1;
static unsigned long stack_end;

static void write_all(const void *bytes, size_t count) {
    if (write(file, bytes, count) != (ssize_t)count)
        _exit(3);
}

static void put(unsigned long value, char end) {
    char text[17];
    int at = 16;
    text[at] = end;
    do
        text[--at] = "0123456789abcdef"[value & 15];
    while (value >>= 4);
    write_all(text + at, 17 - at);
}

static void sample(int number, siginfo_t *info, void *context) {
    static int ticks;
    const mcontext_t *at = &((ucontext_t *)context)->uc_mcontext;
    (void)number, (void)info;
    if (++ticks < FIRST)
        return;
#ifdef __aarch64__
    put(at->pc, ' ');
    put(at->regs[30], ' ');
    const unsigned long *words = (const unsigned long *)at->sp;
#else
    put(at->gregs[REG_RIP], ' ');
    put(0, ' ');
    const unsigned long *words = (const unsigned long *)at->gregs[REG_RSP];
#endif
    for (int n = 0; n < WORDS && (unsigned long)(words + n) < stack_end; n++)
        put(words[n], ' ');
    write_all("\n", 1);
    if (ticks < FIRST + COUNT - 1)
        return;
    char part[4096];
    ssize_t count;
    int maps = open("/proc/self/maps", O_RDONLY);
    while ((count = read(maps, part, sizeof part)) > 0)
        write_all(part, count);
    _exit(0);
}

static int start(const char *path) {
    char line[512];
    unsigned long begin, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &begin, &end) == 2)
            stack_end = end;
    if (maps)
        fclose(maps);
    file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct sigaction action = {.sa_sigaction = sample, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct itimerval often = {{0, EVERY_US}, {0, EVERY_US}};
    return file >= 0 && stack_end && !sigaction(SIGPROF, &action, NULL) && !setitimer(ITIMER_PROF, &often, NULL);
}

__attribute__((noinline)) static int halo_exchange(const char *call, int other) {
    int number = 0;
    char status[64];
    MPI_Request request;
    MPI_Message message;
    if (!strcmp(call, "recv"))
        MPI_Recv(&number, 1, ompi_mpi_int, other, 7, ompi_mpi_comm_world, status);
    if (!strcmp(call, "waitall")) {
        MPI_Irecv(&number, 1, ompi_mpi_int, other, 7, ompi_mpi_comm_world, &request);
        MPI_Waitall(1, &request, status);
    }
    if (!strcmp(call, "mprobe"))
        MPI_Mprobe(other, 7, ompi_mpi_comm_world, &message, status);
    return number;
}

__attribute__((noinline)) static int time_step(const char *call, int other) { return halo_exchange(call, other) + 1; }

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(ompi_mpi_comm_world, &rank);
    MPI_Comm_size(ompi_mpi_comm_world, &size);
    if (argc < 2 || (argc > 2 && rank == 0 && !start(argv[2])))
        return 2;
    return time_step(argv[1], (rank + 1) % size);
}
