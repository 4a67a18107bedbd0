/* Which classes of calls does this process make? Part of a library that stands before a driver, NCCL or MPI.
 *
 * A class is the call with what matters of its arguments ("copy-on-device to=imported from=legacy bytes=<=16M").
 * Each is written once a process, when it is first made, so that a process that ends by a signal loses nothing:
 * one line appended to $GPUIPC_RECORD/PID. Without the variable nothing is recorded.
 */
#define _GNU_SOURCE
#include "recorder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CLASSES = 1 << 17, RANGES = 16384, THINGS = 4096, LINE = 512, WORD = 96 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t seen[CLASSES];

/* ---- writing ---- */

static int is_new(uint64_t hash)
{
    for (unsigned at = hash % CLASSES, tries = 0; tries < CLASSES; tries++, at = (at + 1) % CLASSES) {
        if (seen[at] == hash)
            return 0;
        if (!seen[at]) {
            seen[at] = hash;
            return 1;
        }
    }
    return 0;
}

static void write_line(const char *line, size_t length)
{
    const char *directory = getenv("GPUIPC_RECORD");
    char path[LINE];
    if (!directory)
        return;
    snprintf(path, sizeof path, "%s/%d", directory, (int)getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    if (write(file, line, length) < 0) {
    }
    close(file);
}

void record(const char *format, ...)
{
    char line[LINE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 16, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= (int)sizeof line - 16)
        return;
    if (syscall(SYS_gettid) != getpid())
        length += snprintf(line + length, 16, " thread=other");
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)line[i]) * 1099511628211u;
    line[length++] = '\n';
    pthread_mutex_lock(&lock);
    if (is_new(hash | 1))
        write_line(line, (size_t)length);
    pthread_mutex_unlock(&lock);
}

/* ---- words for arguments; each is a constant or in one of a few rotating buffers of the thread ---- */

const char *size_word(uint64_t bytes)
{
    static const struct {
        uint64_t most;
        const char *word;
    } steps[] = {{0, "0"},           {8, "<=8"},           {256, "<=256"},         {4096, "<=4K"},      {65536, "<=64K"},
                 {1 << 20, "<=1M"},  {16 << 20, "<=16M"},  {256 << 20, "<=256M"},  {1ull << 31, "<=2G"}};
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++)
        if (bytes <= steps[i].most)
            return steps[i].word;
    return ">2G";
}

const char *count_word(uint64_t count)
{
    return count <= 1 ? (count ? "1" : "0") : count == 2 ? "2" : count <= 4 ? "<=4" : count <= 16 ? "<=16" : count <= 64 ? "<=64" : ">64";
}

static char *buffer(void)
{
    static __thread char buffers[16][WORD];
    static __thread unsigned next;
    return buffers[next++ % 16];
}

/* ---- memory: which kind an address is of ---- */

static struct range {
    uint64_t base, bytes;
    const char *kind;
} ranges[RANGES];
static unsigned range_count;

void memory_begins(uint64_t base, uint64_t bytes, const char *kind)
{
    pthread_mutex_lock(&lock);
    if (range_count < RANGES)
        ranges[range_count++] = (struct range){base, bytes, kind};
    pthread_mutex_unlock(&lock);
}

void memory_ends(uint64_t base)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = range_count; i-- > 0;)
        if (ranges[i].base == base) {
            ranges[i] = ranges[--range_count];
            break;
        }
    pthread_mutex_unlock(&lock);
}

unsigned memories_of(const char *kind)
{
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < range_count; i++)
        count += !strcmp(ranges[i].kind, kind);
    pthread_mutex_unlock(&lock);
    return count;
}

/* The driver's recorder knows memory and streams also for those before other libraries. */
static const char *asked(const char *name, uint64_t of)
{
    const char *(*answer)(uint64_t) = (const char *(*)(uint64_t))dlsym(RTLD_DEFAULT, name);
    return answer ? answer(of) : NULL;
}

