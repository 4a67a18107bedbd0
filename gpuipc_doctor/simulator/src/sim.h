/* What the rooms of the simulated driver share: the node, its shared state, the core, the faults.
 *
 * calls.table -> build.py -> one exported function per symbol -> call_begin (faults.c) -> a function of core.c
 * or of a face (cuda.c, hip.c, nvml.c) -> call_end. Everything between call_begin and call_end runs under one
 * lock of this process, so the core needs no other.
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum error {
#define ERROR(constant, number, cuda, hip, text) constant = number,
#include "errors.def"
#undef ERROR
};

enum backend { CUDA, HIP };

/* 64 bytes, by value, as both vendors pass it. core.c says what the words mean. */
struct ipc_handle {
    uint64_t word[8];
};

/* ---- node.c: what GPUIPC_SIM_NODE says ---- */

enum { MAX_DEVICES = 32, MAX_FAULTS = 64 };

struct device {
    enum backend backend;
    int index; /* among the devices of its backend */
    char name[128];
    char uuid[64]; /* GPU-…, as in the profile */
    char pci[32];
    char arch[32];
    uint64_t memory, held; /* bytes */
};

enum fault_condition { ALWAYS, CONTEXT_WAS_DESTROYED, OPENED_BEFORE, OVERLAP };

/* Bits, so that the effects of several faults on one call add up. */
enum fault_effect {
    FAIL = 1 << 0,
    HANG = 1 << 1,
    HANG_IGNORE_TERM = 1 << 2,
    SEGV = 1 << 3,
    ABORT = 1 << 4,
    CORRUPT_BYTE = 1 << 5,
    CORRUPT_PAGE = 1 << 6,
    STALE = 1 << 7,
    COLLIDE = 1 << 8,
    LEAK = 1 << 9,
    KEEP = 1 << 10,
    DELAY = 1 << 11,
    CHATTER = 1 << 12,
    ORPHAN = 1 << 13,
    LOSE_DEVICE = 1 << 14,
};

struct fault {
    int backend; /* an enum backend, or -1 for any */
    int call;    /* an enum call */
    int device;  /* index among the devices of the backend, or -1 for any */
    unsigned nth, from, every;
    enum fault_condition when;
    bool peer; /* only when the handle at hand is of another device's memory */
    enum fault_effect effect;
    int code;
    uint64_t bytes;
    unsigned ms;
};

struct node {
    char profile[128];
    char nvidia_driver[64];
    int cuda_driver, hip_runtime, hip_driver;
    int devices, faults;
    struct device device[MAX_DEVICES];
    bool peer[MAX_DEVICES][MAX_DEVICES]; /* [a][b]: a reaches the memory of b */
    struct fault fault[MAX_FAULTS];
};

/* The node; read on first use. A file that cannot be read or understood ends the process with one line. */
const struct node *node(void);

/* ---- state.c: what all processes of the node share ---- */

struct segment {
    uint64_t serial; /* 0 marks a free entry; written last when one is taken, first when it is given up */
    uint64_t bytes, address; /* address: where the exporter sees it */
    int32_t pid;             /* the exporter's, in its own pid namespace */
    uint16_t device, owner;  /* owner: its entry in the table of processes */
    bool freed;              /* the owner gave it up; it lives on while somebody maps it */
    bool kept;               /* a fault: what it takes of the device never comes back */
};

/* Join the node's shared state; with `as_user` also take an entry in its table of processes. Idempotent. */
int state_join(bool as_user);
void state_lock(void); /* also clears away what dead processes left */
void state_unlock(void);

/* With the lock held: */
uint64_t state_used(int device); /* bytes that are not free, whoever has them */
struct segment *segment_create(int device, uint64_t bytes, uint64_t address); /* NULL: errno says why */
struct segment *segment_find(uint64_t serial);
/* The live segment that this exporter now has where a stale handle's was, or NULL. */
struct segment *segment_at(int32_t pid, int device, uint64_t address);
/* The segment's predecessor at its address, still mapped by somebody, or NULL. */
struct segment *segment_before(const struct segment *segment);
int segment_open_file(const struct segment *segment);
int segment_open_last_at(const struct segment *segment); /* what a dead predecessor held; -1 if unknown */
void segment_free(uint64_t serial);
int mapping_add(uint64_t serial); /* its entry, or -1 when the table is full */
void mapping_remove(int entry);
bool process_alive(int32_t pid);
/* Walk over what processes hold of a device: calls `each` per process with its pid and bytes. */
void state_each_user(int device, void (*each)(int32_t pid, uint64_t bytes, void *data), void *data);

/* Single words that any process may change at any time: */
void state_leak(int device, uint64_t bytes);
void state_lose_device(int device);
void state_present(int device, bool is_there); /* whether this process has a context there */
bool state_device_lost(int device);

