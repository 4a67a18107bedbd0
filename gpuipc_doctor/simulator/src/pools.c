/* Stream-ordered memory: pools hold what is freed, and give it out again as their attributes allow.
 *
 * Each allocation has a block of its own, of whole granules. As documented for CU_MEMPOOL_ATTR_* (cuda.h) and
 * hipMemPoolAttr: a freed block goes to its own stream without further ado; to another stream that is ordered
 * after the free by an event if REUSE_FOLLOW_EVENT_DEPENDENCIES is set; to any stream if its free is complete and
 * REUSE_ALLOW_OPPORTUNISTIC is set, or, with a dependency put in, if REUSE_ALLOW_INTERNAL_DEPENDENCIES is. AMD's
 * runtime records that last attribute and never acts on it (MemoryPool::AllocateMemory of hip_mempool_impl.cpp).
 * Beyond its release threshold a pool gives up what is free at the next synchronisation of a stream, an event or a
 * context.
 */
#include "allocations.h"

#include <stdlib.h>
#include <unistd.h>

enum {
    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1, /* CU_MEMPOOL_ATTR_*, hipMemPoolAttr */
    REUSE_ALLOW_OPPORTUNISTIC,
    REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    RELEASE_THRESHOLD,
    RESERVED_CURRENT,
    RESERVED_HIGH,
    USED_CURRENT,
    USED_HIGH,
};

struct pool {
    struct pool *next;
    int ordinal; /* of its device */
    bool destroyed;
    int reuse[RELEASE_THRESHOLD];
    uint64_t threshold, reserved_high, used_high;
    int handle_types;           /* that it may be exported as */
    bool imported;
    bool refused;               /* its export as a fabric handle was */
    bool exported;              /* only then its pointers can be, on an H200 */
    int descriptor;             /* of its first export */
    uint64_t serial;            /* of a pool that can be shared: all processes that have it hold this */
    int mapping;                /* its entry in the state, likewise */
    uint32_t readable, writable; /* by these devices, a bit each */
};

static struct pool *pools;
static struct pool *defaults[MAX_DEVICES]; /* by ordinal; made on first use */

static struct pool *pool_new(int ordinal) /* -1: of a device that this process does not see */
{
    struct pool *pool = malloc(sizeof *pool);
    if (!pool)
        abort();
    *pool = (struct pool){.next = pools, .ordinal = ordinal, .reuse = {0, 1, 1, 1}};
    return pools = pool;
}

static struct pool *default_pool(int ordinal)
{
    return defaults[ordinal] ? defaults[ordinal] : (defaults[ordinal] = pool_new(ordinal));
}

static struct pool *pool_of(const void *handle)
{
    struct pool *each = pools;
    while (each && (each != handle || each->destroyed))
        each = each->next;
    return each;
}

/* One that memory can be allocated from: an imported pool only has what its exporter shares. */
static struct pool *own_pool(const void *handle)
{
    struct pool *pool = pool_of(handle);
    return pool && !pool->imported ? pool : NULL;
}

static uint64_t reserved(const struct pool *pool)
{
    uint64_t bytes = 0;
    for (const struct block *block = blocks; block; block = block->next)
        if (block->pool == pool)
            bytes += block->bytes;
    return bytes;
}

static uint64_t used(const struct pool *pool)
{
    uint64_t bytes = 0;
    for (const struct block *block = blocks; block; block = block->next)
        if (block->pool == pool && block->allocations)
            bytes += block->allocations->bytes;
    return bytes;
}

static void shrink(const struct pool *pool, uint64_t keep)
{
    uint64_t bytes = reserved(pool);
    for (struct block *block = blocks, *next; block; block = next) {
        next = block->next;
        if (block->pool != pool || block->allocations || bytes - block->bytes < keep)
            continue;
        bytes -= block->bytes;
        give_back(block);
    }
}

int sim_pool_create(void **pool, const struct pool_request *request)
{
    if (!pool || !request)
        return INVALID_VALUE;
    if (!request_is_simulated(&request->memory))
        return INVALID_VALUE;
    if (request->most)
        return face.unsupported;
    struct pool *new = *pool = pool_new(request->memory.location.id);
    new->handle_types = request->memory.handle_types;
    if (!new->handle_types)
        return SUCCESS;
    state_lock();
    new->serial = pool_serial();
    new->mapping = mapping_add(new->serial);
    state_unlock();
    return new->mapping < 0 ? OUT_OF_MEMORY : SUCCESS;
}

