/* Real MPI calls that misbehave as GPUIPC_SIM_MPI says; preloaded into the ranks of a simulated node.
 *
 * Built without any MPI's headers, for all of them. A handle is an int in MPICH and its kin and a pointer in
 * Open MPI; as an argument either fits a pointer and is passed on as it came. A request in memory has the size
 * that its library gives it. The real call is the one under the name that the standard keeps for tools (PMPI_…).
 *
 * Simulated device memory is mapped where its address says, so what a message delivered can be changed in place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SUBJECT "MPI faults"
#include "fault_lines.h"
#include "losses.h"

#define EXPORT __attribute__((visibility("default")))

typedef void *handle;

/* ---- the faults ---- */

static const char *const calls[] = {"MPI_Init_thread", "MPI_Finalize", "MPI_Send", "MPI_Recv", "MPI_Isend",
                                    "MPI_Irecv",       "MPI_Wait",     "MPI_Waitall", "MPI_Sendrecv", "MPI_Mrecv",
                                    "MPI_Start",
#define CALL_OF(name, word) "MPI_" #name,
#include "mpi_calls.def"
#undef CALL_OF
                                    NULL};
enum call {
    INIT,
    FINALIZE,
    SEND,
    RECV,
    ISEND,
    IRECV,
    WAIT,
    WAITALL,
    SENDRECV,
    MRECV,
    START,
#define CALL_OF(name, word) word,
#include "mpi_calls.def"
#undef CALL_OF
};

static const char *const effects[] = {"hang",  "abort",           "segv",        "leak",           "corrupt-byte", "corrupt-guard",
                                      "stale", "leak-descriptor", "leak-thread", "leak-addresses", "leak-host",
                                      "wrong-source", "wrong-count", "ignore-error", "corrupt-gap", "swap", "corrupt-last",
                                      "error", "lose", "late", "early", "not-atomic", "corrupt-first", "old-copy", NULL};
enum effect {
    HANG = 1 << 0,
    ABORT = 1 << 1,
    SEGV = 1 << 2,
    LEAK = 1 << 3,
    CORRUPT_BYTE = 1 << 4,
    CORRUPT_GUARD = 1 << 5,
    STALE = 1 << 6,
    LEAK_DESCRIPTOR = 1 << 7,
    LEAK_THREAD = 1 << 8,
    LEAK_ADDRESSES = 1 << 9,
    LEAK_HOST = 1 << 10,
    WRONG_SOURCE = 1 << 11,
    WRONG_COUNT = 1 << 12,
    IGNORE_ERROR = 1 << 13,
    CORRUPT_GAP = 1 << 14,
    SWAP = 1 << 15,
    CORRUPT_LAST = 1 << 16,
    ERROR = 1 << 17,
    LOSE = 1 << 18,
    LATE = 1 << 19,
    EARLY = 1 << 20,
    NOT_ATOMIC = 1 << 21,
    CORRUPT_FIRST = 1 << 22,
    OLD_COPY = 1 << 23,
};

/* What a fault may ask of a call's arguments. */
enum shape { IN_PLACE = 1 << 0, ZERO_COUNT = 1 << 1, NEGATIVE_BOUND = 1 << 2, LARGE_TAG = 1 << 3, FIRST_TYPE = 1 << 4,
             FLOAT32 = 1 << 9, BYTE = 1 << 10, SUM = 1 << 11, INTER = 1 << 12, SELF = 1 << 13, SPLIT = 1 << 14,
             DUPLICATE = 1 << 15, GRAPH = 1 << 16, CART = 1 << 17 };

static const char *const types[] = {"any", "large-tag", "contiguous", "vector", "indexed", "struct", "subarray",
                                    "float32", "byte", "sum", "inter", "self", "split", "dup", "graph", "cart", NULL};

static const char *const places[] = {"any", "device", "host", "pool", "vmm", "pinned", NULL};
enum place { ANYWHERE, DEVICE, HOST, POOL, VMM, PINNED };

/* libfabric's levels, of which each includes those before it. */
static const char *const levels[] = {"warn", "trace", "info", "debug", NULL};

/* What a cache of buffers holds for one of them. */
struct kept {
    const void *buffer;
    uint64_t bytes;
    void *lost;
};

struct fault {
    enum call call;
    enum effect effect;
    enum place memory;
    int level; /* of libfabric's log, from which on it says why */
    int rank; /* -1: any */
    uint64_t min, max, bytes;
    struct kept *kept;
    unsigned keeps; /* buffers, after which the one not used for longest is given up; 0: all */
    int overlapped; /* whether a buffer is also given up once a later one lies over it */
    unsigned nth, from, every, until, calls_made;
    unsigned outstanding; /* only while so many receives are posted */
    int elsewhere; /* only in communicators that are not the world's */
    unsigned shape; /* only with such arguments */
    int thread;    /* only in a thread other than the process's first */
    unsigned idle; /* only after so many milliseconds without a call that is counted here */
};

