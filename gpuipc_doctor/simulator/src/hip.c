/* libamdhip64.so: what AMD's HIP runtime does in its own way, after the sources of ROCm/rocm-systems
 * (projects/clr/hipamd/src: hip_context.cpp, hip_memory.cpp, hip_device.cpp). */
#include "allocations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool works_before_init(enum call call)
{
    return call == CALL_init || call == CALL_driver_version || call == CALL_runtime_version ||
           call == CALL_error_name || call == CALL_error_string;
}

const struct face face = {
    .initialized = sim_initialized,
    .works_before_init = works_before_init,
    .backend = HIP,
    .implicit_init = true,
    .device_is_context = true,
    .pool_memory_exports = true,
    .pool_has_one_descriptor = true,
    .granularity = 4096,
    .not_initialized = NOT_INITIALIZED,
    .unsupported = NOT_SUPPORTED,
    .lost = UNKNOWN,
    .gone = INVALID_DEVICE_POINTER, /* hipIpcOpenMemHandle when the device cannot attach */
    .exporter_gone = INVALID_DEVICE_POINTER,
    .not_permitted = NOT_SUPPORTED,
};

/* Not in the table: these return a text, or an error that is no failure of their own. */

EXPORT const char *hipGetErrorName(int code)
{
    const char *name = error_name(code);
    return name ? name : "hipErrorUnknown";
}

EXPORT const char *hipGetErrorString(int code)
{
    const char *text = error_text(code);
    return text ? text : "unknown error";
}

EXPORT int hipGetLastError(void)
{
    return take_last_error(true);
}

EXPORT int hipExtGetLastError(void)
{
    return take_last_error(true);
}

EXPORT int hipPeekAtLastError(void)
{
    return take_last_error(false);
}

int hip_runtime_version(int *version)
{
    if (!version)
        return INVALID_VALUE;
    *version = node()->hip_runtime;
    return SUCCESS;
}

/* ---- a context is its device: creating one hands out the device's, destroying one leaves all as it is ---- */

int hip_device_set(int device)
{
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    choose_ordinal(device);
    return SUCCESS;
}

int hip_context_create(void **context, unsigned flags, int device)
{
    if (!context || ordinal_device(device) < 0)
        return INVALID_VALUE;
    struct context *before = current_context();
    *context = primary_context(device);
    primary_context(device)->flags = flags;
    int code = sim_context_push(*context);
    choose_ordinal(before->ordinal); /* it is on the stack, but the thread's device stays */
    return code;
}

int hip_context_destroy(void *context)
{
    if (!context || !context_known(context))
        return INVALID_VALUE;
    context_leave(context);
    note_context_destroyed();
    return SUCCESS;
}

int hip_primary_retain(void **context, int device)
{
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    if (!context)
        return INVALID_VALUE;
    *context = primary_context(device);
    return SUCCESS;
}

int hip_primary_nothing(int device)
{
    return ordinal_device(device) < 0 ? INVALID_DEVICE : SUCCESS;
}

int hip_primary_reset(int device)
{
    int code = hip_primary_nothing(device);
    if (!code)
        note_context_destroyed();
    return code;
}

/* This one does purge the device's memory objects. */
int hip_device_reset(void)
{
    context_end_with_memory(current_context());
    return SUCCESS;
}

/* ---- hiprtc, whose library is a link to this one. Its code is the source; codes are hiprtcResult's ---- */

enum { RTC_INVALID_INPUT = 3, RTC_INVALID_PROGRAM = 4, RTC_COMPILATION = 6 };

struct program {
    char *source;
    const char *log;
    bool is_compiled;
};

int hip_rtc_create(void **program, const char *source, const char *name, int count, const char **headers,
                   const char **names)
{
    (void)name, (void)headers, (void)names;
    if (!program || !source || count)
        return RTC_INVALID_INPUT;
    struct program *new = calloc(1, sizeof *new);
    if (!new || !(new->source = strdup(source)))
        abort();
    new->log = "";
    *program = new;
    return SUCCESS;
}

