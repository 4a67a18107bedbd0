/* What the table does not say of MPI's calls: of MPICH and its kin, whose handles are ints, and of Open MPI, whose
 * handles are pointers. Only what the standard calls significant is looked at: a rank that is no root of a gather may
 * pass anything as the type that it receives. Memory is the driver's recorder's to know: without it, all is host memory. */
typedef void *handle;
typedef int n;

static void *found(const char *name)
{
    return dlsym(library, name);
}

static const char *open_mpi(void)
{
    return found("ompi_mpi_comm_world");
}

static handle key(handle of)
{
    return open_mpi() ? of : (handle)(uintptr_t)(uint32_t)(uintptr_t)of;
}

static handle at(const void *place, unsigned number)
{
    return open_mpi() ? ((handle const *)place)[number] : (handle)(uintptr_t)((const uint32_t *)place)[number];
}

/* ---- types ---- */

static uint64_t bytes_of(uint64_t count, handle type)
{
    int (*size_of)(handle, int *) = (int (*)(handle, int *))found("PMPI_Type_size");
    int size = 0;
    size_of(type, &size);
    return count * (uint64_t)size;
}

static const char *combiner_word(unsigned combiner) /* of MPICH, from 2 on, and of Open MPI, from 1 on */
{
    static const char *const words[] = {"dup", "contiguous", "vector", "hvector", "hvector", "indexed", "hindexed",
                                        "hindexed", "indexed-block", "struct", "struct", "subarray", "darray", "f90",
                                        "f90", "f90", "resized", "hindexed-block"};
    return combiner < sizeof words / sizeof *words ? words[combiner] : "derived";
}

static const char *type_word(handle type)
{
    int (*envelope)(handle, int *, int *, int *, int *) = (int (*)(handle, int *, int *, int *, int *))found("PMPI_Type_get_envelope");
    int (*get_name)(handle, char *, int *) = (int (*)(handle, char *, int *))found("PMPI_Type_get_name");
    int integers, addresses, types, combiner = 0, length, named = open_mpi() ? 0 : 1;
    char name[256] = "";
    int (*wide)(handle, int64_t *, int64_t *, int64_t *, int64_t *, int *) =
        (int (*)(handle, int64_t *, int64_t *, int64_t *, int64_t *, int *))found("PMPI_Type_get_envelope_c");
    int64_t counts[4]; /* of a type that was made with wide counts */
    if (envelope(type, &integers, &addresses, &types, &combiner) &&
        (!wide || wide(type, counts, counts + 1, counts + 2, counts + 3, &combiner)))
        return "derived";
    if (combiner != named)
        return combiner_word((unsigned)(combiner - named - 1));
    get_name(type, name, &length);
    unsigned bits = 8 * (unsigned)bytes_of(1, type);
    const char *kind = strstr(name, "BYTE") || strstr(name, "PACKED")                                  ? NULL
                       : strstr(name, "_INT") && (strstr(name, "FLOAT_") || strstr(name, "DOUBLE_") ||
                                                  strstr(name, "LONG_INT") || strstr(name, "SHORT_INT")) ? "pair"
                       : strstr(name, "_2")                                                            ? "pair"
                       : strstr(name, "COMPLEX")                                                       ? "complex"
                       : strstr(name, "FLOAT") || strstr(name, "DOUBLE") || strstr(name, "REAL")       ? "float"
                       : strstr(name, "BOOL") || strstr(name, "LOGICAL")                               ? "bool"
                       : strstr(name, "UNSIGNED") || strstr(name, "UINT")                              ? "uint"
                                                                                                       : "int";
    if (!kind)
        return "byte";
    char *word = buffer();
    snprintf(word, WORD, "%s%u", kind, bits);
    return word;
}

/* ---- buffers ---- */

static int is_in_place(const void *address)
{
    return address == (open_mpi() ? (const void *)1 : (const void *)-1);
}

static const char *data_word(const void *address)
{
    return is_in_place(address) ? "in-place" : address ? memory_word((uint64_t)address) : "null";
}

static const char *sizes_word(uint64_t count, handle type)
{
    char *word = buffer();
    snprintf(word, WORD, "type=%s bytes=%s count=%s", type_word(type), size_word(bytes_of(count, type)), count % 2 ? "odd" : "even");
    return word;
}

static const char *type_if(int is_significant, handle type)
{
    char *word = buffer();
    snprintf(word, WORD, is_significant ? "type=%s" : "", is_significant ? type_word(type) : "");
    return word;
}

/* Of two buffers the one that is significant in this rank. `root` is negative in an intercommunicator. */
static const char *exchange_word(const char *symbol, const void *from, uint64_t count, handle type, const void *to,
                                 uint64_t to_count, handle to_type, int root)
{
    int scatters = strstr(symbol, "catter") != NULL;
    if (root < 0)
        return "";
    return is_in_place(from) || (scatters && !is_in_place(to)) ? sizes_word(to_count, to_type) : sizes_word(count, type);
}

