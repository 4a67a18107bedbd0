/* What happens around every call: the lock, the checks that all calls share, and the faults that strike in it.
 *
 * A fault that ends or holds up the call happens right here, so that a native stack shows the driver's
 * function as the caller. The others are effects, which those who do the work ask for where they apply.
 */
#define _GNU_SOURCE
#include "losses.h"
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t process;
static unsigned calls_made[CALLS];
static _Thread_local bool holding;

static bool backend_matches(const struct fault *fault)
{
    return fault->backend < 0 || fault->backend == (int)face.backend;
}

static bool occurs(const struct fault *fault, unsigned count)
{
    if (fault->nth)
        return count == fault->nth;
    if (fault->every)
        return count >= fault->from && count % fault->every == 0;
    return count >= fault->from;
}

static void wait_ms(unsigned ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left))
        ;
}

/* Take so long while no other process of the node does: a driver that serves one at a time. */
static void wait_in_turn(unsigned ms)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/turn", getenv("GPUIPC_SIM_STATE"));
    int turn = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    while (flock(turn, LOCK_EX) < 0 && errno == EINTR)
        ;
    wait_ms(ms);
    close(turn);
}

static void take(void)
{
    pthread_mutex_lock(&process_lock);
    holding = true;
}

static void release(void)
{
    holding = false;
    pthread_mutex_unlock(&process_lock);
}

/* Whether the exporter of what is at hand exports anything while this call is under way. The call takes longer for
 * it, as a real one does, in which others run. */
static bool exporter_exports(const struct ipc_handle *handle, int file)
{
    enum { LONGER_MS = 10 };
    if (!sim_initialized())
        return false;
    int32_t exporter = handle ? exporter_of_handle(handle) : exporter_of_file(file);
    uint64_t before = exports_of(exporter);
    bool meanwhile = false;
    release();
    for (int ms = 0; ms < LONGER_MS && !meanwhile; ms++) {
        wait_ms(1);
        meanwhile = exports_of(exporter) != before;
    }
    take();
    return meanwhile;
}

static pthread_t first_thread; /* the one that initialised the driver */
static bool has_forked;
static uint64_t last_call;

static void note_fork(void)
{
    has_forked = true;
}

/* The segment that a call imports, or NULL; with the state's lock held. */
static const struct segment *segment_at_hand(const struct subject *subject)
{
    enum { SERIAL_BITS = 48 };
    const struct ipc_handle *handle = subject->handle ? subject->handle : subject->pointer;
    struct shared_thing what;
    if (handle)
        return segment_find(handle->word[0] & ((1ull << SERIAL_BITS) - 1));
    return export_of(subject->file, &what) && what.pool_device < 0 ? segment_find(what.serial) : NULL;
}

static unsigned importers(const struct subject *subject)
{
    state_lock();
    const struct segment *segment = segment_at_hand(subject);
    unsigned count = segment ? holders_of(segment->serial) : 0;
    state_unlock();
    return count;
}

/* The device and the bytes of the memory that a call imports, or else of what it is about; device -1: unknown. */
static void memory_at_hand(const struct subject *subject, int *device, uint64_t *bytes)
{
    *device = -1;
    *bytes = subject->bytes;
    if (subject->handle) {
        *device = handle_device(subject->handle);
        *bytes = handle_bytes(subject->handle);
        return;
    }
    if (!sim_initialized() || (!subject->pointer && subject->file < 0))
        return;
    state_lock();
    const struct segment *segment = segment_at_hand(subject);
    if (segment) {
        *device = segment->device;
        *bytes = subject->pointer ? subject->pointer->word[2] : segment->bytes;
    }
    state_unlock();
}

static bool condition_holds(const struct fault *fault, int device, const struct subject *subject)
{
    const struct ipc_handle *handle = subject->handle;
    int of = -1;
    uint64_t bytes = 0;
    if (fault->peer || fault->exporter >= 0 || fault->min || fault->max)
        memory_at_hand(subject, &of, &bytes);
    if (fault->peer && (of < 0 || of == device))
        return false;
    if (fault->exporter >= 0 && (of < 0 || node()->device[of].index != fault->exporter))
        return false;
    if (bytes < fault->min || (fault->max && bytes > fault->max))
        return false;
    switch (fault->when) {
    case CONTEXT_WAS_DESTROYED:
        return context_was_destroyed();
    case OPENED_BEFORE:
        return handle && opened_before(handle);
    case OVERLAP:
        return handle && overlaps_freed(handle);
    case THIRD_IN_BLOCK:
        return handle && third_in_block(handle);
    case EXPORTER_EXPORTS:
        return exporter_exports(handle, subject->file);
    case SLOT:
        return handle && slot_in_block(handle) >= fault->least;
    case CROWDED:
        return sim_initialized() && sharing_processes() >= fault->least;
    case FULL:
        return imports_open() + vmm_imports_open() >= fault->least;
    case OTHER_THREAD:
        return process && !pthread_equal(first_thread, pthread_self());
    case TWO_DEVICES:
        return devices_present() > 1;
    case IMPORTER_GONE:
        return importer_gone();
    case FORKED:
        return has_forked;
    case IDLE:
        return last_call && now_ms() - last_call >= fault->ms;
    case ODD_ADDRESS:
        return subject->address % 4;
    case INSIDE:
        return address_is_inside(subject->address);
    case POOL_IMPORTED:
        return pool_is_imported(subject->address);
    case HELD:
        return sim_initialized() && importers(subject) >= fault->least;
    case EARLIER:
    case OF_IMPORT:
        return address_is_imported(subject->address, fault->when == EARLIER);
    case PEER_ENABLED:
        return current_context() && current_context()->peers;
    case DEFAULT_STREAM:
        return subject->default_stream;
    case WITH_PINNED:
    case WITH_REGISTERED:
        return address_is_host(subject->address, fault->when) || address_is_host(subject->other, fault->when);
    case GRANTED:
        return vmm_is_granted(subject->address);
    case LATE_ACCESS:
        return vmm_is_late(subject->address);
    case BETWEEN_IMPORTS:
        return address_is_imported(subject->address, false) && address_is_imported(subject->other, false);
    default:
        return true;
    }
}

