/* libcuda.so.1: what CUDA's driver API does in its own way. */
#include "allocations.h"

#include <stdio.h>
#include <string.h>

static bool works_before_init(enum call call)
{
    return call == CALL_init || call == CALL_driver_version || call == CALL_error_name ||
           call == CALL_error_string || call == CALL_get_proc_address;
}

const struct face face = {
    .initialized = sim_initialized,
    .works_before_init = works_before_init,
    .backend = CUDA,
    .pool_adds_dependencies = true,
    .granularity = 512, /* bytes; two allocations of 1000 lie 1024 apart on the H200 */
    .not_initialized = NOT_INITIALIZED,
    .unsupported = NOT_SUPPORTED,
    .lost = UNKNOWN,
    .gone = INVALID_VALUE,
    .exporter_gone = INVALID_HANDLE,
    .not_permitted = NOT_PERMITTED,
};

/* ---- cuGetProcAddress ---- */

struct symbol {
    const char *name; /* without the suffix of its version */
    int version;      /* CUDA's, from which this variant is served */
    bool per_thread;
    void (*function)(void);
};

#include "symbols.h"

enum { PER_THREAD_DEFAULT_STREAM = 2 };
enum { FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT }; /* CUdriverProcAddressQueryResult */

/* Every symbol is served whatever driver the node claims to have: cuda-bindings asks for CUDA 12's, and what
 * an old driver would lack is not what is simulated. */
int cuda_proc_address_status(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    const struct symbol *best = NULL;
    int result = SYMBOL_NOT_FOUND;
    if (!symbol || !function)
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const struct symbol *each = &symbols[i];
        if (strcmp(each->name, symbol) || (each->per_thread && !(flags & PER_THREAD_DEFAULT_STREAM)))
            continue;
        if (each->version > version)
            result = best ? FOUND : VERSION_NOT_SUFFICIENT;
        else if (!best || each->version > best->version ||
                 (each->version == best->version && each->per_thread))
            best = each;
    }
    *function = NULL;
    if (best) {
        memcpy(function, &best->function, sizeof *function);
        result = FOUND;
    }
    if (status)
        *status = result;
    return best ? SUCCESS : NOT_FOUND;
}

int cuda_proc_address(const char *symbol, void **function, int version, uint64_t flags)
{
    return cuda_proc_address_status(symbol, function, version, flags, NULL);
}

/* ---- contexts ---- */

int cuda_context_create(void **context, unsigned flags, int device)
{
    if (!context)
        return INVALID_VALUE;
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    *context = context_new(device, flags);
    context_begin(*context);
    return sim_context_push(*context);
}

int cuda_context_create_affinity(void **context, void *affinity, int count, unsigned flags, int device)
{
    return affinity || count ? NOT_SUPPORTED : cuda_context_create(context, flags, device);
}

int cuda_context_create_parameters(void **context, void *parameters, unsigned flags, int device)
{
    return parameters ? NOT_SUPPORTED : cuda_context_create(context, flags, device);
}

static bool is_primary(const struct context *context)
{
    return context == primary_context(context->ordinal);
}

int cuda_context_destroy(void *handle)
{
    struct context *context = handle;
    if (!context || !context_known(context) || !context->alive || is_primary(context))
        return INVALID_CONTEXT;
    context_leave(context);
    context_end_with_memory(context);
    return SUCCESS;
}

int cuda_context_flags(unsigned *flags)
{
    struct context *context;
    int code = enter_context(&context);
    if (!code && !flags)
        code = INVALID_VALUE;
    if (!code)
        *flags = context->flags;
    return code;
}

int cuda_context_set_flags(unsigned flags)
{
    enum { KNOWN = 0xff }; /* CU_CTX_FLAGS_MASK */
    struct context *context;
    int code = enter_context(&context);
    if (!code && flags & ~KNOWN)
        code = INVALID_VALUE;
    if (!code)
        context->flags = flags;
    return code;
}

static int context_or_current(void *handle, struct context **context)
{
    if (!handle)
        return enter_context(context);
    *context = handle;
    return context_known(handle) ? SUCCESS : INVALID_CONTEXT;
}

int cuda_context_id(void *handle, uint64_t *id)
{
    struct context *context;
    int code = context_or_current(handle, &context);
    if (!code)
        *id = context->number;
    return code;
}

