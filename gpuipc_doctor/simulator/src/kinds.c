/* The kinds of memory that are not plain device memory: managed, page-locked, VMM; those of pools are in pools.c.
 *
 * Managed and page-locked memory is host memory here. All of it exists so that a program can try to export it
 * and be refused.
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

/* ---- VMM: physical memory, addresses, and one mapped at the other ---- */

struct physical {
    struct physical *next;
    uint64_t serial, bytes;
    int device;
    unsigned references; /* the program's, and one for each place where it is mapped */
    bool released;       /* by the program */
};

static struct physical *physicals;

bool request_is_simulated(const struct vmm_request *request)
{
    enum { LOCATION_DEVICE = 1, TYPE_PINNED = 1 };
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
