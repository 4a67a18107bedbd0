/* The calls of collectives, windows, persistent and partitioned requests; part of mpi_faults.c.
 *
 * Each exists twice, with int counts and (…_c) with wide ones. A library that lacks the wide one is called with
 * int counts.
 */

static int ranks_of(handle comm)
{
    int (*size_of)(handle, int *) = ONCE(demand, "PMPI_Comm_size");
    int size = 1;
    size_of(comm, &size);
    return size;
}

static int rank_in(handle comm)
{
    int (*rank_of)(handle, int *) = ONCE(demand, "PMPI_Comm_rank");
    int rank = 0;
    rank_of(comm, &rank);
    return rank;
}

/* An array of counts or displacements as ints; valid until eight later calls. */
static const int *narrow_array(const int64_t *wide, int count)
{
    enum { ARRAYS = 8, MAX_RANKS = 256 };
    static int arrays[ARRAYS][MAX_RANKS], next;
    if (!wide)
        return NULL;
    int *array = arrays[next++ % ARRAYS];
    if (count > MAX_RANKS)
        refuse("MPI_…v_c", "too many ranks");
    for (int i = 0; i < count; i++)
        array[i] = narrow(wide[i]);
    return array;
}

static const int *narrow_all(const int64_t *wide, handle comm)
{
    return narrow_array(wide, ranks_of(comm));
}

static bool is_in_place(const void *buffer)
{
    return buffer == (handles_are_pointers() ? (const void *)1 : (const void *)(intptr_t)-1);
}

/* MPI_ERR_OTHER, and MPI_ERR_INTERN of Open MPI, if a fault asks for an error; else the code. */
static int code_of(int code, struct asked asked)
{
    return asked.effects & ERROR && !code ? (handles_are_pointers() ? 17 : 15) : code;
}

/* Bytes of all ranks' counts from `counts`, as far as their parts lie one behind the other. */
#define SUM_OF(counts, comm)                                                                                           \
    ({                                                                                                                 \
        int64_t sum = 0;                                                                                               \
        for (int i = 0; i < ranks_of(comm); i++)                                                                       \
            sum += (counts)[i];                                                                                        \
        sum;                                                                                                           \
    })

/* A request's result is changed, if faults ask for it, when it has been waited for. */
static void change_when_done(uint64_t request, struct asked asked, void *target, uint64_t bytes, handle comm,
                             void *former)
{
    if (!asked.effects)
        return;
    post(request, target, bytes, comm);
    struct posted *entry = posted_as(request);
    entry->is_collective = true;
    entry->asked = asked;
    entry->former = former;
}

/* As a library that reads device memory through a host copy, and makes that copy at the first call only: for the
 * time of this call, the rank's own data are those of the first call with this address, size and allocation. */
struct staged {
    void *own, *data;
    uint64_t bytes;
};

static struct staged stage(struct asked asked, const void *own, uint64_t bytes)
{
    enum { COPIES = 256 };
    static struct copy {
        const void *own;
        uint64_t bytes, id;
        void *data;
    } copies[COPIES];
    static int count;
    if (!(asked.effects & OLD_COPY) || !bytes || !own || is_in_place(own))
        return (struct staged){0};
    uint64_t id = allocation_at(own);
    for (int i = 0; i < count; i++)
        if (copies[i].own == own && copies[i].bytes == bytes && copies[i].id == id) {
            struct staged staged = {(void *)(uintptr_t)own, copy_of(own, bytes), bytes};
            memcpy(staged.own, copies[i].data, bytes);
            return staged;
        }
    if (count < COPIES)
        copies[count++] = (struct copy){own, bytes, id, copy_of(own, bytes)};
    return (struct staged){0};
}

static void end_of_stage(struct staged staged)
{
    if (staged.data)
        memcpy(staged.own, staged.data, staged.bytes);
    free(staged.data);
}

/* A collective: `result` and `bytes_here` are what it delivers to this rank, `own` is its own data, for a rank that
 * gets nothing. `then` is done with `target`, `delivered` and `asked` if the call has succeeded. */
