/* Streams and events. Most work is done when the call that asks for it returns. Copies on a device by a stream
 * that does not block take time, of which those who wait for it make the rest pass at once; others see it go by.
 * They are done in the order in which they are due, whichever stream's they are: so a race is lost as on a device.
 *
 * What a stream is ordered after is kept, for pools reuse memory by it: a clock for each stream,
 * which holds of every other stream the latest work that it comes after. Copies and fills through the legacy
 * default stream order nothing here: a program that relies on that sees less reuse than on a real driver.
 */
#include "sim.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct clock {
    unsigned count;
    struct moment *known; /* one for each stream */
};

struct step {
    struct step *next;
    bool (*done)(void *);
    void *what;
};

struct handle { /* a stream or an event */
    struct handle *next;
    struct context *context;
    unsigned flags;
    uint64_t number;    /* of a stream; 0 is the legacy default stream, 1 the thread's own */
    struct clock clock; /* what the stream's next work comes after; what an event stands for */
    bool is_event, recorded, imported;
    uint64_t serial; /* of an event that processes share: each that has it holds this */
    int mapping;     /* its entry in the state, likewise */
    uint64_t due; /* when its work, or what the event stands for, is done */
    struct step *steps; /* of a stream: work that ends by something else than time, the first first */
    struct graph *capture; /* of a stream: what takes its work, instead of doing it */
};

enum { NON_BLOCKING = 1, DEFAULT_STREAMS = 2 };
enum { DISABLE_TIMING = 2, INTERPROCESS = 4 }; /* of events */

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
    if (handle->serial) {
        state_lock();
        mapping_remove(handle->mapping);
        state_unlock();
    }
    free(handle->clock.known);
    free(handle);
    return SUCCESS;
}

/* NULL, the legacy default stream and the per-thread default stream exist without being created. */
static bool is_default(const void *stream)
{
    return (uintptr_t)stream <= 2;
}

int stream_check(void *stream)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    if (is_default(stream))
        return SUCCESS;
    struct handle *handle = find(stream, false);
    return !handle ? INVALID_HANDLE : handle->capture ? face.unsupported : SUCCESS;
}

static struct handle *stream_of(const void *stream) /* one that exists */
{
    return is_default(stream) ? &defaults[(uintptr_t)stream == 2] : find(stream, false);
}

/* ---- time, in nanoseconds ---- */

static struct work {
    struct work *next; /* by when they are due */
    uint64_t due;
    void (*run)(void *);
    void *what;
} *under_way;

static uint64_t skipped; /* for those who waited */

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec + skipped;
}

static void run_until(uint64_t time)
{
    while (under_way && under_way->due <= time) {
        struct work *first = under_way;
        under_way = first->next;
        first->run(first->what);
        free(first);
    }
}

static void wait_until(uint64_t time)
{
    uint64_t present = now();
    run_until(time > present ? time : present);
    if (time > present)
        skipped += time - present;
}

static bool is_over(uint64_t time)
{
    uint64_t present = now();
    run_until(present);
    return time <= present;
}

void stream_until(void *stream, bool (*done)(void *), void *what)
{
    struct step **place = &stream_of(stream)->steps, *step = malloc(sizeof *step);
    if (!step)
        abort();
    while (*place)
        place = &(*place)->next;
    *step = (struct step){.done = done, .what = what};
    *place = step;
}

bool stream_is_waiting(const void *stream)
{
    return stream_of(stream)->steps;
}

/* Whether all that ends by something else than time has ended. */
static bool steps_are_done(struct handle *handle)
{
    while (handle->steps && handle->steps->done(handle->steps->what)) {
        struct step *first = handle->steps;
        handle->steps = first->next;
        free(first);
    }
    return !handle->steps;
}

static void finish_steps(struct handle *handle)
{
    const struct timespec pause = {.tv_nsec = 500000};
    while (!steps_are_done(handle))
        nanosleep(&pause, NULL);
}

bool stream_takes_time(const void *stream)
{
    return !is_default(stream) && stream_of(stream)->flags & NON_BLOCKING;
}