/* What faults do to one message. */
struct asked {
    unsigned effects;
    uint64_t behind; /* bytes between its end and the one that corrupt-guard changes */
};

static struct fault faults[MAX_FAULTS];
static int fault_count;
static bool messages_are_kept; /* for a fault that delivers one again */
static int own_rank;

static void read_fault(const char *line)
{
    char call[32], with[32], effect[32], memory[32], level[32], variable[64], value[64];
    int in_place, zero_count, negative_bound;
    if (fault_count == MAX_FAULTS)
        refuse(line, "one fault too many");
    struct fault *fault = &faults[fault_count];
    int read = sscanf(line,
                      "fault call=%31s do=%31s memory=%31s rank=%d min=%lu max=%lu bytes=%lu keeps=%u nth=%u "
                      "from=%u every=%u until=%u log=%31s variable=%63s value=%63s overlapped=%d "
                      "outstanding=%u elsewhere=%d in_place=%d zero_count=%d negative_bound=%d thread=%d idle=%u with=%31s",
                      call, effect, memory, &fault->rank, &fault->min, &fault->max, &fault->bytes,
                      &fault->keeps, &fault->nth, &fault->from, &fault->every, &fault->until, level, variable, value,
                      &fault->overlapped, &fault->outstanding, &fault->elsewhere, &in_place, &zero_count, &negative_bound,
                      &fault->thread, &fault->idle, with);
    if (read != 24)
        refuse(line, "not a fault");
    fault->shape = (in_place ? IN_PLACE : 0) | (zero_count ? ZERO_COUNT : 0) | (negative_bound ? NEGATIVE_BOUND : 0);
    int word = word_of(types, with, line);
    fault->shape |= word ? (unsigned)LARGE_TAG << (word - 1) : 0;
    if (fault->keeps && !(fault->kept = calloc(fault->keeps, sizeof *fault->kept)))
        refuse(line, "no memory");
    const char *set = getenv(variable);
    fault_count += !set || strcmp(set, value); /* this setting cures it */
    fault->level = word_of(levels, level, line);
    fault->call = (enum call)word_of(calls, call, line);
    fault->effect = (enum effect)(1 << word_of(effects, effect, line));
    fault->memory = (enum place)word_of(places, memory, line);
    messages_are_kept |= fault->effect == STALE;
}

/* Which rank this is, before MPI_Init: the launchers of MPICH and its kin, of Open MPI, and Slurm say it. */
static int rank_of_launcher(void)
{
    static const char *const names[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", NULL};
    for (int i = 0; names[i]; i++)
        if (getenv(names[i]))
            return atoi(getenv(names[i]));
    return 0;
}

__attribute__((constructor)) static void read_faults(void)
{
    read_fault_lines("GPUIPC_SIM_MPI", read_fault);
    own_rank = rank_of_launcher();
}

/* ---- the real library, and the driver beside it ---- */

/* The object that initialised MPI. mpi4py loads the MPI library for itself (RTLD_LOCAL), where RTLD_NEXT does not
 * look, but it is among what that object depends on. */
static void *user;

static void look_from(void *caller)
{
    Dl_info where;
    if (dladdr(caller, &where))
        user = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!user) /* called from a C program, which is no library */
        user = dlopen(NULL, RTLD_LAZY);
    if (!user)
        refuse("MPI_Init_thread", "the MPI library cannot be found from where it was called");
}

static void *look_up(const char *name)
{
    return user ? dlsym(user, name) : NULL;
}

static void *demand(const char *name)
{
    void *found = look_up(name);
    if (!found)
        refuse(name, "the MPI library does not have it, or was not initialised by MPI_Init_thread");
    return found;
}

/* Once for each place where it stands; `find` is look_up or demand. */
#define ONCE(find, name)                                                                                               \
    ({                                                                                                                 \
        static bool asked;                                                                                             \
        static void *found;                                                                                            \
        if (!asked)                                                                                                    \
            found = find(name);                                                                                        \
        asked = true;                                                                                                  \
        found;                                                                                                         \
    })

static bool handles_are_pointers(void)
{
    return ONCE(look_up, "ompi_mpi_comm_world") != NULL;
}

static uint64_t bytes_of(int64_t count, handle type)
{
    int (*type_size)(handle, int *) = ONCE(demand, "PMPI_Type_size");
    int size = 0;
    type_size(type, &size);
    return (uint64_t)count * (uint64_t)size;
}