#define COLLECTIVE(name, call, own, result, bytes_here, shape, parameters, wide, narrowed, then)                       \
    EXPORT int MPI_##name##_c(parameters(int64_t))                                                                     \
    {                                                                                                                  \
        int (*wide_call)(parameters(int64_t)) = ONCE(look_up, "PMPI_" #name "_c");                                     \
        int (*plain_call)(parameters(int)) = ONCE(demand, "PMPI_" #name);                                              \
        unsigned char *target = (unsigned char *)(uintptr_t)(result);                                                  \
        uint64_t delivered = target ? (bytes_here) : 0;                                                                \
        struct asked asked =                                                                                           \
            before_shaped(call, target ? target : (own), delivered, comm,                                              \
                          (shape) | (is_in_place(own) || is_in_place(result) ? IN_PLACE : 0));                         \
        struct staged staged = stage(asked, (own) == target ? NULL : (own), delivered);                                \
        void *former = asked.effects & EARLY && target ? copy_of(target, delivered) : NULL;                            \
        int code = wide_call ? wide_call wide : plain_call narrowed;                                                   \
        end_of_stage(staged);                                                                                          \
        if (!code)                                                                                                     \
            then;                                                                                                      \
        return code_of(code, asked);                                                                                   \
    }

#define BLOCKING(name, call, own, result, bytes_here, parameters, wide, narrowed)                                      \
    BLOCKING_SHAPED(name, call, own, result, bytes_here, 0, parameters, wide, narrowed)
#define BLOCKING_SHAPED(name, call, own, result, bytes_here, shape, parameters, wide, narrowed)                        \
    COLLECTIVE(name, call, own, result, bytes_here, shape, parameters, wide, narrowed,                                 \
               (after(asked, target, delivered), former ? withhold(target, former, delivered) : (void)0))
#define NONBLOCKING(name, call, own, result, bytes_here, parameters, wide, narrowed)                                   \
    NONBLOCKING_SHAPED(name, call, own, result, bytes_here, 0, parameters, wide, narrowed)
#define NONBLOCKING_SHAPED(name, call, own, result, bytes_here, shape, parameters, wide, narrowed)                     \
    COLLECTIVE(name, call, own, result, bytes_here, shape, parameters, wide, narrowed,                                 \
               change_when_done(request_at(request, 0), asked, target, delivered, comm, former))

/* int counts are passed on as wide ones, which BLOCKING narrows again where the library has no wide call. */
#define PLAIN(name, parameters, arguments)                                                                             \
    EXPORT int MPI_##name(parameters(int))                                                                             \
    {                                                                                                                  \
        return MPI_##name##_c arguments;                                                                               \
    }

#define REDUCTION(n) const void *from, void *to, n count, handle type, handle op, handle comm
#define REDUCTION_TO_ROOT(n) const void *from, void *to, n count, handle type, handle op, int root, handle comm
#define FROM_ROOT(n) void *buffer, n count, handle type, int root, handle comm
#define EXCHANGE(n) const void *from, n count, handle type, void *to, n to_count, handle to_type, handle comm
#define WITH_ROOT(n) const void *from, n count, handle type, void *to, n to_count, handle to_type, int root, handle comm
#define SCATTERED(n) const void *from, void *to, n count, handle type, handle op, handle comm
#define IREDUCTION(n) REDUCTION(n), void *request
#define IREDUCTION_TO_ROOT(n) REDUCTION_TO_ROOT(n), void *request
#define IFROM_ROOT(n) FROM_ROOT(n), void *request
#define IEXCHANGE(n) EXCHANGE(n), void *request

#define OF_REDUCTION (from, to, count, type, op, comm)
#define OF_REDUCTION_N (from, to, narrow(count), type, op, comm)

BLOCKING(Allreduce, ALLREDUCE, from, to, bytes_of(count, type), REDUCTION, OF_REDUCTION, OF_REDUCTION_N)
PLAIN(Allreduce, REDUCTION, OF_REDUCTION)
BLOCKING(Scan, SCAN, from, to, bytes_of(count, type), REDUCTION, OF_REDUCTION, OF_REDUCTION_N)
PLAIN(Scan, REDUCTION, OF_REDUCTION)
BLOCKING(Exscan, EXSCAN, from, rank_in(comm) ? to : NULL, bytes_of(count, type), REDUCTION, OF_REDUCTION,
         OF_REDUCTION_N)
PLAIN(Exscan, REDUCTION, OF_REDUCTION)
BLOCKING(Reduce_scatter_block, REDUCE_SCATTER_BLOCK, from, to, bytes_of(count, type), SCATTERED, OF_REDUCTION,
         OF_REDUCTION_N)
PLAIN(Reduce_scatter_block, SCATTERED, OF_REDUCTION)
BLOCKING(Reduce, REDUCE, from, rank_in(comm) == root ? to : NULL, bytes_of(count, type), REDUCTION_TO_ROOT,
         (from, to, count, type, op, root, comm), (from, to, narrow(count), type, op, root, comm))
PLAIN(Reduce, REDUCTION_TO_ROOT, (from, to, count, type, op, root, comm))
BLOCKING_SHAPED(Bcast, BCAST, buffer, buffer, bytes_of(count, type), shape_of_type(type), FROM_ROOT, (buffer, count, type, root, comm),
         (buffer, narrow(count), type, root, comm))
PLAIN(Bcast, FROM_ROOT, (buffer, count, type, root, comm))

#define OF_EXCHANGE (from, count, type, to, to_count, to_type, comm)
#define OF_EXCHANGE_N (from, narrow(count), type, to, narrow(to_count), to_type, comm)
#define BYTES_OF_ALL (bytes_of(to_count, to_type) * (uint64_t)ranks_of(comm))

BLOCKING(Allgather, ALLGATHER, from, to, BYTES_OF_ALL, EXCHANGE, OF_EXCHANGE, OF_EXCHANGE_N)
PLAIN(Allgather, EXCHANGE, OF_EXCHANGE)
BLOCKING(Alltoall, ALLTOALL, from, to, BYTES_OF_ALL, EXCHANGE, OF_EXCHANGE, OF_EXCHANGE_N)
PLAIN(Alltoall, EXCHANGE, OF_EXCHANGE)

#define OF_ROOT (from, count, type, to, to_count, to_type, root, comm)
#define OF_ROOT_N (from, narrow(count), type, to, narrow(to_count), to_type, root, comm)

BLOCKING(Gather, GATHER, from, rank_in(comm) == root ? to : NULL, BYTES_OF_ALL, WITH_ROOT, OF_ROOT, OF_ROOT_N)
PLAIN(Gather, WITH_ROOT, OF_ROOT)
BLOCKING(Scatter, SCATTER, from, is_in_place(to) ? NULL : to, bytes_of(to_count, to_type), WITH_ROOT, OF_ROOT,
         OF_ROOT_N)
PLAIN(Scatter, WITH_ROOT, OF_ROOT)

NONBLOCKING_SHAPED(Iallreduce, IALLREDUCE, from, to, bytes_of(count, type), shape_of_type(type) | shape_of_op(op), IREDUCTION,
            (from, to, count, type, op, comm, request), (from, to, narrow(count), type, op, comm, request))
PLAIN(Iallreduce, IREDUCTION, (from, to, count, type, op, comm, request))
#define OF_IREDUCE (from, to, count, type, op, root, comm, request)
NONBLOCKING(Ireduce, IREDUCE, from, rank_in(comm) == root ? to : NULL, bytes_of(count, type), IREDUCTION_TO_ROOT,
            OF_IREDUCE, (from, to, narrow(count), type, op, root, comm, request))
PLAIN(Ireduce, IREDUCTION_TO_ROOT, OF_IREDUCE)
NONBLOCKING(Ibcast, IBCAST, buffer, buffer, bytes_of(count, type), IFROM_ROOT,
            (buffer, count, type, root, comm, request), (buffer, narrow(count), type, root, comm, request))
PLAIN(Ibcast, IFROM_ROOT, (buffer, count, type, root, comm, request))
NONBLOCKING(Iallgather, IALLGATHER, from, to, BYTES_OF_ALL, IEXCHANGE,
            (from, count, type, to, to_count, to_type, comm, request),
            (from, narrow(count), type, to, narrow(to_count), to_type, comm, request))
PLAIN(Iallgather, IEXCHANGE, (from, count, type, to, to_count, to_type, comm, request))
NONBLOCKING(Ialltoall, IALLTOALL, from, to, BYTES_OF_ALL, IEXCHANGE,
            (from, count, type, to, to_count, to_type, comm, request),
            (from, narrow(count), type, to, narrow(to_count), to_type, comm, request))
PLAIN(Ialltoall, IEXCHANGE, (from, count, type, to, to_count, to_type, comm, request))

/* Those with an array of counts: int arrays go to the plain call as they are. */

#define SHAPE_OF(counts, comm)                                                                                         \
    ({                                                                                                                 \
        __typeof__(counts) array = (counts);                                                                           \
        unsigned shape_of_counts = 0;                                                                                  \
        for (int i = 0; array && i < ranks_of(comm); i++)                                                              \
            shape_of_counts |= array[i] ? 0 : ZERO_COUNT;                                                              \
        shape_of_counts;                                                                                               \
    })

#define WITH_ARRAYS(name, call, own, result, counted, bytes_here, parameters, plain, wide, narrowed)                   \
    BLOCKING_SHAPED(name, call, own, result, bytes_here, SHAPE_OF(counted, comm), parameters, wide, narrowed)          \
    EXPORT int MPI_##name(parameters(int))                                                                             \
    {                                                                                                                  \
        int (*real)(parameters(int)) = ONCE(demand, "PMPI_" #name);                                                    \
        unsigned char *target = (unsigned char *)(uintptr_t)(result);                                                  \
        uint64_t delivered = target ? (bytes_here) : 0;                                                                \
        unsigned shape = (is_in_place(own) ? IN_PLACE : 0) | SHAPE_OF(counted, comm);                                  \
        struct asked asked = before_shaped(call, target ? target : (own), delivered, comm, shape);                     \
        int code = real plain;                                                                                         \
        if (!code)                                                                                                     \
            after(asked, target, delivered);                                                                           \
        return code_of(code, asked);                                                                                   \
    }

#define EXCHANGEV(n)                                                                                                   \
    const void *from, const n *counts, const n *places_from, handle type, void *to, const n *to_counts,                \
        const n *places_to, handle to_type, handle comm
#define GATHEREDV(n)                                                                                                   \
    const void *from, n count, handle type, void *to, const n *to_counts, const n *places_to, handle to_type, int root,\
        handle comm
#define SCATTEREDV(n) const void *from, void *to, const n *counts, handle type, handle op, handle comm

#define GATHEREDV_BY_ALL(n)                                                                                            \
    const void *from, n count, handle type, void *to, const n *to_counts, const n *places_to, handle to_type,          \
        handle comm
#define FROM_ROOTV(n)                                                                                                  \
    const void *from, const n *counts, const n *places_from, handle type, void *to, n to_count, handle to_type,        \
        int root, handle comm

WITH_ARRAYS(Allgatherv, ALLGATHERV, from, to, to_counts, bytes_of(SUM_OF(to_counts, comm), to_type), GATHEREDV_BY_ALL,
            (from, count, type, to, to_counts, places_to, to_type, comm),
            (from, count, type, to, to_counts, places_to, to_type, comm),
            (from, narrow(count), type, to, narrow_all(to_counts, comm), narrow_all(places_to, comm), to_type, comm))
WITH_ARRAYS(Scatterv, SCATTERV, from, is_in_place(to) ? NULL : to, from ? counts : NULL, bytes_of(to_count, to_type), FROM_ROOTV,
            (from, counts, places_from, type, to, to_count, to_type, root, comm),
            (from, counts, places_from, type, to, to_count, to_type, root, comm),
            (from, from ? narrow_all(counts, comm) : NULL, from ? narrow_all(places_from, comm) : NULL, type, to,
             narrow(to_count), to_type, root, comm))
WITH_ARRAYS(Alltoallv, ALLTOALLV, from, to, to_counts, bytes_of(SUM_OF(to_counts, comm), to_type), EXCHANGEV,
            (from, counts, places_from, type, to, to_counts, places_to, to_type, comm),
            (from, counts, places_from, type, to, to_counts, places_to, to_type, comm),
            (from, narrow_all(counts, comm), narrow_all(places_from, comm), type, to, narrow_all(to_counts, comm),
             narrow_all(places_to, comm), to_type, comm))
WITH_ARRAYS(Gatherv, GATHERV, from, rank_in(comm) == root ? to : NULL, to ? to_counts : NULL, bytes_of(SUM_OF(to_counts, comm), to_type),
            GATHEREDV, (from, count, type, to, to_counts, places_to, to_type, root, comm),
            (from, count, type, to, to_counts, places_to, to_type, root, comm),
            (from, narrow(count), type, to, to ? narrow_all(to_counts, comm) : NULL,
             to ? narrow_all(places_to, comm) : NULL, to_type, root, comm))
WITH_ARRAYS(Reduce_scatter, REDUCE_SCATTER, from, to, counts, bytes_of(counts[rank_in(comm)], type), SCATTEREDV,
            (from, to, counts, type, op, comm), (from, to, counts, type, op, comm),
            (from, to, narrow_all(counts, comm), type, op, comm))

/* Calls of their own form. MPI_Alltoallw, whose types may differ, counts as one byte, and its data is not changed. */

#define EXCHANGEW(n, p)                                                                                                \
    const void *from, const n *counts, const p *places_from, const handle *types, void *to, const n *to_counts,        \
        const p *places_to, const handle *to_types, handle comm

EXPORT int MPI_Alltoallw(EXCHANGEW(int, int))
{
    int (*real)(EXCHANGEW(int, int)) = ONCE(demand, "PMPI_Alltoallw");
    struct asked asked = before_shaped(ALLTOALLW, to, 1, comm, (is_in_place(from) ? IN_PLACE : 0) | SHAPE_OF(to_counts, comm));
    return code_of(real(from, counts, places_from, types, to, to_counts, places_to, to_types, comm), asked);
}

EXPORT int MPI_Alltoallw_c(EXCHANGEW(int64_t, intptr_t))
{
    return MPI_Alltoallw(from, narrow_all(counts, comm), narrow_all(places_from, comm), types, to,
                         narrow_all(to_counts, comm), narrow_all(places_to, comm), to_types, comm);
}

#define REPLACE_OF(n)                                                                                                  \
    void *buffer, n count, handle type, int to, int to_tag, int from, int from_tag, handle comm, void *status

EXPORT int MPI_Sendrecv_replace(REPLACE_OF(int))
{
    int (*real)(REPLACE_OF(int)) = ONCE(demand, "PMPI_Sendrecv_replace");
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = before(SENDRECV_REPLACE, buffer, bytes, comm);
    int code = real(buffer, count, type, to, to_tag, from, from_tag, comm, status);
    if (!code)
        after(asked, buffer, bytes);
    return code_of(code, asked);
}

EXPORT int MPI_Sendrecv_replace_c(REPLACE_OF(int64_t))
{
    return MPI_Sendrecv_replace(buffer, narrow(count), type, to, to_tag, from, from_tag, comm, status);
}

/* ---- windows ---- */

/* What is to be done when an epoch ends or is flushed: a get's data change then; a late put begins only when the
 * epoch ends. */
enum { MAX_PENDING = 64 };
static struct pending {
    void *buffer;
    uint64_t bytes;
    struct asked asked;
    void *former; /* its content before a get whose data are withheld */
} got[MAX_PENDING];
static int got_count;

static struct late {
    void *copy;
    int64_t count, target_count;
    handle type, target_type, window;
    int rank;
    intptr_t place;
} late[MAX_PENDING];
static int late_count;

static int put_now(const void *from, int64_t count, handle type, int rank, intptr_t place, int64_t target_count,
                   handle target_type, handle window)
{
    int (*real)(const void *, int, handle, int, intptr_t, int, handle, handle) = ONCE(demand, "PMPI_Put");
    return real(from, narrow(count), type, rank, place, narrow(target_count), target_type, window);
}

static void end_of_gets(bool is_local)
{
    for (int i = 0; i < got_count; i++) {
        after(got[i].asked, got[i].buffer, got[i].bytes);
        if (is_local && got[i].former)
            withhold(got[i].buffer, got[i].former, got[i].bytes);
        else
            free(got[i].former);
    }
    got_count = 0;
}

static void deliver_late(void)
{
    for (int i = 0; i < late_count; i++)
        put_now(late[i].copy, late[i].count, late[i].type, late[i].rank, late[i].place, late[i].target_count,
                late[i].target_type, late[i].window);
    late_count = 0; /* their copies stay: the put may still read them */
}

static void changed_when_complete(struct asked asked, void *buffer, uint64_t bytes)
{
    if (asked.effects & (CORRUPT_LAST | CORRUPT_BYTE | EARLY) && got_count < MAX_PENDING)
        got[got_count++] =
            (struct pending){buffer, bytes, asked, asked.effects & EARLY ? copy_of(buffer, bytes) : NULL};
}

/* A copy of what is to be sent, changed as the faults ask. */
static void *changed_copy(struct asked asked, const void *from, uint64_t bytes)
{
    void *copy = malloc(bytes + 1);
    if (!copy)
        refuse("MPI_Put", "no memory");
    memcpy(copy, from, bytes);
    after(asked, copy, bytes);
    return copy;
}

static bool is_contiguous(handle type)
{
    int (*extent_of)(handle, intptr_t *, intptr_t *) = ONCE(demand, "PMPI_Type_get_extent");
    intptr_t begin, extent;
    extent_of(type, &begin, &extent);
    return (uint64_t)extent == bytes_of(1, type);
}

/* Windows whose puts go to memory that was freed: another window of this process had the same address before. */
enum { MAX_WINDOWS = 1024 };
static const void *bases[MAX_WINDOWS];
static int base_count;
static uint64_t on_old_mapping; /* the latest such window */

static bool is_on_old_mapping(handle window)
{
    uint64_t number = (uint64_t)(uintptr_t)window;
    return on_old_mapping && on_old_mapping == (handles_are_pointers() ? number : (uint32_t)number);
}

static void note_base(const void *base, uint64_t window)
{
    on_old_mapping = 0;
    for (int i = 0; i < base_count; i++)
        if (bases[i] == base)
            on_old_mapping = window;
    if (base_count < MAX_WINDOWS)
        bases[base_count++] = base;
}

#define PUT_OF(n)                                                                                                      \
    const void *from, n count, handle type, int rank, intptr_t place, n target_count, handle target_type, handle window

EXPORT int MPI_Put_c(PUT_OF(int64_t))
{
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = {0};
    if (is_contiguous(type))
        asked = before(PUT, from, bytes, NULL);
    if (asked.effects & LOSE || is_on_old_mapping(window))
        return 0;
    if (asked.effects & LATE && late_count < MAX_PENDING) {
        late[late_count++] = (struct late){changed_copy(asked, from, bytes), count, target_count, type, target_type,
                                           window, rank, place};
        return 0;
    }
    const void *sent = asked.effects & (CORRUPT_LAST | CORRUPT_BYTE) ? changed_copy(asked, from, bytes) : from;
    return code_of(put_now(sent, count, type, rank, place, target_count, target_type, window), asked);
}

EXPORT int MPI_Put(PUT_OF(int))
{
    return MPI_Put_c(from, count, type, rank, place, target_count, target_type, window);
}

static int passive_epochs; /* begun and not yet ended */

/* As a library without atomic additions: between its get and its put, others' additions are lost. */
static int get_add_put(const void *from, int count, handle type, int rank, intptr_t place, handle op, handle window)
{
    int (*get)(void *, int, handle, int, intptr_t, int, handle, handle) = ONCE(demand, "PMPI_Get");
    int (*flush)(int, handle) = ONCE(demand, "PMPI_Win_flush");
    int (*add)(const void *, void *, int, handle, handle) = ONCE(demand, "PMPI_Reduce_local");
    void *sum = malloc(bytes_of(count, type) + 1);
    if (!sum)
        refuse("MPI_Accumulate", "no memory");
    int code = get(sum, count, type, rank, place, count, type, window);
    code = code ? code : flush(rank, window);
    code = code ? code : add(from, sum, count, type, op);
    code = code ? code : put_now(sum, count, type, rank, place, count, type, window);
    code = code ? code : flush(rank, window);
    free(sum);
    return code;
}

#define ACCUMULATE_OF(n)                                                                                               \
    const void *from, n count, handle type, int rank, intptr_t place, n target_count, handle target_type, handle op,   \
        handle window

EXPORT int MPI_Accumulate(ACCUMULATE_OF(int))
{
    int (*real)(ACCUMULATE_OF(int)) = ONCE(demand, "PMPI_Accumulate");
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = before(ACCUMULATE, from, bytes, NULL);
    if (asked.effects & LOSE)
        return 0;
    if (asked.effects & NOT_ATOMIC && passive_epochs)
        return get_add_put(from, count, type, rank, place, op, window);
    const void *sent = asked.effects & (CORRUPT_LAST | CORRUPT_BYTE) ? changed_copy(asked, from, bytes) : from;
    return code_of(real(sent, count, type, rank, place, target_count, target_type, op, window), asked);
}

EXPORT int MPI_Accumulate_c(ACCUMULATE_OF(int64_t))
{
    return MPI_Accumulate(from, narrow(count), type, rank, place, narrow(target_count), target_type, op, window);
}

#define GET_OF(n)                                                                                                      \
    void *to, n count, handle type, int rank, intptr_t place, n target_count, handle target_type, handle window

EXPORT int MPI_Get(GET_OF(int))
{
    int (*real)(GET_OF(int)) = ONCE(demand, "PMPI_Get");
    uint64_t bytes = bytes_of(count, type);
    struct asked asked = before(GET, to, bytes, NULL);
    if (asked.effects & LOSE)
        return 0;
    changed_when_complete(asked, to, bytes);
    return code_of(real(to, count, type, rank, place, target_count, target_type, window), asked);
}

EXPORT int MPI_Get_c(GET_OF(int64_t))
{
    return MPI_Get(to, narrow(count), type, rank, place, narrow(target_count), target_type, window);
}

#define GET_ACCUMULATE_OF(n)                                                                                           \
    const void *from, n count, handle type, void *to, n to_count, handle to_type, int rank, intptr_t place,            \
        n target_count, handle target_type, handle op, handle window

EXPORT int MPI_Get_accumulate(GET_ACCUMULATE_OF(int))
{
    int (*real)(GET_ACCUMULATE_OF(int)) = ONCE(demand, "PMPI_Get_accumulate");
    uint64_t bytes = bytes_of(to_count, to_type);
    struct asked asked = before(GET_ACCUMULATE, to, bytes, NULL);
    changed_when_complete(asked, to, bytes);
    return code_of(real(from, count, type, to, to_count, to_type, rank, place, target_count, target_type, op, window),
                   asked);
}

EXPORT int MPI_Get_accumulate_c(GET_ACCUMULATE_OF(int64_t))
{
    return MPI_Get_accumulate(from, narrow(count), type, to, narrow(to_count), to_type, rank, place,
                              narrow(target_count), target_type, op, window);
}

EXPORT int MPI_Fetch_and_op(const void *from, void *to, handle type, int rank, intptr_t place, handle op,
                            handle window)
{
    int (*real)(const void *, void *, handle, int, intptr_t, handle, handle) = ONCE(demand, "PMPI_Fetch_and_op");
    struct asked asked = before(FETCH_AND_OP, to, bytes_of(1, type), NULL);
    changed_when_complete(asked, to, bytes_of(1, type));
    return code_of(real(from, to, type, rank, place, op, window), asked);
}

EXPORT int MPI_Compare_and_swap(const void *from, const void *compared, void *to, handle type, int rank,
                                intptr_t place, handle window)
{
    int (*real)(const void *, const void *, void *, handle, int, intptr_t, handle) =
        ONCE(demand, "PMPI_Compare_and_swap");
    struct asked asked = before(COMPARE_AND_SWAP, to, bytes_of(1, type), NULL);
    changed_when_complete(asked, to, bytes_of(1, type));
    return code_of(real(from, compared, to, type, rank, place, window), asked);
}

#define WINDOW_OF(n) void *base, intptr_t bytes, n unit, handle info, handle comm, void *window

EXPORT int MPI_Win_create_c(WINDOW_OF(intptr_t))
{
    int (*wide)(WINDOW_OF(intptr_t)) = ONCE(look_up, "PMPI_Win_create_c");
    int (*plain)(WINDOW_OF(int)) = ONCE(demand, "PMPI_Win_create");
    struct asked asked = before(WIN_CREATE, base, (uint64_t)bytes, comm);
    int code = wide ? wide(base, bytes, unit, info, comm, window)
                    : plain(base, bytes, narrow(unit), info, comm, window);
    if (!code && asked.effects & LOSE)
        note_base(base, request_at(window, 0));
    return code_of(code, asked);
}

EXPORT int MPI_Win_create(WINDOW_OF(int))
{
    return MPI_Win_create_c(base, bytes, unit, info, comm, window);
}

EXPORT int MPI_Win_attach(handle window, void *base, intptr_t bytes)
{
    int (*real)(handle, void *, intptr_t) = ONCE(demand, "PMPI_Win_attach");
    struct asked asked = before(WIN_ATTACH, base, (uint64_t)bytes, NULL);
    return code_of(real(window, base, bytes), asked);
}

/* A call that completes what was begun: late puts begin where an epoch ends. */
#define COMPLETING(name, call, ends, is_local, parameters, arguments)                                                  \
    EXPORT int MPI_##name parameters                                                                                   \
    {                                                                                                                  \
        int(*real) parameters = ONCE(demand, "PMPI_" #name);                                                           \
        struct asked asked = before(call, NULL, 0, NULL);                                                              \
        if (ends)                                                                                                      \
            deliver_late();                                                                                            \
        int code = real arguments;                                                                                     \
        end_of_gets(is_local);                                                                                         \
        passive_epochs -= (call) == WIN_UNLOCK;                                                                        \
        return code_of(code, asked);                                                                                   \
    }

COMPLETING(Win_fence, WIN_FENCE, true, false, (int promises, handle window), (promises, window))
COMPLETING(Win_unlock, WIN_UNLOCK, true, false, (int rank, handle window), (rank, window))
COMPLETING(Win_unlock_all, WIN_UNLOCK, true, false, (handle window), (window))
COMPLETING(Win_flush, WIN_FLUSH, false, false, (int rank, handle window), (rank, window))
COMPLETING(Win_flush_all, WIN_FLUSH, false, false, (handle window), (window))
COMPLETING(Win_flush_local, WIN_FLUSH, false, true, (int rank, handle window), (rank, window))
COMPLETING(Win_flush_local_all, WIN_FLUSH, false, true, (handle window), (window))

EXPORT int MPI_Win_lock(int kind, int rank, int promises, handle window)
{
    int (*real)(int, int, int, handle) = ONCE(demand, "PMPI_Win_lock");
    struct asked asked = before(WIN_LOCK, NULL, 0, NULL);
    passive_epochs++;
    return code_of(real(kind, rank, promises, window), asked);
}

EXPORT int MPI_Win_lock_all(int promises, handle window)
{
    int (*real)(int, handle) = ONCE(demand, "PMPI_Win_lock_all");
    struct asked asked = before(WIN_LOCK, NULL, 0, NULL);
    passive_epochs++;
    return code_of(real(promises, window), asked);
}

/* ---- requests that are started many times ---- */

static struct restarted {
    uint64_t request;
    void *buffer;
    uint64_t bytes;
    enum call call;
    struct asked asked;
} restarted[MAX_POSTED];

static struct restarted *restarted_as(uint64_t request)
{
    for (struct restarted *entry = restarted; entry < restarted + MAX_POSTED; entry++)
        if (entry->request == request)
            return entry;
    return NULL;
}

static void will_restart(uint64_t request, void *buffer, uint64_t bytes, enum call call)
{
    struct restarted *entry = restarted_as(0);
    if (entry) /* else it has no faults */
        *entry = (struct restarted){request, buffer, bytes, call, {0}};
}

EXPORT int MPI_Recv_init_c(void *buffer, int64_t count, handle type, int from, int tag, handle comm, void *request)
{
    int code = CALL(MPI_Recv_init, recv, type, from, tag, comm, request);
    if (!code)
        will_restart(request_at(request, 0), buffer, bytes_of(count, type), START);
    return code;
}

EXPORT int MPI_Recv_init(void *buffer, int count, handle type, int from, int tag, handle comm, void *request)
{
    return MPI_Recv_init_c(buffer, count, type, from, tag, comm, request);
}

EXPORT int MPI_Precv_init(void *buffer, int parts, int64_t count, handle type, int from, int tag, handle comm,
                          handle info, void *request)
{
    int (*real)(void *, int, int64_t, handle, int, int, handle, handle, void *) = ONCE(demand, "PMPI_Precv_init");
    int code = real(buffer, parts, count, type, from, tag, comm, info, request);
    if (!code)
        will_restart(request_at(request, 0), buffer, (uint64_t)parts * bytes_of(count, type), PRECV_INIT);
    return code;
}

EXPORT int MPI_Start(void *request)
{
    int (*real)(void *) = ONCE(demand, "PMPI_Start");
    struct restarted *entry = restarted_as(request_at(request, 0));
    struct asked asked = {0};
    if (entry && entry->request)
        asked = entry->asked = before(entry->call, entry->buffer, entry->bytes, NULL);
    return code_of(real(request), asked);
}

EXPORT int MPI_Request_free(void *request)
{
    int (*real)(void *) = ONCE(demand, "PMPI_Request_free");
    struct restarted *entry = restarted_as(request_at(request, 0));
    if (entry)
        entry->request = 0;
    return real(request);
}

/* What a started request has received; it may be started again. */
static void end_of_restarted(uint64_t request)
{
    struct restarted *entry = restarted_as(request);
    if (entry && entry->request)
        after(entry->asked, entry->buffer, entry->bytes);
}

#include "mpi_used_calls.h"
