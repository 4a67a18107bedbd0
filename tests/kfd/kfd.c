/* The ioctls of /dev/kfd.
 * Sources: Linux 6.18, include/uapi/linux/kfd_ioctl.h and drivers/gpu/drm/amd/amdkfd/kfd_chardev.c; the two of IPC:
 * ROCm/ROCK-Kernel-Driver, drivers/gpu/drm/amd/amdkfd/kfd_ipc.c. */
#define _GNU_SOURCE
#include "emulator.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kfd_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the process and its GPUs ---- */

static int get_version(void *arguments)
{
    struct kfd_ioctl_get_version_args *version = arguments;
    version->major_version = 1;
    version->minor_version = 18; /* has dma-bufs, event ages and VMM */
    return 0;
}

static int get_clock_counters(void *arguments)
{
    struct kfd_ioctl_get_clock_counters_args *clocks = arguments;
    clocks->cpu_clock_counter = clocks->system_clock_counter = nanoseconds();
    clocks->gpu_clock_counter = clocks->cpu_clock_counter / 10;
    clocks->system_clock_freq = 1000000000;
    return 0;
}

/* Windows of a GPU's addresses for its local data and scratch, outside of what a process can map. */
static int get_process_apertures(void *arguments)
{
    struct kfd_ioctl_get_process_apertures_new_args *request = arguments;
    struct kfd_process_device_apertures *apertures = (void *)request->kfd_process_device_apertures_ptr;
    for (int gpu = 0; apertures && gpu < gpu_count() && gpu < (int)request->num_of_nodes; gpu++)
        apertures[gpu] = (struct kfd_process_device_apertures){
            .gpu_id = gpu_id(gpu),
            .lds_base = 1ull << 48,
            .lds_limit = (1ull << 48) + UINT32_MAX,
            .scratch_base = 2ull << 48,
            .scratch_limit = (2ull << 48) + UINT32_MAX,
            .gpuvm_base = 0x4000,
            .gpuvm_limit = (1ull << 47) - 1,
        };
    request->num_of_nodes = gpu_count();
    return 0;
}

static int get_tile_config(void *arguments)
{
    struct kfd_ioctl_get_tile_config_args *tiles = arguments;
    tiles->gb_addr_config = 0x10000444; /* images are not played: any value of this family will do */
    tiles->num_tile_configs = tiles->num_macro_tile_configs = 0;
    return 0;
}

/* Page faults are not recoverable here, as on all but a few GPUs by default. */
static int set_xnack_mode(void *arguments)
{
    struct kfd_ioctl_set_xnack_mode_args *mode = arguments;
    if (mode->xnack_enabled > 0)
        return -EPERM;
    mode->xnack_enabled = 0;
    return 0;
}

/* A file from which events of the system management interface would be read: none come. */
static int smi_events(void *arguments)
{
    struct kfd_ioctl_smi_events_args *request = arguments;
    int file = memfd_create("smi", MFD_CLOEXEC);
    request->anon_fd = (uint32_t)file;
    return file < 0 ? -errno : 0;
}

/* What only shaders, caches, debuggers or other processes would notice. */
static int without_effect(void *arguments)
{
    (void)arguments;
    return 0;
}

/* What a driver may lack, and user space asks for when it begins. */
static int lacking(void *arguments)
{
    (void)arguments;
    return -EINVAL;
}

/* ---- memory ---- */

static uint64_t handle_of(uint32_t gpu, int number)
{
    return (uint64_t)gpu << 32 | (uint32_t)number;
}

static struct buffer *buffer_of(uint64_t handle)
{
    struct buffer *buffer = buffer_numbered((uint32_t)handle);
    return buffer && buffer->render_node < 0 ? buffer : NULL;
}

