/* The calls of the C library through which AMD's user space reaches the kernel driver. */
#define _GNU_SOURCE
#include "emulator.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum { KFD, RENDER_NODES, DEVICES = RENDER_NODES + MAX_GPUS };
enum { NOT_OURS = -1, FIRST_PCI_BUS = 0x21, FIRST_RENDER_MINOR = 128, DRM_MAJOR = 226, KFD_MAJOR = 235 };
enum { FIRST_HIGH_DESCRIPTOR = 1 << 15, DOORBELL_BYTES = 8192, REGISTER_BYTES = 65536 };

pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;

static int gpus;
static bool tracing;
static pid_t opener; /* the process that opened KFD; as the real one, it answers no other */

/* Each device is an anonymous file, by whose inode its descriptors are known. */
static struct {
    int file;
    ino_t inode;
} devices[DEVICES];
static dev_t anonymous_files;
static int doorbells = -1, registers = -1;

__attribute__((constructor)) static void start(void)
{
    const char *trace_setting = getenv("KFD_EMULATOR_TRACE");
    tracing = trace_setting && atoi(trace_setting);
    for (gpus = 0; gpus < MAX_GPUS; gpus++) {
        char path[256];
        struct stat heap;
        snprintf(path, sizeof path, "%s/vram%d", run_directory(), gpus);
        if (stat(path, &heap))
            break;
    }
    /* Each buffer is a descriptor here, which it is not on a real node: that shall not run into the usual 1024. */
    struct rlimit limit;
    if (gpus && !getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

const char *run_directory(void)
{
    static char own[256]; /* of programs that clear their environment, as the prolog does */
    const char *named = getenv("KFD_EMULATOR");
    Dl_info library;
    if (!named && !*own && dladdr(run_directory, &library) && strrchr(library.dli_fname, '/'))
        snprintf(own, sizeof own, "%.*s", (int)(strrchr(library.dli_fname, '/') - library.dli_fname),
                 library.dli_fname);
    return named ? named : own;
}

int gpu_count(void)
{
    return gpus;
}

uint32_t gpu_id(int gpu)
{
    return 0x5a00 + gpu;
}

int gpu_with_id(uint32_t id)
{
    return id >= gpu_id(0) && id < gpu_id(gpus) ? (int)(id - gpu_id(0)) : -1;
}

uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void say(const char *format, va_list values)
{
    char text[512];
    vsnprintf(text, sizeof text, format, values);
    dprintf(STDERR_FILENO, "kfd emulator [%d]: %s\n", getpid(), text);
}

void complain(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    say(format, values);
    va_end(values);
}

void trace(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (tracing)
        say(format, values);
    va_end(values);
}

int out_of_the_way(int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FIRST_HIGH_DESCRIPTOR);
    if (high < 0)
        return fd; /* the hard limit is too low for that */
    close(fd);
    return high;
}

static int pages(int *file, const char *name, size_t size)
{
    if (*file < 0) {
        *file = out_of_the_way(memfd_create(name, MFD_CLOEXEC));
        if (ftruncate(*file, size))
            complain("%s: %s", name, strerror(errno));
    }
    return *file;
}

/* ---- open ---- */

static int device_called(const char *path)
{
    int minor;
    if (!gpus || strncmp(path, "/dev/", 5))
        return NOT_OURS;
    if (!strcmp(path, "/dev/kfd"))
        return KFD;
    if (sscanf(path, "/dev/dri/renderD%d", &minor) != 1)
        return NOT_OURS;
    minor -= FIRST_RENDER_MINOR;
    return minor >= 0 && minor < gpus ? RENDER_NODES + minor : NOT_OURS;
}

static int open_device(int device)
{
    pthread_mutex_lock(&the_lock);
    if (!devices[device].inode) {
        struct stat status;
        devices[device].file = out_of_the_way(memfd_create("emulated", MFD_CLOEXEC));
        syscall(SYS_fstat, devices[device].file, &status);
        devices[device].inode = status.st_ino;
        anonymous_files = status.st_dev;
    }
    if (device == KFD)
        opener = getpid();
    int fd = fcntl(devices[device].file, F_DUPFD_CLOEXEC, 3);
    pthread_mutex_unlock(&the_lock);
    return fd;
}

/* The one file of /sys that changes: a GPU's used memory. The others are topology.py's. */
static int used_memory_file(const char *path)
{
    unsigned bus;
    int end = 0;
    sscanf(path, "/sys/bus/pci/devices/0000:%2x:00.0/mem_info_vram_used%n", &bus, &end);
    int gpu = end && !path[end] ? (int)bus - FIRST_PCI_BUS : NOT_OURS;
    if (gpu < 0 || gpu >= gpus)
        return NOT_OURS;
    int file = memfd_create("mem_info_vram_used", MFD_CLOEXEC);
    pthread_mutex_lock(&the_lock);
    fault_look("mem_info_vram_used");
    dprintf(file, "%lu\n", vram_total(gpu) - vram_free_as_told(gpu));
    pthread_mutex_unlock(&the_lock);
    lseek(file, 0, SEEK_SET);
    return file;
}

static int open_at(int directory, const char *path, int flags, mode_t mode)
{
    int file = gpus ? used_memory_file(path) : NOT_OURS;
    if (file >= 0)
        return file;
    int device = device_called(path);
    return device == NOT_OURS ? (int)syscall(SYS_openat, directory, path, flags, mode) : open_device(device);
}

static mode_t mode_after(int flags, va_list rest)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

PUBLIC int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_after(flags, rest);
    va_end(rest);
    return open_at(AT_FDCWD, path, flags, mode);
}

