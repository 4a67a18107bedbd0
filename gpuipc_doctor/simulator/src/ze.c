/* libze_intel_gpu.so.1: a Level Zero driver, which the real loader finds by this name. After the specification's
 * headers (oneapi-src/level-zero) and the sources of intel/compute-runtime; never compared with an Intel GPU.
 *
 * A loader asks for tables of functions, whose entries have fixed places; a later specification adds at the end. What
 * is not implemented stays NULL, for which the loader returns ZE_RESULT_ERROR_UNSUPPORTED_FEATURE or UNINITIALIZED.
 * A command of an immediate list is done when it is appended, one of another list at each execution.
 */
#define _GNU_SOURCE
#include "allocations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exports-ze.h"

static bool works_before_init(enum call call)
{
    return call == CALL_init;
}

const struct face face = {
    .initialized = sim_initialized,
    .works_before_init = works_before_init,
    .backend = ZE,
    .device_is_context = true, /* the core's; Level Zero's own are only handles here */
    .memory_is_hidden = true,
    .granularity = 65536,
    .not_initialized = NOT_INITIALIZED,
    .unsupported = NOT_SUPPORTED,
    .lost = DEVICE_IS_LOST,
    .gone = INVALID_VALUE,
    .exporter_gone = INVALID_VALUE,
    .not_permitted = NOT_SUPPORTED,
};

/* The core's errors as results: ze_result_t. */
int ze_result(int code)
{
    static const struct {
        int code;
        unsigned result;
    } results[] = {
        {NOT_READY, 1},
        {DEVICE_IS_LOST, 0x70000001},
        {OUT_OF_MEMORY, 0x70000003},
        {INVALID_PTX, 0x70000004},
        {NOT_PERMITTED, 0x70010000},
        {NOT_INITIALIZED, 0x78000001},
        {NO_DEVICE, 0x78000001},
        {NOT_SUPPORTED, 0x78000003},
        {INVALID_VALUE, 0x78000004},
        {INVALID_HANDLE, 0x78000005},
        {UNKNOWN, 0x7ffffffe},
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].code == code)
            return (int)results[i].result;
    return code ? 0x78000004 : SUCCESS;
}

/* ---- handles: each begins with a pointer that belongs to the loader ---- */

struct command {
    uint64_t to, from;
    size_t bytes;
    unsigned char pattern[128];
    size_t pattern_bytes; /* 0: a copy */
    struct object *event;
    bool signals;
};

static struct object {
    void *loader;
    int ordinal;
    bool is_immediate, is_signalled;
    size_t count;
    struct command *commands;
} driver, device[MAX_DEVICES];

static struct object *object_new(int ordinal)
{
    struct object *object = calloc(1, sizeof *object);
    if (!object)
        abort();
    object->ordinal = ordinal;
    return object;
}

/* The ordinal of the device of a handle, which is chosen for this thread; -1 for none. */
int ze_choose(void *handle)
{
    if (!handle || !sim_initialized())
        return -1;
    choose_ordinal(((struct object *)handle)->ordinal);
    return ((struct object *)handle)->ordinal;
}

static int give(void **out, int ordinal)
{
    if (!out)
        return INVALID_VALUE;
    *out = object_new(ordinal);
    return SUCCESS;
}

/* ---- driver and devices ---- */

int ze_init(unsigned flags)
{
    (void)flags;
    int code = sim_init(0);
    for (int i = 0; i < visible_devices(); i++)
        device[i].ordinal = i;
    return code;
}

static int list(unsigned *count, void **out, struct object *objects, int known)
{
    if (!count)
        return INVALID_VALUE;
    if (out && *count && *count < (unsigned)known)
        known = (int)*count;
    for (int i = 0; out && *count && i < known; i++)
        out[i] = &objects[i];
    *count = (unsigned)known;
    return SUCCESS;
}

static int ze_driver_get(unsigned *count, void **out)
{
    return ze_result(list(count, out, &driver, sim_initialized()));
}

static int ze_init_drivers(unsigned *count, void **out, const void *request)
{
    (void)request;
    int result = sim_initialized() ? SUCCESS : zeInit(0);
    return result ? result : ze_driver_get(count, out);
}

int ze_device_get(void *owner, unsigned *count, void **out)
{
    (void)owner;
    return list(count, out, device, visible_devices());
}

static int ze_none(void *handle, unsigned *count)
{
    (void)handle;
    *count = 0;
    return SUCCESS;
}

