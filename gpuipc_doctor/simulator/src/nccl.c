/* NCCL and RCCL of a simulated node: libnccl.so.2, and with -DRCCL librccl.so.1.
 *
 * Ranks meet in a file of GPUIPC_SIM_STATE that is named after the communicator's unique id. Each call works at once
 * and in the caller's thread: simulated device memory is mapped where its address says, so data is copied through the
 * file, piece by piece. Calls on streams are not deferred, and every rank must make the same calls in the same order.
 * An operation whose communicator has lost a rank, by its death or by ncclCommAbort, ends without a result.
 * With NCCL_HOSTID, ranks of several nodes meet over TCP at the address in the unique id: each rank is connected to
 * every rank of other nodes, and sends it its pieces. Ranks of equal NCCL_HOSTID share the file.
 * What NCCL would log with NCCL_DEBUG=INFO, it prints to stdout: the channels' transports are those that the
 * environment selects. GPUIPC_SIM_NCCL has the versions and the faults (README.md).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/futex.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef RCCL
#define SUBJECT "RCCL"
static const char *const version_key = "rccl";
static const char *const driver_file = "libamdhip64.so", *const allocate_name = "hipMalloc", *const free_name = "hipFree",
                  *const is_capturing_name = "hipStreamIsCapturing", *const launch_name = "hipLaunchHostFunc";
static const bool cumem_by_default = false;
#else
#define SUBJECT "NCCL"
static const char *const version_key = "nccl";
static const char *const driver_file = "libcuda.so.1", *const allocate_name = "cuMemAlloc_v2", *const free_name = "cuMemFree_v2",
                  *const is_capturing_name = "cuStreamIsCapturing", *const launch_name = "cuLaunchHostFunc";
static const bool cumem_by_default = true;
#endif

#include "fault_lines.h"
#include "losses.h"

enum result { SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };

enum { MAX_RANKS = 32, CHANNELS = 2, SLOT = 512 << 10, PIECE = 128 << 10, MAX_QUEUED = 4 * MAX_RANKS };

enum { PACE = 2000 }; /* bytes per microsecond of a simulated link, so that all are equally fast on a busy machine */

/* ---- faults ---- */

static const char *const calls[] = {"any",       "init",   "restart", "split", "destroy",   "abort",    "all-reduce", "all-gather", "reduce-scatter",
                                    "broadcast", "reduce", "send",    "recv",  "mem-alloc", "register", NULL};
enum call {
    ANY, INIT, RESTART, SPLIT, DESTROY, ABORT, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECV, MEM_ALLOC, REGISTER
};

static const char *const effects[] = {"error",   "hang",  "segv",  "exit",          "corrupt-last", "corrupt-middle", "lost",
                                      "cut",     "swap",  "twice", "overrun",       "delay",        "chatter",        "leak",
                                      "leak-host", "leak-descriptor", "leak-thread", "leak-shared",   "newer-cuda",     "multicast",      NULL};
enum effect {
    FAIL, HANG, SEGV, EXIT, CORRUPT_LAST, CORRUPT_MIDDLE, LOST, CUT, SWAP, TWICE, OVERRUN, DELAY, CHATTER, LEAK, LEAK_HOST,
    LEAK_DESCRIPTOR, LEAK_THREAD, LEAK_SHARED, NEWER_CUDA, MULTICAST,
};

struct fault {
    int call, effect, rank, peer, in_place, split, code;
    unsigned long long min, max, bytes;
    unsigned nth, from, ms, calls_made;
    char transport[32], type[16], reduction[16], where[16];
};

static struct fault faults[MAX_FAULTS];
static int fault_count, own_version;
static bool has_lost_a_rank;

static void read_line(const char *line)
{
    char name[16], call[32], effect[32];
    int major, minor, patch;
    struct fault f = {0};
    if (sscanf(line, "version %15[a-z]=%d.%d.%d", name, &major, &minor, &patch) == 4) {
        if (!strcmp(name, version_key))
            own_version = major * 10000 + minor * 100 + patch;
        return;
    }
    if (fault_count == MAX_FAULTS)
        refuse(line, "too many faults");
    if (sscanf(line,
               "fault call=%31s do=%31s rank=%d peer=%d min=%llu max=%llu bytes=%llu nth=%u from=%u ms=%u code=%d in_place=%d "
               "split=%d transport=%31s type=%15s reduction=%15s where=%15s",
               call, effect, &f.rank, &f.peer, &f.min, &f.max, &f.bytes, &f.nth, &f.from, &f.ms, &f.code, &f.in_place, &f.split,
               f.transport, f.type, f.reduction, f.where) != 17)
        refuse(line, "cannot be read");
    f.call = word_of(calls, call, line);
    f.effect = word_of(effects, effect, line);
    faults[fault_count++] = f;
}

__attribute__((constructor)) static void read_faults(void)
{
    read_fault_lines("GPUIPC_SIM_NCCL", read_line);
}

/* ---- communicators ---- */

struct barrier {
    atomic_int arrived, generation;
};

struct pipe { /* from one rank to another */
    atomic_int full;
    uint64_t bytes;
    char data[PIECE];
};

struct meeting { /* the file in which ranks meet; zeros at first. Each rank has locked the byte of its number. */
    struct barrier barrier;
    atomic_int aborted;
    struct {
        int color, key;
    } wish[MAX_RANKS]; /* of ncclCommSplit */
    _Alignas(4096) char slots[]; /* SLOT bytes a rank, then a pipe for each pair of ranks */
};

struct place { /* of a rank: its node, and where it listens; in network order */
    int32_t rank, size;
    uint64_t node;
    uint32_t address;
    uint16_t port;
};

