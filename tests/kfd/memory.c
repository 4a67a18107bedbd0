/* Buffers, and what the GPUs reach at which address.
 *
 * The addresses are those of the process: ROCr reserves them and asks the driver to map buffers there. */
#define _GNU_SOURCE
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_BUFFERS = 1 << 16, MAX_MAPPINGS = 1 << 16, NO_RENDER_NODE = -1 };

static struct buffer buffers[MAX_BUFFERS]; /* 0 is no buffer */

static struct mapping {
    uint64_t address, size;
    uint8_t *host;
    int buffer;
    unsigned gpus; /* a bit for each GPU that reaches it */
} mappings[MAX_MAPPINGS];
static int mapping_count;

static const char *const heap_names[] = {[VRAM] = "vram", [GTT] = "gtt"};

static void heap_path(char *path, size_t size, enum heap heap, int gpu)
{
    snprintf(path, size, "%s/%s%d", run_directory(), heap_names[heap], gpu);
}

static int unused_number(void)
{
    for (int number = 1; number < MAX_BUFFERS; number++)
        if (buffers[number].kind == UNUSED)
            return number;
    return -ENOMEM;
}

struct buffer *buffer_numbered(uint64_t number)
{
    return number < MAX_BUFFERS && buffers[number].kind != UNUSED ? &buffers[number] : NULL;
}

