/* VMM: physical memory, reserved addresses, one mapped at the other, and physical memory that is shared, by
 * descriptor or as a fabric handle. What is answered here was measured on an H200 (driver 580.159.04).
 */
#define _GNU_SOURCE
#include "allocations.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct physical {
    struct physical *next;
    uint64_t serial, bytes;
    int device;
    int handle_types;  /* that it may be exported as; none for an import */
    int mapping;       /* an import's entry in the state, or -1 */
    unsigned releases; /* that the program still owes: it may release as often as it was given the handle */
    unsigned mapped;   /* at so many places */
    bool stale;        /* a fault: an import that shows what its exporter had before */
    uint64_t wrap;     /* a fault, see `struct block` */
    struct flaw flaw;    /* of an import */
};

static struct physical *physicals;

#define FABRIC_TAG 0xfab0ull /* in the upper 16 bits of word 0; the segment's serial number below */
#define SERIAL_BITS 48

static uint64_t granule_of(const struct vmm_request *request)
{
    uint64_t granule = node()->device[ordinal_device(request->location.id)].granule;
    return granule ? granule : GRANULE;
}

int sim_vmm_granularity(size_t *bytes, const struct vmm_request *request, int option)
{
    (void)option;
    if (!bytes || !request_is_simulated(request))
        return INVALID_VALUE;
    *bytes = granule_of(request);
    return SUCCESS;
}

static struct physical *physical_new(struct physical physical)
{
    struct physical *new = malloc(sizeof *new);
    if (!new)
        abort();
    physical.next = physicals;
    *new = physical;
    return physicals = new;
}

int sim_vmm_create(void **memory, size_t bytes, const struct vmm_request *request, uint64_t flags)
{
    if (!memory || !bytes || !request_is_simulated(request) || bytes % granule_of(request) || flags)
        return INVALID_VALUE;
    int device = ordinal_device(request->location.id);
    if (request->handle_types & FABRIC && !node()->device[device].imex)
        return face.not_permitted;
    uint64_t total = node()->device[device].memory;
    state_lock();
    struct segment *segment =
        bytes > total || state_used(device) > total - bytes ? NULL : segment_create(device, bytes, 0);
    uint64_t serial = segment ? segment->serial : 0;
    if (segment)
        segment->by_descriptor = true;
    state_unlock();
    if (!serial)
        return OUT_OF_MEMORY;
    *memory = physical_new((struct physical){.serial = serial, .bytes = bytes, .device = device, .mapping = -1,
                                             .handle_types = request->handle_types, .releases = 1,
                                             .flaw = {.loses_writes = UINT64_MAX}});
    return SUCCESS;
}

static struct physical *physical_of(const void *memory)
{
    struct physical *each = physicals;
    while (each && each != memory)
        each = each->next;
    return each;
}

static volatile int *volatile nowhere = NULL;

/* The driver looks into what it is given: a handle that was released and is nowhere mapped is a stray pointer. */
static struct physical *physical_or_crash(const void *memory)
{
    if (!physical_of(memory))
        *nowhere = 0;
    return physical_of(memory);
}

/* Free it where the program has neither the handle nor a mapping any more. */
static void settle(struct physical *physical)
{
    if (physical->releases || physical->mapped)
        return;
    state_lock();
    if (physical->mapping >= 0)
        mapping_remove(physical->mapping);
    else
        segment_free(physical->serial);
    state_unlock();
    struct physical **place = &physicals;
    while (*place != physical)
        place = &(*place)->next;
    *place = physical->next;
    free(physical);
}

/* For the fault `wipe`: memory that another process has imported contains zeros from now on. */
static void wipe_if_held(uint64_t serial)
{
    state_lock();
    const struct segment *segment = segment_find(serial);
    int file = segment && holders_of(serial) ? segment_open_file(segment) : -1;
    if (file >= 0 && (ftruncate(file, 0) || ftruncate(file, (off_t)segment->bytes)))
        abort();
    if (file >= 0)
        close(file);
    state_unlock();
}

int sim_vmm_release(void *memory)
{
    struct physical *physical = physical_of(memory);
    if (!physical || !physical->releases)
        return INVALID_VALUE;
    physical->releases--;
    if (fault_asks(WIPE) && physical->mapping < 0)
        wipe_if_held(physical->serial);
    if (!fault_asks(KEEP))
        settle(physical);
    return SUCCESS;
}

int sim_vmm_properties(struct vmm_request *out, void *memory)
{
    enum { TYPE_PINNED = 1, LOCATION_DEVICE = 1, NO_DEVICE_ID = -2 };
    struct physical *physical = physical_of(memory);
    if (!out || !physical)
        return INVALID_VALUE;
    int ordinal = device_ordinal(physical->device);
    *out = (struct vmm_request){.type = TYPE_PINNED, .handle_types = physical->handle_types,
                                .location = {LOCATION_DEVICE, ordinal < 0 ? NO_DEVICE_ID : ordinal}};
    return SUCCESS;
}

/* ---- addresses ---- */

/* Of freed reservations, those that the process keeps for the next of equal size. */
struct kept {
    struct kept *next;
    uint64_t base, bytes;
};
static struct kept *kept;

