/* Device memory of this process: addresses, allocation, copies, fills.
 *
 * Contents are files in GPUIPC_SIM_STATE. They are mapped where the device address is, so that an MPI that
 * knows nothing of GPUs moves them as it moves host memory; the driver's own copies go through the file, so
 * that a full state directory is an error code and not a SIGBUS.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <stdio.h>
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
 * that is there; else, when no addresses are left there, wherever they fit. So went what was seen on real
 * GPUs: of buffers that grow a little each time with a small one behind them, each has addresses of its own. */
static uint64_t place(uint64_t bytes, bool imported)
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
    return top + bytes <= end ? top : fitting;
}

uint64_t place_own(uint64_t bytes)
{
    return place(bytes, false);
}

uint64_t place_imported(uint64_t bytes)
{
    return place(bytes, true);
}

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

bool map_at(uint64_t base, uint64_t bytes, int file)
{
    return mmap(pointer(base), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
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
    *new = (struct allocation){.next = *place, .offset = offset, .bytes = bytes, .id = ++allocations_made};
    return *place = new;
}

void allocation_remove(struct block *block, struct allocation *allocation)
{
    struct allocation **place = &block->allocations;
    while (*place != allocation)
        place = &(*place)->next;
    *place = allocation->next;
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

int block_new(struct block **block, struct context *context, uint64_t bytes, enum kind kind)
{
    uint64_t base = place_own(bytes);
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
    *address = block->base + allocation_add(block, offset, bytes)->offset;
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

void give_back(struct block *block)
{
    if (block->kind != MANAGED && block->kind != PINNED && block->kind != REGISTERED)
        unmap_at(block->base, block->bytes);
    else if (block->kind != REGISTERED)
        munmap(pointer(block->base), block->bytes);
    state_lock();
    if (block->kind == IMPORTED)
        mapping_remove(block->mapping);
    else if (block->serial)
        segment_free(block->serial);
    state_unlock();
    block_remove(block);
}

int release(uint64_t address, enum kind kind)
{
    struct block *block = find_block(address);
    struct allocation *allocation = block ? allocation_at(block, address) : NULL;
    if (!allocation || block->kind != kind)
        return INVALID_VALUE;
    allocation_remove(block, allocation);
    if (fault_asks(KEEP))
        keep_segment(block);
    if (!block->allocations)
        give_back(block);
    return SUCCESS;
}

void memory_of_context_ends(const struct context *context)
{
    for (struct block *block = blocks, *next; block; block = next) {
        next = block->next;
        if (block->context == context && block->kind != PHYSICAL) /* VMM memory is not a context's */
            give_back(block);
    }
}

int sim_alloc(uint64_t *address, size_t bytes)
{
    if (address && !bytes && face.backend == HIP) {
        *address = 0;
        return SUCCESS;
    }
    return allocate(address, bytes, OWN);
}

int sim_free(uint64_t address)
{
    struct context *context;
    int code = enter_context(&context);
    if (code || (!address && face.backend == HIP))
        return code;
    if ((code = release(address, OWN)) && (code = release(address, MANAGED)) &&
        !(code = pool_take_back(address, NULL)))
        pools_settle(); /* this call waits for the device */
    return code;
}

int sim_memory_info(size_t *free, size_t *total)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    state_lock();
    uint64_t used = state_used(context->device), memory = node()->device[context->device].memory;
    state_unlock();
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
        *base = block->base + allocation->offset;
    if (bytes)
        *bytes = allocation->bytes;
    return SUCCESS;
}

/* ---- copies ---- */

enum { CHUNK = 256 << 10 };
static unsigned char chunk[CHUNK];

static int file_trouble(const char *what)
{
    fprintf(stderr, "simulated driver: %s simulated device memory: %s\n", what, strerror(errno));
    return UNKNOWN;
}

static int file_read(const struct block *block, uint64_t at, unsigned char *to, uint64_t bytes)
{
    while (bytes) {
        ssize_t done = pread(block->file, to, bytes, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return file_trouble("reading");
        if (!done) { /* a stale import may be shorter than what it stands for */
            memset(to, 0, bytes);
            break;
        }
        to += done, at += (uint64_t)done, bytes -= (uint64_t)done;
    }
    return SUCCESS;
}

static int file_write(const struct block *block, uint64_t at, const unsigned char *from, uint64_t bytes)
{
    while (bytes) {
        ssize_t done = pwrite(block->file, from, bytes, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return file_trouble("writing");
        from += done, at += (uint64_t)done, bytes -= (uint64_t)done;
    }
    return SUCCESS;
}

/* A pointer of the driver's, or, where `foreign` memory will do, any other: then `block` is NULL. */
static int locate(uint64_t address, uint64_t bytes, bool foreign, struct block **block,
                  struct allocation **allocation)
{
    *allocation = NULL;
    *block = find_block(address);
    if (!*block)
        return foreign ? SUCCESS : INVALID_VALUE;
    if ((*block)->device >= 0 && state_device_lost((*block)->device))
        return face.lost;
    *allocation = find_allocation(*block, address, bytes);
    return *allocation && ((*block)->kind != PHYSICAL || (*block)->accessible) ? SUCCESS : INVALID_VALUE;
}

/* What a faulty import shows wrong: `to` holds the bytes from `at`, an offset in the block. */
static void spoil(const struct allocation *allocation, uint64_t at, unsigned char *to, uint64_t bytes)
{
    uint64_t begin = allocation->bad_offset, end = begin + allocation->bad_bytes;
    for (uint64_t i = begin > at ? begin : at; i < end && i < at + bytes; i++)
        to[i - at] ^= 0xa5;
}

static int get(void *to, uint64_t from, uint64_t bytes, bool foreign)
{
    struct block *block;
    struct allocation *allocation;
    int code = locate(from, bytes, foreign, &block, &allocation);
    if (code)
        return code;
    if (!block || block->file < 0) {
        memmove(to, pointer(from), bytes);
        return SUCCESS;
    }
    code = file_read(block, from - block->base, to, bytes);
    spoil(allocation, from - block->base, to, bytes);
    return code;
}

static int put(uint64_t to, const void *from, uint64_t bytes, bool foreign)
{
    struct block *block;
    struct allocation *allocation;
    int code = locate(to, bytes, foreign, &block, &allocation);
    if (code)
        return code;
    if (!block || block->file < 0) {
        memmove(pointer(to), from, bytes);
        return SUCCESS;
    }
    return file_write(block, to - block->base, from, bytes);
}

/* A fault of this one copy: what arrived is wrong in one byte or one page. */
static void spoil_delivery(unsigned char *data, uint64_t bytes)
{
    enum { PAGE = 4096 };
    if (fault_asks(CORRUPT_BYTE) && bytes)
        data[scatter() % bytes] ^= 0xa5;
    if (fault_asks(CORRUPT_PAGE)) {
        uint64_t begin = bytes > PAGE ? scatter() % (bytes / PAGE) * PAGE : 0;
        for (uint64_t i = begin; i < begin + PAGE && i < bytes; i++)
            data[i] ^= 0xa5;
    }
}

static bool is_device_memory(uint64_t address)
{
    struct block *block = find_block(address);
    return block && block->file >= 0;
}

static int copy(uint64_t to, uint64_t from, uint64_t bytes, bool foreign)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!is_device_memory(to)) {
        struct block *block;
        struct allocation *allocation;
        code = locate(to, bytes, foreign, &block, &allocation);
        return code ? code : get(pointer(to), from, bytes, foreign);
    }
    if (!is_device_memory(from))
        return put(to, pointer(from), bytes, false);
    for (uint64_t done = 0; done < bytes && !code; done += CHUNK) {
        uint64_t now = bytes - done < CHUNK ? bytes - done : CHUNK;
        code = get(chunk, from + done, now, false);
        if (!code)
            code = put(to + done, chunk, now, false);
    }
    return code;
}

int sim_copy(uint64_t to, uint64_t from, size_t bytes)
{
    return copy(to, from, bytes, true);
}

int sim_copy_on_device(uint64_t to, uint64_t from, size_t bytes)
{
    return copy(to, from, bytes, false);
}

int sim_copy_to_device(uint64_t to, const void *from, size_t bytes)
{
    struct context *context;
    int code = enter_context(&context);
    if (code || !bytes)
        return code;
    if (!from)
        return INVALID_VALUE;
    return is_device_memory((uintptr_t)from) ? copy(to, (uintptr_t)from, bytes, false)
                                             : put(to, from, bytes, false);
}

int sim_copy_from_device(void *to, uint64_t from, size_t bytes)
{
    struct context *context;
    int code = enter_context(&context);
    if (code || !bytes)
        return code;
    if (!to)
        return INVALID_VALUE;
    if (is_device_memory((uintptr_t)to))
        return copy((uintptr_t)to, from, bytes, false);
    code = get(to, from, bytes, false);
    if (!code)
        spoil_delivery(to, bytes);
    return code;
}

static int fill(uint64_t address, uint32_t value, unsigned width, uint64_t count)
{
    struct context *context;
    int code = enter_context(&context);
    if (code || !count)
        return code;
    if (address % width)
        return INVALID_VALUE;
    struct block *block;
    struct allocation *allocation;
    uint64_t bytes = count * width;
    if (count > UINT64_MAX / width || (code = locate(address, bytes, false, &block, &allocation)))
        return code ? code : INVALID_VALUE;
    uint64_t step = bytes < CHUNK ? bytes : CHUNK;
    for (uint64_t i = 0; i < step; i += width)
        memcpy(chunk + i, &value, width); /* both vendors' hosts are little endian */
    for (uint64_t done = 0; done < bytes && !code; done += step)
        code = put(address + done, chunk, bytes - done < step ? bytes - done : step, false);
    return code;
}

int sim_fill8(uint64_t address, unsigned char value, size_t count)
{
    return fill(address, value, 1, count);
}

int sim_fill16(uint64_t address, unsigned short value, size_t count)
{
    return fill(address, value, 2, count);
}

int sim_fill32(uint64_t address, unsigned value, size_t count)
{
    return fill(address, value, 4, count);
}

/* ---- what a pointer is ---- */

/* CU_POINTER_ATTRIBUTE_*; HIP's numbers are the same. */
enum {
    ATTRIBUTE_CONTEXT = 1,
    MEMORY_TYPE,
    DEVICE_POINTER,
    HOST_POINTER,
    P2P_TOKENS,
    SYNC_MEMOPS,
    BUFFER_ID,
    IS_MANAGED,
    DEVICE_ORDINAL,
    IS_LEGACY_IPC_CAPABLE,
    RANGE_START,
    RANGE_BYTES,
    MAPPED,
    ALLOWED_HANDLE_TYPES,
    IS_GPU_DIRECT_RDMA_CAPABLE,
    ACCESS_FLAGS,
    MEMPOOL_HANDLE,
};
enum { TYPE_HOST = 1, TYPE_DEVICE = 2 }; /* CU_MEMORYTYPE_*, hipMemoryType */

/* Callers give CUDA an int and compare it to 1, so all of it is written; ROCclr writes a bool. */
static void set_flag(void *data, bool value)
{
    if (face.backend == CUDA)
        *(unsigned *)data = value;
    else
        *(bool *)data = value;
}

static int pointer_attribute(void *data, int attribute, uint64_t address)
{
    struct block *block = find_block(address);
    struct allocation *allocation = block ? find_allocation(block, address, 0) : NULL;
    if (!allocation)
        return INVALID_VALUE;
    bool host = block->kind == PINNED || block->kind == REGISTERED;
    switch (attribute) {
    case ATTRIBUTE_CONTEXT:
        *(void **)data = block->context;
        return SUCCESS;
    case MEMORY_TYPE:
        *(unsigned *)data = host ? TYPE_HOST : TYPE_DEVICE;
        return SUCCESS;
    case DEVICE_POINTER:
        *(uint64_t *)data = address;
        return SUCCESS;
    case HOST_POINTER:
        if (!host && block->kind != MANAGED)
            return INVALID_VALUE;
        *(uint64_t *)data = address;
        return SUCCESS;
    case SYNC_MEMOPS:
        set_flag(data, true); /* every operation is synchronous here */
        return SUCCESS;
    case BUFFER_ID:
        *(uint64_t *)data = allocation->id;
        return SUCCESS;
    case IS_MANAGED:
        set_flag(data, block->kind == MANAGED);
        return SUCCESS;
    case DEVICE_ORDINAL:
        *(int *)data = block->context->ordinal;
        return SUCCESS;
    case IS_LEGACY_IPC_CAPABLE:
        *(unsigned *)data = block->kind == OWN || (block->kind == POOL && face.pool_memory_exports);
        return SUCCESS;
    case RANGE_START:
        *(uint64_t *)data = block->base + allocation->offset;
        return SUCCESS;
    case RANGE_BYTES:
        *(size_t *)data = allocation->bytes;
        return SUCCESS;
    case MAPPED:
        set_flag(data, true);
        return SUCCESS;
    case ALLOWED_HANDLE_TYPES:
        *(uint64_t *)data = 0;
        return SUCCESS;
    case IS_GPU_DIRECT_RDMA_CAPABLE:
        set_flag(data, false);
        return SUCCESS;
    case ACCESS_FLAGS:
        *(int *)data = 3; /* read and write */
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

int sim_pointer_attribute(void *data, int attribute, uint64_t address)
{
    return data ? pointer_attribute(data, attribute, address) : INVALID_VALUE;
}

/* As documented for cuPointerGetAttributes: what a pointer does not have is given as zero, not as an error. */
int sim_pointer_attributes(unsigned count, int *attributes, void **data, uint64_t address)
{
    if (!count || !attributes || !data)
        return INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!pointer_attribute(data[i], attributes[i], address))
            continue;
        switch (attributes[i]) {
        case ATTRIBUTE_CONTEXT:
        case DEVICE_POINTER:
        case HOST_POINTER:
        case BUFFER_ID:
        case RANGE_START:
        case RANGE_BYTES:
        case ALLOWED_HANDLE_TYPES:
        case MEMPOOL_HANDLE:
            *(uint64_t *)data[i] = 0;
            break;
        case MEMORY_TYPE:
        case ACCESS_FLAGS:
            *(unsigned *)data[i] = 0;
            break;
        case DEVICE_ORDINAL:
            *(int *)data[i] = -2; /* CU_DEVICE_INVALID */
            break;
        case IS_LEGACY_IPC_CAPABLE:
            *(unsigned *)data[i] = 0;
            break;
        case SYNC_MEMOPS:
        case IS_MANAGED:
        case MAPPED:
        case IS_GPU_DIRECT_RDMA_CAPABLE:
            set_flag(data[i], false);
            break;
        default:
            return INVALID_VALUE;
        }
    }
    return SUCCESS;
}

int sim_pointer_set_attribute(const void *value, int attribute, uint64_t address)
{
    struct block *block = find_block(address);
    if (!value || !block || !find_allocation(block, address, 0))
        return INVALID_VALUE;
    return attribute == SYNC_MEMOPS ? SUCCESS : INVALID_VALUE; /* it already holds, see above */
}
