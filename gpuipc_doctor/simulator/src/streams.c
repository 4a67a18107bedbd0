/* Streams and events. Work is done when the call that asks for it returns, so there is never any to wait for. */
#include "memory.h"

#include <stdlib.h>
#include <time.h>

struct handle { /* a stream or an event */
    struct handle *next;
    struct context *context;
    unsigned flags;
    bool is_event, recorded;
    struct timespec time;
};

static struct handle *handles;

static struct handle *find(const void *wanted, bool is_event)
{
    struct handle *each = handles;
    while (each && (each != wanted || each->is_event != is_event))
        each = each->next;
    return each;
}

static int create(void **out, unsigned flags, bool is_event)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!out)
        return INVALID_VALUE;
    struct handle *handle = malloc(sizeof *handle);
    if (!handle)
        abort();
    *handle = (struct handle){.next = handles, .context = context, .flags = flags, .is_event = is_event};
    *out = handles = handle;
    return SUCCESS;
}

static int destroy(const void *wanted, bool is_event)
{
    struct handle **place = &handles, *handle = find(wanted, is_event);
    if (!handle)
        return INVALID_HANDLE;
    while (*place != handle)
        place = &(*place)->next;
    *place = handle->next;
    free(handle);
    return SUCCESS;
}

/* NULL, the legacy default stream and the per-thread default stream exist without being created. */
static bool is_default(const void *stream)
{
    return (uintptr_t)stream <= 2;
}

int sim_stream_query(void *stream)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    return is_default(stream) || find(stream, false) ? SUCCESS : INVALID_HANDLE;
}

int sim_stream_synchronize(void *stream)
{
    return sim_stream_query(stream);
}

int sim_stream_create(void **stream, unsigned flags)
{
    return flags > 1 ? INVALID_VALUE : create(stream, flags, false);
}

int sim_stream_create_priority(void **stream, unsigned flags, int priority)
{
    (void)priority; /* all streams are alike; the range says so */
    return sim_stream_create(stream, flags);
}

int sim_stream_priorities(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = 0;
    return SUCCESS;
}

int sim_stream_destroy(void *stream)
{
    return destroy(stream, false);
}

int sim_stream_flags(void *stream, unsigned *flags)
{
    int code = sim_stream_query(stream);
    if (!code)
        *flags = is_default(stream) ? 0 : find(stream, false)->flags;
    return code;
}

int sim_stream_context(void *stream, void **context)
{
    int code = sim_stream_query(stream);
    if (!code)
        *context = is_default(stream) ? current_context() : find(stream, false)->context;
    return code;
}

int sim_event_create(void **event, unsigned flags)
{
    enum { INTERPROCESS = 4 };
    return flags & INTERPROCESS ? face.unsupported : create(event, flags, true);
}

int sim_event_destroy(void *event)
{
    return destroy(event, true);
}

int sim_event_query(void *event)
{
    return find(event, true) ? SUCCESS : INVALID_HANDLE;
}

int sim_event_record(void *event, void *stream)
{
    struct handle *handle = find(event, true);
    int code = sim_stream_query(stream);
    if (code || !handle)
        return code ? code : INVALID_HANDLE;
    clock_gettime(CLOCK_MONOTONIC, &handle->time);
    handle->recorded = true;
    return SUCCESS;
}

int sim_stream_wait_event(void *stream, void *event, unsigned flags)
{
    (void)flags;
    int code = sim_stream_query(stream);
    return code ? code : sim_event_query(event);
}

int sim_event_elapsed(float *ms, void *start, void *end)
{
    struct handle *from = find(start, true), *to = find(end, true);
    enum { DISABLE_TIMING = 2 };
    if (!from || !to || !from->recorded || !to->recorded || (from->flags | to->flags) & DISABLE_TIMING)
        return INVALID_HANDLE;
    if (!ms)
        return INVALID_VALUE;
    *ms = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                  (double)(to->time.tv_nsec - from->time.tv_nsec) / 1e6);
    return SUCCESS;
}

/* ---- the asynchronous forms of copies and fills ---- */

#define AFTER_STREAM(operation) \
    do { \
        int code = sim_stream_query(stream); \
        return code ? code : (operation); \
    } while (0)

int sim_copy_async(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy(to, from, bytes));
}

int sim_copy_to_device_async(uint64_t to, const void *from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy_to_device(to, from, bytes));
}

int sim_copy_from_device_async(void *to, uint64_t from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy_from_device(to, from, bytes));
}

int sim_copy_on_device_async(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy_on_device(to, from, bytes));
}

int sim_fill8_async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    AFTER_STREAM(sim_fill8(address, value, count));
}

int sim_fill16_async(uint64_t address, unsigned short value, size_t count, void *stream)
{
    AFTER_STREAM(sim_fill16(address, value, count));
}

int sim_fill32_async(uint64_t address, unsigned value, size_t count, void *stream)
{
    AFTER_STREAM(sim_fill32(address, value, count));
}