static bool is_world(handle comm)
{
    void *world = ONCE(look_up, "ompi_mpi_comm_world");
    return world ? comm == world : (uint32_t)(uintptr_t)comm == 0x44000000; /* as an int, in MPICH and its kin */
}

/* Call a function that both drivers have, in the driver that this process uses; whether one succeeded. */
static bool ask_driver(const char *cuda, const char *hip, void *first, uintptr_t second, uintptr_t third)
{
    const char *const libraries[] = {"libcuda.so.1", "libamdhip64.so"}, *const names[] = {cuda, hip};
    for (int i = 0; i < 2; i++) {
        void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        int (*function)(void *, uintptr_t, uintptr_t) = NULL;
        if (library)
            *(void **)&function = dlsym(library, names[i]);
        if (function && function(first, second, third) == 0)
            return true;
    }
    return false;
}

static bool is_on_device(const void *address)
{
    void *base;
    size_t bytes;
    return ask_driver("cuMemGetAddressRange_v2", "hipMemGetAddressRange", &base, (uintptr_t)&bytes,
                      (uintptr_t)address);
}

/* Where the first byte of a message of this type lies, from the buffer's address on. */
static intptr_t first_byte(handle type)
{
    int (*extent_of)(handle, intptr_t *, intptr_t *) = ONCE(demand, "PMPI_Type_get_true_extent");
    intptr_t begin = 0, extent = 0;
    extent_of(type, &begin, &extent);
    return begin;
}

static unsigned shape_of_type(handle type)
{
    int (*extent_of)(handle, intptr_t *, intptr_t *) = ONCE(demand, "PMPI_Type_get_extent");
    intptr_t begin = 0, extent = 0;
    static const unsigned char combiners[] = {2, 3, 6, 11, 12}; /* of Open MPI; in MPICH and its kin one more */
    int (*envelope)(handle, int *, int *, int *, int *) = ONCE(demand, "PMPI_Type_get_envelope");
    int integers, addresses, kinds, combiner = 0;
    int (*get_name)(handle, char *, int *) = ONCE(demand, "PMPI_Type_get_name");
    char name[128] = "";
    unsigned shape = 0;
    extent_of(type, &begin, &extent);
    envelope(type, &integers, &addresses, &kinds, &combiner);
    get_name(type, name, &integers);
    shape |= !strcmp(name, "MPI_FLOAT") ? FLOAT32 : !strcmp(name, "MPI_BYTE") ? BYTE : 0;
    for (unsigned i = 0; i < sizeof combiners; i++)
        shape |= combiner == combiners[i] + !handles_are_pointers() ? FIRST_TYPE << i : 0;
    return (begin < 0 ? NEGATIVE_BOUND : 0) | shape;
}

static unsigned shape_of_op(handle op)
{
    void *sum = ONCE(look_up, "ompi_mpi_op_sum");
    return (sum ? op == sum : (uint32_t)(uintptr_t)op == 0x58000003) ? SUM : 0;
}

/* How a communicator was made, as far as the library says: a duplicate has the world's ranks in their order. */
static unsigned shape_of_comm(handle comm)
{
    int (*is_inter)(handle, int *) = ONCE(demand, "PMPI_Comm_test_inter");
    int (*topology)(handle, int *) = ONCE(demand, "PMPI_Topo_test");
    int (*compare)(handle, handle, int *) = ONCE(demand, "PMPI_Comm_compare");
    void *world = ONCE(look_up, "ompi_mpi_comm_world"), *self = ONCE(look_up, "ompi_mpi_comm_self");
    int inter = 0, made = 0, same = 0, graph = world ? 2 : 1, cart = world ? 1 : 2;
    if (!comm || is_world(comm))
        return 0;
    if (self ? comm == self : (uint32_t)(uintptr_t)comm == 0x44000001)
        return SELF;
    is_inter(comm, &inter);
    if (inter)
        return INTER;
    topology(comm, &made);
    compare(comm, world ? world : (handle)(uintptr_t)0x44000000, &same);
    return made == graph ? GRAPH : made == cart ? CART : same == 1 ? DUPLICATE : SPLIT;
}

/* Whether an address is where a fault strikes. What NULL is, nobody asks. */
static bool is_in(enum place place, const void *address)
{
    enum { MEMORY_TYPE = 2, MEMPOOL_HANDLE = 17, TYPE_HOST = 1 };
    uint64_t value = 0;
    void *memory;
    switch (place) {
    case ANYWHERE:
        return true;
    case DEVICE:
        return is_on_device(address);
    case HOST:
        return !is_on_device(address);
    case POOL:
        return ask_driver("cuPointerGetAttribute", "hipPointerGetAttribute", &value, MEMPOOL_HANDLE,
                          (uintptr_t)address);
    case PINNED:
        return ask_driver("cuPointerGetAttribute", "hipPointerGetAttribute", &value, MEMORY_TYPE,
                          (uintptr_t)address) &&
               value == TYPE_HOST;
    case VMM:
        return ask_driver("cuMemRetainAllocationHandle", "hipMemRetainAllocationHandle", &memory, (uintptr_t)address,
                          0) &&
               ask_driver("cuMemRelease", "hipMemRelease", memory, 0, 0);
    }
    return false;
}

