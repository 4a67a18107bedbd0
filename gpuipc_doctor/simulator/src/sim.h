/* What the files of the simulated driver share, from the lowest layer (README.md) to the highest.
 *
 * calls.table -> build.py -> one exported function per symbol -> call_begin (calls.c) -> the function that does
 * the work -> call_end. Everything between call_begin and call_end runs under one lock of this process, so
 * nothing else needs one.
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum error {
#define ERROR(constant, number, ...) constant = number,
#include "errors.def"
#undef ERROR
};

#include "backends.h"

/* 64 bytes, by value, as both vendors pass it. ipc.c says what the words mean. */
struct ipc_handle {
    uint64_t word[8];
};

/* ---- node.c: what GPUIPC_SIM_NODE says ---- */

enum call {
#define CALL(constant, name) CALL_##constant,
#include "calls.def"
#undef CALL
    CALLS
};
extern const char *const call_names[CALLS + 1]; /* ends in NULL */

enum { MAX_DEVICES = 32, MAX_FAULTS = 64 };

enum device_mode {
    USUAL,
    EXCLUSIVE,      /* compute mode: one process at a time */
    CONFIDENTIAL,   /* as NVML reports it */
    INTEGRATED_GPU, /* it shares the host's memory */
};

struct device {
    enum backend backend;
    int index; /* among the devices of its backend */
    char name[128];
    char uuid[64]; /* GPU-…, as in the profile */
    char pci[32];
    char arch[32];
    uint64_t memory, held; /* bytes */
    int holder;            /* pid that NVML lists for what is held; 0: none, -1: it lists no processes */
    uint64_t granule;      /* of physical memory, bytes */
    uint64_t addresses;    /* bytes that allocations take before freed ones; 0: all */
    bool imex;             /* fabric handles are permitted: there is an IMEX channel */
    enum device_mode mode;
    /* What NVML reports of it; -1 or an empty text: it reports none. */
    int links, link_speed, pcie_width, ecc, remap, slowdown; /* remap: 0 none, 1 pending, 2 failed */
    int pcie_slot, pcie_generation, pcie_idle;               /* idle: the generation without a context */
    int uncorrected, recovery;                               /* ECC errors; nvmlDeviceGpuRecoveryAction_t */
    int switched;                                            /* its links lead to NVSwitches; -1: not reported */
    int replays;                                             /* of link 3, a second; -1: no counters */
    int fabric, fabric_status, fabric_health, clique, cluster;
    int busy, watts, watts_limit;                            /* busy: percent */
    char vbios[64], serial[64], part_number[64];
};

enum fault_condition {
    ALWAYS,
    CONTEXT_WAS_DESTROYED,
    OPENED_BEFORE,
    OVERLAP,
    EXPORTER_EXPORTS,
    THIRD_IN_BLOCK,
    BY_DESCRIPTOR,
    SLOT,
    CROWDED,
    FULL,
    OTHER_THREAD,
    TWO_DEVICES,
    IMPORTER_GONE,
    FORKED,
    IDLE,
    ODD_ADDRESS,
    INSIDE,
    POOL_IMPORTED,
    HELD,
    EARLIER,
    OF_IMPORT,
    PEER_ENABLED,
    DEFAULT_STREAM,
    WITH_PINNED,
    WITH_REGISTERED,
    BETWEEN_IMPORTS,
    GRANTED,
    LATE_ACCESS,
};