int hip_rtc_compile(void *handle, int count, const char **options)
{
    struct program *program = handle;
    (void)options;
    if (!program || count)
        return program ? RTC_INVALID_INPUT : RTC_INVALID_PROGRAM;
    program->is_compiled = !fault_asks(REJECT);
    if (!program->is_compiled)
        program->log = "gpuipc.hip:1:1: error: unsupported version of the code object\n1 error generated";
    return program->is_compiled ? SUCCESS : RTC_COMPILATION;
}

int hip_rtc_log_size(void *program, size_t *bytes)
{
    *bytes = strlen(((struct program *)program)->log) + 1;
    return SUCCESS;
}

int hip_rtc_log(void *program, char *log)
{
    strcpy(log, ((struct program *)program)->log);
    return SUCCESS;
}

int hip_rtc_code_size(void *handle, size_t *bytes)
{
    struct program *program = handle;
    *bytes = strlen(program->source) + 1;
    return program->is_compiled ? SUCCESS : RTC_INVALID_PROGRAM;
}

int hip_rtc_code(void *handle, char *out)
{
    struct program *program = handle;
    if (!program->is_compiled)
        return RTC_INVALID_PROGRAM;
    strcpy(out, program->source);
    return SUCCESS;
}

int hip_rtc_destroy(void **handle)
{
    struct program *program = *handle;
    free(program->source);
    free(program);
    *handle = NULL;
    return SUCCESS;
}

int hip_alloc_with_flags(uint64_t *address, size_t bytes, unsigned flags)
{
    enum { DEFAULT, FINEGRAINED, SIGNAL, UNCACHED }; /* how far copies are coherent makes no difference here */
    if (flags > UNCACHED)
        return INVALID_VALUE;
    return flags == SIGNAL ? NOT_SUPPORTED : sim_alloc(address, bytes);
}

/* ---- peers ---- */

int hip_enable_peer(int peer, unsigned flags)
{
    struct context *context = current_context();
    int device = ordinal_device(peer);
    if (flags)
        return INVALID_VALUE;
    if (device < 0 || device == context->device)
        return INVALID_DEVICE;
    if (!node()->peer[context->device][device])
        return INVALID_DEVICE;
    if (context->peers & 1u << device)
        return PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << device;
    context->peer_faults = kernel_faults();
    return SUCCESS;
}

int hip_disable_peer(int peer)
{
    struct context *context = current_context();
    int device = ordinal_device(peer);
    if (device < 0)
        return INVALID_DEVICE;
    if (!(context->peers & 1u << device))
        return PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << device);
    return SUCCESS;
}

int hip_peer_attribute(int *value, int attribute, int device, int peer)
{
    enum { PERFORMANCE_RANK, ACCESS_SUPPORTED, NATIVE_ATOMIC_SUPPORTED, ARRAY_ACCESS_SUPPORTED };
    int access, code = sim_can_access_peer(&access, device, peer);
    if (code)
        return code;
    if (!value || attribute < PERFORMANCE_RANK || attribute > ARRAY_ACCESS_SUPPORTED)
        return INVALID_VALUE;
    bool is_native = attribute == NATIVE_ATOMIC_SUPPORTED; /* as over xGMI */
    *value = is_native && fault_asks(MISSTATE) ? (int)fault_bytes(MISSTATE)
             : attribute == ACCESS_SUPPORTED || is_native ? access : 0;
    return SUCCESS;
}

int hip_copy_peer(uint64_t to, int to_device, uint64_t from, int from_device, size_t bytes)
{
    if (ordinal_device(to_device) < 0 || ordinal_device(from_device) < 0)
        return INVALID_DEVICE;
    return sim_copy_on_device(to, from, bytes);
}