static int alloc_memory(void *arguments)
{
    struct kfd_ioctl_alloc_memory_of_gpu_args *request = arguments;
    uint32_t flags = request->flags;
    int gpu = gpu_with_id(request->gpu_id), number;
    if (gpu < 0)
        return -EINVAL;
    if (flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR)
        number = buffer_of_user(gpu, request->mmap_offset, request->size);
    else if (flags & (KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP))
        number = buffer_of_device(gpu, request->va_addr, request->size);
    else
        number = buffer_create(flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM ? VRAM : GTT, gpu, request->size);
    trace("alloc %llu B at 0x%llx, flags 0x%x: %d", request->size, request->va_addr, flags, number);
    if (number < 0)
        return number;
    struct buffer *buffer = buffer_numbered((uint64_t)number);
    buffer->address = request->va_addr;
    buffer->size = request->size;
    if (fault_is("keep"))
        buffer_keep(number, gpu);
    request->handle = handle_of(request->gpu_id, number);
    if (buffer->kind == IN_FILE)
        request->mmap_offset = (uint64_t)number << OFFSET_BUFFER_SHIFT;
    else if (buffer->kind == PAGES_OF_DEVICE)
        request->mmap_offset = OFFSET_REGISTERS;
    return 0;
}

static int free_memory(void *arguments)
{
    struct kfd_ioctl_free_memory_of_gpu_args *request = arguments;
    struct buffer *buffer = buffer_of(request->handle);
    if (!buffer)
        return -EINVAL;
    if (buffer->mapped)
        return -EBUSY; /* amdgpu_amdkfd_gpuvm_free_memory_of_gpu() */
    buffer_free((int)(uint32_t)request->handle);
    return 0;
}

static int with_each_gpu(struct kfd_ioctl_map_memory_to_gpu_args *request, unsigned *gpus)
{
    const uint32_t *ids = (const void *)request->device_ids_array_ptr;
    for (; request->n_success < request->n_devices; request->n_success++) {
        int gpu = gpu_with_id(ids[request->n_success]);
        if (gpu < 0)
            return -EINVAL;
        *gpus |= 1u << gpu;
    }
    return 0;
}

static int map_memory(void *arguments)
{
    struct kfd_ioctl_map_memory_to_gpu_args *request = arguments;
    struct buffer *buffer = buffer_of(request->handle);
    unsigned gpus = 0;
    int result = buffer ? with_each_gpu(request, &gpus) : -EINVAL;
    if (result)
        return result;
    int number = (int)(uint32_t)request->handle;
    uint64_t shift = fault_is("shifted") && buffer->kind == IN_FILE && buffer->heap == VRAM ? PAGE_BYTES : 0;
    map_on(gpus, buffer->address, buffer->size - shift, buffer->host + shift, number);
    if (shift) {
        uint64_t rest = buffer->size - shift;
        map_on(gpus, buffer->address + rest, shift, buffer->host + rest, number);
    }
    buffer->mapped |= gpus;
    return 0;
}

static int unmap_memory(void *arguments)
{
    struct kfd_ioctl_map_memory_to_gpu_args *request = arguments; /* the same as unmap's */
    struct buffer *buffer = buffer_of(request->handle);
    unsigned gpus = 0;
    int result = buffer ? with_each_gpu(request, &gpus) : -EINVAL;
    if (result)
        return result;
    unmap_from(gpus, (int)(uint32_t)request->handle);
    buffer->mapped &= ~gpus;
    if (fault_is("ends-another"))
        unmap_from(gpus, another_import((int)(uint32_t)request->handle));
    return 0;
}

static int available_memory(void *arguments)
{
    struct kfd_ioctl_get_available_memory_args *request = arguments;
    int gpu = gpu_with_id(request->gpu_id);
    if (gpu < 0)
        return -EINVAL;
    request->available = vram_free_as_told(gpu);
    return 0;
}

/* ---- dma-bufs ---- */

static int imported(int fd, uint32_t gpu, uint64_t address, uint64_t *handle)
{
    int number = gpu_with_id(gpu) < 0 ? -EINVAL : buffer_import(fd);
    if (number < 0)
        return number;
    buffer_numbered((uint64_t)number)->address = address;
    *handle = handle_of(gpu, number);
    return 0;
}

static int dmabuf_info(void *arguments)
{
    struct kfd_ioctl_get_dmabuf_info_args *request = arguments;
    struct stat status;
    enum heap heap;
    int gpu = memory_behind((int)request->dmabuf_fd, &status, &heap);
    if (gpu < 0)
        return -EINVAL;
    request->size = (uint64_t)status.st_size;
    request->gpu_id = gpu_id(gpu);
    request->metadata_size = 0;
    request->flags = heap == VRAM ? KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC
                                  : KFD_IOC_ALLOC_MEM_FLAGS_GTT;
    return 0;
}

