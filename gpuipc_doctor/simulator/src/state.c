/* The node-wide state: devices, processes, segments, mappings, in one file that all processes map.
 *
 * A process may be killed at any instruction. So nothing here is a running total: what is used follows from
 * which entries of the tables are taken, and an entry is taken or given up by one store (of its serial
 * number), before or after which everything else is in order. The mutex is robust, and whoever gets it from
 * a dead owner only has to go on.
 *
 * Whether a process lives is asked of the kernel through a file lock that each process holds on one byte of
 * the state file: it goes the moment the process ends, a zombie holds none, and unlike a pid it means the
 * same in every pid namespace. Locks of this kind are dropped when the process closes *any* descriptor of
 * the file, so none is ever closed, and they are not inherited by fork, so a child cannot keep its parent
 * alive.
 *
 * Whether a descriptor that was exported is still open anywhere, in whichever process or in a message that nobody
 * has received, is asked of the kernel likewise: each is an open file description of one file, `exports`, with a
 * lock of its own (F_OFD_SETLK), which goes with the last descriptor of it. Which byte it locks is also its file
 * offset, so that the descriptor itself says which export it is, and one opened anew through /proc does not.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 256, SEGMENTS = 8192, MAPPINGS = 16384, EXPORTS = 4096 };
enum { NOBODY = UINT16_MAX };
#define MAGIC 0x67707569u

struct process {
    uint64_t started; /* clock ticks since boot; tells two processes of one pid apart */
    uint64_t exports; /* so often it has exported something */
    uint64_t leaked[MAX_DEVICES]; /* by its calls: its own until it ends, then nobody's */
    int32_t pid;
    bool present[MAX_DEVICES]; /* it has a context there */
    bool taken;
    bool lost_importer; /* one that held a segment of this process has ended */
};

struct mapping {
    uint64_t serial; /* of the segment; 0 marks a free entry */
    uint16_t holder;
};

struct export { /* of a segment or of a pool, as a descriptor */
    uint64_t number; /* 0 marks a free entry */
    uint64_t serial;
    int32_t pid; /* the exporter's */
    int16_t pool_device; /* the node's number of a pool's device, or -1 where it is of a segment */
};

struct shared {
    uint32_t magic;
    pthread_mutex_t mutex;
    uint64_t last_serial, last_export;
    uint64_t began; /* in ms of the monotonic clock */
    uint64_t leaked[MAX_DEVICES];
    bool lost[MAX_DEVICES];
    /* High-water marks, so that a look at a table stops where it was never used. */
    uint32_t segments, mappings, exports;
    struct process process[PROCESSES];
    struct segment segment[SEGMENTS];
    struct mapping mapping[MAPPINGS];
    struct export export[EXPORTS];
};

static struct shared *shared;
static int state_file = -1, exports_file = -1;
static const char *directory;
static uint16_t my_process = NOBODY;

/* Order the stores before it against the stores after it, as another process sees them. */
#define PUBLISH(word, value) __atomic_store_n(&(word), value, __ATOMIC_SEQ_CST)