int cuda_context_api_version(void *handle, unsigned *version)
{
    struct context *context;
    int code = context_or_current(handle, &context);
    if (!code)
        *version = 3020; /* of contexts made by cuCtxCreate_v2 */
    return code;
}

static unsigned references[MAX_DEVICES]; /* to primary contexts, by ordinal */

int cuda_primary_retain(void **context, int device)
{
    if (!context)
        return INVALID_VALUE;
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    references[device]++;
    context_begin(primary_context(device));
    *context = primary_context(device);
    return SUCCESS;
}

int cuda_primary_release(int device)
{
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    if (!references[device])
        return INVALID_CONTEXT;
    if (--references[device] == 0)
        context_end_with_memory(primary_context(device));
    return SUCCESS;
}

int cuda_primary_reset(int device)
{
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    context_end_with_memory(primary_context(device));
    return SUCCESS;
}

int cuda_primary_set_flags(int device, unsigned flags)
{
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    primary_context(device)->flags = flags;
    return SUCCESS;
}

/* ---- modules ---- */

static int load_module(void **module, const void *image, char *log, uint64_t log_bytes)
{
    static const char complaint[] = "ptxas application ptx input, line 6; fatal   : Unsupported .version 6.0; unsupported version";
    if (!fault_asks(REJECT))
        return sim_module_load(module, image);
    if (log && log_bytes)
        snprintf(log, log_bytes, "%s", complaint);
    return UNSUPPORTED_PTX_VERSION;
}

int cuda_module_load_data(void **module, const void *image)
{
    return load_module(module, image, NULL, 0);
}

int cuda_module_load_with_options(void **module, const void *image, unsigned count, int *options, void **values)
{
    enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES }; /* CUjit_option */
    char *log = NULL;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == ERROR_LOG_BUFFER)
            log = values[i];
        if (options[i] == ERROR_LOG_BUFFER_SIZE_BYTES)
            bytes = (uintptr_t)values[i];
    }
    return load_module(module, image, log, bytes);
}

/* ---- peers ---- */

int cuda_enable_peer(void *handle, unsigned flags)
{
    struct context *context, *peer = handle;
    int code = enter_context(&context);
    if (code)
        return code;
    if (flags)
        return INVALID_VALUE;
    if (!peer || !context_known(peer))
        return INVALID_CONTEXT;
    if (peer->device == context->device || !node()->peer[context->device][peer->device])
        return PEER_ACCESS_UNSUPPORTED;
    if (context->peers & 1u << peer->device)
        return PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << peer->device;
    context->peer_faults = kernel_faults();
    return SUCCESS;
}

int cuda_disable_peer(void *handle)
{
    struct context *context, *peer = handle;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!peer || !context_known(peer))
        return INVALID_CONTEXT;
    if (!(context->peers & 1u << peer->device))
        return PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << peer->device);
    return SUCCESS;
}

int cuda_peer_attribute(int *value, int attribute, int device, int peer)
{
    enum { PERFORMANCE_RANK = 1, ACCESS_SUPPORTED, NATIVE_ATOMIC_SUPPORTED, ARRAY_ACCESS_SUPPORTED };
    int access, code = sim_can_access_peer(&access, device, peer);
    if (code)
        return code;
    if (!value || attribute < PERFORMANCE_RANK || attribute > ARRAY_ACCESS_SUPPORTED)
        return INVALID_VALUE;
    bool is_native = attribute == NATIVE_ATOMIC_SUPPORTED; /* as over NVLink */
    *value = is_native && fault_asks(MISSTATE) ? (int)fault_bytes(MISSTATE)
             : attribute == ACCESS_SUPPORTED || is_native ? access : 0;
    return SUCCESS;
}

int cuda_copy_peer(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes)
{
    if (!to_context || !context_known(to_context) || !from_context || !context_known(from_context))
        return INVALID_CONTEXT;
    return sim_copy_on_device(to, from, bytes);
}

int cuda_copy_peer_async(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes,
                         void *stream)
{
    int code = stream_check(stream);
    if (code)
        return code;
    stream_finish(stream);
    return cuda_copy_peer(to, to_context, from, from_context, bytes);
}