static const char *place_word(const void *from, const void *to)
{
    return is_in_place(from) || is_in_place(to) ? "in" : "out";
}

/* ---- operations, roots, sources, tags ---- */

static const char *operation_word(handle op)
{
    static const char *const words[] = {"max", "min", "sum", "prod", "land", "band", "lor", "bor", "lxor", "bxor",
                                        "minloc", "maxloc", "replace", "no_op"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        char name[32];
        snprintf(name, sizeof name, "ompi_mpi_op_%s", words[i]);
        if (open_mpi() ? op == found(name) : key(op) == (handle)(uintptr_t)(0x58000001 + i))
            return words[i];
    }
    return "own";
}

static const char *source_word(int source)
{
    int any = open_mpi() ? -1 : -2;
    return source == any ? "any" : source < 0 ? "null" : "rank";
}

static const char *tag_word(int tag)
{
    return tag < 0 ? "any" : tag == 0 ? "0" : tag < 32768 ? "<32K" : ">=32K";
}

static const char *lock_word(int kind)
{
    return kind == (open_mpi() ? 1 : 234) ? "exclusive" : "shared";
}

/* ---- communicators and windows: what was said of them when they were made ---- */

static const char *comm_word(handle comm)
{
    int (*is_inter)(handle, int *) = (int (*)(handle, int *))found("PMPI_Comm_test_inter");
    const char *known = thing_word(key(comm), NULL);
    int inter = 0;
    if (known)
        return known;
    if (comm == open_mpi() || (!open_mpi() && key(comm) == (handle)0x44000000))
        return "world";
    if (comm == found("ompi_mpi_comm_self") || (!open_mpi() && key(comm) == (handle)0x44000001))
        return "self";
    is_inter(comm, &inter);
    return inter ? "inter" : "other";
}

#define window_word(win) thing_word(key(win), "?")

static void makes(int code, handle from, const void *made, const char *word)
{
    if (!code)
        thing_is(at(made, 0), from && !strcmp(word, "split") && !strncmp(comm_word(from), "split", 5) ? "split-of-split" : word, 1);
}

#define MPI_Comm_dup_done(code, comm, newcomm) makes(code, comm, newcomm, "dup")
#define MPI_Comm_dup_with_info_done(code, comm, info, newcomm) makes(code, comm, newcomm, "dup")
#define MPI_Comm_idup_done(code, comm, newcomm, request) makes(code, comm, newcomm, "dup")
#define MPI_Comm_idup_with_info_done(code, comm, info, newcomm, request) makes(code, comm, newcomm, "dup")
#define MPI_Comm_split_done(code, comm, color, key_, newcomm) makes(code, comm, newcomm, "split")
#define MPI_Comm_split_type_done(code, comm, split_type, key_, info, newcomm) makes(code, comm, newcomm, "split-type")
#define MPI_Comm_create_done(code, comm, group, newcomm) makes(code, comm, newcomm, "group")
#define MPI_Comm_create_group_done(code, comm, group, tag, newcomm) makes(code, comm, newcomm, "group")
#define MPI_Comm_create_from_group_done(code, group, stringtag, info, errhandler, newcomm) makes(code, NULL, newcomm, "session")
#define MPI_Cart_create_done(code, comm, ndims, dims, periods, reorder, newcomm) makes(code, comm, newcomm, "cart")
#define MPI_Cart_sub_done(code, comm, remain_dims, newcomm) makes(code, comm, newcomm, "cart")
#define MPI_Graph_create_done(code, comm, nnodes, index, edges, reorder, newcomm) makes(code, comm, newcomm, "graph")
#define MPI_Dist_graph_create_done(code, comm, n_, s, d, t, w, info, reorder, newcomm) makes(code, comm, newcomm, "dist-graph")
#define MPI_Dist_graph_create_adjacent_done(code, comm, i, s, sw, o, d, dw, info, reorder, newcomm) makes(code, comm, newcomm, "dist-graph")
#define MPI_Intercomm_create_done(code, comm, leader, peer, remote, tag, newcomm) makes(code, comm, newcomm, "inter")
#define MPI_Intercomm_create_from_groups_done(code, l, ll, r, rl, t, i, e, newcomm) makes(code, NULL, newcomm, "inter")
#define MPI_Comm_accept_done(code, port_name, info, root, comm, newcomm) makes(code, comm, newcomm, "inter")
#define MPI_Comm_connect_done(code, port_name, info, root, comm, newcomm) makes(code, comm, newcomm, "inter")
#define MPI_Intercomm_merge_done(code, comm, high, newcomm) makes(code, comm, newcomm, "merged")
#define MPI_Win_create_done(code, base, size, unit, info, comm, win) makes(code, comm, win, "create")
#define MPI_Win_create_dynamic_done(code, info, comm, win) makes(code, comm, win, "dynamic")
#define MPI_Win_allocate_done(code, size, unit, info, comm, base, win) makes(code, comm, win, "allocate")
#define MPI_Win_allocate_shared_done(code, size, unit, info, comm, base, win) makes(code, comm, win, "shared")