int hip_copy_peer_async(uint64_t to, int to_device, uint64_t from, int from_device, size_t bytes, void *stream)
{
    int code = stream_check(stream);
    if (code)
        return code;
    stream_finish(stream);
    return hip_copy_peer(to, to_device, from, from_device, bytes);
}

/* ---- copies, fills and streams in the runtime's form ---- */

int hip_copy(uint64_t to, uint64_t from, size_t bytes, int kind)
{
    enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };
    switch (kind) {
    case HOST_TO_DEVICE:
        return sim_copy_to_device(to, (const void *)(uintptr_t)from, bytes);
    case DEVICE_TO_HOST:
        return sim_copy_from_device((void *)(uintptr_t)to, from, bytes);
    case DEVICE_TO_DEVICE:
        return sim_copy_on_device(to, from, bytes);
    case HOST_TO_HOST:
    case BY_ADDRESS:
        return sim_copy(to, from, bytes);
    default:
        return 21; /* hipErrorInvalidMemcpyDirection */
    }
}

int hip_copy_async(uint64_t to, uint64_t from, size_t bytes, int kind, void *stream)
{
    int code = stream_check(stream);
    if (code)
        return code;
    stream_finish(stream);
    return hip_copy(to, from, bytes, kind);
}

int hip_fill(uint64_t address, int value, size_t bytes)
{
    return sim_fill8(address, (unsigned char)value, bytes);
}

int hip_fill_async(uint64_t address, int value, size_t bytes, void *stream)
{
    return sim_fill8_async(address, (unsigned char)value, bytes, stream);
}

int hip_pool_export(void *out, void *pool, int type, unsigned flags)
{
    return sim_pool_export(out, pool, type, flags);
}

int hip_pool_import(void **pool, void *shared, int type, unsigned flags)
{
    return sim_pool_import(pool, shared, type, flags);
}

int hip_stream_create(void **stream)
{
    return sim_stream_create(stream, 0);
}

int hip_event_create(void **event)
{
    return sim_event_create(event, 0);
}

/* ---- what a device or a pointer is ---- */

static const struct fixed_attribute fixed[] = {
    {0, 1},     /* EccEnabled */
    {3, 1},     /* CanMapHostMemory */
    {5, 1700000}, /* ClockRate, kHz */
    {8, 1},     /* ConcurrentKernels */
    {24, 1},    /* ManagedMemory */
    {56, 1024}, /* MaxThreadsPerBlock */
    {63, 104},  /* MultiprocessorCount */
    {85, 1},    /* UnifiedAddressing */
    {87, 64},   /* WarpSize */
    {88, 1},    /* MemoryPoolsSupported */
    {89, 1},    /* VirtualMemoryManagementSupported */
    {90, 1},    /* HostRegisterSupported */
    {91, 1},    /* MemoryPoolSupportedHandleTypes: descriptors */
    {93, 1},    /* DmaBufSupported, which 7.2.4 does not know */
};

static const struct attribute_numbers numbers = {
    .capability_major = 23,
    .capability_minor = 61,
    .pci_bus = 67,
    .pci_device = 68,
    .pci_domain = 69,
    .count = sizeof fixed / sizeof *fixed,
    .fixed = fixed,
};

int hip_device_attribute(int *value, int attribute, int device)
{
    enum { POOLS_SUPPORTED = 88, VIRTUAL_MEMORY_SUPPORTED, POOL_HANDLE_TYPES = 91, DMA_BUF_SUPPORTED = 93 };
    int code = value && attribute >= 0 ? device_attribute(&numbers, value, attribute, device) : INVALID_VALUE;
    bool is_of_6 = attribute == POOLS_SUPPORTED || attribute == VIRTUAL_MEMORY_SUPPORTED ||
                   attribute == POOL_HANDLE_TYPES;
    if (!code && is_of_6 && node()->hip_runtime && node()->hip_runtime < 60000000)
        *value = 0; /* seen on 5.2.3 and 5.7.1, which has pools if HIP_MEM_POOL_SUPPORT=1 is set */
    if (!code && attribute == DMA_BUF_SUPPORTED && hip_release() <= 702)
        code = INVALID_VALUE;
    if (!code && attribute == DMA_BUF_SUPPORTED && fault_asks(MISSTATE))
        *value = (int)fault_bytes(MISSTATE);
    return code;
}

