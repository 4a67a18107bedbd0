/* The floor under `check --all`: the driver calls of a recorded run, made again by C processes that do nothing else.
 *
 * `check_cost.py` records a run and writes the plan. Each process of the run is a process here, with the same
 * environment (visible GPUs, hardware queues), and makes the same calls with the same sizes in the same order:
 * initialisation, contexts, allocations, copies, opens. It waits for another process only where the run had that
 * order. Every byte copied to the host is read. Needs no CUDA headers: cc -O2 visits_floor.c -ldl
 *
 *     visits_floor PLAN KERNELS
 *
 * KERNELS is the file kernels.ptx. Exits 0 when every call returned success or failure as in the run. At the first
 * call that does not, all processes end, and the exit code is 1: the calls behind it would not be those of the run.
 *
 * The plan has a word a field. `processes N handles N descriptors N`; then for each process
 * `process SLOTS BUFFER`, `set NAME VALUE`…, and its calls: `call FUNCTION RESULT ARGUMENT…`. Arguments: a number; `$3` and `$3+16`, what slot 3 holds; `&3`, its
 * address; `x…`, bytes; `b`, the host buffer; `h3`, the third IPC handle; `s…`, a text; `k`, the kernels;
 * `p…`, parameters of a kernel. `wait PROCESS N`: until that process made N calls (-1: has ended). `send 3 PROCESS ID` and `take 3 ID`: a
 * descriptor in slot 3; `close 3`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 12, LINE = 8192, ENDED = 1 << 30, PATIENCE_S = 120, LEAST = 4096, UNLIKE = 1 };

enum { NOT_READY = 600 }; /* asked for work that the simulated GPU had done at once */

typedef struct { char bytes[64]; } Handle;
typedef uintptr_t Word;

/* What the processes share. */
static volatile int *steps; /* calls made by each process */
static Handle *handles;
static int (*mailboxes)[2];

static void fail(const char *what)
{
    fprintf(stderr, "visits_floor: %s\n", what);
    exit(2);
}

static void *shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory");
    return memory;
}

/* -- one process ------------------------------------------------------------------------------------------- */

static Word *slots;
static char *buffer, *kernels;
static size_t buffer_size;
static int *stash; /* descriptors by id, received before they are needed; -1: not yet */
static int self, made;

static void *driver(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW)))
        fail(dlerror());
    return dlsym(library, name);
}

static void wait_for(int process, int number)
{
    time_t until = time(NULL) + PATIENCE_S;
    for (int spins = 0; number < 0 ? steps[process] != ENDED : steps[process] < number; spins++) {
        if (spins < 100)
            sched_yield();
        else
            usleep(20);
        if (spins % 10000 == 9999 && time(NULL) > until) {
            fprintf(stderr, "visits_floor: process %d waited %d s for step %d of process %d\n", self, PATIENCE_S, number,
                    process);
            exit(2);
        }
    }
}

static void send_descriptor(int descriptor, int process, int id)
{
    char control[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec data = {&id, sizeof id};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(mailboxes[process][1], &message, 0) < 0)
        fail("a descriptor cannot be sent");
}

static int take_descriptor(int id)
{
    while (stash[id] < 0) {
        int got;
        char control[CMSG_SPACE(sizeof got)];
        struct iovec data = {&got, sizeof got};
        struct msghdr message = {
            .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(mailboxes[self][0], &message, 0) != sizeof got || !CMSG_FIRSTHDR(&message))
            fail("a descriptor did not arrive");
        memcpy(&stash[got], CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof stash[got]);
    }
    return stash[id];
}

/* What `$3`, `$3+16` or a number means. */
static Word value(const char *word)
{
    char *rest;
    if (*word != '$')
        return (Word)strtoull(word, NULL, 0);
    Word found = slots[strtoul(word + 1, &rest, 10)];
    return *rest ? found + (Word)strtoull(rest + 1, NULL, 10) : found;
}

static Word argument(char *word, char **store)
{
    char *bytes = *store;
    switch (*word) {
    case '&':
        return (Word)&slots[strtoul(word + 1, NULL, 10)];
    case 'b':
        return (Word)buffer;
    case 'h':
        return (Word)&handles[strtoul(word + 1, NULL, 10)];
    case 's':
        return (Word)(word + 1);
    case 'k':
        return (Word)kernels;
    case 'x':
        for (word++; *word; word += 2) {
            unsigned byte;
            sscanf(word, "%2x", &byte);
            *(*store)++ = (char)byte;
        }
        *store = bytes + (*store - bytes + 15) / 16 * 16;
        return (Word)bytes;
    case 'p': { /* each parameter is a word; on a little-endian machine also one of 32 bits */
        void **list = (void **)bytes;
        uint64_t *values = (uint64_t *)(bytes + 16 * sizeof *list);
        char *rest;
        int count = 0;
        for (char *each = strtok_r(word + 1, ",", &rest); each; each = strtok_r(NULL, ",", &rest)) {
            values[count] = value(each);
            list[count] = &values[count];
            count++;
        }
        *store = (char *)(values + 16);
        return (Word)list;
    }
    default:
        return value(word);
    }
}