__attribute__((noinline, noreturn)) static void hang(void)
{
    for (;;)
        pause(); /* returns when a signal was handled; a hung driver call does not */
}

static void chatter(uint64_t bytes)
{
    static const char line[] = "NVRM: simulated chatter, one line of many that say nothing of use\n";
    while (bytes) {
        size_t length = bytes < sizeof line - 1 ? bytes : sizeof line - 1;
        ssize_t written = write(STDERR_FILENO, line, length);
        if (written <= 0)
            return;
        bytes -= (uint64_t)written;
    }
}

/* A helper such as a driver may start: in a session of its own, with stdout and stderr inherited. */
static void leave_an_orphan(void)
{
    if (fork() == 0) {
        setsid();
        execlp("sleep", "sleep", "600", (char *)NULL);
        _exit(127);
    }
}

static volatile int *volatile nowhere = NULL;

enum { SKIPPED = -1 }; /* the call returns success, and was not made */
static int broken;     /* what every call returns since one returned a sticky error */

/* Returns the code that the call must return at once, or SUCCESS. */
static int happen(const struct fault *fault, int device)
{
    switch (fault->effect) {
    case FAIL:
        return fault->code;
    case STICKY:
        return broken = fault->code;
    case SKIP:
        return SKIPPED;
    case HANG_IGNORE_TERM:
        signal(SIGTERM, SIG_IGN);
        hang();
    case HANG:
        hang();
    case SEGV:
        *nowhere = 0;
        break;
    case ABORT:
        abort();
    case LEAK:
        state_leak(device < 0 ? 0 : device, fault->bytes);
        break;
    case LEAK_DESCRIPTOR:
        lose_descriptor();
        break;
    case LEAK_ADDRESSES:
        lose_addresses(fault->bytes);
        break;
    case LEAK_THREAD:
        lose_thread();
        break;
    case LEAK_HOST:
        lose_host_memory(fault->bytes);
        break;
    case DELAY:
        wait_ms(fault->ms);
        break;
    case IN_TURN:
        wait_in_turn(fault->ms);
        break;
    case CHATTER:
        chatter(fault->bytes);
        break;
    case ORPHAN:
        leave_an_orphan();
        break;
    case LOSE_DEVICE:
        state_lose_device(device < 0 ? 0 : device);
        break;
    default: /* an effect that the core asks for */
        break;
    }
    return SUCCESS;
}

static int apply_faults(enum call call, int device, const struct subject *subject)
{
    const struct fault *fires[MAX_FAULTS];
    unsigned count = ++calls_made[call];
    int firing = 0;
    for (int i = 0; i < node()->faults; i++) {
        const struct fault *fault = &node()->fault[i];
        bool is_here = fault_is_of(fault, device) || (call == CALL_init && sees_index(fault->device));
        if (fault->call == (int)call && backend_matches(fault) && is_here && occurs(fault, count) &&
            condition_holds(fault, device, subject))
            fires[firing++] = fault;
    }
    int code = SUCCESS;
    if (firing) {
        release(); /* what hangs or waits must not hold up the process's other threads */
        for (int i = 0; i < firing && !code; i++) {
            code = happen(fires[i], device);
            fault_strikes(fires[i]);
        }
        take();
    }
    return code;
}

/* What a process learnt when it initialised the driver, it can still say of a device that is lost since. */
static bool needs_device(enum call call)
{
    const char *name = call_names[call];
    static const char *const known[] = {"init", "driver-version", "runtime-version", "error-name", "error-string",
                                        "get-proc-address", "can-access-peer", "peer-attribute", "context-set",
                                        "context-get", "context-push", "context-pop", "primary-state"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]))
            return false;
    return strncmp(name, "device-", strlen("device-")) || call == CALL_device_reset;
}

int call_begin(enum call call, struct subject subject)
{
    /* As with the real drivers, a forked child cannot use what its parent initialised. */
    if (process && process != getpid())
        return face.not_initialized;
    take();
    fault_none_strikes();
    if (!face.initialized() && !face.works_before_init(call)) {
        int code = face.implicit_init ? sim_init(0) : face.not_initialized;
        if (code)
            return code;
    }
    if (call == CALL_init && !face.initialized())
        find_visible(); /* a fault of one of the devices that it will initialise */
    int device = subject.ordinal >= 0 ? ordinal_device(subject.ordinal) : current_device();
    int code = broken && needs_device(call) ? broken : apply_faults(call, device, &subject);
    if (!code && device >= 0 && needs_device(call) && state_device_lost(device))
        code = face.lost;
    return code;
}

static _Thread_local int last_error;

int call_end(int code)
{
    if (code == SKIPPED)
        code = SUCCESS;
    if (code)
        last_error = code;
    if (holding) {
        if (!process && face.initialized()) {
            process = getpid();
            first_thread = pthread_self();
            pthread_atfork(NULL, note_fork, NULL);
        }
        last_call = now_ms();
        release();
    }
    return code;
}

int take_last_error(bool clear)
{
    int code = last_error;
    if (clear)
        last_error = SUCCESS;
    return code;
}