static bool anything_imported(const struct pool *pool)
{
    const struct block *block = blocks;
    while (block && !(block->pool == pool && block->kind == IMPORTED_FROM_POOL))
        block = block->next;
    return block;
}

bool pool_is_imported(uint64_t handle)
{
    struct pool *pool = own_pool(pointer(handle));
    return pool && pool->serial && holders_of(pool->serial) > 1;
}

int sim_pool_destroy(void *handle)
{
    struct pool *pool = pool_of(handle);
    if (!pool || anything_imported(pool) || (!pool->imported && pool == defaults[pool->ordinal]))
        return INVALID_VALUE;
    pool->destroyed = true; /* what is still allocated in it lives on */
    shrink(pool, 0);
    if (pool->serial && !(pool->imported && fault_asks(KEEP))) {
        state_lock();
        mapping_remove(pool->mapping);
        state_unlock();
    }
    return SUCCESS;
}

int sim_pool_default(void **pool, int device)
{
    if (!pool)
        return INVALID_VALUE;
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    *pool = default_pool(device);
    return SUCCESS;
}

int sim_pool_trim(void *handle, size_t keep)
{
    struct pool *pool = own_pool(handle);
    if (!pool)
        return INVALID_VALUE;
    if (!fault_asks(KEEP))
        shrink(pool, keep);
    for (struct block *block = fault_asks(CORRUPT_FROM) ? blocks : NULL; block; block = block->next)
        if (block->pool == pool && block->allocations)
            block->allocations->flaw = flaw_of(0, block->allocations->bytes);
    return SUCCESS;
}

int sim_pool_get_attribute(void *handle, int attribute, void *value)
{
    struct pool *pool = own_pool(handle);
    if (!pool || !value || attribute < REUSE_FOLLOW_EVENT_DEPENDENCIES || attribute > USED_HIGH)
        return INVALID_VALUE;
    if (attribute < RELEASE_THRESHOLD)
        *(int *)value = pool->reuse[attribute];
    else
        *(uint64_t *)value = attribute == RELEASE_THRESHOLD ? pool->threshold
                             : attribute == RESERVED_CURRENT ? reserved(pool)
                             : attribute == RESERVED_HIGH    ? pool->reserved_high
                             : attribute == USED_CURRENT     ? used(pool)
                                                             : pool->used_high;
    return SUCCESS;
}

int sim_pool_set_attribute(void *handle, int attribute, const void *value)
{
    struct pool *pool = own_pool(handle);
    if (!pool || !value)
        return INVALID_VALUE;
    if (attribute >= REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute < RELEASE_THRESHOLD)
        pool->reuse[attribute] = *(const int *)value;
    else if (attribute == RELEASE_THRESHOLD)
        pool->threshold = *(const uint64_t *)value;
    else if (attribute == RESERVED_HIGH && !*(const uint64_t *)value)
        pool->reserved_high = 0;
    else if (attribute == USED_HIGH && !*(const uint64_t *)value)
        pool->used_high = 0;
    else
        return INVALID_VALUE;
    return SUCCESS;
}

static bool may_reuse(const struct block *block, void *stream, bool *by_event)
{
    const int *allowed = block->pool->reuse;
    struct moment now;
    if (stream_work(stream, &now))
        return false;
    bool follows = stream_follows(stream, block->freed);
    *by_event = follows && now.stream != block->freed.stream;
    if ((follows && (!*by_event || allowed[REUSE_FOLLOW_EVENT_DEPENDENCIES])) || fault_asks(COLLIDE) ||
        (allowed[REUSE_ALLOW_OPPORTUNISTIC] && moment_is_over(block->freed)))
        return true;
    bool waits = face.pool_adds_dependencies && allowed[REUSE_ALLOW_INTERNAL_DEPENDENCIES];
    if (waits)
        stream_waits_for(stream, block->freed);
    return waits;
}

static struct block *reusable(const struct pool *pool, uint64_t bytes, void *stream, bool *by_event)
{
    struct block *block = blocks;
    while (block && !(block->pool == pool && !block->allocations && block->bytes == bytes &&
                      may_reuse(block, stream, by_event)))
        block = block->next;
    return block;
}