/* "legacy", "legacy+" inside an allocation, "legacy+odd" at an address that no 4 divide, "host" of no kind. */
const char *memory_word(uint64_t address)
{
    const char *kind = "host", *known = strcmp(LIBRARY, "CUDA") ? asked("recorder_memory_word", address) : NULL;
    uint64_t base = address;
    if (!address)
        return "null";
    if (known)
        return known;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < range_count; i++)
        if (address >= ranges[i].base && address < ranges[i].base + ranges[i].bytes) {
            kind = ranges[i].kind;
            base = ranges[i].base;
            break;
        }
    pthread_mutex_unlock(&lock);
    char *word = buffer();
    snprintf(word, WORD, "%s%s%s", kind, address == base ? "" : "+",
             address % 4 ? "odd" : address % 16 ? "by4" : "");
    return word;
}

/* ---- streams, events, communicators: what was said of them when they were made ---- */

static struct thing {
    const void *handle;
    const char *word;
    long number;
} things[THINGS];

void thing_is(const void *handle, const char *word, long number)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0, at = (uintptr_t)handle / 16 % THINGS; i < THINGS; i++, at = (at + 1) % THINGS)
        if (!things[at].handle || things[at].handle == handle) {
            things[at] = (struct thing){handle, word, number};
            break;
        }
    pthread_mutex_unlock(&lock);
}

static struct thing thing_at(const void *handle, struct thing unknown)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0, at = (uintptr_t)handle / 16 % THINGS; i < THINGS && things[at].handle; i++, at = (at + 1) % THINGS)
        if (things[at].handle == handle) {
            unknown = things[at];
            break;
        }
    pthread_mutex_unlock(&lock);
    return unknown;
}

const char *thing_word(const void *handle, const char *unknown)
{
    return thing_at(handle, (struct thing){.word = unknown}).word;
}

long thing_number(const void *handle)
{
    return thing_at(handle, (struct thing){.number = 1}).number;
}

const char *stream_word(const void *stream)
{
    if (strcmp(LIBRARY, "CUDA"))
        return asked("recorder_stream_word", (uint64_t)stream) ?: "?";
    return !stream ? "default" : (uintptr_t)stream == 1 ? "legacy" : (uintptr_t)stream == 2 ? "per-thread" : thing_word(stream, "own");
}

/* ---- the library behind ---- */

struct stub *stub_at(const void *function)
{
    for (struct stub *stub = stubs; stub->name; stub++)
        if (stub->real == function)
            return stub;
    return NULL;
}

static void *library;

/* MPI's functions exist a second time for tools, as PMPI_…, in the library that the process has loaded anyhow. */
static int is_mpi(struct dl_phdr_info *object, size_t bytes, void *path)
{
    (void)bytes;
    if (strstr(object->dlpi_name, "/libmpi.so") || strstr(object->dlpi_name, "/libmpich.so"))
        *(const char **)path = object->dlpi_name;
    return 0;
}

static void open_library(void)
{
    const char *path = getenv("GPUIPC_RECORD_" LIBRARY), *prefix = strcmp(LIBRARY, "MPI") ? "" : "P";
    if (*prefix)
        dl_iterate_phdr(is_mpi, &path);
    library = dlopen(path ? path : DEFAULT_PATH, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "recorder: %s\n", dlerror());
        _exit(97);
    }
    for (struct stub *stub = stubs; stub->name; stub++) {
        char name[LINE];
        snprintf(name, sizeof name, "%s%s", prefix, stub->name);
        stub->real = dlsym(library, name);
    }
}

/* The library's own function. It is opened at the first call, as it would be without us: some programs never make one. */
void *real_of(struct stub *stub)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return stub->real;
}

/* The first call of a function of whose arguments nothing is known; from assembly. */
void stub_first(struct stub *stub)
{
    real_of(stub);
    record("%s", stub->name);
    stub->called = 1;
}
