/* A history of valid operations that a driver failed, found by gpuipc-doctor (ipc-histories).
 * cc -o history history.c -ldl && ./history; exits 1 at the step that fails, 0 when none does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { STEPS = @steps@, THINGS = @things@, PROCESSES = @processes@, TIMES = @times@, HANG_MS = 20000 };
struct handle { char bytes[64]; };
static const int by[] = { @by@ }, exporters[] = { @exporters@ }, killed[] = { @killed@ };
static const int devices[] = { @devices@ }, primary[] = { @primary@ };
//@ @beside
/* whether the next step begins before this one has ended */
static const int goes_on[] = { @goes_on@ };
//@
/* shared by all processes: what was exported, and sizes */
//@ @once
static struct shared { struct handle handle[THINGS]; uint64_t size[THINGS]; } *shared;
//@ @repeated
static struct shared { struct handle handle[THINGS]; uint64_t size[THINGS]; uint64_t figure[PROCESSES][4][TIMES]; } *shared;
//@
#define handle shared->handle
#define size shared->size
/* of one process: addresses, contexts, and the context of each object (-1: none of its own) */
static uint64_t at[THINGS];
static void *context[THINGS], *library;
static int where[THINGS] __attribute__((unused)), current, device, me;
#define call(symbol, ...) do { \
    int (*function)() = (int (*)())dlsym(library, symbol); \
    int code = function ? function(__VA_ARGS__) : -1; \
    if (code) { printf("    %s returned %d\n", symbol, code); _exit(1); } } while (0)
static void enter(int number) { cuCtxSetCurrent(context[number < 0 ? current : number]); }
static void begin(void)
{
    if (primary[me]) cuDevicePrimaryCtxRetain(&context[0], device); else cuCtxCreate_v2(&context[0], 0, device);
    enter(current = 0);
}

#define byte(i, stamp) (unsigned char)(((stamp) * 2654435761u ^ (uint32_t)((i) / 4)) >> (i) % 4 * 8)
//@ given(
static void given(const void *result, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) if (((const char *)result)[i]) return;
    puts("    returned success without a result"); _exit(1);
}
//@ end(
static void end(int number)
{
    enter(number);
    if (number || !primary[me]) cuCtxDestroy_v2(context[number]); else cuDevicePrimaryCtxReset_v2(device);
    if (number == 0) begin();
    current = 0;
}
//@ fill(
static void fill(int number, uint64_t begin, uint64_t length, uint32_t stamp)
{
    unsigned char *data = malloc(length);
    for (uint64_t i = 0; i < length; i++) data[i] = byte(begin + i, stamp);
    cuMemcpyHtoD_v2(at[number] + begin, data, length); cuCtxSynchronize(); free(data);
}
//@ compare(
static void compare(int number, uint64_t begin, uint64_t end, uint32_t stamp, long shift, unsigned width)
{
    unsigned char *data = calloc(end - begin, 1);
    cuMemcpyDtoH_v2(data, at[number] + begin, end - begin);
    for (uint64_t i = begin; stamp && i < end; i++)
        if (data[i - begin] != (unsigned char)(width ? stamp >> (i - shift) % width * 8 : byte(i - shift, stamp))) {
            printf("    wrong data from byte %lu on\n", (unsigned long)i); _exit(1);
        }
    free(data);
}
//@ wanted access
/* memory that may be exported as a descriptor, pinned on a device; and who may read and write it */
struct wanted { int type, handle_types, place, device; void *unused; uint64_t more[8]; };
struct access { int place, device, flags; };
//@ mail(
#include <sys/socket.h>
static int mailbox[2];
static int mail(int fd) /* Send a descriptor, or with -1 receive one. */
{
    char room[CMSG_SPACE(sizeof fd)] = { 0 }, byte = 0;
    struct iovec data = { &byte, 1 };
    struct msghdr message = { 0, 0, &data, 1, room, sizeof room, 0 };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (fd < 0) return recvmsg(mailbox[1], &message, 0) == 1 ? *(int *)CMSG_DATA(head) : -1;
    head->cmsg_level = SOL_SOCKET; head->cmsg_type = SCM_RIGHTS; head->cmsg_len = CMSG_LEN(sizeof fd);
    *(int *)CMSG_DATA(head) = fd;
    return sendmsg(mailbox[0], &message, 0) == 1 ? close(fd) : -1;
}
//@ @repeated
#include <dirent.h>
static const char *const figures[] = { "descriptors", "threads", "reserved pages", "used device memory" };
static uint64_t entries(const char *path)
{
    DIR *folder = opendir(path); uint64_t many = 0;
    while (readdir(folder)) many++;
    closedir(folder); return many;
}

