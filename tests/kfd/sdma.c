/* The packets of the system DMA engines (SDMA 4, of gfx90a).
 *
 * Source: ROCR-Runtime, runtime/hsa-runtime/core/inc/sdma_registers.h; Linux, drivers/gpu/drm/amd/amdgpu/
 * vega10_sdma_pkt_open.h. Lengths below are in words of 32 bits. */
#include "emulator.h"

#include <string.h>

enum {
    NOP = 0,
    COPY = 1,
    FENCE = 5,
    TRAP = 6,
    POLL = 8,
    ATOMIC = 10,
    FILL = 11,
    TIMESTAMP = 13,
    CACHE_FLUSH = 17,
};

enum { COPY_LINEAR = 0, GLOBAL_TIMESTAMP = 2 }; /* variants of these two; all others have none here */
enum { ADD64 = 47, FILL_WORDS = 2 };            /* the top bits of ATOMIC and FILL */

static uint64_t wide(const uint32_t *words)
{
    return words[0] | (uint64_t)words[1] << 32;
}

static bool poll_is_met(uint32_t function, uint32_t value, uint32_t reference)
{
    switch (function) {
    case 1:
        return value < reference;
    case 2:
        return value <= reference;
    case 3:
        return value == reference;
    case 4:
        return value != reference;
    case 5:
        return value >= reference;
    case 6:
        return value > reference;
    default:
        return true;
    }
}

enum played { DONE, WAITS, FAULTS, UNKNOWN };

static enum played done_if(bool reached)
{
    return reached ? DONE : FAULTS;
}

static enum played poll_memory(int gpu, const uint32_t *words)
{
    if (!(words[0] >> 31))
        return DONE; /* of a register: the flush of the host data path, where nothing is cached */
    const uint32_t *watched = reach(gpu, wide(words + 1), sizeof *watched);
    if (!watched)
        return FAULTS;
    uint32_t value = __atomic_load_n(watched, __ATOMIC_SEQ_CST) & words[4];
    return poll_is_met(words[0] >> 28 & 7, value, words[3]) ? DONE : WAITS;
}

static enum played write_fence(int gpu, const uint32_t *words)
{
    uint32_t *fence = reach(gpu, wide(words + 1), sizeof *fence);
    fault_look("signal");
    if (fence && !fault_is("ignore"))
        __atomic_store_n(fence, words[3], __ATOMIC_SEQ_CST);
    return done_if(fence);
}

static enum played add_atomically(int gpu, const uint32_t *words)
{
    uint64_t *target = reach(gpu, wide(words + 1), sizeof *target);
    fault_look("signal");
    if (target && !fault_is("ignore"))
        __atomic_add_fetch(target, wide(words + 3), __ATOMIC_SEQ_CST);
    return done_if(target);
}

static enum played write_timestamp(int gpu, const uint32_t *words)
{
    uint64_t *target = reach(gpu, wide(words + 1), sizeof *target);
    if (target)
        *target = nanoseconds() / 10;
    return done_if(target);
}

static enum played play(int gpu, const uint32_t *words, uint32_t *length)
{
    uint32_t operation = words[0] & 0xff, variant = words[0] >> 8 & 0xff;
    if (variant != (operation == TIMESTAMP ? GLOBAL_TIMESTAMP : COPY_LINEAR))
        return UNKNOWN;
    switch (operation) {
    case NOP:
        *length = 1 + (words[0] >> 16 & 0x3fff);
        return DONE;
    case COPY:
        *length = 7;
        return done_if(copy_on(gpu, wide(words + 5), wide(words + 3), (uint64_t)(words[1] & 0x3fffffff) + 1));
    case FENCE:
        *length = 4;
        return write_fence(gpu, words);
    case TRAP:
        *length = 2;
        interrupt(words[1] & 0xfffffff);
        return DONE;
    case POLL:
        *length = 6;
        return poll_memory(gpu, words);
    case ATOMIC:
        *length = 8;
        return words[0] >> 25 == ADD64 ? add_atomically(gpu, words) : UNKNOWN;
    case FILL:
        *length = 5;
        if (words[0] >> 30 != FILL_WORDS)
            return UNKNOWN;
        return done_if(fill_on(gpu, wide(words + 1), words + 3, 4, (uint64_t)(words[4] & 0x3fffff) + 4));
    case TIMESTAMP:
        *length = 3;
        return write_timestamp(gpu, words);
    case CACHE_FLUSH:
        *length = 5;
        return DONE; /* there are no caches */
    default:
        return UNKNOWN;
    }
}

bool play_sdma(struct queue *queue)
{
    const uint8_t *ring = queue->done < *queue->write ? reach(queue->gpu, queue->ring, queue->size) : NULL;
    if (!ring)
        return false;
    const uint32_t *words = (const void *)(ring + queue->done % queue->size);
    uint32_t length = 0;
    enum played result = play(queue->gpu, words, &length);
    if (result == UNKNOWN)
        complain("SDMA packet 0x%08x is not played", words[0]);
    queue->stopped = result == UNKNOWN || result == FAULTS;
    if (result != DONE)
        return false;
    queue->done += 4ull * length;
    __atomic_store_n(queue->read, queue->done, __ATOMIC_RELEASE);
    return true;
}
