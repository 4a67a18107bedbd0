/* Streams and events. Work is done when the call that asks for it returns, so there is never any to wait for.
 *
 * What a stream is ordered after is kept all the same, for pools reuse memory by it: a clock for each stream,
 * which holds of every other stream the latest work that it comes after. Copies and fills through the legacy
 * default stream order nothing here: a program that relies on that sees less reuse than on a real driver.
 */
#include "memory.h"

#include <stdlib.h>
#include <time.h>

struct clock {
    unsigned count;
    struct moment *known; /* one for each stream */
};

struct handle { /* a stream or an event */
    struct handle *next;
    struct context *context;
    unsigned flags;
    uint64_t number;    /* of a stream; 0 is the legacy default stream, 1 the thread's own */
    struct clock clock; /* what the stream's next work comes after; what an event stands for */
    bool is_event, recorded;
    struct timespec time;
};

enum { NON_BLOCKING = 1, DEFAULT_STREAMS = 2 };

static struct handle *handles;
static struct handle defaults[DEFAULT_STREAMS] = {{.number = 0}, {.number = 1}};
static uint64_t streams_made = DEFAULT_STREAMS, work_done;

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
    *handle = (struct handle){.next = handles, .context = context, .flags = flags, .is_event = is_event,
                              .number = is_event ? 0 : streams_made++};
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
    free(handle->clock.known);
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
    int code = sim_stream_query(stream);
    if (!code)
        pools_settle();
    return code;
}

/* ---- what comes after what ---- */

static struct handle *stream_of(void *stream) /* one that exists */
{
    return is_default(stream) ? &defaults[(uintptr_t)stream == 2] : find(stream, false);
}

static void learn(struct clock *clock, struct moment moment)
{
    for (unsigned i = 0; i < clock->count; i++)
        if (clock->known[i].stream == moment.stream) {
            if (clock->known[i].number < moment.number)
                clock->known[i].number = moment.number;
            return;
        }
    clock->known = realloc(clock->known, (clock->count + 1) * sizeof moment);
    if (!clock->known)
        abort();
    clock->known[clock->count++] = moment;
}

static void learn_all(struct clock *clock, const struct handle *from)
{
    for (unsigned i = 0; i < from->clock.count; i++)
        learn(clock, from->clock.known[i]);
    if (!from->is_event)
        learn(clock, (struct moment){from->number, work_done});
}

/* Work in the legacy default stream waits for that in all blocking streams, and theirs for it. */
static void learn_from_defaults(struct handle *stream)
{
    struct handle *legacy = &defaults[0];
    if (stream != legacy) {
        if (!(stream->flags & NON_BLOCKING))
            learn_all(&stream->clock, legacy);
        return;
    }
    learn_all(&legacy->clock, &defaults[1]);
    for (struct handle *each = handles; each; each = each->next)
        if (!each->is_event && !(each->flags & NON_BLOCKING))
            learn_all(&legacy->clock, each);
}

int stream_work(void *stream, struct moment *moment)
{
    int code = sim_stream_query(stream);
    if (code)
        return code;
    learn_from_defaults(stream_of(stream));
    *moment = (struct moment){stream_of(stream)->number, ++work_done};
    return SUCCESS;
}

bool stream_follows(void *stream, struct moment moment)
{
    struct handle *handle = stream_of(stream);
    if (handle->number == moment.stream)
        return true;
    for (unsigned i = 0; i < handle->clock.count; i++)
        if (handle->clock.known[i].stream == moment.stream)
            return handle->clock.known[i].number >= moment.number;
    return false;
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

int sim_event_synchronize(void *event)
{
    int code = sim_event_query(event);
    if (!code)
        pools_settle();
    return code;
}

int sim_event_record(void *event, void *stream)
{
    struct handle *handle = find(event, true);
    struct moment now;
    int code = stream_work(stream, &now);
    if (code || !handle)
        return code ? code : INVALID_HANDLE;
    handle->clock.count = 0;
    learn_all(&handle->clock, stream_of(stream));
    clock_gettime(CLOCK_MONOTONIC, &handle->time);
    handle->recorded = true;
    return SUCCESS;
}

int sim_stream_wait_event(void *stream, void *event, unsigned flags)
{
    (void)flags;
    struct moment now;
    int code = sim_event_query(event);
    if (code || (code = stream_work(stream, &now)))
        return code;
    if (find(event, true)->recorded)
        learn_all(&stream_of(stream)->clock, find(event, true));
    return SUCCESS;
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