static uint64_t start_time_of_this_process(void)
{
    char text[1024];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    /* The command, field 2, may hold spaces and parentheses; what follows its last one is plain. */
    char *field = strrchr(text, ')');
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

static int lock_byte(int command, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(state_file, command, &lock);
    while (result < 0 && errno == EINTR);
    return result < 0 ? -1 : lock.l_type;
}

static off_t byte_of_process(int entry)
{
    return (off_t)sizeof(struct shared) + 1 + entry;
}

static int open_exports(int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/exports", directory);
    return open(path, O_CREAT | O_NOFOLLOW | flags, 0600);
}

/* Byte 0 is held while the file is made ready, so that a maker who dies leaves the work to the next. */
static int open_state(void)
{
    directory = getenv("GPUIPC_SIM_STATE");
    char path[4096];
    if (!directory || snprintf(path, sizeof path, "%s/node", directory) >= (int)sizeof path) {
        fputs("simulated driver: GPUIPC_SIM_STATE does not name a directory\n", stderr);
        return ENOENT;
    }
    state_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    exports_file = open_exports(O_RDWR | O_CLOEXEC);
    if (state_file < 0 || exports_file < 0 || lock_byte(F_SETLKW, F_WRLCK, 0) < 0 ||
        ftruncate(state_file, sizeof(struct shared)) < 0) {
        fprintf(stderr, "simulated driver: %s: %s\n", path, strerror(errno));
        return errno;
    }
    void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, state_file, 0);
    if (map == MAP_FAILED) {
        fprintf(stderr, "simulated driver: %s: %s\n", path, strerror(errno));
        return errno;
    }
    shared = map;
    if (shared->magic != MAGIC) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&shared->mutex, &attributes);
        shared->began = now_ms();
        PUBLISH(shared->magic, MAGIC);
    }
    lock_byte(F_SETLK, F_UNLCK, 0);
    return 0;
}

static int take_entry(void)
{
    for (int i = 0; i < PROCESSES; i++) {
        struct process *process = &shared->process[i];
        if (process->taken || lock_byte(F_SETLK, F_WRLCK, byte_of_process(i)) < 0)
            continue;
        process->pid = getpid();
        process->exports = 0;
        process->lost_importer = false;
        memset(process->leaked, 0, sizeof process->leaked);
        process->started = start_time_of_this_process();
        memset(process->present, 0, sizeof process->present);
        PUBLISH(process->taken, true);
        my_process = (uint16_t)i;
        return 0;
    }
    fputs("simulated driver: too many processes on this node\n", stderr);
    return EUSERS;
}

int state_join(bool as_user)
{
    int error = shared ? 0 : open_state();
    if (!error && as_user && my_process == NOBODY) {
        state_lock();
        error = take_entry();
        state_unlock();
    }
    return error;
}

/* ---- the dead ---- */

static bool alive(int entry)
{
    const struct process *process = &shared->process[entry];
    if (entry == my_process)
        return true;
    /* Another face of this very process: its lock does not show, for it is ours as well. */
    static uint64_t my_start;
    if (!my_start)
        my_start = start_time_of_this_process();
    if (process->pid == getpid() && process->started == my_start)
        return true;
    return lock_byte(F_GETLK, F_WRLCK, byte_of_process(entry)) != F_UNLCK;
}

static void path_of(char *path, size_t bytes, const struct segment *segment)
{
    snprintf(path, bytes, "%s/segment-%llu", directory, (unsigned long long)segment->serial);
}

static void path_of_last_at(char *path, size_t bytes, const struct segment *segment)
{
    snprintf(path, bytes, "%s/last-%d-%d-%llx", directory, segment->pid, segment->device,
             (unsigned long long)segment->address);
}

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Whether somebody maps this segment, or has this pool, or a descriptor of it. */
static bool is_held(uint64_t serial)
{
    for (uint32_t i = 0; i < shared->mappings; i++)
        if (shared->mapping[i].serial == serial)
            return true;
    for (uint32_t i = 0; i < shared->exports; i++)
        if (shared->export[i].number && shared->export[i].serial == serial)
            return true;
    return false;
}

/* A segment goes when its owner gave it up and nobody holds it, or the pool in which it was exported. */
static void settle(struct segment *segment)
{
    if (!segment->serial || !segment->freed || segment->until > now_ms() || is_held(segment->serial) ||
        (segment->pool && is_held(segment->pool)))
        return;
    char path[4096], last[4096];
    path_of(path, sizeof path, segment);
    if (node_has_fault(CALL_ipc_open, STALE, segment->device) ||
        node_has_fault(CALL_vmm_import, STALE, segment->device) ||
        node_has_fault(CALL_dmabuf_export, STALE, segment->device)) {
        path_of_last_at(last, sizeof last, segment);
        rename(path, last);
    } else {
        unlink(path);
    }
    if (segment->kept)
        shared->leaked[segment->device] += segment->bytes;
    PUBLISH(segment->serial, 0);
}

