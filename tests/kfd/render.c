/* The ioctls of a render node: libdrm's questions, dma-bufs by GEM handle, and addresses of memory of VMM.
 * Sources: Linux 6.18, drivers/gpu/drm/drm_ioctl.c and drm_prime.c, drivers/gpu/drm/amd/amdgpu/amdgpu_gem.c and
 * amdgpu_kms.c. */
#define _GNU_SOURCE
#include "emulator.h"

#include <drm/drm.h>
#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

static struct buffer *gem_buffer(int gpu, uint32_t handle)
{
    struct buffer *buffer = buffer_numbered(handle);
    return buffer && buffer->render_node == gpu ? buffer : NULL;
}

static int gem_handle(int gpu, int number, uint32_t *handle)
{
    if (number < 0)
        return number;
    buffer_numbered((uint64_t)number)->render_node = gpu;
    *handle = (uint32_t)number;
    return 0;
}

/* ---- common to all drivers ---- */

static void put_text(char *to, size_t *room, const char *text)
{
    size_t length = strlen(text);
    if (to)
        memcpy(to, text, *room < length ? *room : length);
    *room = length;
}

static int version(int gpu, void *arguments)
{
    struct drm_version *version = arguments;
    (void)gpu;
    version->major = 3;
    version->minor = 64;
    version->patchlevel = 0;
    put_text(version->name, &version->name_length, "amdgpu");
    put_text(version->date, &version->date_length, "20150101");
    put_text(version->description, &version->description_length, "AMD GPU");
    return 0;
}

static int get_client(int gpu, void *arguments)
{
    (void)gpu;
    ((struct drm_client *)arguments)->is_authenticated = 1; /* on a render node everybody is */
    return 0;
}

static int get_cap(int gpu, void *arguments)
{
    enum { PRIME = 5, BOTH_WAYS = 3, SYNCOBJ = 0x13, TIMELINE = 0x14 };
    struct drm_get_cap *cap = arguments;
    (void)gpu;
    cap->value = cap->capability == PRIME ? BOTH_WAYS : 0; /* without sync objects: they are not played */
    return 0;
}

static int gem_close(int gpu, void *arguments)
{
    struct drm_gem_close *request = arguments;
    if (!gem_buffer(gpu, request->handle))
        return -EINVAL;
    buffer_free((int)request->handle);
    return 0;
}

static int handle_to_fd(int gpu, void *arguments)
{
    struct drm_prime_handle *request = arguments;
    const struct buffer *buffer = gem_buffer(gpu, request->handle);
    request->fd = buffer ? buffer_descriptor(buffer) : -ENOENT;
    return request->fd < 0 ? request->fd : 0;
}

static int fd_to_handle(int gpu, void *arguments)
{
    struct drm_prime_handle *request = arguments;
    int known = buffer_with_file(request->fd, gpu); /* one handle for a buffer, however often it is imported */
    return gem_handle(gpu, known > 0 ? known : buffer_import(request->fd), &request->handle);
}

/* ---- amdgpu's buffers ---- */

static int create(int gpu, void *arguments)
{
    union gem_create *request = arguments;
    enum heap heap = request->request.domains & DOMAIN_VRAM ? VRAM : GTT;
    int number = buffer_create(heap, gpu, request->request.size);
    memset(request, 0, sizeof *request);
    return gem_handle(gpu, number, &request->handle);
}

static int offset_for_mmap(int gpu, void *arguments)
{
    union gem_mmap *request = arguments;
    if (!gem_buffer(gpu, request->handle))
        return -ENOENT;
    request->offset = (uint64_t)request->handle << OFFSET_BUFFER_SHIFT;
    return 0;
}