static void keep_addresses(uint64_t base, uint64_t bytes)
{
    struct kept *range = malloc(sizeof *range);
    if (!range)
        abort();
    *range = (struct kept){kept, base, bytes};
    kept = range;
}

static uint64_t take_kept(uint64_t bytes)
{
    for (struct kept **each = &kept; *each; each = &(*each)->next)
        if ((*each)->bytes == bytes) {
            struct kept *range = *each;
            uint64_t base = range->base;
            *each = range->next;
            free(range);
            return base;
        }
    return 0;
}

static uint64_t reserve_anew(uint64_t bytes)
{
    void *map = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return 0;
    uint64_t begin = (uint64_t)(uintptr_t)map, base = round_up(begin, GRANULE);
    if (base > begin)
        munmap(map, base - begin);
    munmap(pointer(base + bytes), begin + GRANULE - base);
    return base;
}

/* Taken from the system one by one, so that the size of the process's address space tells who gives none back. */
int sim_vmm_reserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags)
{
    (void)hint; /* a wish, which a driver may ignore */
    if (!address || !bytes || bytes % GRANULE || flags || (alignment & (alignment - 1)) || alignment > GRANULE)
        return INVALID_VALUE;
    uint64_t base = take_kept(bytes);
    if (!base && !(base = reserve_anew(bytes)))
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
    if (fault_asks(RECYCLE))
        keep_addresses(block->base, block->bytes);
    else if (!fault_asks(KEEP))
        munmap(pointer(block->base), block->bytes);
    block_remove(block);
    return SUCCESS;
}

/* ---- mapping ---- */

/* The context whose device it is; for what this process does not see, any will do: VMM memory is no context's. */
static struct context *context_for(int device)
{
    int ordinal = device_ordinal(device);
    return primary_context(ordinal < 0 ? 0 : ordinal);
}

int sim_vmm_map(uint64_t address, size_t bytes, size_t offset, void *memory, uint64_t flags)
{
    struct physical *physical = physical_or_crash(memory);
    struct block *range = block_of_kind(address, RESERVATION);
    if (!range || flags || address % GRANULE || address - range->base + bytes > range->bytes ||
        anything_mapped(address, bytes))
        return INVALID_VALUE;
    if (offset || bytes != physical->bytes)
        return NOT_SUPPORTED; /* a handle is mapped whole */
    state_lock();
    struct segment *segment = segment_find(physical->serial);
    int file = !segment ? -1 : physical->stale ? segment_open_before(segment) : segment_open_file(segment);
    state_unlock();
    bool mapped = file >= 0 && map_at(address, bytes, file);
    if (file >= 0 && (!physical->stale || !mapped)) {
        close(file);
        file = -1;
    }
    if (!mapped)
        return MAPPING_FAILED;
    physical->mapped++;
    struct block *block =
        block_add((struct block){.base = address, .bytes = bytes, .kind = PHYSICAL, .device = physical->device,
                                 .context = context_for(physical->device), .file = file,
                                 .serial = physical->serial, .physical = physical, .mapping = -1,
                                 .wrap = physical->wrap});
    struct allocation *allocation = allocation_add(block, 0, bytes);
    allocation->flaw = physical->flaw;
    if (physical->mapped > 1 && fault_asks(CORRUPT_PAGE))
        allocation->flaw.bad = bad_part_of(bytes);
    return SUCCESS;
}

int sim_vmm_unmap(uint64_t address, size_t bytes)
{
    struct block *block = block_of_kind(address, PHYSICAL);
    if (!block) { /* a second time does no harm */
        struct block *range = block_of_kind(address, RESERVATION);
        return range && address - range->base + bytes <= range->bytes ? SUCCESS : INVALID_VALUE;
    }
    if (block->base != address || block->bytes != bytes)
        return INVALID_VALUE;
    struct physical *physical = block->physical;
    end_more(block, block->allocations);
    unmap_at(block->base, block->bytes);
    block_remove(block);
    physical->mapped--;
    settle(physical);
    return SUCCESS;
}

/* Whether the process has access already to what is mapped there. */
bool vmm_is_granted(uint64_t address)
{
    const struct block *block = block_of_kind(address, PHYSICAL);
    return block && block->readable;
}

bool vmm_is_late(uint64_t address)
{
    const struct block *block = block_of_kind(address, PHYSICAL);
    for (const struct block *each = blocks; block && each; each = each->next)
        if (each->kind == PHYSICAL && each->allocations->id > block->allocations->id)
            return true;
    return false;
}

unsigned vmm_imports_open(void)
{
    unsigned count = 0;
    for (const struct physical *each = physicals; each; each = each->next)
        count += each->mapping >= 0;
    return count;
}