static void make_call(char *rest)
{
    static _Alignas(16) char room[4 * LINE];
    char *store = room, *name = strtok_r(NULL, " \n", &rest), *word;
    int expected = atoi(strtok_r(NULL, " \n", &rest)), count = 0;
    Word a[MOST_ARGUMENTS] = {0};
    while (count < MOST_ARGUMENTS && (word = strtok_r(NULL, " \n", &rest)))
        a[count++] = argument(word, &store);
    void *function = driver(name);
    int code;
    if (!function)
        code = -1;
    else if (!strncmp(name, "cuIpcOpen", strlen("cuIpcOpen"))) /* the handle itself is passed */
        code = ((int (*)(Word, Handle, Word))function)(a[0], *(Handle *)a[1], a[2]);
    else
        code = ((int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word))function)(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    if (code != NOT_READY && !code != !expected) {
        fprintf(stderr, "otherwise than in the run: process %d, step %d: %s returned %d, in the run %d\n", self, made,
                name, code, expected);
        exit(UNLIKE);
    }
    if (!strncmp(name, "cuMemcpyDtoH", strlen("cuMemcpyDtoH"))) {
        static volatile uint64_t read;
        for (size_t at = 0; at + sizeof read <= a[2]; at += sizeof read)
            read += *(uint64_t *)(buffer + at);
    }
}

static void step(char *line)
{
    char *rest, *what = strtok_r(line, " \n", &rest);
    int numbers[3] = {0};
    if (!strcmp(what, "call")) {
        make_call(rest);
        return;
    }
    if (!strcmp(what, "set")) {
        char *name = strtok_r(NULL, " \n", &rest), *text = strtok_r(NULL, " \n", &rest);
        setenv(name, text ? text : "", 1);
        return;
    }
    for (int n = 0; n < 3; n++) {
        char *word = strtok_r(NULL, " \n", &rest);
        numbers[n] = word ? atoi(word) : 0;
    }
    if (!strcmp(what, "wait"))
        wait_for(numbers[0], numbers[1]);
    else if (!strcmp(what, "send"))
        send_descriptor((int)slots[numbers[0]], numbers[1], numbers[2]);
    else if (!strcmp(what, "take"))
        slots[numbers[0]] = (Word)take_descriptor(numbers[1]);
    else if (!strcmp(what, "close"))
        close((int)slots[numbers[0]]);
    else
        fail(what);
}

static void run(FILE *plan, int descriptors)
{
    static char line[LINE];
    stash = malloc((size_t)(descriptors + 1) * sizeof *stash);
    for (int n = 0; n <= descriptors; n++)
        stash[n] = -1;
    while (fgets(line, sizeof line, plan) && strncmp(line, "process ", strlen("process "))) {
        bool calls = !strncmp(line, "call ", strlen("call "));
        step(line);
        if (calls)
            steps[self] = ++made;
    }
}

/* -- all of them ------------------------------------------------------------------------------------------- */

static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (!file || !fread(text, 1, (1 << 20) - 1, file))
        fail(path);
    fclose(file);
    return text;
}

int main(int count, char **arguments)
{
    char line[LINE];
    int processes, handle_count, descriptors, failed = 0, status;
    FILE *plan = count == 3 ? fopen(arguments[1], "r") : NULL;
    if (!plan || fscanf(plan, "processes %d handles %d descriptors %d\n", &processes, &handle_count, &descriptors) != 3)
        fail("usage: visits_floor PLAN KERNELS");
    kernels = text_of(arguments[2]);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    steps = shared((size_t)processes * sizeof *steps);
    handles = shared((size_t)(handle_count + 1) * sizeof *handles);
    mailboxes = calloc((size_t)processes, sizeof *mailboxes);
    pid_t *pids = calloc((size_t)processes, sizeof *pids);
    for (int n = 0; n < processes; n++)
        if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, mailboxes[n]))
            fail("too many processes for the limit of open files");
    struct { long begin; size_t slots, buffer; } *part = calloc((size_t)processes, sizeof *part);
    for (int n = 0; n < processes;) {
        if (!fgets(line, sizeof line, plan))
            fail("the plan ends early");
        if (sscanf(line, "process %zu %zu", &part[n].slots, &part[n].buffer) == 2)
            part[n++].begin = ftell(plan);
    }
    fclose(plan); /* or the end of each process would move the place at which the others read */
    for (int n = 0; n < processes; n++)
        if ((pids[n] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            plan = fopen(arguments[1], "r");
            self = n;
            buffer_size = part[n].buffer;
            slots = calloc(part[n].slots + 1, sizeof *slots * 2);
            buffer = malloc(buffer_size + LEAST);
            if (!plan || fseek(plan, part[n].begin, SEEK_SET) || !slots || !buffer)
                fail("no memory, or no plan");
            run(plan, descriptors);
            exit(0);
        }
    for (int left = processes; left; left--) {
        pid_t ended = wait(&status);
        for (int n = 0; n < processes; n++)
            if (pids[n] == ended)
                steps[n] = ENDED;
        if (!WIFEXITED(status) || WEXITSTATUS(status)) {
            failed = WIFEXITED(status) && WEXITSTATUS(status) == UNLIKE ? UNLIKE : 2;
            if (failed != UNLIKE)
                fprintf(stderr, "visits_floor: a process ended with status %#x\n", (unsigned)status);
            for (int n = 0; n < processes; n++)
                if (pids[n] > 0)
                    kill(pids[n], SIGKILL);
            break;
        }
    }
    return failed;
}