struct comm {
    struct meeting *meeting;
    uint64_t id, bytes;
    int rank, size, device, file, here; /* here: number of ranks on this node */
    int line[MAX_RANKS];                /* to a rank of another node; -1 without */
    char *away[MAX_RANKS];              /* what that rank has sent */
    unsigned splits;
    bool is_split, is_second, has_joined, is_broken; /* second: made after the process's first, not split */
    char path[4096];
};

typedef struct {
    char internal[128];
} unique_id;

static char last_error[256] = "";

__attribute__((format(printf, 3, 4))) static void say(const struct comm *comm, const char *kind, const char *format, ...)
{
    const char *level = getenv("NCCL_DEBUG");
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bool warns = !strcmp(kind, "WARN");
    if (warns)
        snprintf(last_error, sizeof last_error, "%s", text);
    if (!level || (strcmp(level, "INFO") && !warns))
        return;
    printf("node01:%d:%ld [%d] %s%s NCCL %s %s\n", getpid(), syscall(SYS_gettid), comm ? comm->device : 0,
           warns ? "\n" : "", warns ? "simulated/nccl.c:1" : "", kind, text);
}

static bool is_on(const char *name, bool otherwise)
{
    const char *value = getenv(name);
    return value && *value ? strcmp(value, "0") != 0 : otherwise;
}

static const char *transport(void)
{
    if (!is_on("NCCL_P2P_DISABLE", false))
        return is_on("NCCL_CUMEM_ENABLE", cumem_by_default) ? "P2P/CUMEM" : "P2P/IPC";
    return is_on("NCCL_SHM_DISABLE", false) ? "NET/Socket/0" : "SHM/direct/direct";
}

static struct pipe *pipe_of(const struct comm *comm, int from, int to)
{
    char *pipes = comm->meeting->slots + (size_t)comm->size * SLOT;
    return (struct pipe *)(pipes + ((size_t)from * comm->size + to) * sizeof(struct pipe));
}

static char *slot_of(const struct comm *comm, int rank)
{
    if (comm->away[rank])
        return comm->away[rank];
    return comm->meeting->slots + (size_t)rank * SLOT;
}

/* Whether a rank has aborted the communicator, or has died: the kernel releases its lock. */
static bool is_lost(const struct comm *comm)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (atomic_load(&comm->meeting->aborted))
        return true;
    for (lock.l_start = 0; comm->has_joined && lock.l_start < comm->size; lock.l_start++) {
        struct flock found = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = lock.l_start, .l_len = 1};
        if (lock.l_start != comm->rank && !comm->away[lock.l_start] && !fcntl(comm->file, F_OFD_GETLK, &found) && found.l_type == F_UNLCK)
            return true;
    }
    return false;
}

/* Wait for all ranks; returns whether they came. Without one of them, the communicator moves no data any more. */
static bool meet(struct comm *comm)
{
    static const struct timespec moment = {.tv_nsec = 20000000};
    struct barrier *barrier = &comm->meeting->barrier;
    int generation = atomic_load(&barrier->generation);
    if (comm->is_broken)
        return false;
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 == comm->here) {
        atomic_store(&barrier->arrived, 0);
        atomic_fetch_add(&barrier->generation, 1);
        syscall(SYS_futex, &barrier->generation, FUTEX_WAKE, MAX_RANKS, NULL, NULL, 0);
        return true;
    }
    while (atomic_load(&barrier->generation) == generation) {
        long woken = syscall(SYS_futex, &barrier->generation, FUTEX_WAIT, generation, &moment, NULL, 0);
        if (woken && errno == ETIMEDOUT && is_lost(comm) && atomic_load(&barrier->generation) == generation) {
            has_lost_a_rank = comm->is_broken = true;
            return false;
        }
    }
    return true;
}

/* ---- several nodes ---- */

static uint64_t own_node(void)
{
    const char *name = getenv("NCCL_HOSTID");
    uint64_t hash = 14695981039346656037u;
    if (!name || !*name)
        return 0;
    while (*name)
        hash = (hash ^ (unsigned char)*name++) * 1099511628211u;
    return hash;
}

static bool is_named(const char *list, const char *name)
{
    bool exact = *list == '=', found = false;
    char copy[256], *rest = copy;
    snprintf(copy, sizeof copy, "%s", list + exact);
    for (char *word = strsep(&rest, ","); word; word = strsep(&rest, ","))
        found |= *word && (exact ? !strcmp(name, word) : !strncmp(name, word, strlen(word)));
    return found;
}

/* The IPv4 address of the interface that NCCL_SOCKET_IFNAME names, else of the first that is no loopback; 0 without. */
static uint32_t own_address(char *name, size_t room)
{
    const char *named = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all = NULL;
    uint32_t found = 0;
    bool is_loop = true;
    getifaddrs(&all);
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        bool loops = one->ifa_flags & IFF_LOOPBACK;
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP) || (found && (loops || !is_loop)))
            continue;
        if (named && *named && (*named == '^' ? is_named(named + 1, one->ifa_name) : !is_named(named, one->ifa_name)))
            continue;
        found = ((struct sockaddr_in *)(void *)one->ifa_addr)->sin_addr.s_addr;
        is_loop = loops;
        snprintf(name, room, "%s", one->ifa_name);
    }
    freeifaddrs(all);
    return found;
}

static int listen_at(uint32_t address, uint16_t *port)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = address};
    socklen_t length = sizeof own;
    int line = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line < 0 || bind(line, (struct sockaddr *)&own, length) || listen(line, MAX_RANKS) || getsockname(line, (struct sockaddr *)&own, &length))
        refuse("socket", strerror(errno));
    *port = own.sin_port;
    return line;
}

static int call_at(const struct comm *comm, uint32_t address, uint16_t port)
{
    struct sockaddr_in other = {.sin_family = AF_INET, .sin_addr.s_addr = address, .sin_port = port};
    int line = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (!connect(line, (struct sockaddr *)&other, sizeof other)) {
        setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return line;
    }
    say(comm, "WARN", "socketStartConnect: Connect to %s<%d> failed : %s", inet_ntoa(other.sin_addr), ntohs(port), strerror(errno));
    close(line);
    return -1;
}