static int map_addresses(int gpu, void *arguments)
{
    const struct gem_va *request = arguments;
    const struct buffer *buffer = gem_buffer(gpu, request->handle);
    unsigned this_gpu = 1u << gpu;
    trace("addresses 0x%llx, %llu B, operation %u", request->address, request->size, request->operation);
    bool was_mapped = request->operation != VA_MAP && unmap_range(this_gpu, request->address, request->size);
    if (request->operation == VA_UNMAP && !was_mapped)
        return -ENOENT; /* amdgpu_vm_bo_unmap() */
    if (request->operation == VA_UNMAP || request->operation == VA_CLEAR)
        return 0;
    if (!buffer)
        return -ENOENT;
    if (request->offset + request->size > buffer->size)
        return -EINVAL;
    map_on(this_gpu, request->address, request->size, buffer->host + request->offset, (int)request->handle);
    return 0;
}

/* Metadata belongs to the buffer, whichever process asks: an extended attribute of its file. In a user namespace
 * only user.* may be set, on a tmpfs since Linux 6.6; before, only root could, and only trusted.*. */
static const char *const attributes[] = {"user.kfd", "trusted.kfd"};

static int metadata(int gpu, void *arguments)
{
    struct gem_metadata *request = arguments;
    const struct buffer *buffer = gem_buffer(gpu, request->handle);
    if (!buffer)
        return -ENOENT;
    int file = buffer->file;
    if (request->operation == METADATA_SET) {
        if (fsetxattr(file, attributes[0], &request->data, sizeof request->data, 0) &&
            fsetxattr(file, attributes[1], &request->data, sizeof request->data, 0)) {
            complain("metadata of buffers cannot be played: no extended attributes on this tmpfs");
            return -ENOTTY;
        }
        return 0;
    }
    if (fault_is("blank"))
        memset(&request->data, 0, sizeof request->data);
    else if (fgetxattr(file, attributes[0], &request->data, sizeof request->data) < 0 &&
        fgetxattr(file, attributes[1], &request->data, sizeof request->data) < 0)
        memset(&request->data, 0, sizeof request->data); /* none was set */
    return 0;
}

static int buffer_operation(int gpu, void *arguments)
{
    const struct gem_op *request = arguments;
    const struct buffer *buffer = gem_buffer(gpu, request->handle);
    if (!buffer)
        return -ENOENT;
    if (request->operation != GEM_OP_GET_CREATE_INFO) {
        complain("operation %u of AMDGPU_GEM_OP is not played", request->operation);
        return -ENOTTY;
    }
    *(struct gem_create_request *)request->value = (struct gem_create_request){
        .size = buffer->size, .alignment = 4096, .domains = buffer->heap == VRAM ? DOMAIN_VRAM : DOMAIN_GTT};
    return 0;
}

/* ---- questions about the device ---- */

/* Fields of struct drm_amdgpu_info_device that user space reads, by their offset: an MI210 (gfx90a). */
static const struct {
    uint16_t offset, size;
    uint64_t value;
} device_fields[] = {
    {0, 4, 0x740f},             /* device_id */
    {4, 4, 1},                  /* chip_rev */
    {8, 4, 0x3d},               /* external_rev */
    {12, 4, 2},                 /* pci_rev */
    {16, 4, 141},               /* family: AMDGPU_FAMILY_AI */
    {20, 4, 8},                 /* num_shader_engines */
    {24, 4, 1},                 /* num_shader_arrays_per_engine */
    {28, 4, 100000},            /* gpu_counter_freq, kHz */
    {32, 8, 1700000},           /* max_engine_clock, kHz */
    {40, 8, 1600000},           /* max_memory_clock, kHz */
    {48, 4, 104},               /* cu_active_number */
    {144, 8, 0x200000},         /* virtual_address_offset */
    {152, 8, 1ull << 47},       /* virtual_address_max */
    {160, 4, 4096},             /* virtual_address_alignment */
    {164, 4, 2 << 20},          /* pte_fragment_size */
    {168, 4, 4096},             /* gart_page_size */
    {176, 4, 6},                /* vram_type: HBM */
    {180, 4, 4096},             /* vram_bit_width */
    {240, 4, 64},               /* wave_front_size */
    {248, 4, 14},               /* num_cu_per_sh */
    {336, 8, 0xffff800000000000}, /* high_va_offset */
    {344, 8, 0xffffffffffe00000}, /* high_va_max */
};
enum { DEVICE_BYTES = 440 };

