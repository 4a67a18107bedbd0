/* The kernels with which HIP and ROCr themselves copy and fill. No other kernel runs: there is no shader here.
 *
 * A dispatch packet has a kernel's address. The names come by the one function through which HIP learns addresses,
 * hsa_executable_symbol_get_info. Arguments: clr, rocclr/device/blitcl.cpp (their order changed with ROCm 6); ROCr's,
 * which is not looked up by name: ROCR-Runtime, runtime/hsa-runtime/core/runtime/blit_kernel.cpp. */
#define _GNU_SOURCE
#include "emulator.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { MAX_KERNELS = 512, NAME_BYTES = 96 };

static struct kernel {
    uint64_t address;
    char name[NAME_BYTES];
} kernels[MAX_KERNELS];
static int kernel_count;

/* hsa_kernel_dispatch_packet_t */
struct dispatch {
    uint16_t header, setup, workgroup[3], reserved;
    uint32_t grid[3], private_bytes, group_bytes;
    uint64_t kernel, arguments, more, completion;
};

enum { SYMBOL_NAME_LENGTH = 1, SYMBOL_NAME = 2, SYMBOL_KERNEL = 22 }; /* hsa_executable_symbol_info_t */
typedef int get_info(uint64_t, int, void *);

__attribute__((visibility("default"))) int hsa_executable_symbol_get_info(uint64_t symbol, int wanted, void *value)
{
    static get_info *next;
    if (!next) {
        void *rocr = dlopen("libhsa-runtime64.so.1", RTLD_LAZY | RTLD_NOLOAD);
        next = rocr ? (get_info *)dlsym(rocr, "hsa_executable_symbol_get_info") : NULL;
    }
    int result = next ? next(symbol, wanted, value) : 0x1000; /* HSA_STATUS_ERROR */
    uint32_t length = 0;
    char name[512] = "";
    if (result || wanted != SYMBOL_KERNEL || kernel_count == MAX_KERNELS)
        return result;
    if (next(symbol, SYMBOL_NAME_LENGTH, &length) || length >= sizeof name || next(symbol, SYMBOL_NAME, name))
        return result;
    pthread_mutex_lock(&the_lock);
    struct kernel *kernel = &kernels[kernel_count++];
    kernel->address = *(uint64_t *)value;
    snprintf(kernel->name, sizeof kernel->name, "%.*s", NAME_BYTES - 1, name);
    pthread_mutex_unlock(&the_lock);
    return result;
}

static const char *name_of(uint64_t address)
{
    for (int i = kernel_count - 1; i >= 0; i--)
        if (kernels[i].address == address)
            return kernels[i].name;
    return "";
}

static bool fill(int gpu, uint64_t to, uint64_t pattern, uint64_t unit, uint64_t size)
{
    const void *bytes = unit ? reach(gpu, pattern, unit) : NULL;
    return bytes && fill_on(gpu, to, bytes, unit, size);
}

/* ROCm 5: one pointer for each width of element, the pattern, its elements, an offset, and how many patterns. */
static bool fill_of_rocm5(int gpu, const uint64_t *a)
{
    int width = 0;
    while (width < 3 && !a[width])
        width++;
    uint64_t unit = (a[5] & UINT32_MAX) << width;
    return fill(gpu, a[width] + (a[6] << width), a[4], unit, a[7] * unit);
}

static bool fill_buffer(int gpu, const uint64_t *a)
{
    if (!!a[0] + !!a[1] + !!a[2] + !!a[3] == 1)
        return fill_of_rocm5(gpu, a);
    uint64_t unit = (a[2] & UINT32_MAX) * (a[2] >> 32);
    return fill(gpu, a[0], a[1], unit, a[3] - a[0]);
}

/* ROCm 5: source, target, their offsets, a count of elements, and their size; or, where that is not aligned, words of
 * four bytes, one more than are whole, and how many bytes of that one. */
static bool copy_buffer(int gpu, const uint64_t *a, bool is_aligned)
{
    bool is_rocm5 = !a[2] && a[4];
    uint64_t size = a[5] & UINT32_MAX;
    size = is_aligned ? a[4] * size : (a[4] - 1) * 4 + size;
    return is_rocm5 ? copy_on(gpu, a[1] + a[3], a[0], size) : copy_on(gpu, a[1], a[0], a[2]);
}

/* ROCr's own: four ranges of the source and the target, of which the last ends where all does, and the grid. */
static bool copy_of_rocr(int gpu, const struct dispatch *packet, const uint64_t *a)
{
    bool is_copy = (a[10] & UINT32_MAX) == packet->grid[0] && a[8] >= a[0];
    return is_copy && copy_on(gpu, a[1], a[0], a[8] - a[0]);
}

bool play_kernel(int gpu, const void *packet)
{
    const struct dispatch *dispatch = packet;
    const char *name = name_of(dispatch->kernel);
    const uint64_t *a = reach(gpu, dispatch->arguments, 11 * sizeof *a);
    bool played;
    if (!a)
        return false;
    if (!*name)
        played = copy_of_rocr(gpu, dispatch, a);
    else if (!strcmp(name, "__amd_rocclr_copyBuffer.kd"))
        played = copy_buffer(gpu, a, false);
    else if (!strcmp(name, "__amd_rocclr_copyBufferAligned.kd"))
        played = copy_buffer(gpu, a, true);
    else if (!strcmp(name, "__amd_rocclr_fillBufferAligned.kd"))
        played = fill_buffer(gpu, a);
    else
        played = false;
    trace("kernel %s: %lx %lx %lx %lx %lx %lx %lx %lx", name, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    if (!played)
        complain("kernel %s at 0x%lx is not played", *name ? name : "of no known name", dispatch->kernel);
    return played;
}