static void *leak(uint64_t bytes)
{
    void *lost;
    if (!ask_driver("cuMemAlloc_v2", "hipMalloc", &lost, bytes, 0))
        refuse("leak", "this rank's driver gives no memory");
    return lost;
}

static void give_up(struct kept *kept)
{
    if (kept->lost && !ask_driver("cuMemFree_v2", "hipFree", kept->lost, 0, 0))
        refuse("leak", "this rank's driver takes no memory back");
    *kept = (struct kept){0};
}

/* As Open MPI's smcuda, which notices that freed memory was allocated again. */
static void give_up_overlapped(const struct fault *fault, const void *buffer, uint64_t bytes)
{
    for (struct kept *kept = fault->kept; kept < fault->kept + fault->keeps; kept++) {
        bool is_same = kept->buffer == buffer && kept->bytes == bytes;
        if (!is_same && (uintptr_t)kept->buffer < (uintptr_t)buffer + bytes &&
            (uintptr_t)buffer < (uintptr_t)kept->buffer + kept->bytes)
            give_up(kept);
    }
}

/* Have this buffer in the cache, most recently used first. A buffer that is there costs nothing again. */
static void keep(const struct fault *fault, const void *buffer, uint64_t bytes)
{
    struct kept *cache = fault->kept, used = {buffer, bytes, NULL};
    unsigned at = 0, last = fault->keeps - 1;
    if (fault->overlapped)
        give_up_overlapped(fault, buffer, bytes);
    while (at < last && (cache[at].buffer != buffer || cache[at].bytes != bytes))
        at++;
    if (cache[at].buffer == buffer && cache[at].bytes == bytes) {
        used = cache[at];
    } else {
        give_up(&cache[at]);
        used.lost = leak(fault->bytes ? fault->bytes : bytes);
    }
    memmove(cache + 1, cache, at * sizeof *cache);
    cache[0] = used;
}

/* ---- what happens: frames and lines are those of a cxi node (December 2023) ---- */

static volatile bool waiting = true;
static volatile unsigned polls;

