/* Copies and fills. Those of device memory go through its file rather than the addresses that it is mapped at,
 * so that a full state directory is an error code and not a SIGBUS. Work is done when the call returns, but for
 * copies on a device by a stream that takes time.
 */
#define _GNU_SOURCE
#include "allocations.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_file(const struct block *block)
{
    return block->device >= 0 && block->kind != RESERVATION;
}

enum { CHUNK = 256 << 10 };
static unsigned char chunk[CHUNK];

static int file_trouble(const char *what)
{
    fprintf(stderr, "simulated driver: %s simulated device memory: %s\n", what, strerror(errno));
    return UNKNOWN;
}

/* What is shared by descriptor costs a process no further one, so its file is opened for each copy. */
static int contents(const struct block *block)
{
    return block->file >= 0 ? block->file : segment_open_serial(block->serial);
}

static void leave(const struct block *block, int file)
{
    if (file >= 0 && file != block->file)
        close(file);
}

static int file_read(int file, uint64_t at, unsigned char *to, uint64_t bytes)
{
    while (bytes) {
        ssize_t done = pread(file, to, bytes, (off_t)at);
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

static int file_write(int file, uint64_t at, const unsigned char *from, uint64_t bytes)
{
    while (bytes) {
        ssize_t done = pwrite(file, from, bytes, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return file_trouble("writing");
        from += done, at += (uint64_t)done, bytes -= (uint64_t)done;
    }
    return SUCCESS;
}

/* Whether the current context's device was given access to what is shared with others. */
static bool may_reach(const struct block *block, bool writing)
{
    if (block->kind != PHYSICAL && block->kind != IMPORTED_FROM_POOL)
        return true;
    return (writing ? block->writable : block->readable) >> current_device() & 1u;
}

/* A pointer of the driver's, or, where `foreign` memory will do, any other: then `block` is NULL. */
static int locate(uint64_t address, uint64_t bytes, bool writing, bool foreign, struct block **block,
                  struct allocation **allocation)
{
    *allocation = NULL;
    *block = find_block(address);
    if (!*block)
        return foreign ? SUCCESS : INVALID_VALUE;
    if ((*block)->device >= 0 && state_device_lost((*block)->device))
        return face.lost;
    *allocation = find_allocation(*block, address, bytes);
    return *allocation && !(*allocation)->ended && may_reach(*block, writing) ? SUCCESS : INVALID_VALUE;
}

/* What a faulty import shows wrong: `to` holds the bytes from `at`, an offset in the block. */
static void spoil(const struct allocation *allocation, uint64_t at, unsigned char *to, uint64_t bytes)
{
    uint64_t begin = allocation->flaw.bad.offset, end = begin + allocation->flaw.bad.bytes;
    for (uint64_t i = begin > at ? begin : at; i < end && i < at + bytes; i++)
        to[i - at] ^= 0xa5;
}

/* Where in its contents a block has what is at this address. */
static uint64_t offset_in(const struct block *block, uint64_t address)
{
    uint64_t offset = address - block->base;
    return block->wrap && offset >= block->wrap ? offset - block->wrap : offset;
}

/* Bytes from an address on that a single block holds: VMM memory may go on in the mapping behind it. */
static uint64_t bytes_in_block(uint64_t address, uint64_t bytes)
{
    const struct block *block = find_block(address);
    uint64_t left = block && block->kind == PHYSICAL ? block->base + block->bytes - address : bytes;
    return left < bytes ? left : bytes;
}

static int get_of_block(void *to, uint64_t from, uint64_t bytes, bool foreign)
{
    struct block *block;
    struct allocation *allocation;
    int code = locate(from, bytes, false, foreign, &block, &allocation);
    if (code)
        return code;
    if (!block || !has_file(block)) {
        memmove(to, pointer(from), bytes);
        return SUCCESS;
    }
    if (allocation->snapshot) {
        memcpy(to, allocation->snapshot + (from - block->base - allocation->offset), bytes);
    } else {
        int file = contents(block);
        code = file_read(file, offset_in(block, from), to, bytes);
        leave(block, file);
    }
    spoil(allocation, from - block->base, to, bytes);
    return code;
}

static int put_of_block(uint64_t to, const void *from, uint64_t bytes, bool foreign)
{
    struct block *block;
    struct allocation *allocation;
    int code = locate(to, bytes, true, foreign, &block, &allocation);
    if (code)
        return code;
    if (!block || !has_file(block)) {
        memmove(pointer(to), from, bytes);
        return SUCCESS;
    }
    uint64_t at = to - block->base, lost = allocation->flaw.loses_writes;
    if (lost <= at)
        return SUCCESS;
    if (lost - at < bytes)
        bytes = lost - at;
    int file = contents(block);
    code = file_write(file, offset_in(block, to), from, bytes);
    leave(block, file);
    return code;
}

static int get(void *to, uint64_t from, uint64_t bytes, bool foreign)
{
    int code;
    uint64_t now;
    do {
        now = bytes_in_block(from, bytes);
        code = get_of_block(to, from, now, foreign);
        to = (unsigned char *)to + now, from += now, bytes -= now;
    } while (bytes && !code);
    return code;
}

static int put(uint64_t to, const void *from, uint64_t bytes, bool foreign)
{
    int code;
    uint64_t now;
    do {
        now = bytes_in_block(to, bytes);
        code = put_of_block(to, from, now, foreign);
        to += now, from = (const unsigned char *)from + now, bytes -= now;
    } while (bytes && !code);
    return code;
}

/* A fault of this one copy: what arrived is wrong in one byte or one page. */
static void spoil_delivery(unsigned char *data, uint64_t bytes)
{
    struct bad_part bad = bad_part_of(bytes);
    for (uint64_t i = bad.offset; i < bad.offset + bad.bytes; i++)
        data[i] ^= 0xa5;
}

static bool is_device_memory(uint64_t address)
{
    struct block *block = find_block(address);
    return block && has_file(block);
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
        if ((code = locate(to, bytes, true, foreign, &block, &allocation)) ||
            (code = get(pointer(to), from, bytes, foreign)))
            return code;
        spoil_delivery(pointer(to), bytes);
        return SUCCESS;
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
    if (count > UINT64_MAX / width || (code = locate(address, bytes, true, false, &block, &allocation)))
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

/* ---- the asynchronous forms of copies and fills ---- */

#define AFTER_STREAM(operation) \
    do { \
        int code = stream_check(stream); \
        if (code) \
            return code; \
        stream_finish(stream); \
        return operation; \
    } while (0)

int sim_copy_async(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy(to, from, bytes));
}

int sim_copy_to_device_async(uint64_t to, const void *from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy_to_device(to, from, bytes));
}

int sim_copy_from_device_async(void *to, uint64_t from, size_t bytes, void *stream)
{
    AFTER_STREAM(sim_copy_from_device(to, from, bytes));
}

/* ---- a copy that takes time ---- */

struct later {
    struct block *to, *from;
    uint64_t to_offset, from_offset, bytes;
    struct allocation source; /* as it was when the copy was asked for */
};

/* Whether a file holds nothing there, so that it reads as zeros: memory that nobody has written to. */
static bool is_hole(int file, uint64_t at, uint64_t bytes)
{
    off_t data = lseek(file, (off_t)at, SEEK_DATA);
    return data < 0 ? errno == ENXIO : (uint64_t)data >= at + bytes;
}

static void copy_now(void *what)
{
    struct later *copy = what;
    int from = contents(copy->from), to = contents(copy->to), code = SUCCESS;
    bool nothing = is_hole(from, copy->from_offset, copy->bytes) && is_hole(to, copy->to_offset, copy->bytes);
    for (uint64_t done = 0; done < copy->bytes && !code && !nothing; done += CHUNK) {
        uint64_t now = copy->bytes - done < CHUNK ? copy->bytes - done : CHUNK;
        code = file_read(from, copy->from_offset + done, chunk, now);
        spoil(&copy->source, copy->from_offset + done, chunk, now);
        if (!code)
            code = file_write(to, copy->to_offset + done, chunk, now);
    }
    leave(copy->from, from);
    leave(copy->to, to);
    free(copy);
}

static bool lasts(const struct block *block) /* until it is given back, which waits for copies */
{
    return block && (block->kind == OWN || block->kind == POOL);
}

int sim_copy_on_device_async(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    int code = stream_check(stream);
    if (code)
        return code;
    if (!stream_takes_time(stream) || !bytes || !lasts(find_block(to)) || !lasts(find_block(from))) {
        stream_finish(stream);
        return sim_copy_on_device(to, from, bytes);
    }
    struct later *copy = calloc(1, sizeof *copy);
    struct allocation *source, *target;
    if (!copy)
        abort();
    if ((code = locate(to, bytes, true, false, &copy->to, &target)) ||
        (code = locate(from, bytes, false, false, &copy->from, &source))) {
        free(copy);
        return code;
    }
    copy->to_offset = to - copy->to->base;
    copy->from_offset = from - copy->from->base;
    copy->bytes = bytes;
    copy->source = *source;
    stream_later(stream, bytes, copy_now, copy);
    return SUCCESS;
}

int sim_fill8_async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    AFTER_STREAM(sim_fill8(address, value, count));
}

int sim_fill16_async(uint64_t address, unsigned short value, size_t count, void *stream)
{
    AFTER_STREAM(sim_fill16(address, value, count));
}

int sim_fill32_async(uint64_t address, unsigned value, size_t count, void *stream)
{
    AFTER_STREAM(sim_fill32(address, value, count));
}