/* Take a buffer that lies in a file; the file is closed if that fails. */
static int take(int file, enum heap heap, int gpu)
{
    struct stat status;
    int number = unused_number();
    if (number < 0 || syscall(SYS_fstat, file, &status)) {
        close(file);
        return -ENOMEM;
    }
    /* By the system call: the emulator's own mappings are nothing for the hooks of user space to see. */
    void *host = (void *)syscall(SYS_mmap, NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (host == MAP_FAILED) {
        close(file);
        return -ENOMEM;
    }
    buffers[number] = (struct buffer){
        .kind = IN_FILE,
        .heap = heap,
        .gpu = gpu,
        .render_node = NO_RENDER_NODE,
        .file = file,
        .device = status.st_dev,
        .inode = status.st_ino,
        .size = (uint64_t)status.st_size,
        .host = host,
    };
    return number;
}

int buffer_create(enum heap heap, int gpu, uint64_t size)
{
    char path[256];
    heap_path(path, sizeof path, heap, gpu);
    int file = out_of_the_way((int)syscall(SYS_openat, AT_FDCWD, path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file < 0)
        return -errno;
    size = (size + 4095) & ~4095ull;
    if (ftruncate(file, (off_t)size) || fallocate(file, 0, 0, (off_t)size)) {
        close(file);
        return -ENOMEM; /* the tmpfs, that is the device's memory, is full */
    }
    return take(file, heap, gpu);
}

/* A fault: what is imported is a buffer of its own with the same bytes. */
static int snapshot(int fd, enum heap heap, int gpu, uint64_t size)
{
    int number = buffer_create(heap, gpu, size);
    if (number > 0 && pread(fd, buffers[number].host, size, 0) != (ssize_t)size)
        complain("a snapshot is not whole");
    return number;
}

static bool is_anothers(int fd)
{
    for (int gpu = NO_RENDER_NODE, known; gpu < gpu_count(); gpu++)
        if ((known = buffer_with_file(fd, gpu)) > 0)
            return buffers[known].imported;
    return true;
}

int another_import(int than)
{
    for (int number = 1; number < MAX_BUFFERS; number++)
        if (number != than && buffers[number].kind == IN_FILE && buffers[number].imported)
            return number;
    return 0;
}

/* Keep a descriptor of this file, in place of the one before: a fault may show it. */
static void remember(int *before, int fd)
{
    if (!faults_are_told())
        return;
    if (*before >= 0)
        close(*before);
    *before = out_of_the_way(fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

int buffer_import(int fd)
{
    static int before = -1; /* a fault: the buffer of the import before this */
    struct stat status;
    enum heap heap;
    int gpu = memory_behind(fd, &status, &heap);
    if (gpu < 0)
        return -EINVAL;
    bool anothers = is_anothers(fd);
    if (anothers) {
        note_import();
        if (fault_is("snapshot"))
            return snapshot(fd, heap, gpu, (uint64_t)status.st_size);
    }
    int file = out_of_the_way(fcntl(fault_is("previous") && before >= 0 ? before : fd, F_DUPFD_CLOEXEC, 3));
    remember(&before, fd);
    int number = file < 0 ? -errno : take(file, heap, gpu);
    if (number > 0)
        buffers[number].imported = anothers;
    return number;
}

void buffer_keep(int number, int gpu)
{
    char from[64], to[300];
    snprintf(from, sizeof from, "/proc/self/fd/%d", buffers[number].file);
    heap_path(to, sizeof to - 32, buffers[number].heap, gpu);
    snprintf(to + strlen(to), 32, "/kept-%lu", (unsigned long)buffers[number].inode);
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW))
        complain("memory cannot be kept: %s", strerror(errno));
}

static int without_file(struct buffer buffer)
{
    int number = unused_number();
    if (number > 0)
        buffers[number] = buffer;
    return number;
}

int buffer_of_user(int gpu, uint64_t host, uint64_t size)
{
    return without_file((struct buffer){
        .kind = OF_USER, .gpu = gpu, .render_node = NO_RENDER_NODE, .size = size, .host = (void *)host});
}

int buffer_of_device(int gpu, uint64_t address, uint64_t size)
{
    return without_file((struct buffer){.kind = PAGES_OF_DEVICE,
                                        .gpu = gpu,
                                        .render_node = NO_RENDER_NODE,
                                        .size = size,
                                        .host = (void *)address});
}

int buffer_with_file(int fd, int render_node)
{
    struct stat status;
    if (syscall(SYS_fstat, fd, &status))
        return -1;
    for (int number = 1; number < MAX_BUFFERS; number++) {
        const struct buffer *buffer = &buffers[number];
        if (buffer->kind == IN_FILE && buffer->render_node == render_node && buffer->inode == status.st_ino &&
            buffer->device == status.st_dev)
            return number;
    }
    return -1;
}

int buffer_descriptor(const struct buffer *buffer)
{
    static int before = -1;
    if (buffer->kind != IN_FILE)
        return -EINVAL;
    note_export();
    int fd = fcntl(fault_is("previous") && before >= 0 ? before : buffer->file, F_DUPFD_CLOEXEC, 3);
    remember(&before, buffer->file);
    return fd >= 0 ? fd : -EINVAL;
}

void buffer_free(int number)
{
    struct buffer *buffer = &buffers[number];
    unmap_from(~0u, number);
    stop_queues_in(buffer->host, buffer->size);
    if (buffer->kind == IN_FILE) {
        munmap(buffer->host, buffer->size);
        close(buffer->file);
    }
    buffer->kind = UNUSED;
}

int memory_behind(int fd, struct stat *status, enum heap *heap)
{
    if (syscall(SYS_fstat, fd, status))
        return -1;
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        for (*heap = VRAM; *heap <= GTT; ++*heap) {
            char path[256];
            struct stat directory;
            heap_path(path, sizeof path, *heap, gpu);
            if (!stat(path, &directory) && directory.st_dev == status->st_dev)
                return gpu;
        }
    return -1;
}

static struct statvfs vram_of(int gpu)
{
    char path[256];
    struct statvfs space = {0};
    heap_path(path, sizeof path, VRAM, gpu);
    statvfs(path, &space);
    return space;
}

uint64_t vram_total(int gpu)
{
    struct statvfs space = vram_of(gpu);
    return space.f_blocks * space.f_bsize;
}

uint64_t vram_free(int gpu)
{
    struct statvfs space = vram_of(gpu);
    return space.f_bavail * space.f_bsize;
}

uint64_t vram_free_as_told(int gpu)
{
    static uint64_t stuck[MAX_GPUS];
    uint64_t now = vram_free(gpu);
    if (!stuck[gpu])
        stuck[gpu] = now;
    return fault_is("stuck") ? stuck[gpu] : now;
}

/* ---- the GPUs' address spaces ---- */

void map_on(unsigned gpus, uint64_t address, uint64_t size, uint8_t *host, int buffer)
{
    for (struct mapping *old = mappings; old < mappings + mapping_count; old++)
        if (old->address == address && old->size == size && old->buffer == buffer && old->host == host) {
            old->gpus |= gpus;
            return;
        }
    if (mapping_count == MAX_MAPPINGS)
        complain("more than %d mappings; what lies at 0x%lx cannot be reached", MAX_MAPPINGS, address);
    else
        mappings[mapping_count++] = (struct mapping){address, size, host, buffer, gpus};
}

static void forget_unreachable(void)
{
    for (int place = 0; place < mapping_count;)
        if (mappings[place].gpus)
            place++;
        else
            mappings[place] = mappings[--mapping_count];
}

void unmap_from(unsigned gpus, int buffer)
{
    for (struct mapping *mapping = mappings; mapping < mappings + mapping_count; mapping++)
        if (mapping->buffer == buffer)
            mapping->gpus &= ~gpus;
    forget_unreachable();
}

bool unmap_range(unsigned gpus, uint64_t address, uint64_t size)
{
    bool found = false;
    for (struct mapping *mapping = mappings; mapping < mappings + mapping_count; mapping++)
        if (mapping->address >= address && mapping->address + mapping->size <= address + size) {
            found |= mapping->gpus & gpus;
            mapping->gpus &= ~gpus;
        }
    forget_unreachable();
    return found;
}

/* As much of `size` bytes as lies in one mapping: neighbouring addresses may belong to several buffers. */
static uint8_t *find(int gpu, uint64_t address, uint64_t *size)
{
    for (const struct mapping *mapping = mappings; mapping < mappings + mapping_count; mapping++) {
        uint64_t offset = address - mapping->address;
        if (!(mapping->gpus & 1u << gpu) || address < mapping->address || offset >= mapping->size)
            continue;
        if (*size > mapping->size - offset)
            *size = mapping->size - offset;
        return mapping->host + offset;
    }
    return NULL;
}

static uint8_t *piece(int gpu, uint64_t address, uint64_t *size)
{
    uint8_t *host = find(gpu, address, size);
    if (!host)
        page_fault(gpu, address);
    return host;
}

void *host_address(int gpu, uint64_t address)
{
    uint64_t size = 1;
    uint8_t *host = find(gpu, address, &size);
    return host ? host : (void *)address;
}

void *reach(int gpu, uint64_t address, uint64_t size)
{
    uint64_t whole = size;
    void *host = piece(gpu, address, &whole);
    if (host && whole < size)
        page_fault(gpu, address + whole);
    return whole == size ? host : NULL;
}

/* What becomes of a copy of so many bytes; false: it does not come to an end. */
static bool fault_in_copy(int gpu, uint64_t from, uint64_t *size)
{
    fault_look("copy");
    if (fault_is("short") && *size > PAGE_BYTES)
        *size -= PAGE_BYTES;
    else if (fault_is("ignore"))
        *size = 0;
    else if (fault_is("reset"))
        reset_gpu(gpu);
    else if (fault_is("page-fault"))
        page_fault(gpu, from);
    return !fault_is("reset") && !fault_is("page-fault");
}

bool copy_on(int gpu, uint64_t to, uint64_t from, uint64_t size)
{
    if (!fault_in_copy(gpu, from, &size))
        return false;
    for (uint64_t done = 0, part; done < size; done += part) {
        part = size - done;
        const uint8_t *source = piece(gpu, from + done, &part);
        uint8_t *target = source ? piece(gpu, to + done, &part) : NULL;
        if (!target)
            return false;
        memmove(target, source, part);
        if (fault_is("wrong-byte") && !done)
            target[part / 2] ^= 1;
    }
    return true;
}

bool fill_on(int gpu, uint64_t to, const void *unit, uint64_t unit_size, uint64_t size)
{
    const uint8_t *bytes = unit;
    fault_look("fill");
    if (fault_is("ignore"))
        return true;
    for (uint64_t done = 0, part; done < size; done += part) {
        part = size - done;
        uint8_t *target = piece(gpu, to + done, &part);
        if (!target)
            return false;
        for (uint64_t i = 0; i < part; i++)
            target[i] = bytes[(done + i) % unit_size];
    }
    return true;
}
