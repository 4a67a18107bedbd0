/* Contexts: which exist, which is current in a thread, and what goes when one ends.
 *
 * A context is never freed, so that a program that uses one after its end meets an error, not chance.
 */
#include "sim.h"

#include <stdlib.h>

enum { DEPTH = 64 };

static struct context *contexts;
static struct context *primaries[MAX_DEVICES]; /* by ordinal; made on first use */
static bool destroyed_one;
static uint64_t numbers;

static _Thread_local struct context *stack[DEPTH];
static _Thread_local int depth;
static _Thread_local int thread_ordinal;

struct context *context_new(int ordinal, unsigned flags)
{
    struct context *context = calloc(1, sizeof *context);
    if (!context)
        abort();
    *context = (struct context){.next = contexts, .ordinal = ordinal, .device = ordinal_device(ordinal),
                                .flags = flags, .number = ++numbers};
    contexts = context;
    return context;
}

static void tell_presence(int device)
{
    bool is_there = false;
    for (const struct context *each = contexts; each; each = each->next)
        is_there |= each->device == device && each->alive;
    state_present(device, is_there);
}

void context_begin(struct context *context)
{
    context->alive = true;
    tell_presence(context->device);
}

struct context *primary_context(int ordinal)
{
    if (!primaries[ordinal]) {
        primaries[ordinal] = context_new(ordinal, 0);
        primaries[ordinal]->alive = face.device_is_context;
    }
    return primaries[ordinal];
}

bool context_known(const struct context *context)
{
    for (const struct context *each = contexts; each; each = each->next)
        if (each == context)
            return true;
    return false;
}

struct context *current_context(void)
{
    if (!sim_initialized())
        return NULL;
    if (face.device_is_context)
        return primary_context(thread_ordinal);
    return depth ? stack[depth - 1] : NULL;
}

int current_device(void)
{
    struct context *context = current_context();
    return context ? context->device : -1;
}

int enter_context(struct context **context)
{
    *context = current_context();
    if (!*context)
        return INVALID_CONTEXT;
    return (*context)->alive ? SUCCESS : CONTEXT_IS_DESTROYED;
}

void context_end(struct context *context)
{
    context->peers = 0;
    context->alive = face.device_is_context;
    tell_presence(context->device);
    destroyed_one = true;
}

void note_context_destroyed(void)
{
    destroyed_one = true;
}

bool context_was_destroyed(void)
{
    return destroyed_one;
}

void context_leave(const struct context *context)
{
    if (depth && stack[depth - 1] == context)
        depth--;
}

void choose_ordinal(int ordinal)
{
    thread_ordinal = ordinal;
}

int sim_context_push(void *context)
{
    if (!context || !context_known(context))
        return INVALID_CONTEXT;
    if (depth == DEPTH)
        return OUT_OF_MEMORY;
    stack[depth++] = context;
    choose_ordinal(stack[depth - 1]->ordinal);
    return SUCCESS;
}

int sim_context_pop(void **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return SUCCESS;
}

int sim_context_set(void *context)
{
    if (context && !context_known(context))
        return INVALID_CONTEXT;
    if (depth)
        depth--;
    return context ? sim_context_push(context) : SUCCESS;
}

int sim_context_get(void **context)
{
    if (!context)
        return INVALID_VALUE;
    *context = current_context();
    return SUCCESS;
}

int sim_context_device(int *device)
{
    struct context *context = current_context();
    if (!device)
        return INVALID_VALUE;
    if (!context)
        return INVALID_CONTEXT;
    *device = context->ordinal;
    return SUCCESS;
}

int sim_primary_state(int device, unsigned *flags, int *active)
{
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    if (flags)
        *flags = primary_context(device)->flags;
    if (active)
        *active = primary_context(device)->alive;
    return SUCCESS;
}