static bool move_all(int line, void *data, size_t bytes, bool sends)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t moved = sends ? send(line, (char *)data + at, bytes - at, MSG_NOSIGNAL) : recv(line, (char *)data + at, bytes - at, 0);
        if (moved <= 0 && !(moved < 0 && errno == EINTR))
            return false;
        at += moved > 0 ? (size_t)moved : 0;
    }
    return true;
}

/* NCCL's bootstrap root: once all ranks have said where they are, each is told of all. */
static void *gather_ranks(void *data)
{
    int line = (int)(intptr_t)data, lines[MAX_RANKS], size = 1;
    struct place all[MAX_RANKS] = {0}, one;
    for (int came = 0; came < size; came++) {
        int from = accept4(line, NULL, NULL, SOCK_CLOEXEC);
        if (from < 0 || !move_all(from, &one, sizeof one, false) || one.rank < 0 || one.rank >= MAX_RANKS || one.size > MAX_RANKS) {
            close(from);
            came--;
            continue;
        }
        size = one.size;
        all[one.rank] = one;
        lines[came] = from;
    }
    for (int i = 0; i < size; i++) {
        move_all(lines[i], all, sizeof all, true);
        close(lines[i]);
    }
    close(line);
    return NULL;
}

static void host_meeting(unique_id *id)
{
    char name[64] = "";
    uint32_t address = own_address(name, sizeof name);
    uint16_t port = 0;
    pthread_t thread;
    int line = listen_at(address, &port);
    memcpy(id->internal + 8, &address, 4);
    memcpy(id->internal + 12, &port, 2);
    if (!pthread_create(&thread, NULL, gather_ranks, (void *)(intptr_t)line))
        pthread_detach(thread);
}

/* Connect to the ranks of other nodes; returns what ncclCommInitRank does. */
static int meet_nodes(struct comm *comm, const char *id)
{
    char name[64] = "";
    struct place all[MAX_RANKS], own = {.rank = comm->rank, .size = comm->size, .node = own_node(), .address = own_address(name, sizeof name)};
    uint32_t address;
    uint16_t port;
    int32_t rank;
    if (!own.address) {
        say(comm, "WARN", "Bootstrap : no socket interface found");
        return INVALID_USAGE;
    }
    struct in_addr shown = {own.address};
    say(comm, "INFO", "Bootstrap: Using %s:%s<0>", name, inet_ntoa(shown));
    say(comm, "INFO", "NET/Socket : Using [0]%s:%s<0>", name, inet_ntoa(shown));
    memcpy(&address, id + 8, 4);
    memcpy(&port, id + 12, 2);
    int listener = listen_at(own.address, &own.port), root = call_at(comm, address, port);
    if (root < 0 || !move_all(root, &own, sizeof own, true) || !move_all(root, all, sizeof all, false))
        return SYSTEM_ERROR;
    close(root);
    for (int other = 0; other < comm->size; other++) {
        if (all[other].node == own.node)
            continue;
        comm->here--;
        comm->away[other] = malloc(SLOT);
        if (other > comm->rank)
            continue;
        rank = comm->rank;
        comm->line[other] = call_at(comm, all[other].address, all[other].port);
        if (comm->line[other] < 0 || !move_all(comm->line[other], &rank, sizeof rank, true))
            return SYSTEM_ERROR;
    }
    for (int left = 0; left < comm->size; left++) {
        if (!comm->away[left] || left < comm->rank)
            continue;
        int from = accept4(listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
        if (from < 0 || !move_all(from, &rank, sizeof rank, false) || rank < 0 || rank >= comm->size)
            return SYSTEM_ERROR;
        setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        comm->line[rank] = from;
    }
    close(listener);
    return SUCCESS;
}

static void lose(struct comm *comm, int other)
{
    if (!comm->is_broken)
        say(comm, "WARN", "socketProgress: Connection closed by remote peer of rank %d", other);
    has_lost_a_rank = comm->is_broken = true;
}

/* Send this piece to each rank of another node, and receive theirs: of all ranks, or only of `root`. */
static bool trade(struct comm *comm, const char *piece, uint64_t bytes, int root)
{
    uint64_t sent[MAX_RANKS] = {0}, came[MAX_RANKS] = {0};
    for (;;) {
        struct pollfd polled[MAX_RANKS];
        int of[MAX_RANKS], number = 0;
        for (int other = 0; other < comm->size; other++) {
            short wants = (short)((root < 0 || root == comm->rank) && sent[other] < bytes ? POLLOUT : 0);
            wants |= (short)((root < 0 || root == other) && came[other] < bytes ? POLLIN : 0);
            if (!comm->away[other] || !wants)
                continue;
            of[number] = other;
            polled[number++] = (struct pollfd){.fd = comm->line[other], .events = wants};
        }
        if (!number)
            return true;
        if (!poll(polled, (nfds_t)number, 20) && is_lost(comm))
            has_lost_a_rank = comm->is_broken = true;
        for (int i = 0; i < number && !comm->is_broken; i++) {
            int other = of[i];
            ssize_t moved = 1;
            if (polled[i].revents & POLLOUT) {
                moved = send(polled[i].fd, piece + sent[other], bytes - sent[other], MSG_DONTWAIT | MSG_NOSIGNAL);
                sent[other] += moved > 0 ? (uint64_t)moved : 0;
            }
            if (polled[i].events & POLLIN && polled[i].revents & (POLLIN | POLLHUP | POLLERR) && (moved > 0 || errno == EAGAIN)) {
                moved = recv(polled[i].fd, comm->away[other] + came[other], bytes - came[other], MSG_DONTWAIT);
                came[other] += moved > 0 ? (uint64_t)moved : 0;
            }
            if (!moved || (moved < 0 && errno != EAGAIN))
                lose(comm, other);
        }
        if (comm->is_broken)
            return false;
    }
}

static struct comm *join(uint64_t id, int rank, int size, int device, bool is_split, const char *hosted, int *code)
{
    struct comm *comm = calloc(1, sizeof *comm);
    comm->id = id;
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    static unsigned made;
    comm->is_split = is_split;
    comm->is_second = !is_split && made++;
    comm->here = size;
    if (hosted && (*code = meet_nodes(comm, hosted)))
        return NULL;
    comm->bytes = sizeof(struct meeting) + (size_t)size * SLOT + (size_t)size * size * sizeof(struct pipe);
    snprintf(comm->path, sizeof comm->path, "%s/collective-%016llx", getenv("GPUIPC_SIM_STATE"), (unsigned long long)id);
    struct flock own = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    comm->file = open(comm->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (comm->file < 0 || ftruncate(comm->file, (off_t)comm->bytes) || fcntl(comm->file, F_OFD_SETLK, &own))
        refuse(comm->path, strerror(errno));
    comm->meeting = mmap(NULL, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->file, 0);
    if (comm->meeting == MAP_FAILED)
        refuse(comm->path, strerror(errno));
    meet(comm);
    comm->has_joined = true;
    if (size > 1) {
        int next = (rank + 1) % size;
        const char *via = comm->away[next] ? "NET/Socket/0" : transport();
        for (int channel = 0; channel < CHANNELS; channel++)
            say(comm, "INFO", "Channel %02d/0 : %d[%d] -> %d[%d] via %s", channel, rank, device, next, next, via);
    }
    say(comm, "INFO", "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d commId 0x%llx - Init COMPLETE", (void *)comm, rank, size,
        device, (unsigned long long)id);
    meet(comm);
    return comm;
}

static void leave(struct comm *comm)
{
    unlink(comm->path); /* the first does it */
    munmap(comm->meeting, comm->bytes);
    close(comm->file);
    for (int rank = 0; rank < comm->size; rank++)
        if (comm->away[rank]) {
            close(comm->line[rank]);
            free(comm->away[rank]);
        }
    free(comm);
}

/* ---- the call under way, and its faults ---- */

/* What the arguments of an operation are, besides bytes, peer and place. */
struct shape {
    const char *type, *reduction;
    bool in_place, in_group, on_default_stream, is_unaligned, is_by4, is_captured, was_idle;
};

struct asked {
    unsigned effects;
    struct fault of[sizeof effects / sizeof *effects];
};

__attribute__((noinline)) static void hang_here(void)
{
    for (;;)
        usleep(1000);
}

static void *of_driver(const char *name)
{
    void *driver = dlopen(driver_file, RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}

static void take_device_memory(uint64_t bytes)
{
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))of_driver(allocate_name);
    void *lost;
    if (!allocate || allocate(&lost, bytes))
        refuse("leak", "the driver allocates nothing");
}

static void leave_shared_file(void)
{
    static const char *const below_root[] = {"dev", "dev/shm", "dev/shm/nccl-XXXXXX"};
    char path[4096];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/../root/%s", getenv("GPUIPC_SIM_STATE"), below_root[i]);
        int file = i < 2 ? mkdir(path, 0755) : mkstemp(path);
        if (file < 0 && errno != EEXIST)
            refuse(path, strerror(errno));
        if (i == 2)
            close(file);
    }
}