/* Leave the processor to those who have something to do, from within whose frame this is in. */
__attribute__((always_inline)) static inline void rest(void)
{
    static const struct timespec moment = {.tv_nsec = 1000000};
    long number = SYS_nanosleep;
#if defined __x86_64__
    __asm__ volatile("syscall" : "+a"(number) : "D"(&moment), "S"(NULL) : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long x8 __asm__("x8") = number;
    register const struct timespec *x0 __asm__("x0") = &moment;
    register void *x1 __asm__("x1") = NULL;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
#else
    (void)moment, (void)number;
#endif
}

__attribute__((noinline)) static void cxip_cq_eq_progress(void)
{
    for (unsigned i = 0; i < UINT_MAX; i++) {
        polls++;
        rest();
    }
}

__attribute__((noinline)) static void cxip_cq_progress(void)
{
    cxip_cq_eq_progress();
    polls++;
}

__attribute__((noinline)) static void ofi_cq_readfrom(void)
{
    cxip_cq_progress();
    polls++;
}

__attribute__((noinline)) static void MPIR_Wait_impl(void)
{
    while (waiting)
        ofi_cq_readfrom();
}

/* As libfabric's: without FI_LOG_LEVEL nothing is said, and a word that is no level is the first. */
static int log_level(void)
{
    const char *asked = getenv("FI_LOG_LEVEL");
    for (int i = 0; asked && levels[i]; i++)
        if (!strcasecmp(asked, levels[i]))
            return i;
    return asked ? 0 : -1;
}

static void complain(int level, const char *part, const char *function, int line, const char *text)
{
    if (level <= log_level())
        fprintf(stderr, "libfabric:%d:%lld::cxi:%s:%s():%d<%s> node01: %s\n", getpid(), (long long)time(NULL), part,
                function, line, levels[level], text);
}

static void fail_to_map(int level, const void *buffer, uint64_t bytes)
{
    char text[128];
    snprintf(text, sizeof text, "Failed to acquire mapping (%p, %lu): -22", buffer, bytes);
    complain(level, "mr", "cxip_do_map", 90, "cxil_map() failed: -22");
    complain(level, "mr", "cxip_map_cache", 313, text);
    complain(level, "ep_data", "cxip_recv_req_alloc", 211, "RXC (0xbf3:0:0) PtlTE 12: Failed to map recv buffer: -22");
    complain(level, "ep_data", "cxip_recv_common", 3434, "RXC (0xbf3:0:0) PtlTE 12: Failed to allocate recv request");
}

static volatile int *volatile nowhere = NULL;

static void happen(const struct fault *fault, const void *buffer, uint64_t bytes)
{
    switch (fault->effect) {
    case HANG:
    case ABORT:
        if (buffer)
            fail_to_map(fault->level, buffer, bytes);
        if (fault->effect == ABORT)
            abort();
        MPIR_Wait_impl();
        break;
    case SEGV:
        *nowhere = 0;
        break;
    case LEAK:
        if (fault->keeps)
            keep(fault, buffer, bytes);
        else
            leak(fault->bytes);
        break;
    case LEAK_DESCRIPTOR:
        lose_descriptor();
        break;
    case LEAK_THREAD:
        lose_thread();
        break;
    case LEAK_ADDRESSES:
        lose_addresses(fault->bytes);
        break;
    case LEAK_HOST:
        lose_host_memory(fault->bytes);
        break;
    default: /* done to what the message delivers */
        break;
    }
}

static bool occurs(struct fault *fault)
{
    unsigned count = ++fault->calls_made;
    if (fault->until && count > fault->until)
        return false;
    if (fault->nth)
        return count == fault->nth;
    if (fault->every)
        return count >= fault->from && count % fault->every == 0;
    return count >= fault->from;
}

/* Messages that an MPI_Irecv waits for. */
enum { MAX_POSTED = 256 };
static struct posted {
    uint64_t request; /* 0: this entry is free */
    void *buffer;
    uint64_t bytes;
    handle comm;
    bool is_collective; /* its faults were those of the call that began it */
    void *former;       /* the buffer's content before that call, for a fault that withholds the result */
    struct asked asked;
} posted[MAX_POSTED];

static unsigned outstanding(void)
{
    unsigned count = 0;
    for (struct posted *entry = posted; entry < posted + MAX_POSTED; entry++)
        count += entry->request != 0 && !entry->is_collective;
    return count;
}

static bool concerns(const struct fault *fault, enum call call, const void *buffer, uint64_t bytes, handle comm)
{
    return fault->call == call && (fault->rank < 0 || fault->rank == own_rank) && fault->min <= bytes &&
           bytes <= fault->max && is_in(fault->memory, buffer) && fault->outstanding <= outstanding() &&
           !(fault->elsewhere && is_world(comm)) && !(fault->thread && syscall(SYS_gettid) == getpid());
}

/* Milliseconds since this was last asked. */
static uint64_t idle_ms(void)
{
    static uint64_t last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000, since = last ? ms - last : 0;
    last = ms;
    return since;
}

/* What a call delivered, if a fault asks that the caller sees it only at the next call. */
enum { MAX_WITHHELD = 64 };
static struct withheld {
    void *buffer, *data;
    uint64_t bytes, allocation;
} withheld[MAX_WITHHELD];
static int withheld_count;

/* A copy of memory; the caller frees it. */
static void *copy_of(const void *buffer, uint64_t bytes)
{
    void *copy = malloc(bytes + 1);
    if (!copy)
        refuse("MPI fault", "no memory");
    return memcpy(copy, buffer, bytes);
}

/* The number of the allocation at an address; 0 if there is none. */
static uint64_t allocation_at(const void *address)
{
    enum { BUFFER_ID = 7 };
    uint64_t id = 0;
    ask_driver("cuPointerGetAttribute", "hipPointerGetAttribute", &id, BUFFER_ID, (uintptr_t)address);
    return id;
}

/* Give a buffer its former content until the next call; frees that content. */
static void withhold(void *buffer, void *former, uint64_t bytes)
{
    if (withheld_count < MAX_WITHHELD) {
        withheld[withheld_count++] = (struct withheld){buffer, copy_of(buffer, bytes), bytes, allocation_at(buffer)};
        memcpy(buffer, former, bytes);
    }
    free(former);
}

static void deliver_withheld(void)
{
    for (int i = 0; i < withheld_count; i++) {
        if (withheld[i].allocation && allocation_at(withheld[i].buffer) == withheld[i].allocation)
            memcpy(withheld[i].buffer, withheld[i].data, withheld[i].bytes);
        free(withheld[i].data);
    }
    withheld_count = 0;
}

/* What the faults do before the real call; returns the effects on what it delivers. */
static struct asked before_shaped(enum call call, const void *buffer, uint64_t bytes, handle comm, unsigned shape)
{
    struct asked asked = {0};
    deliver_withheld();
    uint64_t idle = idle_ms();
    for (struct fault *fault = faults; fault < faults + fault_count; fault++) {
        if (fault->call == call && fault->shape >= INTER)
            shape |= shape_of_comm(comm);
        if (fault->shape & ~shape || fault->idle > idle)
            continue;
        if (!concerns(fault, call, buffer, bytes, comm) || !occurs(fault))
            continue;
        happen(fault, buffer, bytes);
        asked.effects |= fault->effect;
        if (fault->effect == CORRUPT_GUARD)
            asked.behind = fault->bytes;
    }
    return asked;
}

static struct asked before(enum call call, const void *buffer, uint64_t bytes, handle comm)
{
    return before_shaped(call, buffer, bytes, comm, 0);
}

/* The last message of each size, for those that are delivered again in place of a later one. */
static void deliver_the_last(unsigned char *buffer, uint64_t bytes, bool again)
{
    enum { SIZES = 64 };
    static struct {
        uint64_t bytes;
        void *data;
    } last[SIZES];
    static int known;
    int i = 0;
    while (i < known && last[i].bytes != bytes)
        i++;
    void *data = i < SIZES ? malloc(bytes) : NULL;
    if (!data)
        return;
    memcpy(data, buffer, bytes);
    if (i == known)
        last[known++].bytes = bytes;
    else if (again)
        memcpy(buffer, last[i].data, bytes);
    free(last[i].data);
    last[i].data = data;
}

static void after(struct asked asked, unsigned char *buffer, uint64_t bytes)
{
    if (bytes && messages_are_kept)
        deliver_the_last(buffer, bytes, asked.effects & STALE);
    if (bytes && asked.effects & CORRUPT_BYTE)
        buffer[bytes / 2] += 0x10; /* done twice, it is not undone */
    if (bytes && asked.effects & CORRUPT_LAST)
        buffer[bytes - 1] += 0x10;
    if (asked.effects & CORRUPT_GUARD)
        buffer[bytes + asked.behind] ^= 0xff;
}

/* What a status says, in the places of MPICH and its kin, else of Open MPI; 0 and 1 stand for no status. */
static void misstate(struct asked asked, int *status, uint64_t bytes)
{
    if ((uintptr_t)status < 4096)
        return;
    if (asked.effects & WRONG_SOURCE)
        status[handles_are_pointers() ? 0 : 2] ^= 1;
    if (asked.effects & WRONG_COUNT && handles_are_pointers())
        memcpy(status + 4, &bytes, sizeof bytes);
    else if (asked.effects & WRONG_COUNT)
        status[0] = (int)bytes;
}

/* ---- the calls ---- */

EXPORT int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    look_from(__builtin_return_address(0));
    int (*real)(int *, char ***, int, int *) = demand("PMPI_Init_thread");
    before(INIT, NULL, 0, NULL);
    return real(argc, argv, required, provided);
}

