/* Intel's kernel driver for GPUs (xe) as a library to preload, so that Intel's user-mode driver runs without a GPU:
 * memory, dma-bufs and addresses, but no engine. A submitted command is refused and reported on stderr; with its
 * debug key ExperimentalForceCopyThroughLock=1, as emulated.py sets it, the user-mode driver copies by the processor.
 *
 * A buffer is an unlinked file in a tmpfs of its GPU, and a dma-buf is a descriptor of that file: Linux counts its
 * references, and frees it when the last process that has it has closed it or was killed. Used memory of the device is
 * used space of the tmpfs. Nothing else is shared between processes.
 *
 * What is not played is reported on stderr by its number and refused with ENOTTY. Answered with success, but not done:
 *   VM_BIND: addresses are not translated, user pointers not pinned, overlaps not refused; fences are signalled at once
 *   EXEC_QUEUE_*, WAIT_USER_FENCE, MADVISE: nothing runs
 * And a buffer costs its process a descriptor at a high number, which it does not on a real node.
 * Source: Linux 7.2, include/uapi/drm/xe_drm.h, which the fetched root file system has. */
#define _GNU_SOURCE
#include <drm/drm.h>
#include <drm/xe_drm.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum { MAX_BUFFERS = 1 << 14, MAX_BINDS = 1 << 14, FIRST_HIGH_DESCRIPTOR = 1 << 13 };
enum { DRM_MAJOR = 226, FIRST_RENDER_MINOR = 128, OFFSET_BUFFER_SHIFT = 32, SYSTEM_REGION = 0, VRAM_REGION = 1 };

/* A GEM handle is an index here. The file is closed when neither the handle nor a bind refers to it. */
static struct buffer {
    int file, binds;
    bool has_handle, is_imported;
    ino_t inode;
} buffers[MAX_BUFFERS];

static struct bind {
    uint32_t vm, buffer;
    uint64_t address, size;
} binds[MAX_BINDS];

static struct stat device;
static bool has_gpu;
static uint32_t last_id;
static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;

static void complain(const char *format, ...)
{
    char text[256];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    dprintf(STDERR_FILENO, "xe emulator [%d]: %s\n", getpid(), text);
}

static const char *heap(int region)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", getenv("XE_EMULATOR"), region == VRAM_REGION ? "vram0" : "gtt0");
    return path;
}

static int real_stat(int fd, struct stat *status)
{
    return (int)syscall(SYS_newfstatat, fd, "", status, AT_EMPTY_PATH);
}