static int ze_api_version(void *handle, unsigned *version)
{
    (void)handle;
    *version = 1 << 16 | 13;
    return SUCCESS;
}

struct ze_driver_properties {
    int type;
    void *next;
    unsigned char uuid[16];
    unsigned version;
};

static int ze_driver_properties(void *handle, struct ze_driver_properties *out)
{
    (void)handle;
    memset(out->uuid, 7, sizeof out->uuid);
    out->version = 1 << 24 | 3 << 16 | (unsigned)node()->ze_build; /* as compute-runtime's: 1.3.33578 */
    return SUCCESS;
}

struct ze_device_properties {
    int structure;
    void *next;
    int type;
    unsigned vendor, id, flags, subdevice, clock;
    uint64_t most_bytes;
    unsigned contexts, priorities, threads, simd, units, subslices, slices;
    uint64_t timer;
    unsigned timestamp_bits, kernel_timestamp_bits;
    unsigned char uuid[16];
    char name[256];
};

int ze_device_properties(void *handle, struct ze_device_properties *out)
{
    enum { GPU = 1, PONTE_VECCHIO = 0x0bd5 };
    if (!out)
        return INVALID_VALUE;
    int ordinal = ((struct object *)handle)->ordinal;
    out->type = GPU;
    out->vendor = 0x8086;
    out->id = PONTE_VECCHIO;
    out->flags = out->subdevice = 0;
    out->clock = 1600;
    out->most_bytes = node()->device[ordinal_device(ordinal)].memory;
    out->contexts = 65536, out->priorities = 0;
    out->threads = 8, out->simd = 16, out->units = 8, out->subslices = 16, out->slices = 4;
    out->timer = 80, out->timestamp_bits = out->kernel_timestamp_bits = 32;
    sim_device_uuid(out->uuid, ordinal);
    return sim_device_name(out->name, sizeof out->name, ordinal);
}

struct ze_pci {
    int structure;
    void *next;
    unsigned domain, bus, slot, function;
    int generation, width;
    int64_t bandwidth;
};

int ze_device_pci(void *handle, struct ze_pci *out)
{
    int domain, bus, slot;
    if (!out)
        return INVALID_VALUE;
    device_pci_numbers(((struct object *)handle)->ordinal, &domain, &bus, &slot);
    out->domain = (unsigned)domain, out->bus = (unsigned)bus, out->slot = (unsigned)slot, out->function = 0;
    out->generation = 5, out->width = 16, out->bandwidth = 64000000000;
    return SUCCESS;
}

struct ze_memory_properties {
    int structure;
    void *next;
    unsigned flags, clock, width;
    uint64_t bytes;
    char name[256];
};

int ze_device_memory(void *handle, unsigned *count, struct ze_memory_properties *out)
{
    if (!count)
        return INVALID_VALUE;
    int code = SUCCESS;
    if (out && *count) {
        size_t bytes;
        code = sim_device_memory(&bytes, ((struct object *)handle)->ordinal);
        out->flags = 0, out->clock = 3200, out->width = 1024;
        out->bytes = bytes;
        strcpy(out->name, "HBM");
    }
    *count = 1;
    return code;
}

int ze_can_access(void *handle, void *peer, unsigned char *yes)
{
    int value = 0, code = yes ? sim_can_access_peer(&value, ((struct object *)handle)->ordinal,
                                                    ((struct object *)peer)->ordinal) : INVALID_VALUE;
    if (!code)
        *yes = (unsigned char)value;
    return code;
}

struct ze_flags { /* of several properties: structure, next, up to six words */
    int structure;
    void *next;
    unsigned word[6];
};

static int ze_p2p(void *handle, void *peer, struct ze_flags *out)
{
    unsigned char yes = 0;
    int code = ze_can_access(handle, peer, &yes);
    out->word[0] = yes ? 3 : 0; /* access and atomics */
    return ze_result(code);
}

static int ze_ipc_properties_of(void *handle, struct ze_flags *out)
{
    (void)handle;
    out->word[0] = 1; /* memory */
    return SUCCESS;
}

static int ze_memory_access(void *handle, struct ze_flags *out)
{
    (void)handle;
    out->word[0] = out->word[1] = out->word[2] = 3, out->word[3] = out->word[4] = 0;
    return SUCCESS;
}