EXPORT int MPI_Finalize(void)
{
    int (*real)(void) = demand("PMPI_Finalize");
    before(FINALIZE, NULL, 0, NULL);
    return real();
}

static uint64_t request_at(const void *requests, int number)
{
    return handles_are_pointers() ? ((const uint64_t *)requests)[number] : ((const uint32_t *)requests)[number];
}

static struct posted *posted_as(uint64_t request)
{
    for (struct posted *entry = posted; entry < posted + MAX_POSTED; entry++)
        if (entry->request == request)
            return entry;
    return NULL;
}

static void post(uint64_t request, void *buffer, uint64_t bytes, handle comm)
{
    struct posted *entry = posted_as(0);
    if (!entry)
        refuse("MPI_Irecv", "too many messages are waited for at once");
    *entry = (struct posted){.request = request, .buffer = buffer, .bytes = bytes, .comm = comm};
}

typedef int send_call(const void *, int, handle, int, int, handle);
typedef int send_c_call(const void *, int64_t, handle, int, int, handle);
typedef int isend_call(const void *, int, handle, int, int, handle, void *);
typedef int isend_c_call(const void *, int64_t, handle, int, int, handle, void *);
typedef int recv_call(void *, int, handle, int, int, handle, void *);
typedef int recv_c_call(void *, int64_t, handle, int, int, handle, void *);

/* A caller that can do without MPI_Send_c takes ours for the library's (Open MPI 5 has none). */
static int narrow(int64_t count)
{
    if (count > INT_MAX)
        refuse("MPI_…_c", "this MPI library has no calls with large counts");
    return (int)count;
}

#define CALL(name, type, ...)                                                                                          \
    ({                                                                                                                 \
        type##_c_call *wide = ONCE(look_up, "P" #name "_c");                                                           \
        type##_call *plain = ONCE(demand, "P" #name);                                                                  \
        wide ? wide(buffer, count, __VA_ARGS__) : plain(buffer, narrow(count), __VA_ARGS__);                           \
    })

