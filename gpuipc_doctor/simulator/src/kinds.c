/* The kinds of memory that are not plain device memory: managed, page-locked, from a pool, VMM.
 *
 * Managed and page-locked memory is host memory here. Pools give out and take back at once. All of it exists
 * so that a program can try to export it and be refused.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int host_block(uint64_t *address, uint64_t bytes, enum kind kind, unsigned flags)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!address || !bytes || bytes > UINT64_MAX / 2)
        return INVALID_VALUE;
    uint64_t mapped = round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    void *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return OUT_OF_MEMORY;
    *address = (uintptr_t)map;
    struct block *block = block_add((struct block){.base = *address, .bytes = mapped, .kind = kind, .device = -1,
                                                   .context = context, .file = -1, .mapping = -1,
                                                   .flags = flags});
    allocation_add(block, 0, bytes);
    return SUCCESS;
}

int sim_alloc_managed(uint64_t *address, size_t bytes, unsigned flags)
{
    enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };
    if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST)
        return INVALID_VALUE;
    return host_block(address, bytes, MANAGED, flags);
}

int sim_alloc_host(void **address, size_t bytes, unsigned flags)
{
    return host_block((uint64_t *)address, bytes, PINNED, flags);
}

int sim_alloc_host_plain(void **address, size_t bytes)
{
    return sim_alloc_host(address, bytes, 0);
}

int sim_free_host(uint64_t address)
{
    if (!address && face.backend == HIP)
        return SUCCESS;
    return release(address, PINNED);
}

int sim_register_host(uint64_t address, size_t bytes, unsigned flags)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!address || !bytes)
        return INVALID_VALUE;
    for (struct block *block = blocks; block; block = block->next)
        if (address < block->base + block->bytes && block->base < address + bytes)
            return HOST_MEMORY_ALREADY_REGISTERED;
    struct block *block = block_add((struct block){.base = address, .bytes = bytes, .kind = REGISTERED,
                                                   .device = -1, .context = context, .file = -1,
                                                   .mapping = -1, .flags = flags});
    allocation_add(block, 0, bytes);
    return SUCCESS;
}

int sim_unregister_host(uint64_t address)
{
    return release(address, REGISTERED) ? HOST_MEMORY_NOT_REGISTERED : SUCCESS;
}

static struct block *host_memory(uint64_t address)
{
    struct block *block = find_block(address);
    return block && (block->kind == PINNED || block->kind == REGISTERED) ? block : NULL;
}

int sim_host_device_pointer(uint64_t *out, uint64_t address, unsigned flags)
{
    if (!out || flags || !host_memory(address))
        return INVALID_VALUE;
    *out = address;
    return SUCCESS;
}

int sim_host_flags(unsigned *flags, uint64_t address)
{
    if (!flags || !host_memory(address))
        return INVALID_VALUE;
    *flags = host_memory(address)->flags;
    return SUCCESS;
}

/* ---- pools: one for each device, the default one ---- */

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

static struct pool {
    int reuse[4];
    uint64_t threshold, reserved_high, used_high;
} pools[MAX_DEVICES] = {[0 ... MAX_DEVICES - 1] = {.reuse = {0, 1, 1, 1}}};

static struct pool *pool_of(void *pool)
{
    for (int i = 0; i < visible_devices(); i++)
        if (pool == &pools[i])
            return pool;
    return NULL;
}

static void pool_usage(const struct pool *pool, uint64_t *reserved, uint64_t *used)
{
    *reserved = *used = 0;
    for (const struct block *block = blocks; block; block = block->next) {
        if (block->kind != POOL || block->device != ordinal_device((int)(pool - pools)))
            continue;
        *reserved += block->bytes;
        for (const struct allocation *each = block->allocations; each; each = each->next)
            *used += each->bytes;
    }
}

int sim_pool_default(void **pool, int device)
{
    if (!pool)
        return INVALID_VALUE;
    if (ordinal_device(device) < 0)
        return INVALID_DEVICE;
    *pool = &pools[device];
    return SUCCESS;
}