static int ze_external_memory(void *handle, struct ze_flags *out)
{
    enum { DMA_BUF = 2 };
    (void)handle;
    out->word[0] = out->word[1] = DMA_BUF, out->word[2] = out->word[3] = 0;
    return SUCCESS;
}

struct ze_queue_group {
    int structure;
    void *next;
    unsigned flags;
    size_t pattern_bytes;
    unsigned queues;
};

static int ze_queue_groups(void *handle, unsigned *count, struct ze_queue_group *out)
{
    enum { ANY = 7, COPY = 2 };
    (void)handle;
    for (unsigned i = 0; out && i < *count && i < 2; i++) {
        out[i].flags = i ? COPY : ANY;
        out[i].pattern_bytes = sizeof ((struct command *)0)->pattern;
        out[i].queues = 1;
    }
    *count = 2;
    return SUCCESS;
}

struct ze_compute {
    int structure;
    void *next;
    unsigned group, x, y, z, count_x, count_y, count_z, local, sizes, size[8];
};

static int ze_compute(void *handle, struct ze_compute *out)
{
    (void)handle;
    out->group = out->x = out->y = out->z = 1024;
    out->count_x = out->count_y = out->count_z = 65535;
    out->local = 128 << 10, out->sizes = 1, out->size[0] = 32;
    return SUCCESS;
}

struct ze_module_properties {
    int structure;
    void *next;
    unsigned spirv, flags;
};

static int ze_module_properties(void *handle, struct ze_module_properties *out)
{
    (void)handle;
    out->spirv = 1 << 16 | 4;
    out->flags = 3; /* fp16, fp64 */
    return SUCCESS;
}

static int ze_root_device(void *handle, void **out)
{
    (void)handle;
    *out = NULL;
    return SUCCESS;
}

/* ---- what only has to succeed ---- */

static int ze_fine(void)
{
    return SUCCESS;
}

static int ze_base_address(void *handle, void *address, void **out)
{
    (void)handle;
    *out = address;
    return SUCCESS;
}

/* Intel's own extensions: MPICH does not start without those for host memory. */
static int ze_extension(void *handle, const char *name, void **out)
{
    static const struct {
        const char *name;
        void *function;
    } known[] = {{"zexDriverImportExternalPointer", (void *)ze_fine},
                 {"zexDriverReleaseImportedPointer", (void *)ze_fine},
                 {"zexDriverGetHostPointerBaseAddress", (void *)ze_base_address}};
    (void)handle;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) {
            *out = known[i].function;
            return SUCCESS;
        }
    return ze_result(INVALID_VALUE);
}

static int ze_last_error(void *handle, const char **out)
{
    (void)handle;
    *out = "";
    return SUCCESS;
}

/* ---- contexts ---- */

int ze_context_create(void *owner, const void *request, void **out)
{
    (void)owner, (void)request;
    return give(out, 0);
}

static int ze_context_create_ex(void *owner, const void *request, unsigned count, void **devices, void **out)
{
    (void)count, (void)devices;
    return zeContextCreate(owner, request, out);
}

int ze_context_destroy(void *context)
{
    if (!context)
        return INVALID_HANDLE;
    free(context);
    note_context_destroyed();
    return SUCCESS;
}

/* ---- memory ---- */

int ze_alloc_device(void *context, const void *request, size_t bytes, size_t alignment, void *device, uint64_t *out)
{
    (void)context, (void)request, (void)alignment, (void)device;
    return allocate(out, bytes, OWN);
}

int ze_alloc_shared(void *context, const void *request, const void *of_host, size_t bytes, size_t alignment,
                    void *device, uint64_t *out)
{
    (void)context, (void)request, (void)of_host, (void)alignment, (void)device;
    return sim_alloc_managed(out, bytes, 1);
}

int ze_alloc_host(void *context, const void *request, size_t bytes, size_t alignment, void **out)
{
    (void)context, (void)request, (void)alignment;
    return sim_alloc_host(out, bytes, 0);
}

/* Descriptors that stand for memory in handles: one for each allocation, until it is put or freed. */
static struct exported {
    struct exported *next;
    uint64_t address;
    int file;
} *exported;

static int end_export(bool (*is_meant)(const struct exported *, uint64_t), uint64_t value)
{
    for (struct exported **each = &exported; *each; each = &(*each)->next)
        if (is_meant(*each, value)) {
            struct exported *gone = *each;
            *each = gone->next;
            close(gone->file);
            free(gone);
            return SUCCESS;
        }
    return INVALID_VALUE;
}

