// The kernels of `kernel_sources.py` in HIP C, which hiprtc compiles for the current device. kernels.ptx says what
// each does. Each ends by itself: a loop runs `count` times, or `b` times, and waits for nothing else.
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((u64)gridDim.x * blockDim.x)

KERNEL gpuipc_fill(u32 *memory, u64 count, u64 *result, u32 a, u32 b, u32 c, u32 d)
{
    for (u64 i = FIRST; i < count; i += STEP)
        memory[i] = a * (u32)i + b;
}

KERNEL gpuipc_compare(const u32 *memory, u64 count, u64 *result, u32 a, u32 b, u32 c, u32 d)
{
    for (u64 i = FIRST; i < count; i += STEP) {
        u32 found = memory[i];
        if (found == a * (u32)i + b)
            continue;
        atomicAdd(&result[0], 1ull);
        atomicMin(&result[1], i << 32 | found);
        if (found == c * (u32)i + d)
            atomicAdd(&result[2], 1ull);
    }
}

KERNEL gpuipc_add(u32 *memory, u64 count, u64 *result, u32 a, u32 b, u32 c, u32 d)
{
    for (; b; b--)
        for (u64 i = FIRST; i < count; i += STEP)
            __hip_atomic_fetch_add(&memory[i], a, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

KERNEL gpuipc_copy(unsigned char *memory, u64 count, const unsigned char *result, u32 a, u32 b, u32 c, u32 d)
{
    for (u64 i = FIRST; i < count; i += STEP)
        memory[i] = result[i];
}

KERNEL gpuipc_store(u32 *memory, u64 count, u64 *result, u32 a, u32 b, u32 c, u32 d)
{
    __hip_atomic_store(memory, a, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

KERNEL gpuipc_wait(u32 *memory, u64 count, u64 *result, u32 a, u32 b, u32 c, u32 d)
{
    u64 seen = 2;
    for (; count && seen == 2; count--)
        if (__hip_atomic_load(memory, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM) == a)
            seen = 1;
    result[0] = seen;
}