/* ---- attributes: those of a middling data-centre GPU; what is not listed is a feature it does not have ---- */

static const struct fixed_attribute fixed[] = {
    {1, 1024},        /* MAX_THREADS_PER_BLOCK */
    {2, 1024},        /* MAX_BLOCK_DIM_X */
    {3, 1024},        /* MAX_BLOCK_DIM_Y */
    {4, 64},          /* MAX_BLOCK_DIM_Z */
    {5, 2147483647},  /* MAX_GRID_DIM_X */
    {6, 65535},       /* MAX_GRID_DIM_Y */
    {7, 65535},       /* MAX_GRID_DIM_Z */
    {8, 49152},       /* MAX_SHARED_MEMORY_PER_BLOCK */
    {9, 65536},       /* TOTAL_CONSTANT_MEMORY */
    {10, 32},         /* WARP_SIZE */
    {11, 2147483647}, /* MAX_PITCH */
    {12, 65536},      /* MAX_REGISTERS_PER_BLOCK */
    {13, 1400000},    /* CLOCK_RATE, kHz */
    {14, 512},        /* TEXTURE_ALIGNMENT */
    {15, 1},          /* GPU_OVERLAP */
    {16, 80},         /* MULTIPROCESSOR_COUNT */
    {19, 1},          /* CAN_MAP_HOST_MEMORY */
    {31, 1},          /* CONCURRENT_KERNELS */
    {32, 1},          /* ECC_ENABLED */
    {36, 1000000},    /* MEMORY_CLOCK_RATE, kHz */
    {37, 4096},       /* GLOBAL_MEMORY_BUS_WIDTH */
    {38, 6291456},    /* L2_CACHE_SIZE */
    {39, 2048},       /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 2},          /* ASYNC_ENGINE_COUNT */
    {41, 1},          /* UNIFIED_ADDRESSING */
    {81, 98304},      /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    {82, 65536},      /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    {83, 1},          /* MANAGED_MEMORY */
    {91, 1},          /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    {97, 98304},      /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {99, 1},          /* HOST_REGISTER_SUPPORTED */
    {102, 1},         /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {103, 1},         /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    {106, 32},        /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    {115, 1},         /* MEMORY_POOLS_SUPPORTED, from 11.2 on */
    {119, 9},         /* MEMPOOL_SUPPORTED_HANDLE_TYPES: descriptors and fabric handles */
    {124, 1},         /* DMA_BUF_SUPPORTED, from 11.7 on */
    {128, 1},         /* HANDLE_TYPE_FABRIC_SUPPORTED, from 12.3 on: said also where creating such memory is refused */
};

static const struct attribute_numbers numbers = {
    .pci_bus = 33,
    .pci_device = 34,
    .pci_domain = 50,
    .capability_major = 75,
    .capability_minor = 76,
    .count = sizeof fixed / sizeof *fixed,
    .fixed = fixed,
};

int cuda_device_attribute(int *value, int attribute, int device)
{
    enum { INTEGRATED = 18, COMPUTE_MODE = 20, EXCLUSIVE_PROCESS = 3 };
    enum { MEMORY_POOLS_SUPPORTED = 115, DMA_BUF_SUPPORTED = 124, HANDLE_TYPE_FABRIC_SUPPORTED = 128, HIGHEST_KNOWN = 150 };
    int known_from = attribute == MEMORY_POOLS_SUPPORTED         ? 11020
                     : attribute == DMA_BUF_SUPPORTED            ? 11070
                     : attribute == HANDLE_TYPE_FABRIC_SUPPORTED ? 12030
                                                                 : 0;
    if (!value || attribute <= 0 || attribute > HIGHEST_KNOWN || node()->cuda_driver < known_from)
        return INVALID_VALUE;
    int code = device_attribute(&numbers, value, attribute, device);
    if (code)
        return code;
    enum device_mode mode = node()->device[ordinal_device(device)].mode;
    if (attribute == DMA_BUF_SUPPORTED && fault_asks(MISSTATE))
        *value = (int)fault_bytes(MISSTATE);
    if (attribute == INTEGRATED)
        *value = mode == INTEGRATED_GPU;
    if (attribute == COMPUTE_MODE)
        *value = mode == EXCLUSIVE ? EXCLUSIVE_PROCESS : 0;
    return SUCCESS;
}