static bool has_address(const struct exported *export, uint64_t address)
{
    return export->address == address;
}

static bool has_file(const struct exported *export, uint64_t file)
{
    return export->file == (int)file;
}

int ze_mem_free(void *context, uint64_t address)
{
    (void)context;
    struct block *block = find_block(address);
    if (!block)
        return INVALID_VALUE;
    int code = block->kind == PINNED ? sim_free_host(address) : sim_free(address);
    if (!code)
        end_export(has_address, address);
    return code;
}

struct ze_allocation {
    int structure;
    void *next;
    int type;
    uint64_t id, page;
};

struct ze_export_descriptor {
    int structure;
    struct ze_export_descriptor *next;
    unsigned flags;
    int file;
};

static int export_file(const struct block *block, uint64_t address)
{
    struct exported *each = exported;
    while (each && each->address != address)
        each = each->next;
    if (each)
        return each->file;
    struct shared_thing what = {.serial = block->serial, .pool_device = -1};
    state_lock();
    int file = export_new(&what, true);
    state_unlock();
    if (file < 0)
        return -1;
    if (!(each = malloc(sizeof *each)))
        abort();
    *each = (struct exported){exported, address, file};
    exported = each;
    return file;
}

int ze_allocation(void *context, uint64_t address, struct ze_allocation *out, void **of)
{
    enum { UNKNOWN_MEMORY, HOST, DEVICE, SHARED, EXPORT_DESCRIPTOR = 0x1a };
    (void)context;
    struct block *block = find_block(address);
    struct allocation *allocation = block ? find_allocation(block, address, 0) : NULL;
    if (!out)
        return INVALID_VALUE;
    out->type = !allocation || block->kind == REGISTERED ? UNKNOWN_MEMORY
                : block->kind == PINNED                  ? HOST
                : block->kind == MANAGED                 ? SHARED
                                                         : DEVICE;
    out->id = allocation ? allocation->id : 0;
    out->page = allocation ? face.granularity : 0;
    if (of)
        *of = allocation && out->type != HOST ? &device[block->context->ordinal] : NULL;
    for (struct ze_export_descriptor *each = out->next; each && out->type == DEVICE; each = each->next)
        if (each->structure == EXPORT_DESCRIPTOR)
            each->file = export_file(block, block->base + allocation->offset);
    return SUCCESS;
}

int ze_address_range(void *context, uint64_t address, uint64_t *base, size_t *bytes)
{
    (void)context;
    return sim_address_range(base, bytes, address);
}

/* ---- IPC: a handle is the core's (ipc.c), but for these words. The driver of 26.31 and later takes the descriptor
 * itself if the two numbers are equal; before, and if its user wrote another number there, the first is its own. ---- */

enum { OPAQUE_FROM = 2631 };

static int *number_in(struct ipc_handle *handle)
{
    return (int *)&handle->word[0];
}

static int *second_number_in(struct ipc_handle *handle)
{
    return (int *)&handle->word[7] + 1;
}

int ze_ipc_get(void *context, uint64_t address, struct ipc_handle *out)
{
    (void)context;
    struct block *block = find_block(address);
    struct allocation *allocation = block ? find_allocation(block, address, 0) : NULL;
    if (allocation && block->kind == OWN)
        choose_ordinal(block->context->ordinal);
    int code = sim_ipc_get(out, address);
    if (code || !out->word[0])
        return code;
    int file = export_file(block, block->base + allocation->offset);
    if (file < 0)
        return OPERATING_SYSTEM;
    out->word[0] = (unsigned)file;
    if (node()->ze_driver >= OPAQUE_FROM)
        *second_number_in(out) = file;
    else
        out->word[1] = 0; /* no pid, too */
    return SUCCESS;
}

int ze_ipc_put(void *context, struct ipc_handle of)
{
    (void)context;
    return end_export(has_file, (uint64_t)*number_in(&of));
}

static int fetch(int32_t pid, int number)
{
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int file = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);
    if (process >= 0)
        close(process);
    return file;
}