static int import_dmabuf(void *arguments)
{
    struct kfd_ioctl_import_dmabuf_args *request = arguments;
    uint64_t handle = 0;
    int result = imported((int)request->dmabuf_fd, request->gpu_id, request->va_addr, &handle);
    request->handle = handle;
    return result;
}

static int export_dmabuf(void *arguments)
{
    struct kfd_export_dmabuf *request = arguments;
    const struct buffer *buffer = buffer_of(request->handle);
    int fd = buffer ? buffer_descriptor(buffer) : -EINVAL;
    request->fd = (uint32_t)fd;
    return fd < 0 ? fd : 0;
}

/* ---- IPC of AMD's own driver ----
 *
 * A handle names the buffer's file. Whoever has exported or imported it leaves a file ipc/DEVICE-INODE/PID:DESCRIPTOR
 * in the run's directory, and an importer opens the first of these that is still that file: as with the real driver,
 * a handle is good as long as any process has the memory. A process of another pid namespace finds none. */

struct share { /* what a handle says; files of two GPUs may have one inode number */
    dev_t device;
    ino_t inode;
};

static void path_of_offers(char *path, size_t size, struct share share)
{
    snprintf(path, size, "%s/ipc/%lu-%lu", run_directory(), (unsigned long)share.device, (unsigned long)share.inode);
}

