/* dma-bufs: memory for an adapter, by descriptor.
 *
 * A file stands in for one, which can be mapped, as NVIDIA's cannot (open-gpu-kernel-modules, nv-dmabuf.c). That of
 * a whole segment is the segment's own, so that later writes show; that of a part is a copy, made when it is exported.
 * Neither keeps freed memory charged to the device.
 */
#define _GNU_SOURCE
#include "allocations.h"

#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

/* A part of `file`, which is closed; -1 if that fails. */
static int copy_of(int file, uint64_t offset, uint64_t bytes)
{
    int copy = memfd_create("dmabuf", MFD_CLOEXEC);
    off_t at = (off_t)offset;
    for (ssize_t done = 1; copy >= 0 && bytes && done > 0; bytes -= (uint64_t)done)
        if ((done = sendfile(copy, file, &at, bytes)) <= 0)
            break;
    close(file);
    if (!bytes || copy < 0)
        return copy;
    close(copy);
    return -1;
}

int sim_dmabuf_export(int *out, uint64_t address, size_t bytes, int type, uint64_t flags)
{
    enum { DMA_BUF_FD = 1, PAGE = 4096 };
    struct block *block = find_block(address);
    const struct allocation *allocation = block ? find_allocation(block, address, bytes) : NULL;
    if (face.backend == HIP ? hip_release() < 700 : node()->cuda_driver < 11070)
        return face.unsupported; /* the driver has no such function */
    if (!out || type != DMA_BUF_FD || flags || !bytes || bytes % PAGE || address % PAGE || !allocation ||
        !block->serial || block->kind == IMPORTED || block->kind == IMPORTED_FROM_POOL)
        return INVALID_VALUE;
    uint64_t offset = address - block->base;
    if (face.backend == HIP) /* of the whole allocation, whichever part was meant: seen on 7.2.4 */
        bytes = allocation->bytes;
    if (face.backend == HIP || fault_asks(MISPLACE))
        offset = allocation->offset;
    state_lock();
    struct segment *segment = segment_find(block->serial);
    int file = !segment ? -1 : fault_asks(STALE) ? segment_open_before(segment) : segment_open_file(segment);
    state_unlock();
    if (file >= 0 && (offset || bytes != block->bytes))
        file = copy_of(file, offset, bytes);
    if (file < 0)
        return OPERATING_SYSTEM;
    *out = file;
    return SUCCESS;
}