/* A handle as the core knows it: which segment the descriptor stands for. */
struct ipc_handle ze_imported(struct ipc_handle handle)
{
    enum { TAG = 0x51d0, SERIAL_BITS = 48 };
    int number = *number_in(&handle), file = number;
    int32_t pid = (int32_t)handle.word[1];
    bool is_fetched = number && number == *second_number_in(&handle) && pid != getpid();
    struct shared_thing what;
    if (!sim_initialized())
        return handle;
    if (is_fetched)
        file = fetch(pid, number);
    bool is_ours = file >= 0 && export_of(file, &what);
    handle.word[0] = is_ours ? (uint64_t)TAG << SERIAL_BITS | what.serial : 0;
    handle.word[1] = is_ours ? (uint64_t)exporter_of_file(file) : 0;
    *second_number_in(&handle) = 0;
    if (is_fetched && file >= 0)
        close(file);
    return handle;
}

int ze_ipc_open(void *context, void *device, struct ipc_handle handle, unsigned flags, uint64_t *out)
{
    (void)context, (void)device;
    return sim_ipc_open(out, handle, flags);
}

int ze_ipc_close(void *context, uint64_t address)
{
    (void)context;
    struct block *block = find_block(address);
    if (block && block->kind == IMPORTED)
        choose_ordinal(block->context->ordinal);
    return sim_ipc_close(address);
}

/* ---- command lists ---- */

static int run(const struct command *command)
{
    int code = SUCCESS;
    if (!command->pattern_bytes && command->bytes)
        code = sim_copy(command->to, command->from, command->bytes);
    for (size_t done = 0; command->pattern_bytes && done < command->bytes && !code;) {
        static unsigned char filled[64 << 10];
        size_t now = command->bytes - done < sizeof filled ? command->bytes - done : sizeof filled;
        for (size_t i = 0; i < now; i++)
            filled[i] = command->pattern[(done + i) % command->pattern_bytes];
        code = sim_copy(command->to + done, (uintptr_t)filled, now);
        done += now;
    }
    if (command->event && !code)
        command->event->is_signalled = command->signals;
    return code;
}

static int append(struct object *list, struct command command)
{
    if (!list)
        return INVALID_HANDLE;
    if (list->is_immediate)
        return run(&command);
    struct command *more = realloc(list->commands, (list->count + 1) * sizeof *more);
    if (!more)
        abort();
    list->commands = more;
    list->commands[list->count++] = command;
    return SUCCESS;
}

int ze_copy(void *list, uint64_t to, uint64_t from, size_t bytes, void *event, unsigned count, void **waits)
{
    (void)count, (void)waits; /* what comes before is done */
    return append(list, (struct command){.to = to, .from = from, .bytes = bytes, .event = event, .signals = true});
}

int ze_fill(void *list, uint64_t to, const void *pattern, size_t width, size_t bytes, void *event, unsigned count,
            void **waits)
{
    (void)count, (void)waits;
    struct command command = {.to = to, .bytes = bytes, .pattern_bytes = width, .event = event, .signals = true};
    if (!pattern || !width || width & (width - 1) || width > sizeof command.pattern)
        return INVALID_VALUE;
    memcpy(command.pattern, pattern, width);
    return append(list, command);
}

static int ze_barrier(void *list, void *event, unsigned count, void **waits)
{
    (void)count, (void)waits;
    return ze_result(append(list, (struct command){.event = event, .signals = true}));
}

static int ze_list_signal(void *list, void *event)
{
    return ze_result(append(list, (struct command){.event = event, .signals = true}));
}

static int ze_list_event_reset(void *list, void *event)
{
    return ze_result(append(list, (struct command){.event = event}));
}

int ze_list_immediate(void *context, void *device, const void *request, void **out)
{
    (void)context, (void)request;
    int code = give(out, ((struct object *)device)->ordinal);
    if (!code)
        ((struct object *)*out)->is_immediate = true;
    return code;
}

static int ze_list_create(void *context, void *device, const void *request, void **out)
{
    (void)context, (void)request;
    return ze_result(give(out, ((struct object *)device)->ordinal));
}

int ze_list_destroy(void *list)
{
    if (!list)
        return INVALID_HANDLE;
    free(((struct object *)list)->commands);
    free(list);
    return SUCCESS;
}

static int ze_list_reset(void *list)
{
    ((struct object *)list)->count = 0;
    return SUCCESS;
}

int ze_synchronize(void *list, uint64_t timeout)
{
    (void)timeout;
    return list ? SUCCESS : INVALID_HANDLE;
}

int ze_execute(void *queue, unsigned count, void **lists, void *fence)
{
    (void)queue;
    int code = SUCCESS;
    for (unsigned i = 0; i < count && !code; i++) {
        const struct object *list = lists[i];
        for (size_t j = 0; j < list->count && !code; j++)
            code = run(&list->commands[j]);
    }
    if (fence)
        ((struct object *)fence)->is_signalled = true;
    return code;
}