/* hipDeviceProp_tR0600. Only what is named is filled in; `_…` stands for limits of textures and the like. */
struct hip_properties {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_memory, shared_memory_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int max_threads_per_block, max_threads[3], max_grid[3], clock_rate;
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int overlap, multiprocessors, timeout, integrated, can_map_host_memory, compute_mode;
    int _textures[39];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain;
    int _tcc, async_engines, unified_addressing, memory_clock_rate, memory_bus_width, l2_cache;
    int _persisting_l2, max_threads_per_multiprocessor, stream_priorities, _l1[2];
    size_t shared_memory_per_multiprocessor;
    int registers_per_multiprocessor, managed_memory;
    int _boards[10];
    size_t shared_memory_per_block_optin;
    int _pageable[4];
    size_t reserved_shared_memory;
    int host_register, _sparse, _read_only, _timeline, memory_pools, _rdma[5], ipc_events, _cluster[2];
    int _reserved[63], _hip_reserved[32];
    char arch[256];
    unsigned char _rest[256];
};
_Static_assert(offsetof(struct hip_properties, multiprocessors) == 388, "hipDeviceProp_tR0600.multiProcessorCount");
_Static_assert(offsetof(struct hip_properties, arch) == 1160, "hipDeviceProp_tR0600.gcnArchName");
_Static_assert(offsetof(struct hip_properties, pci_bus) == 584, "hipDeviceProp_tR0600.pciBusID");
enum { PROPERTIES_BYTES = 1472 };

int hip_device_properties(struct hip_properties *properties, int device)
{
    int number = ordinal_device(device);
    if (!properties)
        return INVALID_VALUE;
    if (number < 0)
        return INVALID_DEVICE;
    const struct device *one = &node()->device[number];
    memset(properties, 0, PROPERTIES_BYTES);
    snprintf(properties->name, sizeof properties->name, "%s", one->name);
    snprintf(properties->arch, sizeof properties->arch, "%s", one->arch);
    sim_device_uuid(properties->uuid, device);
    sim_device_capability(&properties->major, &properties->minor, device);
    device_pci_numbers(device, &properties->pci_domain, &properties->pci_bus, &properties->pci_device);
    properties->total_memory = one->memory;
    properties->warp_size = 64;
    properties->max_threads_per_block = 1024;
    properties->multiprocessors = 104;
    properties->can_map_host_memory = properties->concurrent_kernels = properties->unified_addressing = 1;
    properties->managed_memory = properties->memory_pools = properties->host_register = 1;
    return SUCCESS;
}

struct hip_pointer_attribute {
    int type, device;
    uint64_t device_pointer, host_pointer;
    int managed;
    unsigned flags;
};

int hip_pointer_attributes(struct hip_pointer_attribute *out, uint64_t address)
{
    enum { MEMORY_TYPE = 2, HOST_POINTER = 4, IS_MANAGED = 8, ORDINAL = 9, MANAGED_TYPE = 3, NO_DEVICE_ID = -2 };
    bool managed = false;
    if (!out)
        return INVALID_VALUE;
    *out = (struct hip_pointer_attribute){.device = NO_DEVICE_ID};
    if (sim_pointer_attribute(&out->type, MEMORY_TYPE, address))
        return SUCCESS; /* memory that HIP does not know is of type unregistered, 0 */
    sim_pointer_attribute(&out->device, ORDINAL, address);
    sim_pointer_attribute(&out->host_pointer, HOST_POINTER, address);
    sim_pointer_attribute(&managed, IS_MANAGED, address);
    out->device_pointer = address;
    out->managed = managed;
    if (managed)
        out->type = MANAGED_TYPE;
    return SUCCESS;
}
