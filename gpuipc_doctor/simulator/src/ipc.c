/* Inter-process memory, as measured on an H200 and as ROCclr's sources have it.
 *
 * The words of a handle:
 *   0  tag and the segment's serial number
 *   1  the exporter's pid (there on a real GPU, too)
 *   2  the allocation's bytes
 *   3  the allocation: its offset in the segment, and, of HIP, its number above that. So an H100 gives a small
 *      allocation the handle of a freed one that had its size and its place in a segment that lives on
 *   4  where the exporter has the segment: a stale handle leads to what is there now
 *   5  nothing: a real handle is not authenticated either (for the fault `renumber`, a new number each time)
 *   6  the node's number of the device, and its ordinal in the exporter
 *   7  nothing (for faults that count the small segments of a block: how many there were before it)
 */
#define _GNU_SOURCE
#include "allocations.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TAG 0x51d0ull /* in the upper 16 bits of word 0 */
#define SERIAL_BITS 48
#define OFFSET_BITS 32

struct wish { /* what a handle asks for */
    uint64_t serial, bytes, offset, id, address;
    int32_t pid;
    int device, ordinal;
};

static bool read_handle(const struct ipc_handle *handle, struct wish *wish)
{
    const uint64_t *word = handle->word;
    *wish = (struct wish){
        .serial = word[0] & ((1ull << SERIAL_BITS) - 1),
        .pid = (int32_t)word[1],
        .bytes = word[2],
        .offset = word[3] & ((1ull << OFFSET_BITS) - 1),
        .id = word[3] >> OFFSET_BITS,
        .address = word[4],
        .device = (int)(word[6] & 0xffffffff),
        .ordinal = (int)(word[6] >> 32),
    };
    return word[0] >> SERIAL_BITS == TAG && wish->bytes && wish->device >= 0 &&
           wish->device < node()->devices;
}

int handle_device(const struct ipc_handle *handle)
{
    struct wish wish;
    return read_handle(handle, &wish) ? wish.device : -1;
}

int32_t exporter_of_handle(const struct ipc_handle *handle)
{
    struct wish wish;
    return read_handle(handle, &wish) ? wish.pid : 0;
}

static bool exportable(const struct block *block)
{
    return block->kind == OWN || (block->kind == POOL && face.pool_memory_exports);
}

/* For the fault `collide`: another exportable allocation of this process, or the same when it is the only. */
static struct allocation *another(struct block **block, struct allocation *allocation)
{
    for (struct block *other = blocks; other; other = other->next)
        for (struct allocation *each = other->allocations; each && exportable(other); each = each->next)
            if (each != allocation) {
                *block = other;
                return each;
            }
    return allocation;
}

static bool slots_matter(void)
{
    bool found = false;
    for (int i = 0; i < node()->faults; i++)
        found |= node()->fault[i].when == SLOT;
    return found;
}

int sim_ipc_get(struct ipc_handle *out, uint64_t address)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    struct block *block = find_block(address);
    struct allocation *allocation = block ? find_allocation(block, address, 0) : NULL;
    if (!out || !allocation || !(exportable(block) || fault_asks(ACCEPT)))
        return INVALID_VALUE;
    if (fault_asks(COLLIDE))
        allocation = another(&block, allocation);
    static uint64_t exports;
    state_exports();
    *out = (struct ipc_handle){{
        TAG << SERIAL_BITS | block->serial,
        (uint64_t)getpid(),
        allocation->bytes,
        (face.backend == CUDA ? 0 : allocation->id) << OFFSET_BITS | allocation->offset,
        block->base,
        fault_asks(RENUMBER) ? ++exports : 0,
        (uint64_t)block->context->ordinal << 32 | (uint64_t)block->device,
        slots_matter() ? allocation->slot : 0,
    }};
    if (fault_asks(BLANK))
        *out = (struct ipc_handle){0};
    return SUCCESS;
}

/* ---- opening ---- */

static struct ipc_handle *opened;
static size_t opened_count;

bool opened_before(const struct ipc_handle *handle)
{
    for (size_t i = 0; i < opened_count; i++)
        if (!memcmp(&opened[i], handle, sizeof *handle))
            return true;
    return false;
}

static void remember(const struct ipc_handle *handle)
{
    if (opened_before(handle))
        return;
    struct ipc_handle *more = realloc(opened, (opened_count + 1) * sizeof *opened);
    if (!more)
        abort();
    opened = more;
    opened[opened_count++] = *handle;
}