static int grant(struct block *block, const struct vmm_access *access, size_t count)
{
    enum { LOCATION_DEVICE = 1, READ = 1, READ_WRITE = 3 };
    for (size_t i = 0; i < count; i++) {
        int device = ordinal_device(access[i].location.id);
        if (access[i].location.type != LOCATION_DEVICE)
            return NOT_SUPPORTED;
        if (device < 0 || (access[i].flags && access[i].flags != READ && access[i].flags != READ_WRITE))
            return INVALID_VALUE;
        block->readable &= ~(1u << device);
        block->writable &= ~(1u << device);
        if (access[i].flags)
            block->readable |= 1u << device;
        if (access[i].flags == READ_WRITE)
            block->writable |= 1u << device;
    }
    return SUCCESS;
}

/* The range may cover several mappings, each whole. */
int sim_vmm_set_access(uint64_t address, size_t bytes, const struct vmm_access *access, size_t count)
{
    struct block *block = block_of_kind(address, PHYSICAL);
    if (!access || !count || !bytes)
        return INVALID_VALUE;
    for (uint64_t at = address; at < address + bytes; at += block->bytes) {
        block = block_of_kind(at, PHYSICAL);
        if (!block || block->base != at || at + block->bytes > address + bytes)
            return INVALID_VALUE;
    }
    int code = SUCCESS;
    for (uint64_t at = address; at < address + bytes && !code; at += block->bytes) {
        block = block_of_kind(at, PHYSICAL);
        code = grant(block, access, count);
        if (at + block->bytes == address + bytes && fault_asks(CORRUPT_PAGE))
            block->allocations->flaw.bad = bad_part_of(block->bytes);
    }
    return code;
}

int sim_vmm_get_access(uint64_t *flags, const struct vmm_location *location, uint64_t address)
{
    struct block *block = block_of_kind(address, PHYSICAL);
    int device = location ? ordinal_device(location->id) : -1;
    if (!flags || !block || device < 0)
        return INVALID_VALUE;
    *flags = (block->readable >> device & 1u) | (block->writable >> device & 1u) << 1;
    return SUCCESS;
}

int sim_vmm_retain(void **memory, uint64_t address)
{
    struct block *block = block_of_kind(address, PHYSICAL);
    if (!memory || !block)
        return INVALID_VALUE;
    block->physical->releases++;
    *memory = block->physical;
    return SUCCESS;
}

/* ---- sharing ---- */

int sim_vmm_export(void *out, void *memory, int type, uint64_t flags)
{
    struct physical *physical = physical_or_crash(memory);
    if (!out || flags || !(physical->handle_types & type) || (type != DESCRIPTOR && type != FABRIC))
        return INVALID_VALUE;
    if (type == FABRIC) {
        *(struct ipc_handle *)out = (struct ipc_handle){{FABRIC_TAG << SERIAL_BITS | physical->serial}};
        return SUCCESS;
    }
    state_lock();
    int file = export_new(&(struct shared_thing){.serial = physical->serial, .pool_device = -1}, true);
    state_unlock();
    if (file < 0)
        return OPERATING_SYSTEM;
    state_exports();
    *(int *)out = file;
    return SUCCESS;
}

/* The number itself takes the place of an address, but HIP before 7.1 reads it from there. */
int descriptor_in(const void *shared)
{
    bool is_read = face.backend == HIP && hip_release() < 701;
    return is_read ? *(const int *)shared : (int)(intptr_t)shared;
}

/* Which segment is meant; with the state's lock held. */
static int wanted(uint64_t *serial, const void *shared, int type)
{
    if (type == FABRIC) {
        const struct ipc_handle *handle = shared;
        *serial = handle->word[0] & ((1ull << SERIAL_BITS) - 1);
        return handle->word[0] >> SERIAL_BITS == FABRIC_TAG && segment_find(*serial) ? SUCCESS : NOT_SUPPORTED;
    }
    struct shared_thing what;
    int file = descriptor_in(shared);
    if (file == 0 && fcntl(file, F_GETFD) != -1 && export_of(file, &what))
        return INVALID_VALUE; /* a valid descriptor, but this number is taken for none */
    if (!export_of(file, &what))
        return UNKNOWN;
    if (what.pool_device >= 0)
        return NOT_SUPPORTED;
    *serial = what.serial;
    return SUCCESS;
}

int sim_vmm_import(void **memory, void *shared, int type)
{
    if (!memory || (type != DESCRIPTOR && type != FABRIC))
        return INVALID_VALUE;
    uint64_t serial;
    state_lock();
    int code = wanted(&serial, shared, type), mapping = -1;
    struct segment *segment = code ? NULL : segment_find(serial), copy;
    if (segment && fault_asks(LATEST))
        segment = segment_newest(segment);
    if (segment && fault_asks(KEEP))
        segment->kept = true;
    if (segment) {
        copy = *segment;
        if ((mapping = mapping_add(copy.serial)) < 0)
            code = OUT_OF_MEMORY;
    } else if (!code) {
        code = UNKNOWN;
    }
    state_unlock();
    if (code)
        return code;
    *memory = physical_new((struct physical){.serial = copy.serial, .bytes = copy.bytes, .device = copy.device,
                                             .mapping = mapping, .releases = 1, .stale = fault_asks(STALE),
                                             .wrap = fault_bytes(WRAP), .flaw = flaw_of(0, copy.bytes)});
    return SUCCESS;
}