static bool is_where(const char *where, struct shape shape, const struct comm *comm)
{
    return !strcmp(where, "any") || (!strcmp(where, "thread") && syscall(SYS_gettid) != getpid()) ||
           (!strcmp(where, "group") && shape.in_group) || (!strcmp(where, "default-stream") && shape.on_default_stream) ||
           (!strcmp(where, "unaligned") && shape.is_unaligned) || (!strcmp(where, "graph") && shape.is_captured) ||
           (!strcmp(where, "idle") && shape.was_idle) || (!strcmp(where, "own-stream") && !shape.on_default_stream) ||
           (!strcmp(where, "by4") && shape.is_by4) || (!strcmp(where, "second") && comm && comm->is_second);
}

static bool is_word(const char *stated, const char *word)
{
    return !strcmp(stated, "any") || (word && !strcmp(stated, word));
}

static bool spans_nodes(const struct comm *comm)
{
    for (int rank = 0; comm && rank < comm->size; rank++)
        if (comm->away[rank])
            return true;
    return false;
}

static bool fits(struct fault *fault, enum call call, const struct comm *comm, uint64_t bytes, int peer, struct shape shape)
{
    bool is_collective = call >= ALL_REDUCE && call <= RECV;
    if (fault->call != (int)call && !(fault->call == ANY && is_collective))
        return false;
    if (comm && fault->rank >= 0 && fault->rank != comm->rank)
        return false;
    if ((fault->peer >= 0 && fault->peer != peer) || bytes < fault->min || bytes > fault->max)
        return false;
    if (!is_word(fault->type, shape.type) || !is_word(fault->reduction, shape.reduction) || !is_where(fault->where, shape, comm))
        return false;
    if ((fault->in_place && !shape.in_place) || (fault->split && !(comm && comm->is_split)))
        return false;
    const char *carries = spans_nodes(comm) ? "NET/Socket/0" : transport();
    if (strcmp(fault->transport, "any") && strncmp(fault->transport, carries, strlen(fault->transport)))
        return false;
    fault->calls_made++;
    return fault->nth ? fault->calls_made == fault->nth : fault->calls_made >= fault->from;
}