/* ---- faults.c: before and after each call ---- */

enum call {
#define CALL(constant, name) CALL_##constant,
#include "calls.def"
#undef CALL
    CALLS
};
extern const char *const call_names[CALLS + 1]; /* ends in NULL */

int call_begin(enum call call, int ordinal, const struct ipc_handle *handle);
int call_end(int code);

/* What faults ask of the call under way; the core honours it where it applies. */
bool fault_asks(enum fault_effect effect);
bool node_has_fault(enum call call, enum fault_effect effect, int device);
uint64_t scatter(void); /* the next of a fixed sequence of well-mixed numbers */

/* HIP's error of this thread's latest failed call. */
int take_last_error(bool clear);

/* ---- devices.c: which devices this process sees, and what they say of themselves ---- */

bool sim_initialized(void);
int visible_devices(void);
int ordinal_device(int ordinal);     /* the node's number of a device of this process, or -1 */
int device_ordinal(int device);      /* the reverse, or -1 when it is hidden from this process */
void device_pci_numbers(int ordinal, int *domain, int *bus, int *slot); /* of a device that is there */

/* How a vendor numbers the attributes of a device: those that differ from device to device, and the others. */
struct attribute_numbers {
    int pci_domain, pci_bus, pci_device, capability_major, capability_minor;
    size_t count;
    const struct fixed_attribute {
        int number, value;
    } *fixed;
};

/* 0 for one that is not among them: a feature that the device does not have. */
int device_attribute(const struct attribute_numbers *numbers, int *value, int attribute, int device);

const char *error_name(int code);    /* NULL for a code that this vendor does not have */
const char *error_text(int code);

/* ---- contexts.c ---- */

struct context {
    struct context *next;
    int ordinal, device; /* as this process and as the node number it */
    unsigned flags;
    uint64_t number;
    uint32_t peers; /* devices whose memory it may reach, a bit each */
    bool alive;     /* a primary context comes alive when it is retained */
};

struct context *current_context(void); /* NULL when there is none */
int current_device(void);              /* the node's number of its device, or -1 */
/* The context that a call works in. */
int enter_context(struct context **context);
struct context *context_new(int ordinal, unsigned flags); /* not yet alive */
void context_begin(struct context *context);
struct context *primary_context(int ordinal);
bool context_known(const struct context *context);
void context_end(struct context *context); /* what lives in it goes, and the process has destroyed one */
void context_leave(const struct context *context); /* pop it if it is on top of this thread's stack */
bool context_was_destroyed(void);
void note_context_destroyed(void);
void choose_ordinal(int ordinal); /* HIP's current device of this thread */

/* ---- memory.c: see memory.h ---- */

void memory_of_context_ends(const struct context *context);

struct vmm_request { /* CUmemAllocationProp, and CUmemPoolProps begins in the same way */
    int type, handle_types;
    struct {
        int type, id;
    } location;
};

bool request_is_simulated(const struct vmm_request *request);

struct pool_request { /* CUmemPoolProps, hipMemPoolProps */
    struct vmm_request memory;
    void *security;
    size_t most;
};

/* ---- streams.c: work is done when it is asked for, but what is ordered after what is kept ---- */

struct moment { /* a piece of work in the order of its stream */
    uint64_t stream, number;
};

int stream_work(void *stream, struct moment *moment); /* the stream's next piece of work */
/* Whether what the stream does next comes after it: by its own order, by events, by the legacy default stream. */
bool stream_follows(void *stream, struct moment moment);

/* ---- pools.c ---- */

int pool_take_back(uint64_t address, void *stream); /* INVALID_VALUE: the address is of no pool's memory */
void pools_settle(void); /* what a synchronisation makes pools give up */

struct vmm_access {
    struct {
        int type, id;
    } location;
    int flags;
};

/* ---- ipc.c ---- */

int handle_device(const struct ipc_handle *handle); /* the node's number, or -1 for what is no handle */
bool opened_before(const struct ipc_handle *handle);
bool overlaps_freed(const struct ipc_handle *handle);

/* ---- each face says who it is ---- */

struct face {
    enum backend backend;
    bool implicit_init;       /* any call initialises the driver */
    bool device_is_context;   /* HIP: a device has one context, which a thread gets by choosing the device */
    bool interior_handles;    /* a handle of an interior pointer opens to the interior address */
    bool pool_memory_exports; /* stream-ordered memory may be exported */
    size_t granularity;       /* of small allocations, bytes */
    int not_initialized, unsupported, lost, gone; /* gone: opening what is no more, its exporter alive */
    int exporter_gone;
};
extern const struct face face;

bool face_initialized(void);
bool face_works_before_init(enum call call);

#include "calls.h"

#endif
