/* The faults of the profile, for those who do the work: which the node has, and what the call under way is to do
 * wrong. When one strikes is decided in calls.c. */
#include "sim.h"

#include <string.h>

static const struct fault *striking[EFFECTS]; /* in the call under way; under the lock of calls.c */

void fault_strikes(const struct fault *fault)
{
    striking[fault->effect] = fault;
}

void fault_none_strikes(void)
{
    memset(striking, 0, sizeof striking);
}

bool fault_asks(enum fault_effect effect)
{
    return striking[effect];
}

bool fault_is_of(const struct fault *fault, int device)
{
    return fault->device < 0 || (device >= 0 && node()->device[device].index == fault->device);
}

const struct fault *node_fault(enum call call, enum fault_effect effect, int device)
{
    for (int i = 0; i < node()->faults; i++) {
        const struct fault *fault = &node()->fault[i];
        if (fault->call == (int)call && fault->effect == effect && fault_is_of(fault, device) &&
            (fault->backend < 0 || fault->backend == (int)node()->device[device].backend))
            return fault;
    }
    return NULL;
}

bool node_has_fault(enum call call, enum fault_effect effect, int device)
{
    return node_fault(call, effect, device);
}

uint64_t fault_bytes(enum fault_effect effect)
{
    return striking[effect] ? striking[effect]->bytes : 0;
}

unsigned fault_ms(enum fault_effect effect)
{
    return striking[effect] ? striking[effect]->ms : 0;
}

struct bad_part bad_part_of(uint64_t bytes)
{
    enum { PAGE = 4096 };
    uint64_t pages = bytes / PAGE, at = fault_bytes(CORRUPT_PAGE), from = fault_bytes(CORRUPT_FROM);
    if (fault_asks(CORRUPT_FROM))
        return (struct bad_part){from, from < bytes ? bytes - from : 0};
    if (at)
        return (struct bad_part){at, at + PAGE <= bytes ? PAGE : 0};
    if (fault_asks(CORRUPT_PAGE))
        return (struct bad_part){pages ? scatter() % pages * PAGE : 0, bytes < PAGE ? bytes : PAGE};
    if (fault_asks(CORRUPT_BYTE) && bytes)
        return (struct bad_part){scatter() % bytes, 1};
    return (struct bad_part){0};
}

struct flaw flaw_of(uint64_t offset, uint64_t bytes)
{
    struct flaw flaw = {.bad = bad_part_of(bytes), .loses_writes = UINT64_MAX};
    flaw.bad.offset += offset;
    if (fault_asks(LOSE_WRITES))
        flaw.loses_writes = offset + fault_bytes(LOSE_WRITES);
    flaw.kernels = kernel_faults();
    return flaw;
}

uint32_t kernel_faults(void)
{
    uint32_t found = 0;
    for (int effect = KERNELS_READ_STALE; effect < EFFECTS; effect++)
        found |= (uint32_t)fault_asks(effect) << (effect - KERNELS_READ_STALE);
    return found;
}

void spoil_text(char *text)
{
    if (fault_asks(CORRUPT_BYTE))
        *text = (char)0xff; /* in no text of UTF-8 */
}

uint64_t scatter(void)
{
    static uint64_t state;
    uint64_t z = state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