void stream_later(void *stream, uint64_t bytes, void (*run)(void *), void *what)
{
    enum { BYTES_PER_NS = 10 };
    struct handle *handle = stream_of(stream);
    struct work *work = malloc(sizeof *work), **place = &under_way;
    if (!work)
        abort();
    uint64_t begin = is_over(handle->due) ? now() : handle->due;
    handle->due = begin + bytes / BYTES_PER_NS + 1;
    while (*place && (*place)->due <= handle->due)
        place = &(*place)->next;
    *work = (struct work){*place, handle->due, run, what};
    *place = work;
}

void stream_finish(void *stream)
{
    finish_steps(stream_of(stream));
    wait_until(stream_of(stream)->due);
}

void streams_finish(void)
{
    for (struct handle *each = handles; each; each = each->next)
        if (!each->is_event) {
            finish_steps(each);
            wait_until(each->due);
        }
    wait_until(now());
}

bool moment_is_over(struct moment moment)
{
    return is_over(moment.due);
}

int sim_stream_query(void *stream)
{
    int code = stream_check(stream);
    if (code)
        return code;
    return steps_are_done(stream_of(stream)) && is_over(stream_of(stream)->due) ? SUCCESS : NOT_READY;
}

/* ---- what comes after what ---- */

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
        learn(clock, (struct moment){.stream = from->number, .number = work_done});
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
    int code = stream_check(stream);
    if (code)
        return code;
    learn_from_defaults(stream_of(stream));
    *moment = (struct moment){stream_of(stream)->number, ++work_done, stream_of(stream)->due};
    return SUCCESS;
}

void stream_waits_for(void *stream, struct moment moment)
{
    struct handle *handle = stream_of(stream);
    if (handle->due < moment.due)
        handle->due = moment.due;
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
    if (find(stream, false))
        stream_finish(stream);
    return destroy(stream, false);
}

int sim_stream_flags(void *stream, unsigned *flags)
{
    int code = stream_check(stream);
    if (!code)
        *flags = is_default(stream) ? 0 : find(stream, false)->flags;
    return code;
}

int sim_stream_context(void *stream, void **context)
{
    int code = stream_check(stream);
    if (!code)
        *context = is_default(stream) ? current_context() : find(stream, false)->context;
    return code;
}

/* With the state's lock held. An event that processes share stands for work that is done: recording it waits for its
 * stream, which a driver may do. */
static int share_event(const void *event, uint64_t serial)
{
    struct handle *handle = find(event, true);
    int mapping = mapping_add(serial);
    if (mapping < 0)
        return OUT_OF_MEMORY;
    handle->serial = serial;
    handle->mapping = mapping;
    return SUCCESS;
}

int sim_event_create(void **event, unsigned flags)
{
    if (!(flags & INTERPROCESS))
        return create(event, flags, true);
    if (!(flags & DISABLE_TIMING))
        return INVALID_VALUE;
    int code = create(event, flags, true);
    if (!code) {
        state_lock();
        uint64_t serial = pool_serial();
        code = share_event(*event, serial);
        state_unlock();
    }
    return code;
}

/* Words of an event's handle: a tag, the event's serial number, the exporter's pid. */
#define EVENT_TAG 0xe0e0ull

int sim_ipc_get_event(struct ipc_handle *out, void *event)
{
    struct handle *handle = find(event, true);
    if (!handle)
        return INVALID_HANDLE;
    if (!out || !handle->serial || handle->imported)
        return INVALID_VALUE;
    *out = (struct ipc_handle){{EVENT_TAG, handle->serial, (uint64_t)getpid()}};
    if (fault_asks(BLANK))
        *out = (struct ipc_handle){0};
    return SUCCESS;
}

int sim_ipc_open_event(void **event, struct ipc_handle handle)
{
    if (!event || handle.word[0] != EVENT_TAG)
        return INVALID_VALUE;
    if ((pid_t)handle.word[2] == getpid())
        return INVALID_CONTEXT;
    int code = create(event, INTERPROCESS | DISABLE_TIMING, true);
    if (code)
        return code;
    find(*event, true)->imported = true;
    state_lock();
    code = serial_is_held(handle.word[1]) ? share_event(*event, handle.word[1]) : INVALID_HANDLE;
    state_unlock();
    if (code)
        destroy(*event, true);
    return code;
}

int sim_event_destroy(void *event)
{
    return destroy(event, true);
}

int sim_event_query(void *event)
{
    struct handle *handle = find(event, true);
    if (!handle)
        return INVALID_HANDLE;
    return is_over(handle->due) ? SUCCESS : NOT_READY;
}