/* Change the first byte of a buffer in which no byte of a message of this type lies. */
static void corrupt_gap(unsigned char *buffer, int64_t count, handle type)
{
    int (*extent_of)(handle, intptr_t *, intptr_t *) = ONCE(demand, "PMPI_Type_get_extent");
    int (*unpack)(const void *, int, int *, void *, int, handle, handle) = ONCE(demand, "PMPI_Unpack");
    void *world = ONCE(look_up, "ompi_mpi_comm_world");
    intptr_t begin, extent;
    int at = 0, bytes = (int)bytes_of(count, type);
    extent_of(type, &begin, &extent);
    extent *= count;
    unsigned char *packed = malloc((size_t)bytes + 1), *image = calloc(1, (size_t)extent + 1);
    if (!packed || !image)
        refuse("corrupt-gap", "no memory");
    memset(packed, 1, (size_t)bytes);
    unpack(packed, bytes, &at, image, narrow(count), type, world ? world : (handle)(uintptr_t)0x44000000);
    unsigned char *gap = memchr(image, 0, (size_t)extent);
    if (gap)
        buffer[gap - image] ^= 0xff;
    free(packed);
    free(image);
}

/* What the faults do to a message that has come; returns the code that the caller gets. */
static int arrived(int code, struct asked asked, void *buffer, int64_t count, handle type, void *status)
{
    if (!code) {
        uint64_t bytes = bytes_of(count, type);
        after(asked, buffer, bytes);
        if (bytes && asked.effects & CORRUPT_FIRST)
            ((unsigned char *)buffer)[first_byte(type)] += 0x10;
        if (bytes && asked.effects & CORRUPT_GAP)
            corrupt_gap(buffer, count, type);
        misstate(asked, status, bytes);
    }
    return asked.effects & IGNORE_ERROR ? 0 : code;
}

EXPORT int MPI_Send_c(const void *buffer, int64_t count, handle type, int to, int tag, handle comm)
{
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = before(SEND, buffer, bytes, comm);
    int code = CALL(MPI_Send, send, type, to, tag, comm);
    if (bytes && asked.effects & CORRUPT_BYTE)
        ((unsigned char *)(uintptr_t)buffer)[bytes / 2] += 0x10; /* after it was sent */
    if (bytes && asked.effects & CORRUPT_LAST)
        ((unsigned char *)(uintptr_t)buffer)[bytes - 1] += 0x10;
    return code;
}

EXPORT int MPI_Isend_c(const void *buffer, int64_t count, handle type, int to, int tag, handle comm, void *request)
{
    before(ISEND, buffer, bytes_of(count, type), comm);
    return CALL(MPI_Isend, isend, type, to, tag, comm, request);
}

EXPORT int MPI_Recv_c(void *buffer, int64_t count, handle type, int from, int tag, handle comm, void *status)
{
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = before(RECV, buffer, bytes, comm);
    int code = CALL(MPI_Recv, recv, type, from, tag, comm, status);
    return arrived(code, asked, buffer, count, type, status);
}

EXPORT int MPI_Irecv_c(void *buffer, int64_t count, handle type, int from, int tag, handle comm, void *request)
{
    uint64_t bytes = bytes_of(count, type);
    before_shaped(IRECV, buffer, bytes, comm, tag > INT16_MAX ? LARGE_TAG : 0);
    int code = CALL(MPI_Irecv, recv, type, from, tag, comm, request);
    if (!code)
        post(request_at(request, 0), buffer, bytes, comm);
    return code;
}

EXPORT int MPI_Send(const void *buffer, int count, handle type, int to, int tag, handle comm)
{
    return MPI_Send_c(buffer, count, type, to, tag, comm);
}

EXPORT int MPI_Isend(const void *buffer, int count, handle type, int to, int tag, handle comm, void *request)
{
    return MPI_Isend_c(buffer, count, type, to, tag, comm, request);
}

EXPORT int MPI_Recv(void *buffer, int count, handle type, int from, int tag, handle comm, void *status)
{
    return MPI_Recv_c(buffer, count, type, from, tag, comm, status);
}

EXPORT int MPI_Irecv(void *buffer, int count, handle type, int from, int tag, handle comm, void *request)
{
    return MPI_Irecv_c(buffer, count, type, from, tag, comm, request);
}

typedef int sendrecv_call(const void *, int, handle, int, int, void *, int, handle, int, int, handle, void *);
typedef int sendrecv_c_call(const void *, int64_t, handle, int, int, void *, int64_t, handle, int, int, handle, void *);
typedef int mrecv_call(void *, int, handle, void *, void *);
typedef int mrecv_c_call(void *, int64_t, handle, void *, void *);