/* After somebody let go of a segment or a pool. */
static void settle_all(uint64_t serial)
{
    for (uint32_t i = 0; i < shared->segments; i++)
        if (shared->segment[i].serial == serial || shared->segment[i].pool == serial)
            settle(&shared->segment[i]);
}

static const struct fault *exit_fault(enum fault_effect effect, const struct segment *segment)
{
    const struct fault *fault = node_fault(CALL_exit, effect, segment->device);
    bool is_meant = fault && (fault->when != BY_DESCRIPTOR || segment->by_descriptor) &&
                    (fault->when != POOL_IMPORTED || segment->pool);
    return is_meant ? fault : NULL;
}

/* What the faults at `exit` do to a segment that a process had when it ended. */
static void mark_by_exit(struct segment *segment)
{
    const struct fault *late = exit_fault(LATE, segment), *leak = exit_fault(LEAK, segment);
    if (exit_fault(KEEP, segment))
        segment->kept = true;
    if (late)
        segment->until = now_ms() + late->ms;
    if (leak)
        shared->leaked[segment->device] += leak->bytes;
}

/* Each step may be repeated, so it does not matter where a process that does this is killed. */
static void bury(int entry)
{
    for (uint32_t i = 0; i < shared->mappings; i++) {
        struct mapping *mapping = &shared->mapping[i];
        if (!mapping->serial || mapping->holder != entry)
            continue;
        struct segment *segment = segment_find(mapping->serial);
        if (segment)
            mark_by_exit(segment);
        if (segment && segment->owner != NOBODY && segment->owner != entry)
            shared->process[segment->owner].lost_importer = true;
        uint64_t serial = mapping->serial;
        PUBLISH(mapping->serial, 0);
        settle_all(serial);
    }
    for (uint32_t i = 0; i < shared->segments; i++) {
        struct segment *segment = &shared->segment[i];
        if (!segment->serial || segment->owner != entry)
            continue;
        if (!segment->freed)
            mark_by_exit(segment);
        segment->freed = true;
        settle(segment);
        segment->owner = NOBODY;
    }
    PUBLISH(shared->process[entry].taken, false);
}

static int lock_export(int file, int command, uint64_t number)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)number, .l_len = 1};
    return fcntl(file, command, &lock) < 0 ? -1 : lock.l_type;
}

/* Exports whose last descriptor was closed. */
static void forget_closed_exports(void)
{
    for (uint32_t i = 0; i < shared->exports; i++) {
        struct export *export = &shared->export[i];
        if (!export->number || lock_export(exports_file, F_OFD_GETLK, export->number) != F_UNLCK)
            continue;
        PUBLISH(export->number, 0);
        settle_all(export->serial);
    }
}

void state_lock(void)
{
    if (pthread_mutex_lock(&shared->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&shared->mutex);
    for (int i = 0; i < PROCESSES; i++)
        if (shared->process[i].taken && !alive(i))
            bury(i);
    forget_closed_exports();
    for (uint32_t i = 0; i < shared->segments; i++)
        if (shared->segment[i].until)
            settle(&shared->segment[i]);
}

void state_unlock(void)
{
    pthread_mutex_unlock(&shared->mutex);
}

bool process_alive(int32_t pid)
{
    for (int i = 0; i < PROCESSES; i++)
        if (shared->process[i].taken && shared->process[i].pid == pid)
            return true; /* state_lock buried the others */
    return false;
}

void state_exports(void)
{
    __atomic_fetch_add(&shared->process[my_process].exports, 1, __ATOMIC_SEQ_CST);
}

uint64_t exports_of(int32_t pid)
{
    for (int i = 0; i < PROCESSES; i++)
        if (shared->process[i].taken && shared->process[i].pid == pid)
            return __atomic_load_n(&shared->process[i].exports, __ATOMIC_SEQ_CST);
    return 0;
}

bool importer_gone(void)
{
    return shared && my_process != NOBODY && shared->process[my_process].lost_importer;
}

unsigned devices_present(void)
{
    unsigned count = 0;
    for (int i = 0; shared && my_process != NOBODY && i < MAX_DEVICES; i++)
        count += shared->process[my_process].present[i];
    return count;
}

bool serial_is_held(uint64_t serial)
{
    return is_held(serial);
}

unsigned holders_of(uint64_t serial)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < shared->mappings; i++)
        count += shared->mapping[i].serial == serial;
    return count;
}