enum fault_effect { /* in the order of node.c's words */
    FAIL,
    HANG,
    HANG_IGNORE_TERM,
    SEGV,
    ABORT,
    CORRUPT_BYTE,
    CORRUPT_PAGE,
    STALE,
    COLLIDE,
    LEAK,
    KEEP,
    DELAY,
    CHATTER,
    ORPHAN,
    LOSE_DEVICE,
    LATE,
    COARSE,
    SKIP,
    SNAPSHOT,
    LOSE_WRITES,
    ACCEPT,
    RENUMBER,
    LATEST,
    LEAK_DESCRIPTOR,
    WRAP,
    CORRUPT_FROM,
    STALE_PART,
    END_ANOTHER,
    END_BLOCK,
    END_COUNT,
    WIPE,
    STICKY,
    LEAK_ADDRESSES,
    LEAK_THREAD,
    LEAK_HOST,
    LAG,
    BLANK,
    MISSTATE,
    IN_TURN,
    DRIFT,
    SAW,
    LEVEL,
    WALK,
    MISPLACE,
    PREMATURE,
    REJECT,
    KERNELS_READ_STALE,
    KERNELS_LOSE_WRITES,
    KERNELS_LOSE_ADDS,
    KERNELS_MISS_LAST,
    KERNELS_SEE_NO_FLAG,
    KERNELS_SEE_FLAG_LATE,
    KERNELS_LOSE_HOT_ADDS,
    RECYCLE,
    EFFECTS,
};

struct fault {
    int backend; /* an enum backend, or -1 for any */
    int call;    /* an enum call */
    int device;  /* index among the devices of the backend, or -1 for any */
    int exporter; /* likewise: only when the handle at hand is of that device's memory */
    unsigned nth, from, every;
    unsigned least;     /* of what `when` counts */
    uint64_t min, max;  /* bytes of the memory or the copy at hand; max 0: any */
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
    int ze_driver, ze_build; /* 100 * major + minor of compute-runtime, and its third number */
    int devices, faults;
    struct device device[MAX_DEVICES];
    bool peer[MAX_DEVICES][MAX_DEVICES]; /* [a][b]: a reaches the memory of b */
    struct fault fault[MAX_FAULTS];
};

/* The node; read on first use. A file that cannot be read or understood ends the process with one line. */
const struct node *node(void);
int hip_release(void); /* of the runtime that the node has: 100 * major + minor */

/* ---- faults.c: which the node has, and what the call under way is to do wrong ---- */

/* The faults that strike in the call under way; calls.c sets them. */
void fault_strikes(const struct fault *fault);
void fault_none_strikes(void);
bool fault_asks(enum fault_effect effect);
bool fault_is_of(const struct fault *fault, int device);
bool node_has_fault(enum call call, enum fault_effect effect, int device);
/* The fault of this effect that the node has at this call on this device, or NULL. */
const struct fault *node_fault(enum call call, enum fault_effect effect, int device);
/* The bytes of the fault of this effect that strikes in the call under way; 0 where none does. */
unsigned fault_ms(enum fault_effect effect); /* likewise its ms */
uint64_t fault_bytes(enum fault_effect effect);
struct bad_part {
    uint64_t offset, bytes;
};

/* For the faults `corrupt-…`: which of so many bytes read wrong; none without a fault. */
struct bad_part bad_part_of(uint64_t bytes);

struct flaw { /* what faults did to an import when it was made */
    struct bad_part bad;  /* these bytes of its block read wrong through it */
    uint64_t loses_writes; /* what is written through it from this offset in its block on arrives nowhere */
    uint32_t kernels;      /* what kernels do wrong through it: a bit for each effect from KERNELS_READ_STALE on */
};

/* Of an import of so many bytes at this offset in its block. */
struct flaw flaw_of(uint64_t offset, uint64_t bytes);
uint32_t kernel_faults(void); /* of the call under way, as `flaw.kernels` */
void spoil_text(char *text); /* for the fault `corrupt-byte` of a call that gives a text */
uint64_t scatter(void); /* the next of a fixed sequence of well-mixed numbers */

/* ---- state.c: what all processes of the node share ---- */

struct segment {
    uint64_t serial; /* 0 marks a free entry; written last when one is taken, first when it is given up */
    uint64_t bytes, address; /* address: where the exporter sees it */
    int32_t pid;             /* the exporter's, in its own pid namespace */
    uint16_t device, owner;  /* owner: its entry in the table of processes */
    bool freed;              /* the owner gave it up; it lives on while somebody maps it */
    bool kept;               /* a fault: what it takes of the device never comes back */
    bool by_descriptor;      /* an importer is not charged for it, as it is for legacy IPC's */
    uint64_t pool;           /* once its pointer was exported: that pool, and it lives as long as the pool is held */
    uint64_t until;          /* a fault: it goes at this time, in ms of the monotonic clock, and not before */
};

