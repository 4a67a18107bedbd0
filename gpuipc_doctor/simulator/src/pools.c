/* Stream-ordered memory: pools hold what is freed, and give it out again as their attributes allow.
 *
 * Each allocation has a block of its own, of whole granules. As documented for CU_MEMPOOL_ATTR_* (cuda.h) and
 * hipMemPoolAttr: a freed block goes to its own stream without further ado; to another stream that is ordered
 * after the free by an event if REUSE_FOLLOW_EVENT_DEPENDENCIES is set; to any stream if its free is complete,
 * as here all are at once, and REUSE_ALLOW_OPPORTUNISTIC is set, or, with a dependency put in, if
 * REUSE_ALLOW_INTERNAL_DEPENDENCIES is. Beyond its release threshold a pool gives up what is free at the next
 * synchronisation of a stream, an event or a context.
 */
#include "memory.h"

#include <stdlib.h>

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
};

static struct pool *pools;
static struct pool *defaults[MAX_DEVICES]; /* by ordinal; made on first use */

static struct pool *pool_new(int ordinal)
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

void pools_settle(void)
{
    for (struct pool *pool = pools; pool && !fault_asks(KEEP); pool = pool->next)
        shrink(pool, pool->destroyed ? 0 : pool->threshold);
}

int sim_pool_create(void **pool, const struct pool_request *request)
{
    if (!pool || !request)
        return INVALID_VALUE;
    if (!request_is_simulated(&request->memory))
        return request->memory.handle_types ? face.unsupported : INVALID_VALUE;
    if (request->most)
        return face.unsupported;
    *pool = pool_new(request->memory.location.id);
    return SUCCESS;
}

int sim_pool_destroy(void *handle)
{
    struct pool *pool = pool_of(handle);
    if (!pool || pool == defaults[pool->ordinal])
        return INVALID_VALUE;
    pool->destroyed = true; /* what is still allocated in it lives on */
    shrink(pool, 0);
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
    struct pool *pool = pool_of(handle);
    if (!pool)
        return INVALID_VALUE;
    if (!fault_asks(KEEP))
        shrink(pool, keep);
    return SUCCESS;
}

int sim_pool_get_attribute(void *handle, int attribute, void *value)
{
    struct pool *pool = pool_of(handle);
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
    struct pool *pool = pool_of(handle);
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
    return (follows && (!*by_event || allowed[REUSE_FOLLOW_EVENT_DEPENDENCIES])) ||
           allowed[REUSE_ALLOW_OPPORTUNISTIC] || allowed[REUSE_ALLOW_INTERNAL_DEPENDENCIES] || fault_asks(COLLIDE);
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
        code = sim_stream_query(stream);
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
    if (reused && by_event && node_has_fault(CALL_pool_reuse, CORRUPT_PAGE, block->device)) {
        allocation->bad_offset = bytes / 2;
        allocation->bad_bytes = 4096;
    }
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
    return pool_of(pool) ? allocate_from(pool_of(pool), address, bytes, stream) : INVALID_VALUE;
}

int pool_take_back(uint64_t address, void *stream)
{
    struct block *block = find_block(address);
    if (!block || block->kind != POOL || !allocation_at(block, address))
        return INVALID_VALUE;
    int code = stream_work(stream, &block->freed);
    if (code)
        return code;
    allocation_remove(block, block->allocations);
    if (fault_asks(KEEP))
        keep_segment(block);
    return SUCCESS;
}

int sim_free_async(uint64_t address, void *stream)
{
    int code = sim_stream_query(stream);
    if (!code && (code = pool_take_back(address, stream)) == INVALID_VALUE)
        code = release(address, OWN);
    return code;
}