unsigned sharing_processes(void)
{
    bool shares[PROCESSES] = {false};
    unsigned count = 0;
    for (uint32_t i = 0; i < shared->segments; i++)
        if (shared->segment[i].serial && shared->segment[i].owner != NOBODY)
            shares[shared->segment[i].owner] = true;
    for (uint32_t i = 0; i < shared->mappings; i++)
        if (shared->mapping[i].serial)
            shares[shared->mapping[i].holder] = true;
    for (int i = 0; i < PROCESSES; i++)
        count += shares[i];
    return count;
}

/* ---- segments and mappings ---- */

uint64_t state_used(int device)
{
    uint64_t used = node()->device[device].held + shared->leaked[device];
    for (uint32_t i = 0; i < shared->segments; i++)
        if (shared->segment[i].serial && shared->segment[i].device == device)
            used += shared->segment[i].bytes;
    return used;
}

/* A number from 0 to below `most` that depends on `step` alone, so that all processes see the same. */
static uint64_t mixed(uint64_t step, uint64_t most)
{
    uint64_t z = (step + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % most;
}

/* As where a GPU is a NUMA node of the host, and the pages of its files count as used. */
uint64_t state_counted(int device)
{
    enum { PAGE = 64 << 10 };
    static const enum fault_effect movements[] = {DRIFT, SAW, LEVEL, WALK};
    uint64_t age = now_ms() - shared->began, more = 0;
    for (size_t i = 0; i < sizeof movements / sizeof *movements; i++) {
        const struct fault *fault = node_fault(CALL_mem_info, movements[i], device);
        if (!fault)
            continue;
        uint64_t steps = age / fault->ms, into = age % fault->ms;
        if (movements[i] == DRIFT) {
            more += (uint64_t)((double)fault->bytes * (double)age / fault->ms);
        } else if (movements[i] == SAW) {
            uint64_t half = fault->ms / 2;
            more += (uint64_t)((double)fault->bytes * (double)(into < half ? into : fault->ms - into) / half);
        } else if (movements[i] == LEVEL) {
            more += mixed(steps, fault->bytes + 1);
        } else {
            int64_t at = 0;
            for (uint64_t step = 0; step <= steps; step++)
                at += (int64_t)mixed(step, 2 * fault->bytes + 1) - (int64_t)fault->bytes;
            more += (uint64_t)(at < 0 ? -at : at);
        }
    }
    return state_used(device) + more / PAGE * PAGE;
}

struct segment *segment_create(int device, uint64_t bytes, uint64_t address)
{
    uint32_t i = 0;
    while (i < SEGMENTS && shared->segment[i].serial)
        i++;
    if (i == SEGMENTS) {
        fputs("simulated driver: too many allocations on this node\n", stderr);
        errno = ENFILE;
        return NULL;
    }
    struct segment *segment = &shared->segment[i];
    *segment = (struct segment){.bytes = bytes, .address = address, .pid = getpid(),
                                .device = (uint16_t)device, .owner = my_process};
    struct segment named = *segment;
    named.serial = ++shared->last_serial;
    char path[4096];
    path_of(path, sizeof path, &named);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) < 0) {
        int error = errno;
        fprintf(stderr, "simulated driver: %s: %s\n", path, strerror(error));
        if (file >= 0) {
            close(file);
            unlink(path);
        }
        errno = error;
        return NULL;
    }
    close(file);
    if (i >= shared->segments)
        shared->segments = i + 1;
    PUBLISH(segment->serial, named.serial);
    return segment;
}