/* Join the node's shared state; with `as_user` also take an entry in its table of processes. Idempotent. */
int state_join(bool as_user);
void state_lock(void); /* also clears away what dead processes left */
void state_unlock(void);

/* With the lock held: */
uint64_t state_used(int device); /* bytes that are not free, whoever has them */
uint64_t state_counted(int device); /* those, and what the faults of a moving counter add */
uint64_t now_ms(void);           /* of the monotonic clock */
struct segment *segment_create(int device, uint64_t bytes, uint64_t address); /* NULL: errno says why */
struct segment *segment_find(uint64_t serial);
/* The live segment that this exporter now has where a stale handle's was, or NULL. */
struct segment *segment_at(int32_t pid, int device, uint64_t address);
/* What its owner made last of the same size. */
struct segment *segment_newest(struct segment *segment);
/* For the fault `collide`: a segment as large that the same process has there, or itself. */
struct segment *segment_beside(struct segment *segment);
int segment_open_file(const struct segment *segment);
int segment_open_serial(uint64_t serial); /* likewise; needs no lock */
/* What lay at the segment's address before it, or nothing but zeroes; VMM memory has no address, so it is what its
 * exporter made before. */
int segment_open_before(const struct segment *segment);
void segment_free(uint64_t serial);
int mapping_add(uint64_t serial); /* its entry, or -1 when the table is full */
void mapping_remove(int entry);
bool process_alive(int32_t pid);
bool serial_is_held(uint64_t serial); /* by somebody's mapping_add, or a descriptor */
unsigned holders_of(uint64_t serial); /* processes that have it by mapping_add */
unsigned sharing_processes(void);     /* that have a segment, or hold one */
bool importer_gone(void);             /* a process that held a segment of this one has ended */
unsigned devices_present(void);       /* on so many this process has a context */
void state_exports(void); /* this process exports something */
uint64_t exports_of(int32_t pid); /* how often that one has; needs no lock */

struct shared_thing { /* what a descriptor stands for: a segment, or a pool on a device */
    uint64_t serial;
    int pool_device; /* the node's number, or -1 for a segment */
};

uint64_t pool_serial(void); /* a new one; who has the pool holds it by mapping_add */
int descriptor_in(const void *shared);  /* of what vmm-import takes */
int export_new(const struct shared_thing *what, bool close_on_exec); /* a descriptor, or -1 */
bool export_of(int file, struct shared_thing *what); /* false: this descriptor is none of ours */
int32_t exporter_of_file(int file); /* its pid, or 0 */
void segment_pin(uint64_t serial, uint64_t pool); /* its pointer was exported in this pool */

/* Walk over what processes hold of a device: calls `each` per process with its pid and bytes. */
void state_each_user(int device, void (*each)(int32_t pid, uint64_t bytes, void *data), void *data);

/* Single words that any process may change at any time: */
void state_leak(int device, uint64_t bytes);
void state_lose_device(int device);
void state_present(int device, bool is_there); /* whether this process has a context there */
bool state_device_lost(int device);

/* ---- devices.c: which devices this process sees, and what they say of themselves ---- */

bool sim_initialized(void);
void find_visible(void); /* as the environment chooses now */
bool sees_index(int index);
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
    uint32_t peer_faults; /* `flaw.kernels` of their memory */
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
void context_end(struct context *context); /* see context_end_with_memory */
void context_leave(const struct context *context); /* pop it if it is on top of this thread's stack */
bool context_was_destroyed(void);
void note_context_destroyed(void);
void choose_ordinal(int ordinal); /* HIP's current device of this thread */

/* ---- streams.c: what is ordered after what, and work that takes time ---- */

struct moment { /* a piece of work in the order of its stream */
    uint64_t stream, number;
    uint64_t due; /* when all that comes before it is done */
};