static int allocate_from(struct pool *pool, uint64_t *address, uint64_t bytes, void *stream)
{
    struct context *context;
    bool by_event = false;
    int code = enter_context(&context);
    if (!code)
        code = stream_check(stream);
    if (code)
        return code;
    if (!address || !bytes)
        return INVALID_VALUE;
    if (bytes > UINT64_MAX / 2)
        return OUT_OF_MEMORY;
    if (pool->ordinal != context->ordinal)
        return face.unsupported; /* it would need access granted to its memory */
    uint64_t whole = round_up(bytes, GRANULE);
    struct block *block = reusable(pool, whole, stream, &by_event);
    bool reused = block;
    if (!block && (code = block_new(&block, context, whole, POOL)) == OUT_OF_MEMORY) {
        shrink(pool, 0);
        code = block_new(&block, context, whole, POOL);
    }
    if (code)
        return code;
    block->pool = pool;
    block->context = context;
    struct allocation *allocation = allocation_add(block, 0, bytes);
    if (reused && by_event && node_has_fault(CALL_pool_reuse, CORRUPT_PAGE, block->device))
        allocation->flaw.bad = (struct bad_part){bytes / 2, 4096};
    if (reserved(pool) > pool->reserved_high)
        pool->reserved_high = reserved(pool);
    if (used(pool) > pool->used_high)
        pool->used_high = used(pool);
    *address = block->base;
    return SUCCESS;
}

int sim_alloc_async(uint64_t *address, size_t bytes, void *stream)
{
    struct context *context;
    int code = enter_context(&context);
    return code ? code : allocate_from(default_pool(context->ordinal), address, bytes, stream);
}

int sim_alloc_from_pool(uint64_t *address, size_t bytes, void *pool, void *stream)
{
    return own_pool(pool) ? allocate_from(own_pool(pool), address, bytes, stream) : INVALID_VALUE;
}

/* ---- sharing ---- */

#define POINTER_TAG 0x9001ull /* in the upper 16 bits of word 0; the segment's serial number below */
#define SERIAL_BITS 48

static volatile int *volatile nowhere = NULL;

int sim_pool_export(void *out, void *handle, int type, uint64_t flags)
{
    struct pool *pool = own_pool(handle);
    if (!out || flags || !pool || !(pool->handle_types & type))
        return INVALID_VALUE;
    int device = ordinal_device(pool->ordinal);
    if (type == FABRIC && !node()->device[device].imex) {
        if (pool->refused)
            *nowhere = 0; /* as on an H200: the second time it crashes */
        pool->refused = true;
        return face.not_permitted;
    }
    if (type != DESCRIPTOR)
        return face.unsupported;
    if (pool->exported && face.pool_has_one_descriptor) {
        *(int *)out = pool->descriptor;
        return SUCCESS;
    }
    state_lock();
    int file = export_new(&(struct shared_thing){.serial = pool->serial, .pool_device = device}, false);
    state_unlock();
    if (file < 0)
        return OPERATING_SYSTEM;
    pool->exported = true;
    *(int *)out = pool->descriptor = file;
    return SUCCESS;
}

int sim_pool_import(void **out, void *shared, int type, uint64_t flags)
{
    struct shared_thing what;
    int file = (int)(intptr_t)shared, code = SUCCESS, mapping = -1;
    if (!out || flags || type != DESCRIPTOR || !file)
        return INVALID_VALUE;
    state_lock();
    if (!export_of(file, &what))
        code = UNKNOWN;
    else if (what.pool_device < 0)
        code = NOT_SUPPORTED;
    else if ((mapping = mapping_add(what.serial)) < 0)
        code = OUT_OF_MEMORY;
    state_unlock();
    if (code)
        return code;
    struct pool *pool = *out = pool_new(device_ordinal(what.pool_device));
    pool->imported = true;
    pool->serial = what.serial;
    pool->mapping = mapping;
    pool->readable = pool->writable = 1u << what.pool_device;
    return SUCCESS;
}

int sim_pool_set_access(void *handle, const struct vmm_access *access, size_t count)
{
    enum { LOCATION_DEVICE = 1, READ = 1, READ_WRITE = 3 };
    struct pool *pool = pool_of(handle);
    if (!pool || !access || !count)
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        int device = ordinal_device(access[i].location.id);
        if (device < 0 || access[i].location.type != LOCATION_DEVICE)
            return INVALID_VALUE;
        uint32_t bit = 1u << device;
        pool->readable = access[i].flags & READ ? pool->readable | bit : pool->readable & ~bit;
        pool->writable = access[i].flags == READ_WRITE ? pool->writable | bit : pool->writable & ~bit;
    }
    for (struct block *block = blocks; block; block = block->next)
        if (block->pool == pool) {
            block->readable = pool->readable;
            block->writable = pool->writable;
        }
    return SUCCESS;
}