struct segment *segment_find(uint64_t serial)
{
    for (uint32_t i = 0; serial && i < shared->segments; i++)
        if (shared->segment[i].serial == serial)
            return &shared->segment[i];
    return NULL;
}

static bool same_place(const struct segment *segment, int32_t pid, int device, uint64_t address)
{
    return segment->serial && segment->pid == pid && segment->device == device &&
           segment->address == address;
}

struct segment *segment_at(int32_t pid, int device, uint64_t address)
{
    for (uint32_t i = 0; i < shared->segments; i++)
        if (same_place(&shared->segment[i], pid, device, address) && !shared->segment[i].freed)
            return &shared->segment[i];
    return NULL;
}

struct segment *segment_beside(struct segment *segment)
{
    for (uint32_t i = 0; i < shared->segments; i++) {
        struct segment *other = &shared->segment[i];
        if (other->serial && !other->freed && other != segment && other->pid == segment->pid &&
            other->device == segment->device && other->bytes == segment->bytes)
            return other;
    }
    return segment;
}

static struct segment *segment_before(const struct segment *segment)
{
    struct segment *found = NULL;
    for (uint32_t i = 0; i < shared->segments; i++) {
        struct segment *other = &shared->segment[i];
        if (same_place(other, segment->pid, segment->device, segment->address) &&
            other->serial < segment->serial && (!found || other->serial > found->serial))
            found = other;
    }
    return found;
}

struct segment *segment_newest(struct segment *segment)
{
    struct segment *newest = segment;
    for (uint32_t i = 0; i < shared->segments; i++) {
        struct segment *other = &shared->segment[i];
        if (other->serial > newest->serial && other->pid == segment->pid && other->bytes == segment->bytes &&
            other->device == segment->device)
            newest = other;
    }
    return newest;
}

int segment_open_serial(uint64_t serial)
{
    return segment_open_file(&(struct segment){.serial = serial});
}