/* Whether an import is open here whose exporter has freed it and now has the handle's memory in its place. */
bool overlaps_freed(const struct ipc_handle *handle)
{
    struct wish wish;
    bool found = false;
    if (!read_handle(handle, &wish) || !sim_initialized())
        return false;
    state_lock();
    for (const struct block *block = blocks; block && !found; block = block->next) {
        const struct segment *segment = block->kind == IMPORTED ? segment_find(block->serial) : NULL;
        found = segment && segment->freed && segment->serial != wish.serial && segment->pid == wish.pid &&
                segment->address < wish.address + wish.offset + wish.bytes &&
                wish.address < segment->address + segment->bytes;
    }
    state_unlock();
    return found;
}

bool third_in_block(const struct ipc_handle *handle)
{
    struct wish wish;
    return read_handle(handle, &wish) && wish.offset >= 2 * round_up(wish.bytes, face.granularity);
}

unsigned slot_in_block(const struct ipc_handle *handle)
{
    struct wish wish;
    return read_handle(handle, &wish) ? (unsigned)handle->word[7] : 0;
}

uint64_t handle_bytes(const struct ipc_handle *handle)
{
    struct wish wish;
    return read_handle(handle, &wish) ? wish.bytes : 0;
}

static struct block *import_of(uint64_t serial)
{
    for (struct block *block = blocks; block; block = block->next)
        if (block->kind == IMPORTED && block->serial == serial && !block->stale)
            return block;
    return NULL;
}

/* Whether another context of this device has memory open here of the same process and device: then no other
 * may open any (cuIpcOpenMemHandle, and as an H200 answers). With the state's lock held. */
static bool open_in_another_context(const struct segment *segment, const struct context *context)
{
    for (const struct block *block = blocks; block; block = block->next) {
        if (block->kind != IMPORTED || block->context == context || block->context->device != context->device)
            continue;
        const struct segment *other = segment_find(block->serial);
        if (other && other->pid == segment->pid && other->device == segment->device)
            return true;
    }
    return false;
}

/* Maps the segment into this process; with the state's lock held. */
static int import(struct block **block, const struct segment *segment, struct context *context)
{
    bool stale = fault_asks(STALE);
    uint64_t base = place_imported(segment->bytes);
    int file = stale ? segment_open_before(segment) : segment_open_file(segment);
    int mapping = -1;
    if (!base || file < 0 || !map_at(base, segment->bytes, file) ||
        (mapping = mapping_add(segment->serial)) < 0) {
        if (base)
            unmap_at(base, segment->bytes);
        if (file >= 0)
            close(file);
        return base ? MAPPING_FAILED : OUT_OF_MEMORY;
    }
    *block = block_add((struct block){.base = base, .bytes = segment->bytes, .kind = IMPORTED,
                                      .device = segment->device, .context = context, .file = file,
                                      .serial = segment->serial, .mapping = mapping, .stale = stale,
                                      .wrap = fault_bytes(WRAP)});
    return SUCCESS;
}

static struct allocation *opened_part(const struct block *block, const struct wish *wish)
{
    for (struct allocation *each = block->allocations; each; each = each->next)
        if (each->offset == wish->offset && each->exported_id == wish->id)
            return each;
    return NULL;
}

/* For the fault `stale-part`: what small parts of segments held when something was first opened there. */
static struct seen {
    struct seen *next;
    uint64_t serial, offset, bytes;
    unsigned char *data;
} *seen;

static void show_first_of_part(const struct block *block, struct allocation *part)
{
    enum { SMALL = 1 << 20 };
    struct seen *each = seen;
    if (part->bytes > SMALL)
        return;
    while (each && !(each->serial == block->serial && each->offset == part->offset && each->bytes == part->bytes))
        each = each->next;
    if (!each) {
        keep_snapshot(block, part);
        if (!(each = malloc(sizeof *each)))
            abort();
        *each = (struct seen){seen, block->serial, part->offset, part->bytes, part->snapshot};
        seen = each;
        part->snapshot = NULL;
    } else if (part->opens == 1 && fault_asks(STALE_PART)) {
        keep_snapshot(block, part);
        memcpy(part->snapshot, each->data, part->bytes);
    }
}