static void offer(struct share share, int descriptor)
{
    char path[300];
    path_of_offers(path, sizeof path - 64, share);
    mkdir(path, 0700);
    snprintf(path + strlen(path), 64, "/%d:%d", getpid(), descriptor);
    close((int)syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

static int descriptor_offered(const char *name, struct share share)
{
    char path[64];
    int pid, number;
    struct stat status;
    enum heap heap;
    if (sscanf(name, "%d:%d", &pid, &number) != 2)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0 && (memory_behind(fd, &status, &heap) < 0 || status.st_ino != share.inode ||
                    status.st_dev != share.device)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int descriptor_of_share(struct share share)
{
    char path[300];
    path_of_offers(path, sizeof path, share);
    DIR *offers = opendir(path);
    int fd = -1;
    for (struct dirent *entry; fd < 0 && offers && (entry = readdir(offers));)
        fd = descriptor_offered(entry->d_name, share);
    if (offers)
        closedir(offers);
    return fd;
}

static int ipc_export(void *arguments)
{
    struct kfd_ipc_export *request = arguments;
    const struct buffer *buffer = buffer_of(request->handle);
    if (!buffer || buffer->kind != IN_FILE)
        return -EINVAL;
    static struct share exported; /* before this */
    struct share share = {buffer->device, buffer->inode};
    struct share told = fault_is("previous") && exported.inode ? exported : share;
    exported = share;
    note_export();
    offer(share, buffer->file);
    request->share[0] = (uint32_t)told.inode;
    request->share[1] = (uint32_t)(told.inode >> 32);
    request->share[2] = (uint32_t)told.device; /* minor and major of the kernel's are 32 bits together */
    request->share[3] = request->flags;
    return 0;
}

static int ipc_import(void *arguments)
{
    struct kfd_ipc_import *request = arguments;
    struct share share = {request->share[2], request->share[0] | (ino_t)request->share[1] << 32};
    int fd = descriptor_of_share(share);
    if (fd < 0)
        return -EINVAL;
    uint64_t handle = 0;
    int result = imported(fd, request->gpu_id, request->address, &handle);
    close(fd);
    if (result)
        return result;
    offer(share, buffer_of(handle)->file);
    request->handle = handle;
    request->mmap_offset = (uint64_t)(uint32_t)handle << OFFSET_BUFFER_SHIFT;
    request->flags = request->share[3];
    return 0;
}

/* ---- queues and events ---- */

static int create_queue(void *arguments)
{
    return queue_create(arguments);
}

static int destroy_queue(void *arguments)
{
    struct kfd_ioctl_destroy_queue_args *request = arguments;
    return queue_destroy(request->queue_id);
}

static int update_queue(void *arguments)
{
    struct kfd_ioctl_update_queue_args *request = arguments;
    bool runs = request->ring_base_address && request->queue_percentage;
    return queue_update(request->queue_id, request->ring_base_address, request->ring_size, runs);
}

static int create_event(void *arguments)
{
    return event_create(arguments);
}

static int destroy_event(void *arguments)
{
    struct kfd_ioctl_destroy_event_args *request = arguments;
    return event_destroy(request->event_id);
}

static int set_event(void *arguments)
{
    struct kfd_ioctl_set_event_args *request = arguments;
    return event_set(request->event_id);
}

static int reset_event(void *arguments)
{
    struct kfd_ioctl_reset_event_args *request = arguments;
    return event_reset(request->event_id);
}

static int wait_events(void *arguments)
{
    return event_wait(arguments);
}

/* ---- which is which ---- */

static const struct {
    const char *name;
    int (*play)(void *arguments); /* NULL: not played */
} calls[256] = {
    [0x01] = {"GET_VERSION", get_version},
    [0x02] = {"CREATE_QUEUE", create_queue},
    [0x03] = {"DESTROY_QUEUE", destroy_queue},
    [0x04] = {"SET_MEMORY_POLICY", without_effect},
    [0x05] = {"GET_CLOCK_COUNTERS", get_clock_counters},
    [0x06] = {"GET_PROCESS_APERTURES", NULL},
    [0x07] = {"UPDATE_QUEUE", update_queue},
    [0x08] = {"CREATE_EVENT", create_event},
    [0x09] = {"DESTROY_EVENT", destroy_event},
    [0x0a] = {"SET_EVENT", set_event},
    [0x0b] = {"RESET_EVENT", reset_event},
    [0x0c] = {"WAIT_EVENTS", wait_events},
    [0x11] = {"SET_SCRATCH_BACKING_VA", without_effect},
    [0x12] = {"GET_TILE_CONFIG", get_tile_config},
    [0x13] = {"SET_TRAP_HANDLER", without_effect},
    [0x14] = {"GET_PROCESS_APERTURES_NEW", get_process_apertures},
    [0x15] = {"ACQUIRE_VM", without_effect},
    [0x16] = {"ALLOC_MEMORY_OF_GPU", alloc_memory},
    [0x17] = {"FREE_MEMORY_OF_GPU", free_memory},
    [0x18] = {"MAP_MEMORY_TO_GPU", map_memory},
    [0x19] = {"UNMAP_MEMORY_FROM_GPU", unmap_memory},
    [0x1a] = {"SET_CU_MASK", NULL},
    [0x1b] = {"GET_QUEUE_WAVE_STATE", NULL},
    [0x1c] = {"GET_DMABUF_INFO", dmabuf_info},
    [0x1d] = {"IMPORT_DMABUF", import_dmabuf},
    [0x1e] = {"ALLOC_QUEUE_GWS", NULL},
    [0x1f] = {"SMI_EVENTS", smi_events},
    [0x20] = {"SVM", lacking},
    [0x21] = {"SET_XNACK_MODE", set_xnack_mode},
    [0x22] = {"CRIU_OP", NULL},
    [0x23] = {"AVAILABLE_MEMORY", available_memory},
    [KFD_EXPORT_DMABUF] = {"EXPORT_DMABUF", export_dmabuf},
    [KFD_RUNTIME_ENABLE] = {"RUNTIME_ENABLE", without_effect},
    [0x26] = {"DBG_TRAP", NULL},
    [KFD_IPC_IMPORT] = {"IPC_IMPORT_HANDLE", ipc_import},
    [KFD_IPC_EXPORT] = {"IPC_EXPORT_HANDLE", ipc_export},
    [0x82] = {"DBG_TRAP of AMD's own driver", lacking},
};

int kfd_ioctl(unsigned number, void *arguments)
{
    const char *name = calls[number].name;
    int answer;
    if (calls[number].play) {
        fault_look(name);
        return fault_answers(&answer) ? answer : calls[number].play(arguments);
    }
    complain("KFD ioctl 0x%02x (%s) is not played", number, name ? name : "of no known name");
    return -ENOTTY;
}
