/* Events: what a process of KFD waits for while the GPU works.
 * Source: Linux 6.18, drivers/gpu/drm/amd/amdkfd/kfd_events.c. */
#include "emulator.h"

#include <errno.h>
#include <linux/kfd_ioctl.h>
#include <stdlib.h>
#include <time.h>

/* Signal events come first: their numbers are slots of a page that user space provides. */
enum { SIGNALS = KFD_SIGNAL_EVENT_LIMIT, MAX_EVENTS = SIGNALS + 256 };

static struct event {
    bool used, is_set, resets_itself;
    uint32_t type;
    int waiters;
    uint64_t age; /* how often it was set, from 1 */
    struct kfd_hsa_memory_exception_data fault;
    struct kfd_hsa_hw_exception_data exception;
} events[MAX_EVENTS]; /* 0 is no event */

/* KFD_MMAP_TYPE_EVENTS of kfd_priv.h. User space with a GPU of its own memory provides the page itself, but gives a
 * signal its slot, without which the engine cannot report it, only if it reads this here. */
#define EVENT_PAGE (2ull << 60)

static pthread_cond_t something_was_set = PTHREAD_COND_INITIALIZER;

/* kfd_hsa_signal_event_data of Linux 6.5, the third of the kinds of kfd_event_data. */
static uint64_t *last_age(struct kfd_event_data *wanted)
{
    return (uint64_t *)wanted;
}

int event_create(struct kfd_ioctl_create_event_args *request)
{
    bool is_signal = request->event_type == KFD_IOC_EVENT_SIGNAL;
    uint32_t id = is_signal ? 1 : SIGNALS, end = is_signal ? SIGNALS : MAX_EVENTS;
    while (id < end && events[id].used)
        id++;
    if (id == end)
        return -ENOSPC;
    events[id] = (struct event){
        .used = true, .resets_itself = request->auto_reset, .type = request->event_type, .age = 1};
    request->event_id = request->event_slot_index = request->event_trigger_data = id;
    if (is_signal)
        request->event_page_offset = EVENT_PAGE;
    return 0;
}

static struct event *event_with(uint32_t id)
{
    return id < MAX_EVENTS && events[id].used ? &events[id] : NULL;
}

int event_destroy(uint32_t id)
{
    struct event *event = event_with(id);
    if (!event)
        return -EINVAL;
    event->used = false;
    pthread_cond_broadcast(&something_was_set); /* who waits for it must hear that it is gone */
    return 0;
}

int event_set(uint32_t id)
{
    struct event *event = event_with(id);
    if (!event)
        return -EINVAL;
    /* All who wait now see it by its age; one that resets itself is kept for the next who waits only if none did. */
    event->is_set = !event->resets_itself || !event->waiters;
    event->age++;
    pthread_cond_broadcast(&something_was_set);
    return 0;
}

int event_reset(uint32_t id)
{
    struct event *event = event_with(id);
    if (!event)
        return -EINVAL;
    event->is_set = false;
    return 0;
}

void page_fault(int gpu, uint64_t address)
{
    trace("page fault of GPU %d at 0x%lx", gpu, address);
    for (uint32_t id = SIGNALS; id < MAX_EVENTS; id++)
        if (events[id].used && events[id].type == KFD_IOC_EVENT_MEMORY) {
            events[id].fault = (struct kfd_hsa_memory_exception_data){
                .failure.NotPresent = 1, .va = address & ~4095ull, .gpu_id = gpu_id(gpu)};
            event_set(id);
        }
}

void hardware_exception(int gpu)
{
    trace("GPU %d was reset", gpu);
    for (uint32_t id = SIGNALS; id < MAX_EVENTS; id++)
        if (events[id].used && events[id].type == KFD_IOC_EVENT_HW_EXCEPTION) {
            events[id].exception = (struct kfd_hsa_hw_exception_data){
                .reset_type = KFD_HW_EXCEPTION_WHOLE_GPU_RESET,
                .reset_cause = KFD_HW_EXCEPTION_GPU_HANG,
                .memory_lost = 1,
                .gpu_id = gpu_id(gpu)};
            event_set(id);
        }
}

/* How a wait goes on with one of its events. */
struct waited {
    uint64_t age; /* of the event when the wait began, or what user space had seen */
    bool has_come;
};

static void begin_waiting(struct kfd_event_data *wanted, struct waited *waited)
{
    struct event *event = &events[wanted->event_id];
    bool has_seen = event->type == KFD_IOC_EVENT_SIGNAL && *last_age(wanted);
    waited->age = has_seen ? *last_age(wanted) : event->age;
    waited->has_come = event->is_set;
    event->waiters++;
    if (event->resets_itself)
        event->is_set = false;
}

static void hand_over(struct kfd_event_data *wanted)
{
    const struct event *event = &events[wanted->event_id];
    if (event->type == KFD_IOC_EVENT_SIGNAL) {
        if (*last_age(wanted))
            *last_age(wanted) = event->age;
    } else if (event->type == KFD_IOC_EVENT_MEMORY) {
        wanted->memory_exception_data = event->fault;
    } else if (event->type == KFD_IOC_EVENT_HW_EXCEPTION) {
        wanted->hw_exception_data = event->exception;
    }
}

/* How many of the events have come; negative: one of them is gone. */
static int count_come(const struct kfd_event_data *wanted, struct waited *waited, uint32_t count)
{
    int come = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct event *event = event_with(wanted[i].event_id);
        if (!event)
            return -EINVAL;
        waited[i].has_come |= event->age != waited[i].age;
        come += waited[i].has_come;
    }
    return come;
}

static struct timespec milliseconds_from_now(uint32_t milliseconds)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += milliseconds / 1000;
    end.tv_nsec += milliseconds % 1000 * 1000000L;
    if (end.tv_nsec >= 1000000000L) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000L;
    }
    return end;
}

/* Wait until one of these has come, or all; KFD_IOC_WAIT_RESULT_*, or a negative errno. */
static int wait_for(struct kfd_event_data *wanted, struct waited *waited, uint32_t count, bool all, uint32_t timeout)
{
    struct timespec end = milliseconds_from_now(timeout);
    for (int late = timeout ? 0 : ETIMEDOUT;;) {
        int come = count_come(wanted, waited, count);
        if (come < 0)
            return come;
        if (come && (!all || (uint32_t)come == count))
            return KFD_IOC_WAIT_RESULT_COMPLETE;
        if (late == ETIMEDOUT)
            return KFD_IOC_WAIT_RESULT_TIMEOUT;
        late = timeout == UINT32_MAX ? pthread_cond_wait(&something_was_set, &the_lock)
                                     : pthread_cond_timedwait(&something_was_set, &the_lock, &end);
    }
}

int event_wait(struct kfd_ioctl_wait_events_args *request)
{
    uint32_t count = request->num_events;
    struct kfd_event_data *wanted = (void *)request->events_ptr;
    struct waited *waited = calloc(count + 1, sizeof *waited);
    uint32_t begun = 0;
    while (waited && begun < count && event_with(wanted[begun].event_id)) {
        begin_waiting(&wanted[begun], &waited[begun]);
        begun++;
    }
    wake_engine();
    int result = begun < count ? -EINVAL : wait_for(wanted, waited, count, request->wait_for_all, request->timeout);
    for (uint32_t i = 0; i < begun; i++) {
        events[wanted[i].event_id].waiters--;
        if (result == KFD_IOC_WAIT_RESULT_COMPLETE && waited[i].has_come)
            hand_over(&wanted[i]);
    }
    free(waited);
    request->wait_result = result;
    return result < 0 ? result : 0;
}