int sim_pool_export_pointer(struct ipc_handle *out, uint64_t address)
{
    struct block *block = find_block(address);
    struct allocation *allocation = block && block->kind == POOL ? allocation_at(block, address) : NULL;
    if (!out || !allocation || !block->pool->exported)
        return INVALID_VALUE;
    state_lock();
    segment_pin(block->serial, block->pool->serial);
    state_unlock();
    *out = (struct ipc_handle){{POINTER_TAG << SERIAL_BITS | block->serial, block->pool->serial, allocation->bytes}};
    return SUCCESS;
}

static struct block *imported_before(const struct pool *pool, uint64_t serial)
{
    struct block *block = blocks;
    while (block && !(block->kind == IMPORTED_FROM_POOL && block->serial == serial &&
                      block->pool->serial == pool->serial))
        block = block->next;
    return block;
}

int sim_pool_import_pointer(uint64_t *address, void *handle, const struct ipc_handle *shared)
{
    struct pool *pool = pool_of(handle);
    if (!address || !shared || !pool || !pool->imported || shared->word[0] >> SERIAL_BITS != POINTER_TAG ||
        shared->word[1] != pool->serial)
        return INVALID_VALUE;
    uint64_t serial = shared->word[0] & ((1ull << SERIAL_BITS) - 1);
    struct block *block = imported_before(pool, serial);
    if (block) { /* the same address again, and one free ends both */
        *address = block->base;
        return SUCCESS;
    }
    struct context *context;
    int code = enter_context(&context), file = -1, mapping = -1;
    if (code)
        return code;
    state_lock();
    struct segment *segment = segment_find(serial);
    if (segment && fault_asks(LATEST))
        segment = segment_newest(segment);
    struct segment found = segment ? *segment : (struct segment){0};
    uint64_t base = segment ? place_imported(segment->bytes) : 0;
    if (!segment)
        code = INVALID_VALUE;
    else if (!base || (file = segment_open_file(segment)) < 0 || !map_at(base, found.bytes, file) ||
             (mapping = mapping_add(found.serial)) < 0)
        code = MAPPING_FAILED;
    if (file >= 0 && (code || found.serial == serial)) { /* else it is not its own segment's */
        close(file);
        file = -1;
    }
    if (segment && fault_asks(KEEP))
        segment->kept = true;
    state_unlock();
    if (code)
        return code;
    block = block_add((struct block){.base = base, .bytes = found.bytes, .kind = IMPORTED_FROM_POOL,
                                     .device = found.device, .context = context, .file = file,
                                     .serial = serial, .mapping = mapping, .pool = pool,
                                     .readable = pool->readable, .writable = pool->writable});
    allocation_add(block, 0, shared->word[2])->flaw = flaw_of(0, shared->word[2]);
    *address = base;
    return SUCCESS;
}

/* ---- freeing, also of what came from no pool ---- */

static int take_back(uint64_t address, void *stream)
{
    struct block *block = find_block(address);
    if (!block || (block->kind != POOL && block->kind != IMPORTED_FROM_POOL) || !allocation_at(block, address))
        return INVALID_VALUE;
    int code = stream_work(stream, &block->freed);
    if (code)
        return code;
    if (block->kind == IMPORTED_FROM_POOL)
        return release(address, IMPORTED_FROM_POOL);
    end_more(block, block->allocations);
    allocation_remove(block, block->allocations);
    if (fault_asks(KEEP))
        keep_segment(block);
    return SUCCESS;
}

static void settle(void)
{
    for (struct pool *pool = pools; pool && !fault_asks(KEEP); pool = pool->next)
        shrink(pool, pool->destroyed ? 0 : pool->threshold);
}

int sim_free_async(uint64_t address, void *stream)
{
    int code = stream_check(stream);
    if (!code && (code = take_back(address, stream)) == INVALID_VALUE)
        code = release(address, OWN);
    return code;
}

int sim_free(uint64_t address)
{
    struct context *context;
    int code = enter_context(&context);
    if (code || (!address && face.backend == HIP))
        return code;
    if ((code = release(address, OWN)) && (code = release(address, MANAGED)) &&
        !(code = take_back(address, NULL)))
        settle(); /* this call waits for the device */
    return code;
}

/* ---- waiting, upon which pools give up what is free ---- */

int sim_synchronize(void)
{
    struct context *context;
    int code = enter_context(&context);
    if (!code) {
        streams_finish();
        settle();
    }
    return code;
}

int sim_stream_synchronize(void *stream)
{
    int code = stream_check(stream);
    if (!code) {
        stream_finish(stream);
        settle();
    }
    return code;
}

int sim_event_synchronize(void *event)
{
    int code = event_finish(event);
    if (!code)
        settle();
    return code;
}