/* ---- events and fences, and what else is only a handle ---- */

static int ze_made(void *of, const void *request, void **out)
{
    (void)request;
    return ze_result(give(out, ((struct object *)of)->ordinal));
}

static int ze_pool_create(void *context, const void *request, unsigned count, void **devices, void **out)
{
    (void)count, (void)devices;
    return ze_made(context, request, out);
}

static int ze_queue_create(void *context, void *device, const void *request, void **out)
{
    return ze_list_create(context, device, request, out);
}

static int ze_freed(void *handle)
{
    free(handle);
    return SUCCESS;
}

static int ze_event_query(void *event)
{
    return ze_result(((struct object *)event)->is_signalled ? SUCCESS : NOT_READY);
}

static int ze_event_signal(void *event)
{
    ((struct object *)event)->is_signalled = true;
    return SUCCESS;
}

static int ze_event_reset(void *event)
{
    ((struct object *)event)->is_signalled = false;
    return SUCCESS;
}

int ze_event_synchronize(void *event, uint64_t timeout)
{
    (void)timeout; /* nothing is under way that could signal it */
    return !event ? INVALID_HANDLE : ((struct object *)event)->is_signalled ? SUCCESS : NOT_READY;
}

/* ---- Sysman ---- */

static int ze_sysman_init(unsigned flags)
{
    (void)flags;
    return sim_initialized() ? SUCCESS : zeInit(0);
}

struct ze_module_of_memory {
    int structure;
    void *next;
    int type;
    unsigned char is_on_subdevice;
    unsigned subdevice;
    int location;
    uint64_t bytes;
    int width, channels;
};

static struct object memory[MAX_DEVICES];

static int ze_memory_modules(void *handle, unsigned *count, void **out)
{
    int ordinal = ((struct object *)handle)->ordinal;
    memory[ordinal].ordinal = ordinal;
    return ze_result(list(count, out, &memory[ordinal], 1));
}

static int ze_memory_module(void *handle, struct ze_module_of_memory *out)
{
    enum { HBM = 0, ON_DEVICE = 1 };
    out->type = HBM;
    out->is_on_subdevice = 0, out->subdevice = 0;
    out->location = ON_DEVICE;
    out->bytes = node()->device[ordinal_device(((struct object *)handle)->ordinal)].memory;
    out->width = out->channels = -1;
    return SUCCESS;
}

struct ze_memory_state {
    int structure;
    const void *next;
    int health;
    uint64_t free, total;
};

int ze_memory_state(void *memory, struct ze_memory_state *out)
{
    enum { HEALTHY = 1 };
    size_t free, total;
    (void)memory;
    if (!out)
        return INVALID_VALUE;
    int code = sim_memory_info(&free, &total);
    out->health = HEALTHY;
    out->free = free, out->total = total;
    return code;
}

/* ---- the tables: place, first version of the specification that has it, function ---- */

struct entry {
    unsigned place, since;
    void *function;
};

static int fill_table(const struct entry *entries, size_t count, unsigned version, void **table)
{
    for (size_t i = 0; i < count; i++)
        if (entries[i].since <= (version & 0xffff))
            table[entries[i].place] = entries[i].function;
    return SUCCESS;
}

#define TABLE(name, ...) \
    EXPORT int name##ProcAddrTable(unsigned version, void **table) \
    { \
        static const struct entry entries[] = {__VA_ARGS__}; \
        return fill_table(entries, sizeof entries / sizeof *entries, version, table); \
    }
#define E(place, function) {place, 0, (void *)function}
#define SINCE(version, place, function) {place, version, (void *)function}

TABLE(zeGetGlobal, E(0, zeInit), SINCE(10, 1, ze_init_drivers))
TABLE(zeGetDriver, E(0, ze_driver_get), E(1, ze_api_version), E(2, ze_driver_properties),
      E(3, ze_ipc_properties_of), E(4, ze_none), E(5, ze_extension), SINCE(6, 6, ze_last_error))