/* What faults do to a call; those that do not change its data have been done when this returns. */
static int strike_shaped(struct asked *asked, enum call call, const struct comm *comm, uint64_t bytes, int peer, struct shape shape)
{
    asked->effects = 0;
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (!fits(fault, call, comm, bytes, peer, shape))
            continue;
        asked->effects |= 1u << fault->effect;
        asked->of[fault->effect] = *fault;
        switch (fault->effect) {
        case FAIL:
            say(comm, "WARN", "Call to a simulated %s failed", calls[call]);
            return fault->code;
        case NEWER_CUDA:
            say(comm, "WARN", "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'");
            return UNHANDLED_CUDA_ERROR;
        case MULTICAST: /* as NCCL's transport/nvls.cc */
            if (!is_on("NCCL_NVLS_ENABLE", true))
                break;
            say(comm, "WARN",
                "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation "
                "cannot be performed in the present state'");
            return UNHANDLED_CUDA_ERROR;
        case HANG:
            hang_here();
            break;
        case SEGV:
            raise(SIGSEGV);
            break;
        case EXIT:
            _exit(3);
        case DELAY:
            usleep(fault->ms * 1000);
            break;
        case CHATTER:
            for (uint64_t left = fault->bytes; left > 64; left -= 64)
                puts("a line of a library that prints without end, 64 bytes long.  ");
            break;
        case LEAK:
            take_device_memory(fault->bytes);
            break;
        case LEAK_HOST:
            lose_host_memory(fault->bytes);
            break;
        case LEAK_DESCRIPTOR:
            lose_descriptor();
            break;
        case LEAK_THREAD:
            lose_thread();
            break;
        case LEAK_SHARED:
            leave_shared_file();
            break;
        default:
            break;
        }
    }
    return SUCCESS;
}

static int strike(struct asked *asked, enum call call, const struct comm *comm, uint64_t bytes)
{
    return strike_shaped(asked, call, comm, bytes, -1, (struct shape){0});
}

static bool is_asked(const struct asked *asked, enum effect effect)
{
    return asked->effects & 1u << effect;
}

/* Change the result of a call as its faults say. */
static void spoil(const struct asked *asked, char *result, uint64_t bytes, uint64_t element)
{
    if (!bytes)
        return;
    if (is_asked(asked, CORRUPT_LAST))
        result[bytes - element] ^= 1;
    if (is_asked(asked, CORRUPT_MIDDLE))
        result[bytes / 2] ^= 1;
    if (is_asked(asked, OVERRUN))
        result[bytes] ^= 1;
}

/* ---- elements ---- */

static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1};
static const char *const types[] = {"int8",    "uint8",   "int32",   "uint32",  "int64",     "uint64",
                                    "float16", "float32", "float64", "bfloat16", "float8e4m3"};
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, DOUBLED }; /* the last: the only scalar that ranks give here is 2 */
static const char *const reductions[] = {"sum", "product", "maximum", "minimum", "average", "doubled"};

