/* What this process has at which addresses: blocks, and the allocations in them.
 *
 * Contents are files in GPUIPC_SIM_STATE. They are mapped where the device address is, so that an MPI that
 * knows nothing of GPUs moves them as it moves host memory.
 */
#define _GNU_SOURCE
#include "allocations.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Allocations up to this size share a granule. Found on the H200: two of 1000 bytes lie in one block. */
#define SMALL (1u << 20)

struct block *blocks; /* ascending addresses */
static uint64_t allocations_made;

/* ---- addresses ---- */

static uint64_t own_begin, imported_begin, arena_end;

/* Reserve more addresses than any node has memory, half for own memory and half for imports: an import then
 * never lies where the exporter has it, as on a real GPU it generally does not. */
static void reserve_arena(void)
{
    for (uint64_t bytes = 1ull << 44; bytes >= 1ull << 34; bytes /= 2) {
        void *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED)
            continue;
        own_begin = round_up((uint64_t)(uintptr_t)map, GRANULE);
        arena_end = (uint64_t)(uintptr_t)map + bytes;
        imported_begin = round_up(own_begin + bytes / 2, GRANULE);
        return;
    }
}

/* A hole of just this size, so that memory allocated anew lies where equal memory was freed; else above all
 * that is there, within the first `many` bytes; else in the first hole that is large enough; else above all, again.
 * So went what was seen on real GPUs: of buffers that grow a little each time with a small one behind them, each has
 * addresses of its own, and small buffers that follow come to lie over freed ones. */
static uint64_t place(uint64_t bytes, bool imported, uint64_t many)
{
    if (!arena_end)
        reserve_arena();
    uint64_t begin = imported ? imported_begin : own_begin, end = imported ? arena_end : imported_begin;
    uint64_t top = begin, fitting = 0;
    for (const struct block *block = blocks; block && block->base < end; block = block->next) {
        if (block->base + block->bytes <= top)
            continue; /* elsewhere, or in a reservation */
        if (block->base >= top + bytes && !fitting)
            fitting = top;
        if (block->base == top + bytes)
            return top;
        top = round_up(block->base + block->bytes, GRANULE);
    }
    bool is_above = top + bytes <= end && (top + bytes <= begin + many || !fitting);
    return is_above ? top : fitting;
}

uint64_t place_imported(uint64_t bytes)
{
    return place(bytes, true, UINT64_MAX / 2);
}