static void look(int round)
{
    unsigned long pages = 0, available, total;
    FILE *statm = fopen("/proc/self/statm", "r"); if (fscanf(statm, "%lu", &pages)) fclose(statm);
    cuMemGetInfo_v2(&available, &total);
    uint64_t now[] = { entries("/proc/self/fd"), entries("/proc/self/task"), pages, total - available };
    for (int f = 0; f < 4; f++) shared->figure[me][f][round] = now[f];
}
//@

#define say(text) if (!said[step]++ && me == by[step]) puts(text)
static void take(int step)
{
    static char said[STEPS];
    switch (step) {
@cases@
    }
}

static void serve(int orders, int answers)
{
    int step, started = 0;
    while (read(orders, &step, sizeof step) == sizeof step) {
        if (!started++) {
            library = dlopen("@library@", RTLD_NOW);
            if (!library) { puts("    no @library@"); _exit(2); }
            int here; cuInit(0); cuDeviceGetCount(&here);
            if (device >= here) { printf("    needs %d GPUs\n", device + 1); _exit(2); }
            begin();
        }
//@ @repeated
        if (step < 0) look(-step - 1); else take(step);
//@ @once
        take(step);
//@
        if (write(answers, &step, sizeof step) != sizeof step) _exit(2);
    }
    exit(0);
}

static int orders[PROCESSES][2], answers[PROCESSES][2], pid[PROCESSES];
static int result(int p, int step) /* Wait for the end of a step; 0, or if it failed our exit code. */
{
    int answer, status = 0;
    if (!poll(&(struct pollfd){ answers[p][0], POLLIN, 0 }, 1, HANG_MS)) puts("    hangs");
    else if (read(answers[p][0], &answer, sizeof answer) == sizeof answer) return 0;
    else waitpid(pid[p], &status, 0);
    if (step >= 0 && killed[step]) return 0;
    if (WIFSIGNALED(status)) printf("    signal %d\n", WTERMSIG(status));
    printf("step %d failed\n", step + 1);
    for (int other = 0; other < PROCESSES; other++) kill(pid[other], SIGKILL);
    return WIFEXITED(status) && WEXITSTATUS(status) == 2 ? 2 : 1;
}

static int order(int p, int step) /* Have a process take a step. */
{
    return write(orders[p][1], &step, sizeof step) == sizeof step ? result(p, step) : 1;
}

int main(void)
{
    int failed;
    signal(SIGPIPE, SIG_IGN); setlinebuf(stdout);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
//@ mail(
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, mailbox)) return 2;
//@
    for (int p = 0; p < PROCESSES; p++) {
        if (pipe(orders[p]) || pipe(answers[p])) return 2;
        if (!(pid[p] = fork())) {
            for (int other = 0; other <= p; other++) { close(orders[other][1]); close(answers[other][0]); }
            device = devices[me = p]; serve(orders[p][0], answers[p][1]);
        }
        close(answers[p][1]);
    }
    for (int round = 0; round < TIMES; round++) {
//@ @beside
        for (int step = 0, first = 0; step < STEPS; step++) {
            if (exporters[step] && (failed = order(exporters[step], step))) return failed;
            if (write(orders[by[step]][1], &step, sizeof step) < 0) puts("    takes no order");
            for (; !goes_on[step] && first <= step; first++)
                if ((failed = result(by[first], first))) return failed;
        }
//@ @in_turn
        for (int step = 0; step < STEPS; step++)
            if ((exporters[step] && (failed = order(exporters[step], step)))
                || (failed = order(by[step], step))) return failed;
//@
//@ @repeated
        for (int p = 1; p < PROCESSES; p++) if (order(p, -round - 1)) return 2;
//@
    }
//@ @repeated
    for (int p = 1; p < PROCESSES; p++) for (int f = 0; f < 4; f++) {
        uint64_t *seen = shared->figure[p][f];
        if (seen[TIMES / 2] <= seen[TIMES / 4] || seen[TIMES * 3 / 4] <= seen[TIMES / 2]
            || seen[TIMES - 1] <= seen[TIMES * 3 / 4]) continue;
        printf("    each round leaves more %s in process %d: %lu after the first, %lu after the last\n",
            figures[f], p, (unsigned long)seen[0], (unsigned long)seen[TIMES - 1]);
        printf("step %d failed\n", STEPS); return 1;
    }
//@
    for (int p = 0; p < PROCESSES; p++) close(orders[p][1]); /* only now may any process end */
    while (wait(0) > 0) { }
    puts("all steps succeeded");
    return 0;
}
