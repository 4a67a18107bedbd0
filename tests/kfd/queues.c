/* The engine: a thread that plays the packets of the process' queues.
 *
 * Sources: HSA Runtime and System Architecture Specifications 1.2 (AQL packets, section 2.9; signals, section 2.8 of
 * the latter's ABI amd_signal_t), ROCR-Runtime's inc/amd_hsa_signal.h and inc/hsa_ven_amd_aqlprofile.h. */
#define _GNU_SOURCE
#include "emulator.h"

#include <errno.h>
#include <linux/kfd_ioctl.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum { MAX_QUEUES = 256, PACKET_BYTES = 64, BURST = 64 };

static struct queue queues[MAX_QUEUES]; /* 0 is no queue */
static bool runs;
static pthread_cond_t work_is_expected = PTHREAD_COND_INITIALIZER;

/* ---- AQL ---- */

enum { VENDOR = 0, INVALID = 1, DISPATCH = 2, BARRIER_AND = 3, AGENT = 4, BARRIER_OR = 5 };
enum { VENDOR_PM4 = 1, VENDOR_BARRIER_VALUE = 2 };

struct packet { /* all kinds are 64 bytes, begin with a header and end with the signal of their completion */
    uint16_t header;
    uint8_t vendor_format;
    uint8_t reserved[5]; /* of a PM4 packet the last four are the command of the jump */
    union {
        uint64_t dependencies[5]; /* barriers */
        struct {                  /* AMD's barrier-value packet */
            uint64_t signal;
            int64_t value, mask;
            uint32_t condition;
        } until;
        struct { /* AMD's packet of PM4 commands: a jump to them */
            uint32_t address[2], words;
        } pm4;
    };
    uint64_t more;
    uint64_t completion;
};

struct hsa_signal {
    int64_t kind;
    volatile int64_t value;
    uint64_t mailbox; /* where the number of its event is written */
    uint32_t event, reserved;
    uint64_t start, end;
};

static struct hsa_signal *signal_of(struct queue *queue, uint64_t handle)
{
    struct hsa_signal *found = reach(queue->gpu, handle, sizeof *found);
    queue->stopped |= !found;
    return found;
}

static void complete(struct queue *queue, uint64_t handle)
{
    struct hsa_signal *done = handle ? signal_of(queue, handle) : NULL;
    if (!done)
        return;
    fault_look("signal");
    if (fault_is("ignore"))
        return;
    done->start = done->end = nanoseconds() / 10; /* of a clock of 100 MHz, as the topology says */
    uint64_t mailbox = done->mailbox; /* first: who sees the value may destroy the signal */
    uint32_t event = done->event;
    __atomic_sub_fetch(&done->value, 1, __ATOMIC_SEQ_CST);
    uint64_t *slot = mailbox ? reach(queue->gpu, mailbox, sizeof *slot) : NULL;
    if (slot) {
        *slot = event;
        interrupt(event);
    }
}

static bool barrier_is_open(struct queue *queue, const struct packet *packet, bool needs_all)
{
    bool any = false, all = true, has_dependency = false;
    for (int i = 0; i < 5; i++) {
        if (!packet->dependencies[i])
            continue;
        const struct hsa_signal *dependency = signal_of(queue, packet->dependencies[i]);
        if (!dependency)
            return false;
        has_dependency = true;
        any |= dependency->value == 0;
        all &= dependency->value == 0;
    }
    return needs_all ? all : any || !has_dependency;
}

/* hsa_amd_barrier_value_packet_t: conditions are numbered as hsa_signal_condition_t. */
static bool value_is_reached(struct queue *queue, const struct packet *packet)
{
    if (!packet->until.signal)
        return true;
    const struct hsa_signal *watched = signal_of(queue, packet->until.signal);
    if (!watched)
        return false;
    int64_t value = watched->value & packet->until.mask;
    switch (packet->until.condition) {
    case 0:
        return value == packet->until.value;
    case 1:
        return value != packet->until.value;
    case 2:
        return value < packet->until.value;
    default:
        return value >= packet->until.value;
    }
}

/* ROCr sends PM4 commands to invalidate caches, of which there are none here. */
static bool pm4_is_played(struct queue *queue, const struct packet *packet)
{
    enum { ACQUIRE_MEM = 0x58, NOP = 0x10 };
    uint32_t count = packet->pm4.words & 0xfffff;
    uint64_t address = packet->pm4.address[0] | (uint64_t)packet->pm4.address[1] << 32;
    const uint32_t *words = reach(queue->gpu, address, count * 4ull);
    for (uint32_t i = 0; words && i < count; i += 2 + (words[i] >> 16 & 0x3fff)) {
        uint32_t operation = words[i] >> 8 & 0xff;
        if (operation != ACQUIRE_MEM && operation != NOP) {
            complain("PM4 command 0x%02x is not played", operation);
            return false;
        }
    }
    return words;
}

