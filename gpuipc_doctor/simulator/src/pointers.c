/* What a pointer is: the attributes that a program may ask for. */
#include "allocations.h"

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
        *(int *)data = block->context->ordinal + (block->kind == IMPORTED && fault_asks(MISPLACE));
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
    case MEMPOOL_HANDLE:
        if (!block->pool)
            return INVALID_VALUE;
        *(struct pool **)data = block->pool;
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