static float of_bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bfloat(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

/* Normal numbers and zero only: the checks send no others. */
static float of_half(uint16_t bits)
{
    uint32_t wide = (uint32_t)(bits & 0x8000) << 16;
    float value;
    if (bits & 0x7fff)
        wide |= (((uint32_t)(bits >> 10 & 31) + 112) << 23) | (uint32_t)(bits & 0x3ff) << 13;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_half(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if (!(wide & 0x7fffffff))
        return (uint16_t)(wide >> 16);
    return (uint16_t)((wide >> 16 & 0x8000) | ((wide >> 23 & 0xff) - 112) << 10 | (wide >> 13 & 0x3ff));
}

#define COMBINE(type)                                                                                                            \
    do {                                                                                                                         \
        type *into = to;                                                                                                         \
        const type *more = from;                                                                                                 \
        for (size_t i = 0; i < count; i++)                                                                                       \
            into[i] = op == SUM ? (type)(into[i] + more[i]) : op == MAXIMUM ? (into[i] > more[i] ? into[i] : more[i])                    \
                                                                    : (into[i] < more[i] ? into[i] : more[i]);                   \
    } while (0)

#define COMBINE_SHORT(read, write)                                                                                               \
    do {                                                                                                                         \
        uint16_t *into = to;                                                                                                     \
        const uint16_t *more = from;                                                                                             \
        for (size_t i = 0; i < count; i++) {                                                                                     \
            float a = read(into[i]), b = read(more[i]);                                                                          \
            into[i] = write(op == SUM ? a + b : op == MAXIMUM ? (a > b ? a : b) : (a < b ? a : b));                                      \
        }                                                                                                                        \
    } while (0)

static void combine(void *to, const void *from, size_t count, int type, int op)
{
    switch (type) {
    case INT8: COMBINE(int8_t); break;
    case UINT8:
    case FLOAT8E4M3: COMBINE(uint8_t); break; /* of floats the maximum of positive ones only, whose bits are in order */
    case INT32: COMBINE(int32_t); break;
    case UINT32: COMBINE(uint32_t); break;
    case INT64: COMBINE(int64_t); break;
    case UINT64: COMBINE(uint64_t); break;
    case FLOAT32: COMBINE(float); break;
    case FLOAT64: COMBINE(double); break;
    case FLOAT16: COMBINE_SHORT(of_half, to_half); break;
    default: COMBINE_SHORT(of_bfloat, to_bfloat);
    }
}

/* Divide or double a sum; of floats only, as the checks ask. */
static void scale(void *data, size_t count, int type, float by)
{
    for (size_t i = 0; i < count; i++)
        switch (type) {
        case FLOAT32: ((float *)data)[i] *= by; break;
        case FLOAT64: ((double *)data)[i] *= by; break;
        case FLOAT16: ((uint16_t *)data)[i] = to_half(of_half(((uint16_t *)data)[i]) * by); break;
        case BFLOAT16: ((uint16_t *)data)[i] = to_bfloat(of_bfloat(((uint16_t *)data)[i]) * by); break;
        default: refuse(types[type], "no float");
        }
}

/* ---- the calls ---- */

struct operation {
    enum call call;
    struct comm *comm;
    const char *send;
    char *recv;
    uint64_t count; /* of p2p: bytes */
    int type, op, root;
    uint64_t done;
    struct asked asked;
};

static __thread int depth;
static __thread int queued;
static __thread struct operation queue[MAX_QUEUED];

static void pace(uint64_t bytes)
{
    if (bytes > PACE)
        usleep((unsigned)(bytes / PACE));
}

/* Exchange one segment of `bytes` at `send` of each rank: each publishes a piece, then `use` sees those of all. */
static void exchange(struct operation *o, const char *send, uint64_t bytes, bool publishes,
                     void (*use)(struct operation *, uint64_t at, uint64_t bytes, void *), void *data)
{
    struct comm *comm = o->comm;
    for (uint64_t at = 0; at < bytes; at += SLOT) {
        uint64_t piece = bytes - at < SLOT ? bytes - at : SLOT;
        if (publishes)
            memcpy(slot_of(comm, comm->rank), send + at, piece);
        if (!meet(comm) || (comm->here < comm->size && !trade(comm, send + at, piece, o->call == BROADCAST ? o->root : -1)))
            return;
        use(o, at, piece, data);
        if (!meet(comm))
            return;
    }
}

/* How many bytes of this piece of the result arrive. */
static uint64_t arriving(const struct operation *o, uint64_t at, uint64_t bytes)
{
    if (is_asked(&o->asked, LOST))
        return 0;
    if (!is_asked(&o->asked, CUT))
        return bytes;
    uint64_t end = o->asked.of[CUT].bytes;
    return at >= end ? 0 : end - at < bytes ? end - at : bytes;
}

static void reduced(struct operation *o, uint64_t at, uint64_t bytes, void *data)
{
    char *into = data;
    uint64_t element = (uint64_t)sizes[o->type], arrives = arriving(o, at, bytes) / element * element;
    if (!into || !arrives)
        return;
    int op = o->op == AVERAGE || o->op == DOUBLED ? SUM : o->op;
    memcpy(into + at, slot_of(o->comm, 0), arrives);
    for (int rank = 1; rank < o->comm->size; rank++)
        combine(into + at, slot_of(o->comm, rank), arrives / element, o->type, op);
    if (op != o->op)
        scale(into + at, arrives / element, o->type, o->op == DOUBLED ? 2 : 1.0f / (float)o->comm->size);
    if (is_asked(&o->asked, TWICE))
        combine(into + at, slot_of(o->comm, o->comm->rank), arrives / element, o->type, o->op);
}

static void gathered(struct operation *o, uint64_t at, uint64_t bytes, void *data)
{
    uint64_t each = *(uint64_t *)data, arrives = arriving(o, at, bytes);
    for (int rank = 0; rank < o->comm->size; rank++) {
        int from = is_asked(&o->asked, SWAP) ? (rank + 1) % o->comm->size : rank;
        memcpy(o->recv + (uint64_t)rank * each + at, slot_of(o->comm, from), arrives);
    }
}

static void received(struct operation *o, uint64_t at, uint64_t bytes, void *data)
{
    (void)data;
    memcpy(o->recv + at, slot_of(o->comm, o->root), arriving(o, at, bytes));
}

static void perform(struct operation *o)
{
    struct comm *comm = o->comm;
    uint64_t bytes = o->count * (uint64_t)sizes[o->type], result = bytes;
    char *into = o->recv;
    switch (o->call) {
    case ALL_REDUCE:
        exchange(o, o->send, bytes, true, reduced, o->recv);
        break;
    case REDUCE:
        into = comm->rank == o->root ? o->recv : NULL;
        exchange(o, o->send, bytes, true, reduced, into);
        break;
    case REDUCE_SCATTER:
        for (int rank = 0; rank < comm->size; rank++)
            exchange(o, o->send + (uint64_t)rank * bytes, bytes, true, reduced, rank == comm->rank ? o->recv : NULL);
        break;
    case ALL_GATHER:
        exchange(o, o->send, bytes, true, gathered, &bytes);
        result = bytes * (uint64_t)comm->size;
        break;
    default:
        exchange(o, o->send, bytes, comm->rank == o->root, received, NULL);
    }
    if (into)
        spoil(&o->asked, into, result, (uint64_t)sizes[o->type]);
    pace(bytes);
}

/* Move a piece of a message, if its pipe is ready; returns whether it was. */
static bool progress(struct operation *o)
{
    struct comm *comm = o->comm;
    bool sends = o->call == SEND;
    if (comm->away[o->root]) {
        char came[PIECE];
        uint64_t piece = o->count - o->done < PIECE ? o->count - o->done : PIECE;
        ssize_t moved = sends ? send(comm->line[o->root], o->send + o->done, piece, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(comm->line[o->root], came, piece, MSG_DONTWAIT);
        if (!sends && moved > 0)
            memcpy(o->recv + o->done, came, arriving(o, o->done, (uint64_t)moved));
        if (!moved || (moved < 0 && errno != EAGAIN)) {
            lose(comm, o->root);
            o->done = o->count;
        }
        o->done += moved > 0 ? (uint64_t)moved : 0;
        return moved > 0;
    }
    struct pipe *pipe = sends ? pipe_of(comm, comm->rank, o->root) : pipe_of(comm, o->root, comm->rank);
    if (atomic_load(&pipe->full) == sends)
        return false;
    uint64_t piece = o->count - o->done < PIECE ? o->count - o->done : PIECE;
    if (sends)
        memcpy(pipe->data, o->send + o->done, piece);
    else
        memcpy(o->recv + o->done, pipe->data, arriving(o, o->done, piece));
    atomic_store(&pipe->full, sends);
    o->done += piece;
    return true;
}

static bool waits_for_another(int number)
{
    for (int i = 0; i < number; i++)
        if (queue[i].comm == queue[number].comm && queue[i].call == queue[number].call && queue[i].root == queue[number].root &&
            queue[i].done < queue[i].count)
            return true;
    return false;
}

static void run_queue(void)
{
    uint64_t longest = 0;
    unsigned idle = 0;
    for (int i = 0; i < queued; i++)
        if (queue[i].call != SEND && queue[i].call != RECV)
            perform(&queue[i]);
    for (bool busy = true; busy;) {
        bool moved = false;
        busy = false;
        for (int i = 0; i < queued; i++) {
            struct operation *o = &queue[i];
            if ((o->call != SEND && o->call != RECV) || o->done >= o->count)
                continue;
            busy = true;
            moved |= !waits_for_another(i) && progress(o);
        }
        if (busy && !moved && ++idle % 1000 == 0)
            for (int i = 0; i < queued; i++)
                if ((queue[i].comm->is_broken |= is_lost(queue[i].comm)))
                    queue[i].done = queue[i].count, has_lost_a_rank = true;
        if (busy && !moved)
            usleep(20);
    }
    for (int i = 0; i < queued; i++) {
        if (queue[i].call != SEND && queue[i].call != RECV)
            continue;
        if (queue[i].call == RECV)
            spoil(&queue[i].asked, queue[i].recv, queue[i].count, 1);
        longest = queue[i].count > longest ? queue[i].count : longest;
    }
    pace(longest);
    queued = 0;
}

/* ---- operations that a graph keeps ---- */

static bool is_capturing(void *stream)
{
    int (*ask)(void *, int *) = (int (*)(void *, int *))of_driver(is_capturing_name);
    int status = 0;
    return stream && ask && !ask(stream, &status) && status;
}

struct kept { /* operations of a group, or one */
    int ended; /* the driver sets it when the last graph with these has ended */
    int count;
    struct kept *next;
    struct operation operations[];
};
static struct kept *all_kept;

/* NCCL 2.28.9 waits in ncclCommDestroy for graphs with the communicator's operations (seen on an H200). */
static void wait_for_graphs(const struct comm *comm)
{
    for (const struct kept *each = all_kept; each; each = each->next)
        if (each->operations[0].comm == comm && !each->ended)
            hang_here();
}

static void replay(void *what)
{
    const struct kept *kept = what;
    memcpy(queue, kept->operations, (size_t)kept->count * sizeof *queue);
    queued = kept->count;
    run_queue();
}

static void *captured_by; /* the stream to which the queued operations belong, if it is captured */

static int keep_queue(void)
{
    int (*launch)(void *, void (*)(void *), void *) = (int (*)(void *, void (*)(void *), void *))of_driver(launch_name);
    struct kept *kept = malloc(sizeof *kept + (size_t)queued * sizeof *queue);
    if (!kept || !launch)
        abort();
    kept->ended = 0;
    kept->count = queued;
    kept->next = all_kept;
    all_kept = kept;
    memcpy(kept->operations, queue, (size_t)queued * sizeof *queue);
    queued = 0;
    return launch(captured_by, replay, kept) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

static int run_or_keep(void)
{
    if (captured_by && queued)
        return keep_queue();
    run_queue();
    return SUCCESS;
}

static bool was_idle(void)
{
    enum { IDLE_S = 3 };
    static __thread time_t last;
    time_t before = last;
    last = time(NULL);
    return before && last - before >= IDLE_S;
}

static int begin(struct operation o, bool in_place, void *stream)
{
    bool is_p2p = o.call == SEND || o.call == RECV;
    if (!o.comm || o.type < INT8 || o.type > FLOAT8E4M3 || queued == MAX_QUEUED)
        return INVALID_ARGUMENT;
    if (o.call == BROADCAST && o.comm->rank != o.root)
        in_place = false;
    if (is_p2p)
        o.count *= (uint64_t)sizes[o.type];
    uint64_t bytes = is_p2p ? o.count : o.count * (uint64_t)sizes[o.type];
    bool reduces = o.call == ALL_REDUCE || o.call == REDUCE || o.call == REDUCE_SCATTER;
    if (reduces && (o.op < SUM || o.op > DOUBLED))
        return INVALID_ARGUMENT;
    struct shape shape = {types[o.type], reduces ? reductions[o.op] : NULL, in_place, depth > 0, !stream,
                          ((uintptr_t)o.send | (uintptr_t)o.recv) % 16 != 0,
                          (uintptr_t)o.send % 16 && (uintptr_t)o.send % 4 == 0, is_capturing(stream), was_idle()};
    int code = strike_shaped(&o.asked, o.call, o.comm, bytes, o.root, shape);
    if (code)
        return code;
    queue[queued++] = o;
    captured_by = shape.is_captured ? stream : NULL;
    return depth ? SUCCESS : run_or_keep();
}

EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, struct comm *comm, void *stream)
{
    return begin((struct operation){.call = ALL_REDUCE, .comm = comm, .send = send, .recv = recv, .count = count, .type = type, .op = op, .root = -1},
                 send == recv, stream);
}

EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, struct comm *comm, void *stream)
{
    return begin((struct operation){.call = REDUCE, .comm = comm, .send = send, .recv = recv, .count = count, .type = type, .op = op, .root = root},
                 send == recv, stream);
}

EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct comm *comm, void *stream)
{
    return begin((struct operation){.call = BROADCAST, .comm = comm, .send = send, .recv = recv, .count = count, .type = type, .root = root},
                 send == recv, stream);
}

EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type, struct comm *comm, void *stream)
{
    bool valid = comm && type >= INT8 && type <= FLOAT8E4M3;
    bool in_place = valid && (const char *)send == (char *)recv + (uint64_t)comm->rank * count * (uint64_t)sizes[type];
    return begin((struct operation){.call = ALL_GATHER, .comm = comm, .send = send, .recv = recv, .count = count, .type = type, .root = -1},
                 in_place, stream);
}

EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, struct comm *comm, void *stream)
{
    bool valid = comm && type >= INT8 && type <= FLOAT8E4M3;
    bool in_place = valid && (char *)recv == (const char *)send + (uint64_t)comm->rank * count * (uint64_t)sizes[type];
    return begin((struct operation){.call = REDUCE_SCATTER, .comm = comm, .send = send, .recv = recv, .count = count, .type = type, .op = op, .root = -1},
                 in_place, stream);
}

EXPORT int ncclSend(const void *send, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    return begin((struct operation){.call = SEND, .comm = comm, .send = send, .count = count, .type = type, .root = peer}, false, stream);
}

EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    return begin((struct operation){.call = RECV, .comm = comm, .recv = recv, .count = count, .type = type, .root = peer}, false, stream);
}

EXPORT int ncclRedOpCreatePreMulSum(int *made, void *scalar, int type, int residence, struct comm *comm)
{
    (void)residence;
    float two = type == FLOAT32 ? *(float *)scalar : type == FLOAT64 ? (float)*(double *)scalar
                : type == FLOAT16 ? of_half(*(uint16_t *)scalar) : type == BFLOAT16 ? of_bfloat(*(uint16_t *)scalar) : 0;
    *made = DOUBLED;
    return comm && two == 2 ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int ncclRedOpDestroy(int op, struct comm *comm)
{
    return comm && op == DOUBLED ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

EXPORT int ncclGroupEnd(void)
{
    if (depth <= 0)
        return INVALID_USAGE;
    return --depth ? SUCCESS : run_or_keep();
}

EXPORT int ncclGetVersion(int *version)
{
    *version = own_version;
    return SUCCESS;
}

EXPORT int ncclGetUniqueId(unique_id *id)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof *id);
    uint64_t word = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + ((uint64_t)getpid() << 48);
    memcpy(id->internal, &word, sizeof word);
    if (own_node())
        host_meeting(id);
    return SUCCESS;
}