bool map_at(uint64_t base, uint64_t bytes, int file)
{
    int access = face.memory_is_hidden ? PROT_NONE : PROT_READ | PROT_WRITE;
    return mmap(pointer(base), bytes, access, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
}

void unmap_at(uint64_t base, uint64_t bytes)
{
    mmap(pointer(base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* ---- blocks and allocations ---- */

struct block *block_add(struct block block)
{
    struct block *new = malloc(sizeof *new), **place = &blocks;
    if (!new)
        abort();
    while (*place && (*place)->base < block.base)
        place = &(*place)->next;
    block.next = *place;
    *new = block;
    return *place = new;
}

void block_remove(struct block *block)
{
    struct block **place = &blocks;
    while (*place != block)
        place = &(*place)->next;
    *place = block->next;
    while (block->allocations)
        allocation_remove(block, block->allocations);
    if (block->file >= 0)
        close(block->file);
    free(block);
}

struct allocation *allocation_add(struct block *block, uint64_t offset, uint64_t bytes)
{
    struct allocation *new = calloc(1, sizeof *new), **place = &block->allocations;
    if (!new)
        abort();
    while (*place && (*place)->offset < offset)
        place = &(*place)->next;
    *new = (struct allocation){.next = *place, .offset = offset, .bytes = bytes, .id = ++allocations_made,
                                .flaw.loses_writes = UINT64_MAX};
    return *place = new;
}

void allocation_remove(struct block *block, struct allocation *allocation)
{
    struct allocation **place = &block->allocations;
    while (*place != allocation)
        place = &(*place)->next;
    *place = allocation->next;
    free(allocation->snapshot);
    free(allocation->first_view);
    free(allocation);
}

struct block *find_block(uint64_t address)
{
    struct block *found = NULL;
    for (struct block *block = blocks; block && block->base <= address; block = block->next)
        if (address - block->base < block->bytes && (!found || found->kind == RESERVATION))
            found = block; /* what is mapped in a reservation hides it */
    return found;
}

struct allocation *find_allocation(const struct block *block, uint64_t address, uint64_t bytes)
{
    for (struct allocation *each = block->allocations; each; each = each->next) {
        uint64_t begin = block->base + each->offset;
        if (address >= begin && address - begin < each->bytes && bytes <= each->bytes - (address - begin))
            return each;
    }
    return NULL;
}

struct allocation *allocation_at(const struct block *block, uint64_t address)
{
    struct allocation *each = block->allocations;
    while (each && block->base + each->offset != address)
        each = each->next;
    return each;
}

bool address_is_inside(uint64_t address)
{
    struct block *block = find_block(address);
    return block && find_allocation(block, address, 0) && !allocation_at(block, address);
}

unsigned imports_open(void)
{
    unsigned count = 0;
    for (const struct block *block = blocks; block; block = block->next)
        for (const struct allocation *each = block->allocations; each; each = each->next)
            count += block->kind == IMPORTED || block->kind == IMPORTED_FROM_POOL;
    return count;
}

bool address_is_host(uint64_t address, enum fault_condition with)
{
    static const enum kind kinds[] = {PINNED, REGISTERED};
    const struct block *found = find_block(address);
    return found && found->kind == kinds[with - WITH_PINNED];
}

bool address_is_imported(uint64_t address, bool earlier)
{
    struct block *found = find_block(address);
    struct allocation *own = found ? find_allocation(found, address, 0) : NULL;
    bool is_imported = own && (found->kind == IMPORTED || found->kind == IMPORTED_FROM_POOL), is_last = true;
    for (struct block *block = blocks; block && is_imported; block = block->next)
        for (struct allocation *each = block->allocations; each; each = each->next)
            is_last &= block->kind != found->kind || each->id <= own->id;
    return is_imported && (!earlier || !is_last);
}

int block_new(struct block **block, struct context *context, uint64_t bytes, enum kind kind)
{
    uint64_t addresses = node()->device[context->device].addresses;
    uint64_t base = place(bytes, false, addresses ? addresses : UINT64_MAX / 2);
    if (!base)
        return OUT_OF_MEMORY;
    state_lock();
    int code = SUCCESS;
    struct segment *segment = NULL;
    uint64_t serial = 0, memory = node()->device[context->device].memory;
    int file = -1;
    if (bytes > memory || state_used(context->device) > memory - bytes)
        code = OUT_OF_MEMORY;
    else if (!(segment = segment_create(context->device, bytes, base)))
        code = OPERATING_SYSTEM;
    else if ((file = segment_open_file(segment)) < 0 || !map_at(base, bytes, file))
        code = OPERATING_SYSTEM;
    if (segment)
        serial = segment->serial;
    if (segment && code)
        segment_free(serial);
    state_unlock();
    if (code)
        return code;
    *block = block_add((struct block){.base = base, .bytes = bytes, .kind = kind, .device = context->device,
                                      .context = context, .file = file, .serial = serial, .mapping = -1});
    return SUCCESS;
}

/* Where in a shared granule `bytes` fit, or its size when they do not. */
static uint64_t gap_in(const struct block *block, uint64_t bytes)
{
    uint64_t offset = 0;
    for (const struct allocation *each = block->allocations; each; each = each->next) {
        if (offset + bytes <= each->offset)
            return offset;
        offset = round_up(each->offset + each->bytes, face.granularity);
    }
    return offset + bytes <= block->bytes ? offset : block->bytes;
}

int allocate(uint64_t *address, uint64_t bytes, enum kind kind)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!address || !bytes)
        return INVALID_VALUE;
    if (bytes > UINT64_MAX / 2)
        return OUT_OF_MEMORY;
    struct block *block = NULL;
    uint64_t offset = 0;
    if (bytes <= SMALL) {
        for (block = blocks; block; block = block->next)
            if (block->divided && block->kind == kind && block->context == context &&
                (offset = gap_in(block, bytes)) < block->bytes)
                break;
    }
    if (!block) {
        code = block_new(&block, context, round_up(bytes, GRANULE), kind);
        if (code)
            return code;
        block->divided = bytes <= SMALL;
        offset = 0;
    }
    unsigned slot = 0;
    for (const struct allocation *each = block->allocations; each; each = each->next)
        slot++;
    struct allocation *allocation = allocation_add(block, offset, bytes);
    allocation->slot = slot;
    *address = block->base + allocation->offset;
    return SUCCESS;
}

void keep_segment(const struct block *block)
{
    state_lock();
    struct segment *segment = segment_find(block->serial);
    if (segment)
        segment->kept = true;
    state_unlock();
}

void delay_segment(const struct block *block)
{
    if (!fault_asks(LATE))
        return;
    state_lock();
    struct segment *segment = segment_find(block->serial);
    if (segment)
        segment->until = now_ms() + fault_ms(LATE);
    state_unlock();
}

void give_back(struct block *block)
{
    streams_finish(); /* copies of it may be under way */
    if (block->kind != MANAGED && block->kind != PINNED && block->kind != REGISTERED)
        unmap_at(block->base, block->bytes);
    else if (block->kind != REGISTERED)
        munmap(pointer(block->base), block->bytes);
    state_lock();
    if (block->kind == IMPORTED || block->kind == IMPORTED_FROM_POOL)
        mapping_remove(block->mapping);
    else if (block->serial)
        segment_free(block->serial);
    state_unlock();
    block_remove(block);
}

/* Let this process itself reach hidden memory, or no more. */
static void reveal(const struct block *block, bool is_shown)
{
    if (face.memory_is_hidden && block->device >= 0)
        mprotect(pointer(block->base), block->bytes, is_shown ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void keep_snapshot(const struct block *block, struct allocation *part)
{
    free(part->snapshot);
    if (!(part->snapshot = malloc(part->bytes)))
        abort();
    reveal(block, true);
    memcpy(part->snapshot, pointer(block->base + part->offset), part->bytes);
    reveal(block, false);
}

void end_more(const struct block *block, const struct allocation *own)
{
    struct block *last = NULL; /* another of the kind: the one at the highest addresses */
    for (struct block *other = blocks; other; other = other->next)
        if (other->kind == block->kind && other != block && other->allocations)
            last = other;
    for (struct allocation *each = last ? last->allocations : NULL; each; each = each->next) {
        each->ended = each->ended || fault_asks(END_ANOTHER);
        if (fault_asks(SNAPSHOT))
            keep_snapshot(last, each);
    }
    for (struct allocation *each = block->allocations; each; each = each->next)
        each->ended = each->ended || (each != own && fault_asks(END_BLOCK));
    if (fault_asks(WIPE)) {
        reveal(block, true);
        memset(pointer(block->base + own->offset), 0, own->bytes);
        reveal(block, false);
    }
}

int release(uint64_t address, enum kind kind)
{
    struct block *block = find_block(address);
    struct allocation *allocation = block ? allocation_at(block, address) : NULL;
    if (!allocation || block->kind != kind)
        return INVALID_VALUE;
    end_more(block, allocation);
    allocation_remove(block, allocation);
    if (fault_asks(KEEP))
        keep_segment(block);
    delay_segment(block);
    if (!block->allocations)
        give_back(block);
    return SUCCESS;
}

bool request_is_simulated(const struct vmm_request *request)
{
    enum { LOCATION_DEVICE = 1, TYPE_PINNED = 1 };
    return request && request->type == TYPE_PINNED && !(request->handle_types & ~(DESCRIPTOR | FABRIC)) &&
           request->location.type == LOCATION_DEVICE && ordinal_device(request->location.id) >= 0;
}

/* VMM memory and what was imported from a pool are no context's. */
void context_end_with_memory(struct context *context)
{
    for (struct block *block = blocks, *next; block; block = next) {
        next = block->next;
        if (block->context == context && block->kind != PHYSICAL && block->kind != IMPORTED_FROM_POOL)
            give_back(block);
    }
    context_end(context);
}

int sim_alloc(uint64_t *address, size_t bytes)
{
    if (address && !bytes && face.backend == HIP) {
        *address = 0;
        return SUCCESS;
    }
    return allocate(address, bytes, OWN);
}

/* For the fault `lag`: what was used when this process's counter was last refreshed. */
static uint64_t refreshed(const struct fault *lag, int device, uint64_t used)
{
    static uint64_t shown[MAX_DEVICES], interval[MAX_DEVICES];
    uint64_t now = 1 + now_ms() / lag->ms;
    if (interval[device] != now) {
        interval[device] = now;
        shown[device] = used;
    }
    return shown[device];
}

int sim_memory_info(size_t *free, size_t *total)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    state_lock();
    uint64_t used = state_counted(context->device), memory = node()->device[context->device].memory;
    state_unlock();
    const struct fault *lag = node_fault(CALL_mem_info, LAG, context->device);
    if (lag)
        used = refreshed(lag, context->device, used);
    const struct fault *coarse = node_fault(CALL_mem_info, COARSE, context->device);
    if (coarse)
        used -= used % coarse->bytes;
    if (free)
        *free = used < memory ? memory - used : 0;
    if (total)
        *total = memory;
    return SUCCESS;
}

int sim_address_range(uint64_t *base, size_t *bytes, uint64_t address)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    struct block *block = find_block(address);
    struct allocation *allocation = block ? find_allocation(block, address, 0) : NULL;
    if (!allocation)
        return face.backend == HIP ? INVALID_DEVICE_POINTER : INVALID_VALUE;
    if (base)
        *base = fault_asks(MISPLACE) ? address : block->base + allocation->offset;
    if (bytes)
        *bytes = allocation->bytes;
    return SUCCESS;
}
