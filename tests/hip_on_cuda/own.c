/* What HIP does in its own way, said with calls of CUDA's driver; the rest is generated (forward.py).
 * A HIP context is its device, so here it is the device's primary context, which outlives its destruction. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define CALL(function, ...) ((int (*)())cuda(function, (char *)0))(__VA_ARGS__)

struct ipc_handle {
    char bytes[64];
};

/* The first of these names that the node's driver has, or NULL. */
static void *cuda(const char *name, ...)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
    va_list names;
    va_start(names, name);
    for (; library && name && !found; name = va_arg(names, const char *))
        found = dlsym(library, name);
    va_end(names);
    return found;
}

#include "forward.h"

/* AMD's variables hide devices, one at a time here, and CUDA's driver knows its own. */
__attribute__((constructor)) static void hide_devices(void)
{
    const char *visible = getenv("HIP_VISIBLE_DEVICES");
    if (!visible)
        visible = getenv("ROCR_VISIBLE_DEVICES");
    if (visible)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
}

EXPORT int hipRuntimeGetVersion(int *version)
{
    *version = 0; /* it is of no release */
    return 0;
}

/* 16 digits, not 16 bytes. */
EXPORT int hipDeviceGetUuid(char *uuid, int device)
{
    unsigned char bytes[16];
    char digits[17];
    int code = CALL("cuDeviceGetUuid_v2", bytes, device);
    for (int i = 0; i < 8; i++)
        snprintf(digits + 2 * i, 3, "%02x", bytes[i]);
    for (int i = 0; !code && i < 16; i++)
        uuid[i] = digits[i];
    return code;
}

/* hipDeviceAttribute_t and CUdevice_attribute, of what the backend asks for. */
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    static const int numbers[][2] = {
        {3, 19},   /* CanMapHostMemory */
        {24, 83},  /* ManagedMemory */
        {67, 33},  /* PciBusId */
        {68, 34},  /* PciDeviceId */
        {69, 50},  /* PciDomainID */
        {88, 115}, /* MemoryPoolsSupported */
        {89, 102}, /* VirtualMemoryManagementSupported */
        {91, 119}, /* MemoryPoolSupportedHandleTypes */
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i][0] == attribute)
            return CALL("cuDeviceGetAttribute", value, numbers[i][1], device);
    return 1; /* hipErrorInvalidValue */
}

EXPORT int hipDevicePrimaryCtxRetain(void **context, int device)
{
    return CALL("cuDevicePrimaryCtxRetain", context, device);
}

EXPORT int hipCtxCreate(void **context, unsigned flags, int device)
{
    (void)flags;
    int code = hipDevicePrimaryCtxRetain(context, device);
    return code ? code : CALL("cuCtxPushCurrent_v2", *context);
}

EXPORT int hipCtxDestroy(void *context)
{
    return context ? 0 : 1;
}

EXPORT int hipDevicePrimaryCtxReset(int device)
{
    (void)device;
    return 0;
}

EXPORT int hipMemPoolExportToShareableHandle(void *out, void *pool, int type, unsigned flags)
{
    return CALL("cuMemPoolExportToShareableHandle", out, pool, type, (uint64_t)flags);
}

EXPORT int hipMemPoolImportFromShareableHandle(void **pool, void *shared, int type, unsigned flags)
{
    return CALL("cuMemPoolImportFromShareableHandle", pool, shared, type, (uint64_t)flags);
}
