/* Managed and page-locked memory. Both are host memory here, and exist so that a program can try to export them
 * and be refused.
 */
#define _GNU_SOURCE
#include "allocations.h"

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