EXPORT int ncclCommInitRank(struct comm **comm, int size, unique_id id, int rank)
{
    uint64_t word;
    struct asked asked;
    struct comm before = {.rank = rank, .size = size, .device = rank};
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size)
        return INVALID_ARGUMENT;
    memcpy(&word, id.internal, sizeof word);
    say(&before, "INFO", "%s version %d.%d.%d+simulated", SUBJECT, own_version / 10000, own_version / 100 % 100, own_version % 100);
    int code = strike(&asked, INIT, &before, 0);
    if (!code && has_lost_a_rank)
        code = strike(&asked, RESTART, &before, 0);
    if (!code)
        *comm = join(word, rank, size, rank, false, own_node() ? id.internal : NULL, &code);
    return code;
}

EXPORT int ncclCommSplit(struct comm *comm, int color, int key, struct comm **made, void *config)
{
    (void)config;
    struct asked asked;
    int code = strike(&asked, SPLIT, comm, 0), place = 0, size = 0;
    if (code)
        return code;
    if (comm->here < comm->size) {
        say(comm, "WARN", "the simulated library splits no communicator over several nodes");
        return INVALID_USAGE;
    }
    comm->meeting->wish[comm->rank].color = color;
    comm->meeting->wish[comm->rank].key = key;
    meet(comm);
    for (int rank = 0; rank < comm->size; rank++) {
        if (comm->meeting->wish[rank].color != color)
            continue;
        size++;
        int other = comm->meeting->wish[rank].key;
        place += other < key || (other == key && rank < comm->rank);
    }
    meet(comm);
    uint64_t id = (comm->id + ++comm->splits) * 0x9e3779b97f4a7c15u + (uint64_t)color + 1;
    *made = color < 0 ? NULL : join(id, place, size, comm->device, true, NULL, &code);
    return SUCCESS;
}

static int end(struct comm *comm, enum call call)
{
    struct asked asked;
    if (!comm)
        return INVALID_ARGUMENT;
    int code = strike(&asked, call, comm, 0);
    say(comm, "INFO", "comm %p rank %d nranks %d - %s COMPLETE", (void *)comm, comm->rank, comm->size, call == ABORT ? "Abort" : "Destroy");
    if (call == ABORT)
        atomic_store(&comm->meeting->aborted, 1);
    if (!code)
        leave(comm);
    return code;
}

EXPORT int ncclCommDestroy(struct comm *comm)
{
    wait_for_graphs(comm);
    return end(comm, DESTROY);
}

EXPORT int ncclCommAbort(struct comm *comm)
{
    return end(comm, ABORT);
}

EXPORT int ncclCommGetAsyncError(struct comm *comm, int *code)
{
    *code = comm && comm->is_broken ? REMOTE_ERROR : SUCCESS;
    return comm ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT const char *ncclGetLastError(struct comm *comm)
{
    (void)comm;
    return last_error;
}

EXPORT const char *ncclGetErrorString(int code)
{
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                                        "invalid usage"};
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "unknown result code";
}

EXPORT int ncclMemAlloc(void **address, size_t bytes)
{
    struct asked asked;
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))of_driver(allocate_name);
    int code = strike(&asked, MEM_ALLOC, NULL, bytes);
    return code ? code : allocate && !allocate(address, bytes) ? SUCCESS : UNHANDLED_CUDA_ERROR;
}

EXPORT int ncclMemFree(void *address)
{
    int (*release)(void *) = (int (*)(void *))of_driver(free_name);
    return release && !release(address) ? SUCCESS : UNHANDLED_CUDA_ERROR;
}

EXPORT int ncclCommRegister(struct comm *comm, void *address, size_t bytes, void **handle)
{
    struct asked asked;
    *handle = address;
    return strike(&asked, REGISTER, comm, bytes);
}

EXPORT int ncclCommDeregister(struct comm *comm, void *handle)
{
    return comm && handle ? SUCCESS : INVALID_ARGUMENT;
}