/* HIP before 7 maps the memory once for each time that a handle is opened, and Level Zero. */
static bool opens_are_separate(void)
{
    return face.backend == ZE || (face.backend == HIP && hip_release() < 700);
}

/* Whether freed memory of another size or place lies in its way in the segment that is still open here: so an
 * H100 answers. Of HIP it is not known. */
static bool stale_part_in_the_way(const struct block *block, const struct wish *wish)
{
    if (face.backend != CUDA)
        return false;
    for (const struct allocation *each = block->allocations; each; each = each->next)
        if (each->opens && !(each->offset == wish->offset && each->bytes == wish->bytes) &&
            each->offset < wish->offset + wish->bytes && wish->offset < each->offset + each->bytes)
            return true;
    return false;
}

/* With the state's lock held. */
static int open_wish(uint64_t *address, const struct wish *wish, struct context *context)
{
    struct segment *segment = segment_find(wish->serial);
    if (!segment) /* gone, but what its exporter has there now is taken for it */
        segment = segment_at(wish->pid, wish->device, wish->address);
    if (!segment)
        return process_alive(wish->pid) ? face.gone : face.exporter_gone;
    if (fault_asks(LATEST))
        segment = segment_newest(segment);
    if (fault_asks(COLLIDE))
        segment = segment_beside(segment);
    if (wish->offset + wish->bytes > segment->bytes)
        return INVALID_VALUE;
    if (state_device_lost(segment->device))
        return face.lost;
    if (segment->device != context->device && !node()->peer[context->device][segment->device])
        return PEER_ACCESS_UNSUPPORTED;
    struct block *block = fault_asks(STALE) || opens_are_separate() ? NULL : import_of(segment->serial);
    if ((block && block->context != context) || open_in_another_context(segment, context))
        return INVALID_HANDLE;
    if (block && stale_part_in_the_way(block, wish))
        return ALREADY_MAPPED;
    int code = block ? SUCCESS : import(&block, segment, context);
    if (code)
        return code;
    struct allocation *part = opened_part(block, wish);
    if (!part) {
        part = allocation_add(block, wish->offset, wish->bytes);
        part->exported_id = wish->id;
    }
    part->opens++;
    struct flaw flaw = flaw_of(part->offset, part->bytes);
    if (flaw.bad.bytes)
        part->flaw.bad = flaw.bad;
    if (flaw.loses_writes < part->flaw.loses_writes)
        part->flaw.loses_writes = flaw.loses_writes;
    part->flaw.kernels |= flaw.kernels;
    if (fault_asks(SNAPSHOT))
        keep_snapshot(block, part);
    if (node_has_fault(CALL_ipc_open, STALE_PART, block->device))
        show_first_of_part(block, part);
    *address = block->base + part->offset;
    return SUCCESS;
}

int sim_ipc_open(uint64_t *address, struct ipc_handle handle, unsigned flags)
{
    enum { LAZY_ENABLE_PEER_ACCESS = 1 };
    bool takes_none = face.backend == ZE || (face.backend == HIP && hip_release() < 600);
    unsigned demanded = takes_none ? 0 : LAZY_ENABLE_PEER_ACCESS;
    struct context *context;
    struct wish wish;
    int code = enter_context(&context);
    if (code)
        return code;
    if (!address || flags != demanded || !read_handle(&handle, &wish))
        return INVALID_VALUE;
    if (wish.pid == getpid() && face.backend != ZE)
        return INVALID_CONTEXT;
    /* ROCclr looks the exporter's device up by ordinal among its own. */
    if (face.backend == HIP && wish.ordinal >= visible_devices())
        return INVALID_VALUE;
    state_lock();
    code = open_wish(address, &wish, context);
    state_unlock();
    if (!code)
        remember(&handle);
    return code;
}

int sim_ipc_close(uint64_t address)
{
    struct context *context;
    int code = enter_context(&context);
    if (code)
        return code;
    struct block *block = find_block(address);
    if (!block || block->kind != IMPORTED)
        return INVALID_VALUE;
    struct allocation *part = allocation_at(block, address);
    if (!part)
        return INVALID_VALUE;
    if (part->opens == 1)
        return release(address, IMPORTED);
    end_more(block, part);
    part->opens--;
    part->ended = part->ended || fault_asks(END_COUNT);
    if (fault_asks(KEEP))
        keep_segment(block);
    return SUCCESS;
}
