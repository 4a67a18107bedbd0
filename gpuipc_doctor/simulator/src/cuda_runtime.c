/* So much of CUDA's runtime as UCX's test program calls, on the driver beneath; preloaded into that program alone.
 *
 * NVIDIA's own runtime asks the driver for tables that nobody documents (cuGetExportTable), which a simulated one does
 * not have: its first call ends with 801. What moves messages in UCX itself calls the driver, and meets the simulated
 * one. Built without NVIDIA's headers; the numbers of cudaMemcpyKind and of errors are theirs (driver_types.h), and
 * those of the driver's errors are the same but for few.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_SUPPORTED = 801 };

static _Thread_local int last_error;

static int keep(int code)
{
    if (code)
        last_error = code;
    return code;
}

/* The driver's function of that name. */
static void *driver(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "simulated CUDA runtime: no %s in libcuda.so.1\n", name);
        _exit(1);
    }
    return found;
}

#define CALL(name, types, ...) (((int (*) types)driver(#name))(__VA_ARGS__))

/* As the runtime does, the first call makes the first device's primary context current where none is. */
static int ready(void)
{
    static int begun;
    void *context = NULL;
    int code = begun ? SUCCESS : CALL(cuInit, (unsigned), 0);
    if (code)
        return code;
    begun = 1;
    code = CALL(cuCtxGetCurrent, (void **), &context);
    if (code || context)
        return code;
    code = CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    return code ? code : CALL(cuCtxSetCurrent, (void *), context);
}

EXPORT int cudaGetDeviceCount(int *count)
{
    int code = CALL(cuInit, (unsigned), 0);
    return keep(code ? code : CALL(cuDeviceGetCount, (int *), count));
}

EXPORT int cudaSetDevice(int device)
{
    void *context;
    int code = CALL(cuInit, (unsigned), 0);
    if (!code)
        code = CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
    return keep(code ? code : CALL(cuCtxSetCurrent, (void *), context));
}

EXPORT int cudaDeviceSynchronize(void)
{
    int code = ready();
    return keep(code ? code : CALL(cuCtxSynchronize, (void)));
}

EXPORT int cudaMalloc(uint64_t *address, size_t bytes)
{
    int code = ready();
    return keep(code ? code : CALL(cuMemAlloc_v2, (uint64_t *, size_t), address, bytes));
}

EXPORT int cudaFree(uint64_t address)
{
    int code = ready();
    return keep(code || !address ? code : CALL(cuMemFree_v2, (uint64_t), address));
}

EXPORT int cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    int code = ready();
    return keep(code ? code : CALL(cuMemHostAlloc, (void **, size_t, unsigned), address, bytes, flags));
}

EXPORT int cudaFreeHost(void *address)
{
    int code = ready();
    return keep(code ? code : CALL(cuMemFreeHost, (void *), address));
}

EXPORT int cudaMemcpy(uint64_t to, uint64_t from, size_t bytes, int kind)
{
    (void)kind; /* addresses tell, as with cudaMemcpyDefault */
    int code = ready();
    return keep(code ? code : CALL(cuMemcpy, (uint64_t, uint64_t, size_t), to, from, bytes));
}

EXPORT int cudaMemset(uint64_t address, int value, size_t bytes)
{
    int code = ready();
    return keep(code ? code : CALL(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), address, value, bytes));
}

EXPORT int cudaGetLastError(void)
{
    int code = last_error;
    last_error = SUCCESS;
    return code;
}

EXPORT const char *cudaGetErrorString(int error)
{
    const char *text = NULL;
    CALL(cuGetErrorString, (int, const char **), error, &text);
    return text ? text : "unrecognized error code";
}

/* ---- what it links to and does not call for messages of device memory: never a pretended success ---- */

EXPORT int cudaMallocManaged(void)
{
    return keep(NOT_SUPPORTED);
}

EXPORT int cudaHostGetDevicePointer(void)
{
    return keep(NOT_SUPPORTED);
}

EXPORT int cudaLaunchKernel(void)
{
    return keep(NOT_SUPPORTED);
}

EXPORT int __cudaPushCallConfiguration(void)
{
    return keep(NOT_SUPPORTED);
}

EXPORT int __cudaPopCallConfiguration(void)
{
    return keep(NOT_SUPPORTED);
}

/* Kernels are announced when the program is loaded. None is kept, since none can be launched. */
EXPORT void *__cudaRegisterFatBinary(void *image)
{
    return image;
}

EXPORT void __cudaRegisterFatBinaryEnd(void)
{
}

EXPORT void __cudaUnregisterFatBinary(void)
{
}

EXPORT void __cudaRegisterFunction(void)
{
}

EXPORT void __cudaRegisterVar(void)
{
}