EXPORT int MPI_Sendrecv_c(const void *buffer, int64_t count, handle type, int to, int tag, void *into, int64_t room,
                          handle into_type, int from, int from_tag, handle comm, void *status)
{
    sendrecv_c_call *wide = ONCE(look_up, "PMPI_Sendrecv_c");
    sendrecv_call *plain = ONCE(demand, "PMPI_Sendrecv");
    uint64_t bytes = bytes_of(room, into_type);
    struct asked asked = before_shaped(SENDRECV, into, bytes, comm, shape_of_type(into_type));
    int code = wide ? wide(buffer, count, type, to, tag, into, room, into_type, from, from_tag, comm, status)
                    : plain(buffer, narrow(count), type, to, tag, into, narrow(room), into_type, from, from_tag, comm,
                            status);
    return arrived(code, asked, into, room, into_type, status);
}

EXPORT int MPI_Sendrecv(const void *buffer, int count, handle type, int to, int tag, void *into, int room,
                        handle into_type, int from, int from_tag, handle comm, void *status)
{
    return MPI_Sendrecv_c(buffer, count, type, to, tag, into, room, into_type, from, from_tag, comm, status);
}

EXPORT int MPI_Mrecv_c(void *buffer, int64_t count, handle type, void *message, void *status)
{
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = before(MRECV, buffer, bytes, NULL);
    int code = CALL(MPI_Mrecv, mrecv, type, message, status);
    return arrived(code, asked, buffer, count, type, status);
}

EXPORT int MPI_Mrecv(void *buffer, int count, handle type, void *message, void *status)
{
    return MPI_Mrecv_c(buffer, count, type, message, status);
}

/* The faults of a call that waits are those of the messages that it receives. */
static int begin_waiting(enum call call, int count, const void *requests, struct posted **received)
{
    int found = 0;
    for (int i = 0; i < count; i++) {
        struct posted *entry = posted_as(request_at(requests, i));
        if (entry && entry->request) {
            if (!entry->is_collective)
                entry->asked = before(call, entry->buffer, entry->bytes, entry->comm);
            received[found++] = entry;
        }
    }
    return found;
}

/* Give each of two messages the other's data, as far as the shorter one goes. */
static void swap(struct posted *one, struct posted *other)
{
    unsigned char *first = one->buffer, *second = other->buffer;
    for (uint64_t at = 0; at < one->bytes && at < other->bytes; at++) {
        unsigned char byte = first[at];
        first[at] = second[at];
        second[at] = byte;
    }
}

static void end_waiting(struct posted **received, int count, bool arrived)
{
    if (arrived && count > 1 && received[0]->asked.effects & SWAP)
        swap(received[0], received[1]);
    for (int i = 0; i < count; i++) {
        if (arrived)
            after(received[i]->asked, received[i]->buffer, received[i]->bytes);
        if (received[i]->former)
            withhold(received[i]->buffer, received[i]->former, received[i]->bytes);
        received[i]->request = 0;
    }
}

static void end_of_restarted(uint64_t request); /* a persistent request, of mpi_group_calls.h */

EXPORT int MPI_Wait(void *request, void *status)
{
    int (*real)(void *, void *) = ONCE(demand, "PMPI_Wait");
    struct posted *received[1];
    uint64_t number = request_at(request, 0);
    int found = begin_waiting(WAIT, 1, request, received);
    int code = real(request, status);
    end_waiting(received, found, !code);
    if (!code)
        end_of_restarted(number);
    return code;
}

/* A message that has come by then is as it was sent; it is not waited for any more. */
EXPORT int MPI_Test(void *request, int *flag, void *status)
{
    int (*real)(void *, int *, void *) = ONCE(demand, "PMPI_Test");
    struct posted *entry = posted_as(request_at(request, 0));
    int code = real(request, flag, status);
    if (entry && entry->request && (code || *flag))
        entry->request = 0;
    return code;
}

EXPORT int MPI_Waitall(int count, void *requests, void *statuses)
{
    int (*real)(int, void *, void *) = ONCE(demand, "PMPI_Waitall");
    struct posted *received[MAX_POSTED];
    uint64_t numbers[MAX_POSTED];
    for (int i = 0; i < count && i < MAX_POSTED; i++)
        numbers[i] = request_at(requests, i);
    int found = begin_waiting(WAITALL, count, requests, received);
    int code = real(count, requests, statuses);
    end_waiting(received, found, !code);
    for (int i = 0; i < count && i < MAX_POSTED && !code; i++)
        end_of_restarted(numbers[i]);
    return code;
}

#include "mpi_group_calls.h"
