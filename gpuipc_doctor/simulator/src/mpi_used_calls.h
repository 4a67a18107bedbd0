/* The calls that applications make more seldom, most in other communicators; part of mpi_faults.c. */

/* A call that delivers nothing here. */
#define WITHOUT_RESULT(name, call, buffer, bytes, comm, parameters, arguments)                                         \
    EXPORT int MPI_##name parameters                                                                                   \
    {                                                                                                                  \
        int(*real) parameters = ONCE(demand, "PMPI_" #name);                                                           \
        struct asked asked = before(call, buffer, bytes, comm);                                                        \
        return code_of(real arguments, asked);                                                                         \
    }

WITHOUT_RESULT(Comm_dup, COMM_DUP, NULL, 0, comm, (handle comm, void *made), (comm, made))
WITHOUT_RESULT(Comm_split, COMM_SPLIT, NULL, 0, comm, (handle comm, int colour, int key, void *made),
               (comm, colour, key, made))
WITHOUT_RESULT(Comm_split_type, COMM_SPLIT_TYPE, NULL, 0, comm,
               (handle comm, int type, int key, handle info, void *made), (comm, type, key, info, made))
WITHOUT_RESULT(Cart_create, CART_CREATE, NULL, 0, comm,
               (handle comm, int count, const int *sizes, const int *periods, int reorder, void *made),
               (comm, count, sizes, periods, reorder, made))
WITHOUT_RESULT(Dist_graph_create_adjacent, DIST_GRAPH_CREATE_ADJACENT, NULL, 0, comm,
               (handle comm, int in, const int *from, const int *from_weights, int out, const int *to,
                const int *to_weights, handle info, int reorder, void *made),
               (comm, in, from, from_weights, out, to, to_weights, info, reorder, made))
WITHOUT_RESULT(Intercomm_create, INTERCOMM_CREATE, NULL, 0, comm,
               (handle comm, int leader, handle peers, int other_leader, int tag, void *made),
               (comm, leader, peers, other_leader, tag, made))
WITHOUT_RESULT(Comm_create_from_group, COMM_CREATE_FROM_GROUP, NULL, 0, NULL,
               (handle group, const char *tag, handle info, handle errors, void *made),
               (group, tag, info, errors, made))
WITHOUT_RESULT(Session_init, SESSION_INIT, NULL, 0, NULL, (handle info, handle errors, void *made),
               (info, errors, made))
WITHOUT_RESULT(Win_post, WIN_POST, NULL, 0, NULL, (handle group, int promises, handle window),
               (group, promises, window))
WITHOUT_RESULT(Win_start, WIN_START, NULL, 0, NULL, (handle group, int promises, handle window),
               (group, promises, window))
COMPLETING(Win_complete, WIN_COMPLETE, true, false, (handle window), (window))
WITHOUT_RESULT(Win_wait, WIN_WAIT, NULL, 0, NULL, (handle window), (window))

/* ---- messages ---- */

#define SENT_OF(n) const void *buffer, n count, handle type, int to, int tag, handle comm
#define ISENT_OF(n) SENT_OF(n), void *request

#define SENDING(name, call, kind, parameters, ...)                                                                     \
    EXPORT int MPI_##name##_c(parameters(int64_t))                                                                     \
    {                                                                                                                  \
        uint64_t bytes = bytes_of(count, type);                                                                        \
        struct asked asked = before(call, buffer, bytes, comm);                                                        \
        void *copy = asked.effects & CORRUPT_LAST ? copy_of(buffer, bytes) : NULL; /* never freed: it may be read late */ \
        if (copy)                                                                                                      \
            after(asked, copy, bytes);                                                                                 \
        buffer = copy ? copy : buffer;                                                                                 \
        return code_of(CALL(MPI_##name, kind, __VA_ARGS__), asked);                                                    \
    }                                                                                                                  \
    PLAIN(name, parameters, (buffer, count, __VA_ARGS__))

SENDING(Bsend, BSEND, send, SENT_OF, type, to, tag, comm)
SENDING(Ssend, SSEND, send, SENT_OF, type, to, tag, comm)
SENDING(Rsend, RSEND, send, SENT_OF, type, to, tag, comm)
SENDING(Ibsend, IBSEND, isend, ISENT_OF, type, to, tag, comm, request)
SENDING(Issend, ISSEND, isend, ISENT_OF, type, to, tag, comm, request)
SENDING(Irsend, IRSEND, isend, ISENT_OF, type, to, tag, comm, request)

/* A request's result is changed, as the fault of the call that began it asks, when it has been waited for. */
static int begun(int code, struct asked asked, void *request, void *buffer, uint64_t bytes, handle comm)
{
    if (!code)
        change_when_done(request_at(request, 0), asked, buffer, bytes, comm, NULL);
    return code_of(code, asked);
}

EXPORT int MPI_Imrecv_c(void *buffer, int64_t count, handle type, void *message, void *request)
{
    struct asked asked = before(IMRECV, buffer, bytes_of(count, type), NULL);
    return begun(CALL(MPI_Imrecv, mrecv, type, message, request), asked, request, buffer, bytes_of(count, type), NULL);
}

EXPORT int MPI_Imrecv(void *buffer, int count, handle type, void *message, void *request)
{
    return MPI_Imrecv_c(buffer, count, type, message, request);
}

EXPORT int MPI_Isendrecv_c(const void *buffer, int64_t count, handle type, int to, int tag, void *into, int64_t room,
                           handle into_type, int from, int from_tag, handle comm, void *request)
{
    sendrecv_c_call *wide = ONCE(look_up, "PMPI_Isendrecv_c");
    sendrecv_call *plain = ONCE(demand, "PMPI_Isendrecv");
    uint64_t bytes = bytes_of(room, into_type);
    struct asked asked = before(ISENDRECV, into, bytes, comm);
    int code = wide ? wide(buffer, count, type, to, tag, into, room, into_type, from, from_tag, comm, request)
                    : plain(buffer, narrow(count), type, to, tag, into, narrow(room), into_type, from, from_tag, comm,
                            request);
    return begun(code, asked, request, into, bytes, comm);
}

EXPORT int MPI_Isendrecv(const void *buffer, int count, handle type, int to, int tag, void *into, int room,
                         handle into_type, int from, int from_tag, handle comm, void *request)
{
    return MPI_Isendrecv_c(buffer, count, type, to, tag, into, room, into_type, from, from_tag, comm, request);
}

/* The faults of a call that waits for one of several, or asks, strike in all that are posted when it is called. */
#define FINDING(name, call, done, parameters, arguments)                                                               \
    EXPORT int MPI_##name parameters                                                                                   \
    {                                                                                                                  \
        int(*real) parameters = ONCE(demand, "PMPI_" #name);                                                           \
        struct posted *received[MAX_POSTED], *complete[MAX_POSTED];                                                    \
        uint64_t numbers[MAX_POSTED];                                                                                  \
        int found = 0;                                                                                                 \
        for (int i = 0; i < count && i < MAX_POSTED; i++) {                                                            \
            numbers[i] = request_at(requests, i);                                                                      \
            struct posted *entry = posted_as(numbers[i]);                                                              \
            received[i] = entry && numbers[i] && entry->request ? entry : NULL;                                        \
        }                                                                                                              \
        int code = real arguments;                                                                                     \
        for (int i = 0; i < count && i < MAX_POSTED; i++)                                                              \
            if (!code && received[i] && (done)) {                                                                      \
                if (!received[i]->is_collective)                                                                       \
                    received[i]->asked = before(call, received[i]->buffer, received[i]->bytes, received[i]->comm);     \
                complete[found++] = received[i];                                                                       \
            }                                                                                                          \
        struct asked asked = found ? complete[0]->asked : (struct asked){0};                                           \
        end_waiting(complete, found, !code);                                                                           \
        return code_of(code, asked);                                                                                   \
    }

static bool is_among(const int *indices, int count, int number)
{
    for (int i = 0; i < count; i++)
        if (indices[i] == number)
            return true;
    return false;
}

FINDING(Waitany, WAITANY, i == *index, (int count, void *requests, int *index, void *status),
        (count, requests, index, status))
FINDING(Testany, TESTANY, *flag && i == *index, (int count, void *requests, int *index, int *flag, void *status),
        (count, requests, index, flag, status))
FINDING(Waitsome, WAITSOME, is_among(indices, *outcome, i),
        (int count, void *requests, int *outcome, int *indices, void *statuses),
        (count, requests, outcome, indices, statuses))
FINDING(Testsome, TESTSOME, is_among(indices, *outcome, i),
        (int count, void *requests, int *outcome, int *indices, void *statuses),
        (count, requests, outcome, indices, statuses))
FINDING(Testall, TESTALL, *flag, (int count, void *requests, int *flag, void *statuses),
        (count, requests, flag, statuses))

#define UNPACKED(n) const void *from, n bytes, n *position, void *to, n count, handle type, handle comm

EXPORT int MPI_Unpack(UNPACKED(int))
{
    int (*real)(UNPACKED(int)) = ONCE(demand, "PMPI_Unpack");
    struct asked asked = before(UNPACK, to, bytes_of(count, type), comm);
    int code = real(from, bytes, position, to, count, type, comm);
    if (asked.effects & CORRUPT_FIRST)
        ((unsigned char *)to)[first_byte(type)] += 0x10;
    return code_of(code, asked);
}

EXPORT int MPI_Unpack_c(UNPACKED(int64_t))
{
    int at = narrow(*position), code = MPI_Unpack(from, narrow(bytes), &at, to, narrow(count), type, comm);
    *position = at;
    return code;
}

/* ---- collectives ---- */

#define NEIGHBOURS 2 /* of each rank in the communicators of the checks */
#define BYTES_OF_NEIGHBOURS (NEIGHBOURS * bytes_of(to_count, to_type))
#define OF_IEXCHANGE (from, count, type, to, to_count, to_type, comm, request)
#define OF_IEXCHANGE_N (from, narrow(count), type, to, narrow(to_count), to_type, comm, request)
#define IWITH_ROOT(n) WITH_ROOT(n), void *request
#define OF_IROOT (from, count, type, to, to_count, to_type, root, comm, request)
#define OF_IROOT_N (from, narrow(count), type, to, narrow(to_count), to_type, root, comm, request)

BLOCKING(Neighbor_allgather, NEIGHBOR_ALLGATHER, from, to, BYTES_OF_NEIGHBOURS, EXCHANGE, OF_EXCHANGE, OF_EXCHANGE_N)
PLAIN(Neighbor_allgather, EXCHANGE, OF_EXCHANGE)
BLOCKING(Neighbor_alltoall, NEIGHBOR_ALLTOALL, from, to, BYTES_OF_NEIGHBOURS, EXCHANGE, OF_EXCHANGE, OF_EXCHANGE_N)
PLAIN(Neighbor_alltoall, EXCHANGE, OF_EXCHANGE)
NONBLOCKING(Ineighbor_allgather, INEIGHBOR_ALLGATHER, from, to, BYTES_OF_NEIGHBOURS, IEXCHANGE, OF_IEXCHANGE,
            OF_IEXCHANGE_N)
PLAIN(Ineighbor_allgather, IEXCHANGE, OF_IEXCHANGE)
NONBLOCKING(Ineighbor_alltoall, INEIGHBOR_ALLTOALL, from, to, BYTES_OF_NEIGHBOURS, IEXCHANGE, OF_IEXCHANGE,
            OF_IEXCHANGE_N)
PLAIN(Ineighbor_alltoall, IEXCHANGE, OF_IEXCHANGE)

#define OF_IREDUCTION (from, to, count, type, op, comm, request)
#define OF_IREDUCTION_N (from, to, narrow(count), type, op, comm, request)

NONBLOCKING(Iscan, ISCAN, from, to, bytes_of(count, type), IREDUCTION, OF_IREDUCTION, OF_IREDUCTION_N)
PLAIN(Iscan, IREDUCTION, OF_IREDUCTION)
NONBLOCKING(Iexscan, IEXSCAN, from, rank_in(comm) ? to : NULL, bytes_of(count, type), IREDUCTION, OF_IREDUCTION,
            OF_IREDUCTION_N)
PLAIN(Iexscan, IREDUCTION, OF_IREDUCTION)
NONBLOCKING(Ireduce_scatter_block, IREDUCE_SCATTER_BLOCK, from, to, bytes_of(count, type), IREDUCTION, OF_IREDUCTION,
            OF_IREDUCTION_N)
PLAIN(Ireduce_scatter_block, IREDUCTION, OF_IREDUCTION)
NONBLOCKING_SHAPED(Igather, IGATHER, from, rank_in(comm) == root ? to : NULL, BYTES_OF_ALL,
                   is_in_place(from) ? 0 : shape_of_type(type), IWITH_ROOT, OF_IROOT, OF_IROOT_N)
PLAIN(Igather, IWITH_ROOT, OF_IROOT)
NONBLOCKING(Iscatter, ISCATTER, from, is_in_place(to) ? NULL : to, bytes_of(to_count, to_type), IWITH_ROOT, OF_IROOT,
            OF_IROOT_N)
PLAIN(Iscatter, IWITH_ROOT, OF_IROOT)

/* Calls with arrays of counts, which a library may read until they end. */
#define WITH_COUNTS(name, call, target, bytes_here, finish, parameters, plain, narrowed)                               \
    EXPORT int MPI_##name(parameters(int, int))                                                                        \
    {                                                                                                                  \
        int (*real)(parameters(int, int)) = ONCE(demand, "PMPI_" #name);                                               \
        uint64_t bytes = (target) ? (bytes_here) : 0;                                                                  \
        struct asked asked = before(call, target, bytes, comm);                                                        \
        int code = real plain;                                                                                         \
        return finish;                                                                                                 \
    }                                                                                                                  \
    EXPORT int MPI_##name##_c(parameters(int64_t, intptr_t))                                                           \
    {                                                                                                                  \
        int (*real)(parameters(int64_t, intptr_t)) = ONCE(look_up, "PMPI_" #name "_c");                                \
        if (!real)                                                                                                     \
            return MPI_##name narrowed;                                                                                \
        uint64_t bytes = (target) ? (bytes_here) : 0;                                                                  \
        struct asked asked = before(call, target, bytes, comm);                                                        \
        int code = real plain;                                                                                         \
        return finish;                                                                                                 \
    }

#define AT_ONCE (code ? (void)0 : after(asked, to, bytes), code_of(code, asked))
#define WHEN_WAITED(target) begun(code, asked, request, target, bytes, comm)
#define SUM_OF_NEIGHBOURS bytes_of(to_counts[0] + to_counts[1], to_type)

#define VECTORS(n, p)                                                                                                  \
    const void *from, const n *counts, const p *places_from, handle type, void *to, const n *to_counts,                \
        const p *places_to, handle to_type, handle comm
#define IVECTORS(n, p) VECTORS(n, p), void *request
#define OF_VECTORS (from, counts, places_from, type, to, to_counts, places_to, to_type, comm)
#define OF_IVECTORS (from, counts, places_from, type, to, to_counts, places_to, to_type, comm, request)
#define WVECTORS(n, p)                                                                                                 \
    const void *from, const n *counts, const intptr_t *places_from, const handle *types, void *to, const n *to_counts, \
        const intptr_t *places_to, const handle *to_types, handle comm
#define IGATHERED(n, p)                                                                                                \
    const void *from, n count, handle type, void *to, const n *to_counts, const p *places_to, handle to_type,          \
        handle comm, void *request
#define IGATHERED_BY_ROOT(n, p)                                                                                        \
    const void *from, n count, handle type, void *to, const n *to_counts, const p *places_to, handle to_type,          \
        int root, handle comm, void *request
#define ISCATTERED(n, p)                                                                                               \
    const void *from, const n *counts, const p *places_from, handle type, void *to, n to_count, handle to_type,        \
        int root, handle comm, void *request

#define NARROW(counts) narrow_all(counts, comm)
#define NARROW_PLACES(places) narrow_all((const int64_t *)(places), comm)
#define OF_IVECTORS_N                                                                                                  \
    (from, NARROW(counts), NARROW_PLACES(places_from), type, to, NARROW(to_counts), NARROW_PLACES(places_to), to_type, \
     comm, request)
#define NEAR(array) narrow_array((const int64_t *)(array), NEIGHBOURS)
#define AT_ROOT (rank_in(comm) == root ? to : NULL)

WITH_COUNTS(Neighbor_alltoallv, NEIGHBOR_ALLTOALLV, to, SUM_OF_NEIGHBOURS, AT_ONCE, VECTORS, OF_VECTORS,
            (from, NEAR(counts), NEAR(places_from), type, to, NEAR(to_counts), NEAR(places_to), to_type, comm))
WITH_COUNTS(Ineighbor_alltoallv, INEIGHBOR_ALLTOALLV, to, SUM_OF_NEIGHBOURS, WHEN_WAITED(to), IVECTORS, OF_IVECTORS,
            (from, NEAR(counts), NEAR(places_from), type, to, NEAR(to_counts), NEAR(places_to), to_type, comm, request))
WITH_COUNTS(Neighbor_alltoallw, NEIGHBOR_ALLTOALLW, to, 1, code_of(code, asked), WVECTORS,
            (from, counts, places_from, types, to, to_counts, places_to, to_types, comm),
            (from, NEAR(counts), places_from, types, to, NEAR(to_counts), places_to, to_types, comm))
WITH_COUNTS(Ialltoallv, IALLTOALLV, to, bytes_of(SUM_OF(to_counts, comm), to_type), WHEN_WAITED(to), IVECTORS,
            OF_IVECTORS, OF_IVECTORS_N)
WITH_COUNTS(Iallgatherv, IALLGATHERV, to, bytes_of(SUM_OF(to_counts, comm), to_type), WHEN_WAITED(to), IGATHERED,
            (from, count, type, to, to_counts, places_to, to_type, comm, request),
            (from, narrow(count), type, to, NARROW(to_counts), NARROW_PLACES(places_to), to_type, comm, request))
WITH_COUNTS(Igatherv, IGATHERV, AT_ROOT, bytes_of(SUM_OF(to_counts, comm), to_type), WHEN_WAITED(AT_ROOT),
            IGATHERED_BY_ROOT, (from, count, type, to, to_counts, places_to, to_type, root, comm, request),
            (from, narrow(count), type, to, NARROW(to_counts), NARROW_PLACES(places_to), to_type, root, comm, request))
WITH_COUNTS(Iscatterv, ISCATTERV, to, bytes_of(to_count, to_type), WHEN_WAITED(to), ISCATTERED,
            (from, counts, places_from, type, to, to_count, to_type, root, comm, request),
            (from, NARROW(counts), NARROW_PLACES(places_from), type, to, narrow(to_count), to_type, root, comm, request))

#define ISCATTEREDV(n, p) const void *from, void *to, const n *counts, handle type, handle op, handle comm, void *request
WITH_COUNTS(Ireduce_scatter, IREDUCE_SCATTER, to, bytes_of(counts[rank_in(comm)], type), WHEN_WAITED(to), ISCATTEREDV,
            (from, to, counts, type, op, comm, request), (from, to, NARROW(counts), type, op, comm, request))

/* Persistent collectives: faults strike when they are started. */
#define PERSISTENT(name, call, target, bytes_here, parameters, wide, narrowed)                                         \
    EXPORT int MPI_##name##_c(parameters(int64_t))                                                                     \
    {                                                                                                                  \
        int (*wide_call)(parameters(int64_t)) = ONCE(look_up, "PMPI_" #name "_c");                                     \
        int (*plain_call)(parameters(int)) = ONCE(demand, "PMPI_" #name);                                              \
        int code = wide_call ? wide_call wide : plain_call narrowed;                                                   \
        if (!code)                                                                                                     \
            will_restart(request_at(request, 0), target, (target) ? (bytes_here) : 0, call);                           \
        return code;                                                                                                   \
    }                                                                                                                  \
    PLAIN(name, parameters, wide)

#define PREDUCTION(n) REDUCTION(n), handle info, void *request
#define PREDUCTION_TO_ROOT(n) REDUCTION_TO_ROOT(n), handle info, void *request
#define PFROM_ROOT(n) FROM_ROOT(n), handle info, void *request
#define PEXCHANGE(n) EXCHANGE(n), handle info, void *request
#define PWITH_ROOT(n) WITH_ROOT(n), handle info, void *request
#define OF_PREDUCTION (from, to, count, type, op, comm, info, request)
#define OF_PREDUCTION_N (from, to, narrow(count), type, op, comm, info, request)
#define OF_PEXCHANGE (from, count, type, to, to_count, to_type, comm, info, request)
#define OF_PEXCHANGE_N (from, narrow(count), type, to, narrow(to_count), to_type, comm, info, request)
#define OF_PROOT (from, count, type, to, to_count, to_type, root, comm, info, request)
#define OF_PROOT_N (from, narrow(count), type, to, narrow(to_count), to_type, root, comm, info, request)

PERSISTENT(Allreduce_init, ALLREDUCE_INIT, to, bytes_of(count, type), PREDUCTION, OF_PREDUCTION, OF_PREDUCTION_N)
PERSISTENT(Scan_init, SCAN_INIT, to, bytes_of(count, type), PREDUCTION, OF_PREDUCTION, OF_PREDUCTION_N)
PERSISTENT(Reduce_scatter_block_init, REDUCE_SCATTER_BLOCK_INIT, to, bytes_of(count, type), PREDUCTION, OF_PREDUCTION,
           OF_PREDUCTION_N)
PERSISTENT(Reduce_init, REDUCE_INIT, AT_ROOT, bytes_of(count, type), PREDUCTION_TO_ROOT,
           (from, to, count, type, op, root, comm, info, request),
           (from, to, narrow(count), type, op, root, comm, info, request))
PERSISTENT(Bcast_init, BCAST_INIT, buffer, bytes_of(count, type), PFROM_ROOT,
           (buffer, count, type, root, comm, info, request), (buffer, narrow(count), type, root, comm, info, request))
PERSISTENT(Alltoall_init, ALLTOALL_INIT, to, BYTES_OF_ALL, PEXCHANGE, OF_PEXCHANGE, OF_PEXCHANGE_N)
PERSISTENT(Allgather_init, ALLGATHER_INIT, to, BYTES_OF_ALL, PEXCHANGE, OF_PEXCHANGE, OF_PEXCHANGE_N)
PERSISTENT(Gather_init, GATHER_INIT, AT_ROOT, BYTES_OF_ALL, PWITH_ROOT, OF_PROOT, OF_PROOT_N)
PERSISTENT(Scatter_init, SCATTER_INIT, to, bytes_of(to_count, to_type), PWITH_ROOT, OF_PROOT, OF_PROOT_N)

/* ---- one-sided calls with a request ---- */

#define ONE_SIDED(name, call, target, result_bytes, sends, parameters, arguments, narrowed)                            \
    EXPORT int MPI_##name(parameters(int), void *request)                                                              \
    {                                                                                                                  \
        int (*real)(parameters(int), void *) = ONCE(demand, "PMPI_" #name);                                            \
        uint64_t bytes = result_bytes;                                                                                 \
        struct asked asked = before(call, target, bytes, NULL);                                                        \
        from = (sends) && asked.effects & CORRUPT_LAST ? changed_copy(asked, from, bytes) : from;                      \
        int code = real arguments;                                                                                     \
        return (sends) ? code_of(code, asked) : begun(code, asked, request, target, bytes, NULL);                      \
    }                                                                                                                  \
    EXPORT int MPI_##name##_c(parameters(int64_t), void *request)                                                      \
    {                                                                                                                  \
        return MPI_##name narrowed;                                                                                    \
    }

ONE_SIDED(Rput, RPUT, (void *)(uintptr_t)from, bytes_of(count, type), true, PUT_OF,
          (from, count, type, rank, place, target_count, target_type, window, request),
          (from, narrow(count), type, rank, place, narrow(target_count), target_type, window, request))
ONE_SIDED(Raccumulate, RACCUMULATE, (void *)(uintptr_t)from, bytes_of(count, type), true, ACCUMULATE_OF,
          (from, count, type, rank, place, target_count, target_type, op, window, request),
          (from, narrow(count), type, rank, place, narrow(target_count), target_type, op, window, request))
ONE_SIDED(Rget_accumulate, RGET_ACCUMULATE, to, bytes_of(to_count, to_type), false, GET_ACCUMULATE_OF,
          (from, count, type, to, to_count, to_type, rank, place, target_count, target_type, op, window, request),
          (from, narrow(count), type, to, narrow(to_count), to_type, rank, place, narrow(target_count), target_type, op,
           window, request))
#define RGET_OF(n) void *from, n count, handle type, int rank, intptr_t place, n target_count, handle target_type, handle window
ONE_SIDED(Rget, RGET, from, bytes_of(count, type), false, RGET_OF,
          (from, count, type, rank, place, target_count, target_type, window, request),
          (from, narrow(count), type, rank, place, narrow(target_count), target_type, window, request))