int segment_open_file(const struct segment *segment)
{
    char path[4096];
    path_of(path, sizeof path, segment);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int segment_open_last_at(const struct segment *segment)
{
    char path[4096];
    path_of_last_at(path, sizeof path, segment);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* For the fault `stale`: what lay at the segment's address before it, or nothing but zeroes. */
int segment_open_before(const struct segment *segment)
{
    const struct segment *before = segment_before(segment);
    int file = before ? segment_open_file(before) : segment_open_last_at(segment);
    if (file < 0)
        file = memfd_create("zeroes", MFD_CLOEXEC);
    if (lseek(file, 0, SEEK_END) < (off_t)segment->bytes && ftruncate(file, (off_t)segment->bytes) < 0) {
        close(file);
        return -1;
    }
    return file;
}

void segment_free(uint64_t serial)
{
    struct segment *segment = segment_find(serial);
    if (!segment)
        return;
    segment->freed = true;
    settle(segment);
}

int mapping_add(uint64_t serial)
{
    for (uint32_t i = 0; i < MAPPINGS; i++) {
        struct mapping *mapping = &shared->mapping[i];
        if (mapping->serial)
            continue;
        mapping->holder = my_process;
        if (i >= shared->mappings)
            shared->mappings = i + 1;
        PUBLISH(mapping->serial, serial);
        return (int)i;
    }
    fputs("simulated driver: too many mappings on this node\n", stderr);
    return -1;
}

void mapping_remove(int entry)
{
    struct mapping *mapping = &shared->mapping[entry];
    uint64_t serial = mapping->serial;
    PUBLISH(mapping->serial, 0);
    settle_all(serial);
}

/* ---- exports ---- */

uint64_t pool_serial(void)
{
    return ++shared->last_serial;
}

int export_new(const struct shared_thing *what, bool close_on_exec)
{
    uint32_t i = 0;
    while (i < EXPORTS && shared->export[i].number)
        i++;
    uint64_t number = shared->last_export + 1;
    /* Write only: nobody can map it and take what is there for memory (Intel MPI does, where the processor may). */
    int file = i < EXPORTS ? open_exports(O_WRONLY | (close_on_exec ? O_CLOEXEC : 0)) : -1;
    if (file < 0)
        return -1;
    if (lseek(file, (off_t)number, SEEK_SET) < 0 || lock_export(file, F_OFD_SETLK, number) < 0) {
        close(file);
        return -1;
    }
    shared->last_export = number;
    if (i >= shared->exports)
        shared->exports = i + 1;
    shared->export[i] = (struct export){.serial = what->serial, .pid = getpid(),
                                        .pool_device = (int16_t)what->pool_device};
    PUBLISH(shared->export[i].number, number);
    return file;
}

static const struct export *export_behind(int file)
{
    struct stat one, other;
    off_t number = lseek(file, 0, SEEK_CUR);
    if (number <= 0 || !shared->exports || fstat(file, &one) < 0 || fstat(exports_file, &other) < 0 ||
        one.st_dev != other.st_dev || one.st_ino != other.st_ino)
        return NULL;
    for (uint32_t i = 0; i < shared->exports; i++)
        if (shared->export[i].number == (uint64_t)number)
            return &shared->export[i];
    return NULL;
}

bool export_of(int file, struct shared_thing *what)
{
    const struct export *export = export_behind(file);
    if (export)
        *what = (struct shared_thing){.serial = export->serial, .pool_device = export->pool_device};
    return export;
}

int32_t exporter_of_file(int file)
{
    const struct export *export = export_behind(file);
    return export ? export->pid : 0;
}

void segment_pin(uint64_t serial, uint64_t pool)
{
    for (uint32_t i = 0; i < shared->segments; i++) {
        struct segment *other = &shared->segment[i];
        if (other->pool != pool || other->serial == serial || !other->freed || is_held(other->serial))
            continue;
        other->pool = 0; /* the next export replaces the last that nobody has any more */
        settle(other);
    }
    struct segment *segment = segment_find(serial);
    if (segment)
        segment->pool = pool;
}

/* What the owner has freed is held by those who still map it, as on an H200 (driver 580.159.04). */
void state_each_user(int device, void (*each)(int32_t pid, uint64_t bytes, void *data), void *data)
{
    for (int i = 0; i < PROCESSES; i++) {
        if (!shared->process[i].taken)
            continue;
        uint64_t bytes = shared->process[i].leaked[device];
        for (uint32_t j = 0; j < shared->segments; j++) {
            const struct segment *segment = &shared->segment[j];
            if (segment->serial && !segment->freed && segment->owner == i && segment->device == device)
                bytes += segment->bytes;
        }
        for (uint32_t j = 0; j < shared->mappings; j++) {
            const struct mapping *mapping = &shared->mapping[j];
            const struct segment *segment =
                mapping->serial && mapping->holder == i ? segment_find(mapping->serial) : NULL;
            if (segment && segment->freed && !segment->by_descriptor && segment->device == device)
                bytes += segment->bytes;
        }
        if (bytes || shared->process[i].present[device])
            each(shared->process[i].pid, bytes, data);
    }
}

/* ---- single words ---- */

void state_leak(int device, uint64_t bytes)
{
    if (!shared)
        return;
    __atomic_fetch_add(&shared->leaked[device], bytes, __ATOMIC_SEQ_CST);
    if (my_process != NOBODY)
        __atomic_fetch_add(&shared->process[my_process].leaked[device], bytes, __ATOMIC_SEQ_CST);
}

void state_present(int device, bool is_there)
{
    PUBLISH(shared->process[my_process].present[device], is_there);
}

void state_lose_device(int device)
{
    if (shared)
        PUBLISH(shared->lost[device], true);
}

bool state_device_lost(int device)
{
    return shared && __atomic_load_n(&shared->lost[device], __ATOMIC_SEQ_CST);
}