static int put(const struct amdgpu_info *request, const void *answer, size_t size)
{
    void *to = (void *)request->answer;
    memset(to, 0, request->size);
    if (size)
        memcpy(to, answer, size < request->size ? size : request->size);
    return 0;
}

static int put_device(const struct amdgpu_info *request)
{
    uint8_t device[DEVICE_BYTES] = {0};
    for (size_t i = 0; i < sizeof device_fields / sizeof *device_fields; i++)
        memcpy(device + device_fields[i].offset, &device_fields[i].value, device_fields[i].size);
    return put(request, device, sizeof device);
}

static int put_memory(int gpu, const struct amdgpu_info *request)
{
    uint64_t total = vram_total(gpu);
    struct heap_info vram = {total, total, total - vram_free_as_told(gpu), total}, gtt = {total, total, 0, total};
    return put(request, &(struct memory_info){vram, vram, gtt}, sizeof(struct memory_info));
}

static int info(int gpu, void *arguments)
{
    const struct amdgpu_info *request = arguments;
    uint64_t total = vram_total(gpu), used = total - vram_free_as_told(gpu), now = nanoseconds() / 10;
    switch (request->query) {
    case INFO_ACCELERATION_WORKS:
        return put(request, &(uint32_t){1}, sizeof(uint32_t));
    case INFO_DEVICE:
        return put_device(request);
    case INFO_MEMORY:
        return put_memory(gpu, request);
    case INFO_VRAM_GTT:
        return put(request, (uint64_t[]){total, total, total}, 3 * sizeof total);
    case INFO_VRAM_USAGE:
        return put(request, &used, sizeof used);
    case INFO_TIMESTAMP:
        return put(request, &now, sizeof now);
    case INFO_REGISTERS: /* of how images are tiled, which libdrm asks for when it begins */
        return put(request, NULL, 0);
    default:
        trace("AMDGPU_INFO 0x%x is not played", request->query); /* libdrm asks much that nothing here needs */
        return -EINVAL;
    }
}

/* ---- which is which ---- */

static const struct {
    const char *name;
    int (*play)(int gpu, void *arguments);
} calls[256] = {
    [DRM_VERSION] = {"VERSION", version},
    [DRM_GET_CLIENT] = {"GET_CLIENT", get_client},
    [DRM_GEM_CLOSE] = {"GEM_CLOSE", gem_close},
    [DRM_GET_CAP] = {"GET_CAP", get_cap},
    [DRM_PRIME_HANDLE_TO_FD] = {"PRIME_HANDLE_TO_FD", handle_to_fd},
    [DRM_PRIME_FD_TO_HANDLE] = {"PRIME_FD_TO_HANDLE", fd_to_handle},
    [AMDGPU_GEM_CREATE] = {"AMDGPU_GEM_CREATE", create},
    [AMDGPU_GEM_MMAP] = {"AMDGPU_GEM_MMAP", offset_for_mmap},
    [AMDGPU_INFO] = {"AMDGPU_INFO", info},
    [AMDGPU_GEM_METADATA] = {"AMDGPU_GEM_METADATA", metadata},
    [AMDGPU_GEM_VA] = {"AMDGPU_GEM_VA", map_addresses},
    [AMDGPU_GEM_OP] = {"AMDGPU_GEM_OP", buffer_operation},
};

int render_ioctl(int gpu, unsigned number, void *arguments)
{
    int answer;
    if (calls[number].play) {
        fault_look(calls[number].name);
        return fault_answers(&answer) ? answer : calls[number].play(gpu, arguments);
    }
    complain("render node's ioctl 0x%02x is not played", number);
    return -ENOTTY;
}