int stream_check(void *stream);                       /* whether there is such a stream */
bool stream_takes_time(const void *stream);
void stream_later(void *stream, uint64_t bytes, void (*run)(void *), void *what); /* for one that takes time */
void stream_finish(void *stream);                     /* wait for its work */
void streams_finish(void);                            /* wait for all work */
/* Work that ends when `step` returns true, which is asked by those who wait for the stream or query it. */
void stream_until(void *stream, bool (*step)(void *), void *what);
bool stream_is_waiting(const void *stream); /* for such work */
bool moment_is_over(struct moment moment);
void stream_waits_for(void *stream, struct moment moment);
int event_finish(void *event);
int stream_work(void *stream, struct moment *moment); /* the stream's next piece of work */
/* Whether what the stream does next comes after it: by its own order, by events, by the legacy default stream. */
bool stream_follows(void *stream, struct moment moment);

/* ---- what works on allocations has its own header, allocations.h; this is for calls.c ---- */

int32_t exporter_of_handle(const struct ipc_handle *handle); /* its pid, or 0 */
int handle_device(const struct ipc_handle *handle); /* the node's number, or -1 for what is no handle */
bool opened_before(const struct ipc_handle *handle);
bool overlaps_freed(const struct ipc_handle *handle);
bool third_in_block(const struct ipc_handle *handle); /* it is of the third small segment of a block, or a later one */
unsigned slot_in_block(const struct ipc_handle *handle); /* which small segment of its block it is of, from 0 */
uint64_t handle_bytes(const struct ipc_handle *handle); /* of the allocation that it is of, or 0 */
bool address_is_inside(uint64_t address);  /* of an allocation, but not its beginning */
unsigned imports_open(void);               /* in this process: legacy mappings and what came from pools */
unsigned vmm_imports_open(void);
bool vmm_is_granted(uint64_t address); /* this process has access to what is mapped there */
bool vmm_is_late(uint64_t address);    /* something was mapped elsewhere after it */
bool pool_is_imported(uint64_t pool);      /* by another process */
bool address_is_host(uint64_t address, enum fault_condition with);
bool address_is_imported(uint64_t address, bool earlier); /* earlier: and something was imported after it */

/* ---- calls.c: before and after each call ---- */

struct subject {                 /* what a call is about */
    int ordinal;                 /* of its device, or -1: the current context's */
    const struct ipc_handle *handle; /* an IPC handle to be opened, or NULL */
    int file;                    /* a descriptor to be imported, or -1 */
    const struct ipc_handle *pointer; /* of a pool's memory to be imported, or NULL */
    uint64_t address, bytes;     /* of memory, or 0 */
    bool default_stream;         /* it names the legacy default stream */
    uint64_t other;              /* address of a copy, or 0 */
};
int call_begin(enum call call, struct subject subject);
int call_end(int code);

/* HIP's error of this thread's latest failed call. */
int take_last_error(bool clear);

/* ---- each library says who it is: what stands below asks it through this table ---- */

struct face {
    enum backend backend;
    bool (*initialized)(void);
    bool (*works_before_init)(enum call call);
    bool implicit_init;          /* any call initialises the driver */
    bool device_is_context;      /* HIP: a device has one context, which a thread gets by choosing the device */
    bool memory_is_hidden;       /* from the host, which copies it by the driver only */
    bool pool_memory_exports;    /* stream-ordered memory may be exported */
    bool pool_has_one_descriptor; /* each export returns it again, also if it was closed */
    bool pool_adds_dependencies; /* REUSE_ALLOW_INTERNAL_DEPENDENCIES has an effect */
    size_t granularity;          /* of small allocations, bytes */
    int not_initialized, unsupported, lost, gone; /* gone: opening what is no more, its exporter alive */
    int exporter_gone;
    int not_permitted; /* fabric handles without an IMEX channel */
};
extern const struct face face;

/* ---- ze.c, for its exported functions ---- */

int ze_choose(void *object);
int ze_result(int code);
struct ipc_handle ze_imported(struct ipc_handle handle);

#include "calls.h"

#endif