/* Whether the packet may go: true also for what is not played, which stops the queue. */
static bool may_go(struct queue *queue, const struct packet *packet)
{
    switch (packet->header & 0xff) {
    case BARRIER_AND:
        return barrier_is_open(queue, packet, true);
    case BARRIER_OR:
        return barrier_is_open(queue, packet, false);
    case VENDOR:
        if (packet->vendor_format == VENDOR_BARRIER_VALUE)
            return value_is_reached(queue, packet);
        if (packet->vendor_format == VENDOR_PM4 && pm4_is_played(queue, packet))
            return true;
        break;
    case DISPATCH:
        queue->stopped = !play_kernel(queue->gpu, packet);
        return !queue->stopped;
    case INVALID: /* not written to the end so far */
        return false;
    }
    complain("AQL packet 0x%x, vendor's format %d, is not played", packet->header, packet->vendor_format);
    queue->stopped = true;
    return false;
}

static bool play_aql(struct queue *queue)
{
    uint64_t next = *queue->read;
    uint8_t *ring = next < *queue->write ? reach(queue->gpu, queue->ring, queue->size) : NULL;
    if (!ring)
        return false;
    struct packet *packet = (void *)(ring + next % (queue->size / PACKET_BYTES) * PACKET_BYTES);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!may_go(queue, packet))
        return false;
    uint64_t completion = packet->completion;
    __atomic_store_n(&packet->header, INVALID, __ATOMIC_RELEASE);
    complete(queue, completion);
    __atomic_store_n(queue->read, next + 1, __ATOMIC_RELEASE);
    return true;
}

/* ---- the thread ---- */

static bool play_all(void)
{
    bool played = false;
    for (struct queue *queue = queues + 1; queue < queues + MAX_QUEUES; queue++)
        for (int i = 0; i < BURST && queue->used && !queue->stopped; i++) {
            if (!(queue->type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL ? play_aql(queue) : play_sdma(queue)))
                break;
            played = true;
        }
    return played;
}

/* A doorbell is a page that user space writes to, so packets must be looked for: often after some came, seldom
 * later (1 % of a core), and at once when a thread begins to wait for an event. */
static void *engine(void *unused)
{
    for (unsigned idle = 0;; idle++) {
        pthread_mutex_lock(&the_lock);
        if (play_all())
            idle = 0;
        if (idle >= 200) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += idle < 500 ? 200000 : 2000000;
            if (until.tv_nsec >= 1000000000L) {
                until.tv_sec++;
                until.tv_nsec -= 1000000000L;
            }
            if (!pthread_cond_timedwait(&work_is_expected, &the_lock, &until))
                idle = 0;
        }
        pthread_mutex_unlock(&the_lock);
        if (idle < 200)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return unused;
}

void interrupt(uint32_t event)
{
    fault_look("interrupt");
    if (!fault_is("ignore"))
        event_set(event);
}

static bool lies_in(const volatile void *pointer, const uint8_t *host, uint64_t size)
{
    return (const volatile uint8_t *)pointer >= host && (const volatile uint8_t *)pointer < host + size;
}

void stop_queues_in(const uint8_t *host, uint64_t size)
{
    static uint64_t nothing;
    for (struct queue *queue = queues; queue < queues + MAX_QUEUES; queue++)
        if (lies_in(queue->read, host, size) || lies_in(queue->write, host, size))
            queue->read = queue->write = &nothing;
}

void reset_gpu(int gpu)
{
    for (struct queue *queue = queues; queue < queues + MAX_QUEUES; queue++)
        queue->stopped |= queue->gpu == gpu;
    hardware_exception(gpu);
}

void wake_engine(void)
{
    pthread_cond_signal(&work_is_expected);
}

static void start_engine(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    runs = !pthread_create(&thread, NULL, engine, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int queue_create(struct kfd_ioctl_create_queue_args *request)
{
    int gpu = gpu_with_id(request->gpu_id);
    uint32_t id = 1;
    while (id < MAX_QUEUES && queues[id].used)
        id++;
    if (gpu < 0 || id == MAX_QUEUES)
        return gpu < 0 ? -EINVAL : -ENOMEM;
    if (request->queue_type == KFD_IOC_QUEUE_TYPE_COMPUTE) {
        complain("a queue of PM4 packets is not played");
        return -ENOTTY;
    }
    queues[id] = (struct queue){
        .used = true,
        .gpu = gpu,
        .type = request->queue_type,
        .ring = request->ring_base_address,
        .size = request->ring_size,
        .read = host_address(gpu, request->read_pointer_address),
        .write = host_address(gpu, request->write_pointer_address),
    };
    request->queue_id = id;
    request->doorbell_offset = OFFSET_DOORBELLS | (uint64_t)gpu << OFFSET_GPU_SHIFT | id * 8;
    if (!runs)
        start_engine();
    return 0;
}

int queue_destroy(uint32_t id)
{
    if (id >= MAX_QUEUES || !queues[id].used)
        return -EINVAL;
    queues[id].used = false;
    return 0;
}

int queue_update(uint32_t id, uint64_t ring, uint64_t size, bool active)
{
    if (id >= MAX_QUEUES || !queues[id].used)
        return -EINVAL;
    queues[id].ring = ring;
    queues[id].size = size;
    queues[id].stopped = !active;
    return 0;
}