int sim_pool_trim(void *pool, size_t keep)
{
    (void)keep; /* nothing is ever held back */
    return pool_of(pool) ? SUCCESS : INVALID_VALUE;
}

int sim_pool_get_attribute(void *handle, int attribute, void *value)
{
    struct pool *pool = pool_of(handle);
    uint64_t reserved, used;
    if (!pool || !value || attribute < REUSE_FOLLOW_EVENT_DEPENDENCIES || attribute > USED_HIGH)
        return INVALID_VALUE;
    pool_usage(pool, &reserved, &used);
    if (attribute < RELEASE_THRESHOLD)
        *(int *)value = pool->reuse[attribute];
    else
        *(uint64_t *)value = attribute == RELEASE_THRESHOLD ? pool->threshold
                             : attribute == RESERVED_CURRENT ? reserved
                             : attribute == RESERVED_HIGH    ? pool->reserved_high
                             : attribute == USED_CURRENT     ? used
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

int sim_alloc_async(uint64_t *address, size_t bytes, void *stream)
{
    int code = sim_stream_query(stream);
    if (!code)
        code = allocate(address, bytes, POOL);
    if (code)
        return code;
    struct pool *pool = &pools[current_context()->ordinal];
    uint64_t reserved, used;
    pool_usage(pool, &reserved, &used);
    if (reserved > pool->reserved_high)
        pool->reserved_high = reserved;
    if (used > pool->used_high)
        pool->used_high = used;
    return SUCCESS;
}

int sim_alloc_from_pool(uint64_t *address, size_t bytes, void *pool, void *stream)
{
    struct context *context = current_context();
    if (!pool_of(pool))
        return INVALID_VALUE;
    /* A pool of another device would need a context there. */
    return context && pool != &pools[context->ordinal] ? face.unsupported
                                                       : sim_alloc_async(address, bytes, stream);
}

int sim_free_async(uint64_t address, void *stream)
{
    int code = sim_stream_query(stream);
    if (code)
        return code;
    code = release(address, POOL);
    return code ? release(address, OWN) : SUCCESS;
}

/* ---- VMM: physical memory, addresses, and one mapped at the other ---- */

enum { LOCATION_DEVICE = 1, TYPE_PINNED = 1 };

struct physical {
    struct physical *next;
    uint64_t serial, bytes;
    int device;
    unsigned references; /* the program's, and one for each place where it is mapped */
    bool released;       /* by the program */
};

static struct physical *physicals;

static bool request_is_simulated(const struct vmm_request *request)
{
    return request && request->type == TYPE_PINNED && !request->handle_types &&
           request->location.type == LOCATION_DEVICE && ordinal_device(request->location.id) >= 0;
}

int sim_vmm_granularity(size_t *bytes, const struct vmm_request *request, int option)
{
    (void)option;
    if (!bytes || !request_is_simulated(request))
        return INVALID_VALUE;
    *bytes = GRANULE;
    return SUCCESS;
}

int sim_vmm_create(void **memory, size_t bytes, const struct vmm_request *request, uint64_t flags)
{
    if (!memory || !bytes || bytes % GRANULE || flags || !request)
        return INVALID_VALUE;
    if (!request_is_simulated(request))
        return request->handle_types ? face.unsupported : INVALID_VALUE;
    int device = ordinal_device(request->location.id);
    uint64_t total = node()->device[device].memory;
    state_lock();
    struct segment *segment =
        bytes > total || state_used(device) > total - bytes ? NULL : segment_create(device, bytes, 0);
    uint64_t serial = segment ? segment->serial : 0;
    state_unlock();
    if (!serial)
        return OUT_OF_MEMORY;
    struct physical *physical = malloc(sizeof *physical);
    if (!physical)
        abort();
    *physical = (struct physical){.next = physicals, .serial = serial, .bytes = bytes, .device = device,
                                  .references = 1};
    *memory = physicals = physical;
    return SUCCESS;
}

static struct physical *physical_of(const void *memory)
{
    struct physical *each = physicals;
    while (each && (each != memory || each->released))
        each = each->next;
    return each;
}

static void drop(struct physical *physical)
{
    if (--physical->references)
        return;
    state_lock();
    segment_free(physical->serial);
    state_unlock();
    struct physical **place = &physicals;
    while (*place != physical)
        place = &(*place)->next;
    *place = physical->next;
    free(physical);
}

int sim_vmm_release(void *memory)
{
    struct physical *physical = physical_of(memory);
    if (!physical)
        return INVALID_VALUE;
    physical->released = true;
    drop(physical);
    return SUCCESS;
}

int sim_vmm_reserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags)
{
    (void)hint; /* a wish, which a driver may ignore */
    if (!address || !bytes || bytes % GRANULE || flags || (alignment & (alignment - 1)) || alignment > GRANULE)
        return INVALID_VALUE;
    uint64_t base = place_own(bytes);
    if (!base)
        return OUT_OF_MEMORY;
    block_add((struct block){.base = base, .bytes = bytes, .kind = RESERVATION, .device = -1, .file = -1,
                             .mapping = -1});
    *address = base;
    return SUCCESS;
}

