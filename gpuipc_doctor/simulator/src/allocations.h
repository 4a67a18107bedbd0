/* This process's view of memory: blocks of addresses, and the allocations in them. */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include "sim.h"

enum kind {
    OWN,         /* device memory; the only kind that legacy IPC exports */
    POOL,        /* device memory from a stream-ordered pool */
    IMPORTED,    /* another process's, opened here */
    IMPORTED_FROM_POOL,
    PHYSICAL,    /* VMM memory where it is mapped */
    RESERVATION, /* addresses only */
    MANAGED,
    PINNED,
    REGISTERED, /* the program's own memory, known to the driver */
};

struct allocation {
    struct allocation *next; /* ascending offsets */
    uint64_t offset, bytes;  /* in its block */
    uint64_t id;             /* unique in this process; tells apart what was at one address one after the other */
    unsigned slot;           /* so many others were in its block when it was made */
    unsigned opens;          /* of an import */
    uint64_t exported_id;    /* of an import: its id in the exporter */
    struct flaw flaw;               /* of an import */
    unsigned char *snapshot;        /* a fault: what reads through this import show, whatever is there */
    unsigned char *first_view;      /* a fault: what kernels that read through this import show */
    bool ended;                     /* a fault: another call ended it; copies are refused */
};

struct block {
    struct block *next; /* ascending addresses */
    uint64_t base, bytes;
    enum kind kind;
    int device;              /* the node's number, or -1 for host memory */
    struct context *context; /* it lives and dies with this one */
    int file;                /* where its contents are, or -1: in its segment's, or else at its addresses */
    uint64_t serial;         /* of its segment */
    int mapping;             /* its entry in the state, for an import */
    bool divided;            /* small allocations share it */
    bool stale;              /* a fault: an import that shows what was there before */
    uint64_t wrap;           /* a fault, or 0: copies at offsets from this on are of what lies so much before */
    uint32_t readable, writable; /* of memory that others share: by these devices, a bit each */
    struct physical *physical;   /* what is mapped there, for VMM memory */
    unsigned flags;
    struct pool *pool;    /* that it belongs to, also while nothing is allocated in it */
    struct moment freed;  /* then: when that became so */
    struct allocation *allocations;
};

enum { GRANULE = 2 << 20 }; /* bytes; what the device gives out, and the alignment of addresses */

static inline uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

extern struct block *blocks;

/* The block and the allocation in it that hold the whole range; the allocation is NULL when none does. */
struct block *find_block(uint64_t address);
struct allocation *find_allocation(const struct block *block, uint64_t address, uint64_t bytes);
/* The allocation that begins at this address, or NULL. */
struct allocation *allocation_at(const struct block *block, uint64_t address);

uint64_t place_imported(uint64_t bytes); /* from a part of the address space where no own memory lies */
bool map_at(uint64_t base, uint64_t bytes, int file);
void unmap_at(uint64_t base, uint64_t bytes);

struct block *block_add(struct block block);
void block_remove(struct block *block);
struct allocation *allocation_add(struct block *block, uint64_t offset, uint64_t bytes);
void allocation_remove(struct block *block, struct allocation *allocation);

/* A block of device memory of this process, charged to the device. */
int block_new(struct block **block, struct context *context, uint64_t bytes, enum kind kind);
int allocate(uint64_t *address, uint64_t bytes, enum kind kind);
int release(uint64_t address, enum kind kind);
/* For faults of what closes, unmaps or frees: what it does to others of the kind, and to the memory itself. */
void end_more(const struct block *block, const struct allocation *own);
void keep_snapshot(const struct block *block, struct allocation *part); /* and show it from now on */
void give_back(struct block *block);
void delay_segment(const struct block *block); /* for the fault `late`: it goes so much later */
void keep_segment(const struct block *block); /* a fault: it stays charged for ever */
void context_end_with_memory(struct context *context);

/* ---- what a program asks memory of ---- */

enum handle_type { DESCRIPTOR = 1, FABRIC = 8 }; /* CU_MEM_HANDLE_TYPE_*, hipMemHandleType* */

struct vmm_location {
    int type, id;
};

struct vmm_request { /* CUmemAllocationProp, and CUmemPoolProps begins in the same way */
    int type, handle_types;
    struct vmm_location location;
};

bool request_is_simulated(const struct vmm_request *request);

struct pool_request { /* CUmemPoolProps, hipMemPoolProps */
    struct vmm_request memory;
    void *security;
    size_t most;
};

struct vmm_access {
    struct vmm_location location;
    int flags;
};

#endif
