/* The faults of the profile, for those who do the work: which the node has, and what the call under way is to do
 * wrong. When one strikes is decided in calls.c. */
#include "sim.h"

static unsigned effects; /* of the call under way; under the lock of calls.c */

void fault_effects(unsigned asked)
{
    effects = asked;
}

bool fault_asks(enum fault_effect effect)
{
    return effects & effect;
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

uint64_t fault_bytes(enum call call, enum fault_effect effect, int device)
{
    const struct fault *fault = fault_asks(effect) ? node_fault(call, effect, device) : NULL;
    return fault ? fault->bytes : 0;
}

struct bad_part bad_part_of(uint64_t bytes)
{
    enum { PAGE = 4096 };
    uint64_t pages = bytes / PAGE;
    if (fault_asks(CORRUPT_PAGE))
        return (struct bad_part){pages ? scatter() % pages * PAGE : 0, bytes < PAGE ? bytes : PAGE};
    if (fault_asks(CORRUPT_BYTE) && bytes)
        return (struct bad_part){scatter() % bytes, 1};
    return (struct bad_part){0};
}

uint64_t scatter(void)
{
    static uint64_t state;
    uint64_t z = state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