PUBLIC int openat(int directory, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_after(flags, rest);
    va_end(rest);
    return open_at(directory, path, flags, mode);
}

PUBLIC int open64(const char *, int, ...) __attribute__((alias("open")));
PUBLIC int openat64(int, const char *, int, ...) __attribute__((alias("openat")));

/* What _FORTIFY_SOURCE makes of an open without a mode. */
PUBLIC int __open_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

PUBLIC int __open64_2(const char *, int) __attribute__((alias("__open_2")));

/* ---- ioctl ---- */

static int device_of(int fd)
{
    struct stat status;
    if (!anonymous_files || fd < 0 || syscall(SYS_fstat, fd, &status) || status.st_dev != anonymous_files)
        return NOT_OURS;
    for (int device = 0; device < RENDER_NODES + gpus; device++)
        if (devices[device].inode == status.st_ino)
            return device;
    return NOT_OURS;
}

/* As Linux does, the arguments are copied in and out: an older or newer runtime may pass a smaller or larger
 * structure than is known here. What it does not pass reads as zero. */
static int answer(int device, unsigned long request, void *arguments)
{
    _Alignas(16) char copied[1024] = {0};
    size_t size = request >> 16 & 0x3fff;
    if (size > sizeof copied)
        return -EINVAL;
    if (device == KFD && getpid() != opener)
        return -EBADF; /* kfd_ioctl(): the process is not the one that opened it */
    memcpy(copied, arguments, size);
    pthread_mutex_lock(&the_lock);
    int result = device == KFD ? kfd_ioctl(request & 0xff, copied)
                               : render_ioctl(device - RENDER_NODES, request & 0xff, copied);
    pthread_mutex_unlock(&the_lock);
    memcpy(arguments, copied, size);
    trace("%s ioctl 0x%lx: %d", device == KFD ? "KFD" : "render node", request & 0xff, result);
    return result;
}

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *arguments = va_arg(rest, void *);
    va_end(rest);
    int device = device_of(fd);
    if (device == NOT_OURS)
        return (int)syscall(SYS_ioctl, fd, request, arguments);
    int result = answer(device, request, arguments);
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}

/* ---- mmap ---- */

static int mapped_file(uint64_t offset, off_t *into)
{
    *into = 0;
    if (offset >= OFFSET_REGISTERS)
        return pages(&registers, "registers", REGISTER_BYTES);
    if (offset >= OFFSET_DOORBELLS) {
        int gpu = offset >> OFFSET_GPU_SHIFT & (MAX_GPUS - 1);
        *into = (off_t)gpu * DOORBELL_BYTES;
        return pages(&doorbells, "doorbells", (size_t)MAX_GPUS * DOORBELL_BYTES);
    }
    const struct buffer *buffer = buffer_numbered(offset >> OFFSET_BUFFER_SHIFT);
    *into = (off_t)(offset & ((1ull << OFFSET_BUFFER_SHIFT) - 1));
    return buffer && buffer->kind == IN_FILE ? buffer->file : -1;
}

PUBLIC void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    /* Through the next library's mmap: UCX's memory hooks stand there. */
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next)
        next = dlsym(RTLD_NEXT, "mmap");
    if (flags & MAP_ANONYMOUS || device_of(fd) == NOT_OURS)
        return next(address, size, protection, flags, fd, offset);
    off_t into;
    pthread_mutex_lock(&the_lock);
    int file = mapped_file((uint64_t)offset, &into);
    pthread_mutex_unlock(&the_lock);
    if (file < 0) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return next(address, size, protection, flags, file, into);
}

PUBLIC void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

/* ---- fstat: libdrm asks whether its descriptor is a device of DRM ---- */

PUBLIC int fstat(int fd, struct stat *status)
{
    long result = syscall(SYS_fstat, fd, status);
    int device = result ? NOT_OURS : device_of(fd);
    if (device != NOT_OURS) {
        status->st_mode = S_IFCHR | 0666;
        status->st_rdev = device == KFD ? makedev(KFD_MAJOR, 0)
                                        : makedev(DRM_MAJOR, FIRST_RENDER_MINOR + device - RENDER_NODES);
    }
    return (int)result;
}

PUBLIC int __fxstat(int version, int fd, struct stat *status)
{
    (void)version;
    return fstat(fd, status);
}

PUBLIC int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));
PUBLIC int __fxstat64(int, int, struct stat64 *) __attribute__((alias("__fxstat")));