__attribute__((constructor)) static void start(void)
{
    has_gpu = getenv("XE_EMULATOR") && !syscall(SYS_newfstatat, AT_FDCWD, "/dev/dri/renderD128", &device, 0);
    struct rlimit limit; /* buffers are descriptors here only: that shall not run into the usual 1024 */
    if (has_gpu && !getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static bool is_device(int fd)
{
    struct stat status;
    return has_gpu && fd > STDERR_FILENO && !real_stat(fd, &status) && status.st_ino == device.st_ino &&
           status.st_dev == device.st_dev;
}

/* ---- buffers ---- */

static struct buffer *buffer_of(uint32_t handle)
{
    struct buffer *buffer = handle && handle < MAX_BUFFERS ? &buffers[handle] : NULL;
    return buffer && buffer->file ? buffer : NULL;
}

static void drop_unused(struct buffer *buffer)
{
    if (buffer->has_handle || buffer->binds)
        return;
    syscall(SYS_close, buffer->file);
    memset(buffer, 0, sizeof *buffer);
}

/* A GEM handle of an open file, which becomes ours at a number out of the way; or a negative error. */
static int add_buffer(int file)
{
    struct stat status;
    int high = fcntl(file, F_DUPFD_CLOEXEC, FIRST_HIGH_DESCRIPTOR);
    if (high < 0 || real_stat(high, &status))
        return -EMFILE;
    for (int handle = 1; handle < MAX_BUFFERS; handle++)
        if (!buffers[handle].file) {
            buffers[handle] = (struct buffer){.file = high, .has_handle = true, .inode = status.st_ino};
            return handle;
        }
    syscall(SYS_close, high);
    return -ENOMEM;
}

static int gem_create(struct drm_xe_gem_create *request)
{
    int region = request->placement & 1 << SYSTEM_REGION ? SYSTEM_REGION : VRAM_REGION;
    int file = (int)syscall(SYS_openat, AT_FDCWD, heap(region), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return -ENOMEM;
    bool is_full = syscall(SYS_fallocate, file, 0, 0, request->size);
    int handle = is_full ? -ENOMEM : add_buffer(file);
    syscall(SYS_close, file);
    request->handle = (uint32_t)handle;
    return handle < 0 ? handle : 0;
}

static int gem_close(const struct drm_gem_close *request)
{
    struct buffer *buffer = buffer_of(request->handle);
    if (!buffer || !buffer->has_handle)
        return -EINVAL;
    buffer->has_handle = false;
    drop_unused(buffer);
    return 0;
}

static int handle_to_fd(struct drm_prime_handle *request)
{
    const struct buffer *buffer = buffer_of(request->handle);
    if (!buffer)
        return -ENOENT;
    request->fd = fcntl(buffer->file, request->flags & DRM_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
    return request->fd < 0 ? -errno : 0;
}

/* A file has one handle for a dma-buf, however often it is imported (drm_gem_prime_fd_to_handle). */
static int fd_to_handle(struct drm_prime_handle *request)
{
    struct stat status;
    if (real_stat(request->fd, &status))
        return -EBADF;
    if (!S_ISREG(status.st_mode) || is_device(request->fd))
        return -EINVAL;
    for (uint32_t handle = 1; handle < MAX_BUFFERS; handle++)
        if (buffers[handle].file && buffers[handle].inode == status.st_ino) {
            buffers[handle].has_handle = true;
            request->handle = handle;
            return 0;
        }
    int handle = add_buffer(request->fd);
    request->handle = (uint32_t)handle;
    if (handle > 0)
        buffers[handle].is_imported = true;
    return handle < 0 ? handle : 0;
}

/* ---- addresses ---- */

/* What was imported has its address of the GPU in the process, too: when the user-mode driver copies by the processor, it
 * does not map imported memory elsewhere. With its debug key OverrideGpuAddressSpace=47 such addresses are free there. */
static bool show(const struct bind *bind, uint64_t offset)
{
    int file = bind->vm ? buffers[bind->buffer].file : -1;
    int protection = bind->vm ? PROT_READ | PROT_WRITE : PROT_NONE;
    int flags = MAP_FIXED | (bind->vm ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    return syscall(SYS_mmap, bind->address, bind->size, protection, flags, file, offset) == (long)bind->address;
}

static void unbind(struct bind *bind)
{
    struct buffer *buffer = &buffers[bind->buffer];
    bind->vm = 0;
    buffer->binds--;
    if (buffer->is_imported)
        show(bind, 0);
    drop_unused(buffer);
}

static int bind_one(uint32_t vm, const struct drm_xe_vm_bind_op *op)
{
    struct buffer *buffer = buffer_of(op->obj);
    struct bind *unused = NULL;
    for (struct bind *bind = binds; bind < binds + MAX_BINDS; bind++)
        if (!bind->vm)
            unused = unused ? unused : bind;
        else if (bind->vm == vm && (op->op == DRM_XE_VM_BIND_OP_UNMAP_ALL
                                        ? bind->buffer == op->obj
                                        : op->op != DRM_XE_VM_BIND_OP_PREFETCH && bind->address - op->addr < op->range))
            unbind(bind);
    if (op->op != DRM_XE_VM_BIND_OP_MAP || op->flags & DRM_XE_VM_BIND_FLAG_NULL)
        return 0;
    if (!buffer || !unused)
        return buffer ? -ENOMEM : -ENOENT;
    *unused = (struct bind){vm, op->obj, op->addr, op->range};
    buffer->binds++;
    return buffer->is_imported && !show(unused, op->obj_offset) ? -EINVAL : 0;
}

static int vm_bind(const struct drm_xe_vm_bind *request)
{
    const struct drm_xe_vm_bind_op *many = (const void *)(uintptr_t)request->vector_of_binds;
    const struct drm_xe_sync *syncs = (const void *)(uintptr_t)request->syncs;
    for (uint32_t i = 0; i < request->num_binds; i++) {
        int failed = bind_one(request->vm_id, request->num_binds == 1 ? &request->bind : &many[i]);
        if (failed)
            return failed;
    }
    for (uint32_t i = 0; i < request->num_syncs; i++)
        if (syncs[i].type == DRM_XE_SYNC_TYPE_USER_FENCE && syncs[i].flags & DRM_XE_SYNC_FLAG_SIGNAL)
            *(volatile uint64_t *)(uintptr_t)syncs[i].addr = syncs[i].timeline_value;
    return 0;
}

static int vm_destroy(const struct drm_xe_vm_destroy *request)
{
    for (struct bind *bind = binds; bind < binds + MAX_BINDS; bind++)
        if (bind->vm && bind->vm == request->vm_id)
            unbind(bind);
    return 0;
}

/* ---- what the device is: an Arc B580 ---- */

static size_t put_config(void *to)
{
    struct drm_xe_query_config *config = to;
    config->num_params = DRM_XE_QUERY_CONFIG_MAX_EXEC_QUEUE_PRIORITY + 1;
    config->info[DRM_XE_QUERY_CONFIG_REV_AND_DEVICE_ID] = 0xe20b;
    config->info[DRM_XE_QUERY_CONFIG_FLAGS] = DRM_XE_QUERY_CONFIG_FLAG_HAS_VRAM;
    config->info[DRM_XE_QUERY_CONFIG_MIN_ALIGNMENT] = 65536;
    config->info[DRM_XE_QUERY_CONFIG_VA_BITS] = 48;
    config->info[DRM_XE_QUERY_CONFIG_MAX_EXEC_QUEUE_PRIORITY] = 2;
    return sizeof *config + config->num_params * sizeof *config->info;
}

static size_t put_gts(void *to)
{
    struct drm_xe_query_gt_list *list = to;
    list->num_gt = 1;
    list->gt_list[0] = (struct drm_xe_gt){.type = DRM_XE_QUERY_GT_TYPE_MAIN,
                                          .reference_clock = 19200000,
                                          .near_mem_regions = 1 << VRAM_REGION,
                                          .far_mem_regions = 1 << SYSTEM_REGION,
                                          .ip_ver_major = 20,
                                          .ip_ver_minor = 1,
                                          .ip_ver_rev = 4};
    return sizeof *list + sizeof *list->gt_list;
}

static size_t put_engines(void *to)
{
    static const uint16_t classes[] = {DRM_XE_ENGINE_CLASS_RENDER, DRM_XE_ENGINE_CLASS_COPY, DRM_XE_ENGINE_CLASS_COMPUTE};
    struct drm_xe_query_engines *engines = to;
    engines->num_engines = sizeof classes / sizeof *classes;
    for (uint32_t i = 0; i < engines->num_engines; i++)
        engines->engines[i].instance.engine_class = classes[i];
    return sizeof *engines + engines->num_engines * sizeof *engines->engines;
}

static size_t put_memory(void *to)
{
    struct drm_xe_query_mem_regions *regions = to;
    regions->num_mem_regions = 2;
    for (uint16_t region = SYSTEM_REGION; region <= VRAM_REGION; region++) {
        struct statvfs space;
        struct drm_xe_mem_region *one = &regions->mem_regions[region];
        memset(&space, 0, sizeof space);
        statvfs(heap(region), &space);
        one->mem_class = region == VRAM_REGION ? DRM_XE_MEM_REGION_CLASS_VRAM : DRM_XE_MEM_REGION_CLASS_SYSMEM;
        one->instance = region;
        one->min_page_size = region == VRAM_REGION ? 65536 : 4096;
        one->total_size = space.f_blocks * space.f_frsize;
        one->used = (space.f_blocks - space.f_bfree) * space.f_frsize;
        one->cpu_visible_size = region == VRAM_REGION ? one->total_size : 0;
        one->cpu_visible_used = region == VRAM_REGION ? one->used : 0;
    }
    return sizeof *regions + 2 * sizeof *regions->mem_regions;
}

static size_t put_topology(void *to)
{
    static const struct {
        uint16_t type;
        uint64_t mask;
    } masks[] = {{DRM_XE_TOPO_DSS_GEOMETRY, 0xfffff},
                 {DRM_XE_TOPO_DSS_COMPUTE, 0xfffff},
                 {DRM_XE_TOPO_L3_BANK, 0xfff},
                 {DRM_XE_TOPO_SIMD16_EU_PER_DSS, 0xff}};
    uint8_t *end = to;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct drm_xe_query_topology_mask *mask = (void *)end;
        mask->type = masks[i].type;
        mask->num_bytes = sizeof masks[i].mask;
        memcpy(mask->mask, &masks[i].mask, sizeof masks[i].mask);
        end += sizeof *mask + mask->num_bytes;
    }
    return (size_t)(end - (uint8_t *)to);
}

static int query(struct drm_xe_device_query *request)
{
    static uint64_t answer[512];
    size_t size = 0;
    memset(answer, 0, sizeof answer);
    switch (request->query) {
    case DRM_XE_DEVICE_QUERY_CONFIG: size = put_config(answer); break;
    case DRM_XE_DEVICE_QUERY_GT_LIST: size = put_gts(answer); break;
    case DRM_XE_DEVICE_QUERY_ENGINES: size = put_engines(answer); break;
    case DRM_XE_DEVICE_QUERY_MEM_REGIONS: size = put_memory(answer); break;
    case DRM_XE_DEVICE_QUERY_GT_TOPOLOGY: size = put_topology(answer); break;
    case DRM_XE_DEVICE_QUERY_HWCONFIG: break; /* none: emulated.py says in a debug key what is needed of it */
    default: return -EINVAL;
    }
    if (request->size && request->size < size)
        return -EINVAL;
    if (request->size && size)
        memcpy((void *)(uintptr_t)request->data, answer, size);
    request->size = (uint32_t)size;
    return 0;
}

static int version(struct drm_version *request)
{
    if (request->name && request->name_len >= 2)
        memcpy(request->name, "xe", 2);
    request->version_major = request->version_minor = 1;
    request->name_len = 2;
    request->date_len = request->desc_len = 0;
    return 0;
}

/* ---- the C library's calls ---- */

static int play(unsigned long code, void *request)
{
    switch (code) {
    case DRM_IOCTL_VERSION: return version(request);
    case DRM_IOCTL_GEM_CLOSE: return gem_close(request);
    case DRM_IOCTL_PRIME_HANDLE_TO_FD: return handle_to_fd(request);
    case DRM_IOCTL_PRIME_FD_TO_HANDLE: return fd_to_handle(request);
    case DRM_IOCTL_XE_DEVICE_QUERY: return query(request);
    case DRM_IOCTL_XE_GEM_CREATE: return gem_create(request);
    case DRM_IOCTL_XE_GEM_MMAP_OFFSET:
        ((struct drm_xe_gem_mmap_offset *)request)->offset =
            (uint64_t)((struct drm_xe_gem_mmap_offset *)request)->handle << OFFSET_BUFFER_SHIFT;
        return 0;
    case DRM_IOCTL_XE_VM_CREATE: ((struct drm_xe_vm_create *)request)->vm_id = ++last_id; return 0;
    case DRM_IOCTL_XE_VM_BIND: return vm_bind(request);
    case DRM_IOCTL_XE_VM_DESTROY: return vm_destroy(request);
    case DRM_IOCTL_XE_EXEC_QUEUE_CREATE:
        ((struct drm_xe_exec_queue_create *)request)->exec_queue_id = ++last_id;
        return 0;
    case DRM_IOCTL_XE_EXEC_QUEUE_GET_PROPERTY:
        ((struct drm_xe_exec_queue_get_property *)request)->value = 0; /* it was not reset */
        return 0;
    case DRM_IOCTL_XE_EXEC_QUEUE_DESTROY:
    case DRM_IOCTL_XE_WAIT_USER_FENCE:
    case DRM_IOCTL_XE_MADVISE: return 0;
    case DRM_IOCTL_XE_EXEC: complain("a command is submitted: none is executed here"); return -EIO;
    default: complain("ioctl %#lx is not played", code & 0xff); return -ENOTTY;
    }
}

PUBLIC int ioctl(int fd, unsigned long code, ...)
{
    va_list rest;
    va_start(rest, code);
    void *request = va_arg(rest, void *);
    va_end(rest);
    if (_IOC_TYPE(code) != DRM_IOCTL_BASE || !is_device(fd))
        return (int)syscall(SYS_ioctl, fd, code, request);
    pthread_mutex_lock(&the_lock);
    int answer = play(code, request);
    pthread_mutex_unlock(&the_lock);
    errno = answer < 0 ? -answer : errno;
    return answer < 0 ? -1 : answer;
}

PUBLIC void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (!(flags & MAP_ANONYMOUS) && is_device(fd)) {
        const struct buffer *buffer = buffer_of((uint32_t)(offset >> OFFSET_BUFFER_SHIFT));
        fd = buffer ? buffer->file : -1;
        offset &= (1l << OFFSET_BUFFER_SHIFT) - 1;
    }
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset); /* NOLINT: kernel's pointer */
}

PUBLIC void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return mmap64(address, size, protection, flags, fd, offset);
}

PUBLIC int fstat64(int fd, struct stat64 *status)
{
    int failed = real_stat(fd, (struct stat *)status);
    if (!failed && is_device(fd)) {
        status->st_mode = S_IFCHR | 0666;
        status->st_rdev = makedev(DRM_MAJOR, FIRST_RENDER_MINOR);
    }
    return failed;
}

PUBLIC int fstat(int fd, struct stat *status)
{
    return fstat64(fd, (struct stat64 *)status);
}

/* With XE_EMULATOR_YAMA, as on a kernel that has Yama: without, PR_SET_PTRACER fails, and the user-mode driver passes
 * descriptors by sockets of its own. */
PUBLIC int prctl(int option, ...)
{
    enum { PR_SET_PTRACER = 0x59616d61 };
    va_list rest;
    va_start(rest, option);
    unsigned long a = va_arg(rest, unsigned long), b = va_arg(rest, unsigned long);
    unsigned long c = va_arg(rest, unsigned long), d = va_arg(rest, unsigned long);
    va_end(rest);
    if (has_gpu && option == PR_SET_PTRACER && getenv("XE_EMULATOR_YAMA") && *getenv("XE_EMULATOR_YAMA"))
        return 0;
    return (int)syscall(SYS_prctl, option, a, b, c, d);
}