TABLE(zeGetDevice, E(0, zeDeviceGet), E(1, ze_none), E(2, zeDeviceGetProperties), E(3, ze_compute),
      E(4, ze_module_properties), E(5, ze_queue_groups), E(6, zeDeviceGetMemoryProperties),
      E(7, ze_memory_access), E(8, ze_none), E(10, ze_external_memory), E(11, ze_p2p),
      E(12, zeDeviceCanAccessPeer), E(13, ze_fine), E(17, zeDevicePciGetPropertiesExt),
      SINCE(7, 18, ze_root_device))
TABLE(zeGetContext, E(0, zeContextCreate), E(1, zeContextDestroy), E(2, ze_fine), E(3, ze_fine), E(4, ze_fine),
      E(5, ze_fine), E(8, ze_context_create_ex))
TABLE(zeGetMem, E(0, zeMemAllocShared), E(1, zeMemAllocDevice), E(2, zeMemAllocHost), E(3, zeMemFree),
      E(4, zeMemGetAllocProperties), E(5, zeMemGetAddressRange), E(6, zeMemGetIpcHandle), E(7, zeMemOpenIpcHandle),
      E(8, zeMemCloseIpcHandle), SINCE(6, 10, zeMemPutIpcHandle))
TABLE(zeGetCommandQueue, E(0, ze_queue_create), E(1, ze_freed), E(2, zeCommandQueueExecuteCommandLists),
      E(3, zeCommandQueueSynchronize))
TABLE(zeGetCommandList, E(0, ze_list_create), E(1, zeCommandListCreateImmediate), E(2, zeCommandListDestroy),
      E(3, ze_fine), E(4, ze_list_reset), E(6, ze_barrier), E(8, zeCommandListAppendMemoryCopy),
      E(9, zeCommandListAppendMemoryFill), E(18, ze_list_signal), E(19, ze_fine), E(20, ze_list_event_reset),
      SINCE(6, 28, zeCommandListHostSynchronize))
TABLE(zeGetEventPool, E(0, ze_pool_create), E(1, ze_freed))
TABLE(zeGetEvent, E(0, ze_made), E(1, ze_freed), E(2, ze_event_signal), E(3, zeEventHostSynchronize),
      E(4, ze_event_query), E(5, ze_event_reset))
TABLE(zeGetFence, E(0, ze_made), E(1, ze_freed), E(2, zeEventHostSynchronize), E(3, ze_event_query),
      E(4, ze_event_reset))
TABLE(zesGetGlobal, SINCE(5, 0, ze_sysman_init))
TABLE(zesGetDriver, SINCE(5, 2, ze_driver_get))
TABLE(zesGetDevice, E(4, zeDevicePciGetPropertiesExt), E(16, ze_memory_modules), SINCE(5, 29, zeDeviceGet))
TABLE(zesGetMemory, E(0, ze_memory_module), E(1, zesMemoryGetState))

/* Loader 1.8 refuses a driver without one of these, which stay empty here. */
#define EMPTY(name) \
    EXPORT int name##ProcAddrTable(void) { return SUCCESS; }
EMPTY(zeGetDeviceExp) EMPTY(zeGetEventExp) EMPTY(zeGetFabricEdgeExp) EMPTY(zeGetFabricVertexExp) EMPTY(zeGetImage)
EMPTY(zeGetImageExp) EMPTY(zeGetKernel) EMPTY(zeGetKernelExp) EMPTY(zeGetModule) EMPTY(zeGetModuleBuildLog)
EMPTY(zeGetPhysicalMem) EMPTY(zeGetSampler) EMPTY(zeGetVirtualMem)
EMPTY(zesGetDiagnostics) EMPTY(zesGetEngine) EMPTY(zesGetFabricPort) EMPTY(zesGetFan) EMPTY(zesGetFirmware)
EMPTY(zesGetFrequency) EMPTY(zesGetLed) EMPTY(zesGetPerformanceFactor) EMPTY(zesGetPower) EMPTY(zesGetPsu)
EMPTY(zesGetRas) EMPTY(zesGetScheduler) EMPTY(zesGetStandby) EMPTY(zesGetTemperature)
EMPTY(zetGetCommandList) EMPTY(zetGetContext) EMPTY(zetGetDebug) EMPTY(zetGetDevice) EMPTY(zetGetKernel)
EMPTY(zetGetMetric) EMPTY(zetGetMetricGroup) EMPTY(zetGetMetricGroupExp) EMPTY(zetGetMetricQuery)
EMPTY(zetGetMetricQueryPool) EMPTY(zetGetMetricStreamer) EMPTY(zetGetModule) EMPTY(zetGetTracerExp)