int event_finish(void *event)
{
    struct handle *handle = find(event, true);
    if (!handle)
        return INVALID_HANDLE;
    wait_until(handle->due);
    return SUCCESS;
}

int sim_event_record(void *event, void *stream)
{
    struct handle *handle = find(event, true);
    struct moment moment;
    int code = stream_work(stream, &moment);
    if (code || !handle)
        return code ? code : INVALID_HANDLE;
    if (handle->serial && !fault_asks(PREMATURE))
        stream_finish(stream);
    handle->clock.count = 0;
    learn_all(&handle->clock, stream_of(stream));
    handle->due = is_over(moment.due) ? now() : moment.due;
    handle->recorded = true;
    return SUCCESS;
}

int sim_stream_wait_event(void *stream, void *event, unsigned flags)
{
    (void)flags;
    struct moment moment;
    struct handle *handle = find(event, true);
    int code = stream_work(stream, &moment);
    if (code || !handle)
        return code ? code : INVALID_HANDLE;
    if (handle->recorded) {
        learn_all(&stream_of(stream)->clock, handle);
        stream_waits_for(stream, (struct moment){.due = handle->due});
    }
    return SUCCESS;
}

int sim_event_elapsed(float *ms, void *start, void *end)
{
    struct handle *from = find(start, true), *to = find(end, true);
    if (!from || !to || !from->recorded || !to->recorded || (from->flags | to->flags) & DISABLE_TIMING)
        return INVALID_HANDLE;
    if (!ms)
        return INVALID_VALUE;
    if (!is_over(from->due) || !is_over(to->due))
        return NOT_READY;
    *ms = (float)(((double)to->due - (double)from->due) / 1e6);
    return SUCCESS;
}

/* ---- graphs: of functions of the host alone, as the simulated NCCL queues its operations. An int at the beginning
 * of what a function is given becomes 1 when its graph has ended. ---- */

struct launched {
    struct launched *next;
    void (*run)(void *);
    void *what;
};

struct graph {
    struct launched *first, **end;
    unsigned uses; /* itself, and what was made of it */
};

int sim_capture_begin(void *stream, int mode)
{
    (void)mode; /* no call of another thread is refused meanwhile */
    int code = is_default(stream) ? face.unsupported : stream_check(stream);
    if (code)
        return code;
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        abort();
    graph->end = &graph->first;
    graph->uses = 1;
    find(stream, false)->capture = graph;
    return SUCCESS;
}

int sim_is_capturing(void *stream, int *status)
{
    const struct handle *handle = is_default(stream) ? NULL : find(stream, false);
    *status = handle && handle->capture;
    return SUCCESS;
}

int sim_capture_end(void *stream, void **graph)
{
    struct handle *handle = find(stream, false);
    if (!handle || !handle->capture || !graph)
        return INVALID_VALUE;
    *graph = handle->capture;
    handle->capture = NULL;
    return SUCCESS;
}

int sim_launch_host(void *stream, void *run, void *what)
{
    struct handle *handle = find(stream, false);
    if (!handle || !handle->capture)
        return face.unsupported;
    struct launched *node = malloc(sizeof *node);
    if (!node)
        abort();
    *node = (struct launched){.run = (void (*)(void *))run, .what = what};
    *handle->capture->end = node;
    handle->capture->end = &node->next;
    return SUCCESS;
}

int sim_graph_instantiate(void **made, void *graph, uint64_t flags)
{
    if (!made || !graph || flags)
        return INVALID_VALUE;
    ((struct graph *)graph)->uses++;
    *made = graph;
    return SUCCESS;
}

int sim_graph_launch(void *graph, void *stream)
{
    int code = graph ? stream_check(stream) : INVALID_VALUE;
    if (code)
        return code;
    stream_finish(stream);
    for (const struct launched *node = ((struct graph *)graph)->first; node; node = node->next)
        node->run(node->what);
    return SUCCESS;
}

int sim_graph_destroy(void *graph)
{
    struct graph *wanted = graph;
    if (!wanted)
        return INVALID_VALUE;
    if (--wanted->uses)
        return SUCCESS;
    for (struct launched *node = wanted->first, *next; node; node = next) {
        next = node->next;
        *(int *)node->what = 1;
        free(node);
    }
    free(wanted);
    return SUCCESS;
}