static struct block *block_of_kind(uint64_t address, enum kind kind)
{
    struct block *block = blocks;
    while (block && !(block->kind == kind && address >= block->base && address - block->base < block->bytes))
        block = block->next;
    return block;
}

static bool anything_mapped(uint64_t address, uint64_t bytes)
{
    for (struct block *block = blocks; block; block = block->next)
        if (block->kind == PHYSICAL && block->base < address + bytes && address < block->base + block->bytes)
            return true;
    return false;
}

int sim_vmm_free(uint64_t address, size_t bytes)
{
    struct block *block = block_of_kind(address, RESERVATION);
    if (!block || block->base != address || block->bytes != bytes || anything_mapped(address, bytes))
        return INVALID_VALUE;
    block_remove(block);
    return SUCCESS;
}

int sim_vmm_map(uint64_t address, size_t bytes, size_t offset, void *memory, uint64_t flags)
{
    struct physical *physical = physical_of(memory);
    struct block *range = block_of_kind(address, RESERVATION);
    if (!physical || !range || flags || offset || bytes != physical->bytes || address % GRANULE ||
        address - range->base + bytes > range->bytes || anything_mapped(address, bytes))
        return INVALID_VALUE;
    state_lock();
    struct segment *segment = segment_find(physical->serial);
    int file = segment ? segment_open_file(segment) : -1;
    state_unlock();
    if (file < 0 || !map_at(address, bytes, file))
        return MAPPING_FAILED;
    physical->references++;
    struct block *block =
        block_add((struct block){.base = address, .bytes = bytes, .kind = PHYSICAL, .device = physical->device,
                                 .context = primary_context(device_ordinal(physical->device)), .file = file,
                                 .serial = physical->serial, .mapping = -1});
    allocation_add(block, 0, bytes);
    return SUCCESS;
}

int sim_vmm_unmap(uint64_t address, size_t bytes)
{
    struct block *block = block_of_kind(address, PHYSICAL);
    if (!block || block->base != address || block->bytes != bytes)
        return INVALID_VALUE;
    struct physical *physical = physicals;
    while (physical->serial != block->serial)
        physical = physical->next;
    unmap_at(block->base, block->bytes);
    block_remove(block);
    drop(physical);
    return SUCCESS;
}

int sim_vmm_set_access(uint64_t address, size_t bytes, const struct vmm_access *access, size_t count)
{
    enum { READ_WRITE = 3 };
    struct block *block = block_of_kind(address, PHYSICAL);
    if (!block || block->base != address || block->bytes != bytes || !access || !count)
        return INVALID_VALUE;
    block->accessible = access->flags == READ_WRITE;
    return SUCCESS;
}
