/* What the tables do not say of CUDA's calls: what each makes known when it has succeeded. */
struct ipc_handle {
    uint64_t word[8];
};

static const char *number_word(uint64_t number)
{
    char *word = buffer();
    snprintf(word, WORD, "%llx", (unsigned long long)number);
    return word;
}

static void begins(int code, uint64_t address, uint64_t bytes, const char *kind)
{
    if (!code)
        memory_begins(address, bytes, kind);
}

static void ends(int code, uint64_t address)
{
    if (!code)
        memory_ends(address);
}

/* Of memory that another process made, only the driver knows the size. */
static void imported(int code, uint64_t address, const char *kind)
{
    int (*range)(uint64_t *, size_t *, uint64_t) = (int (*)(uint64_t *, size_t *, uint64_t))real_of(stubs + AT_cuMemGetAddressRange_v2);
    uint64_t base = 0;
    size_t bytes = 0;
    if (!code && !range(&base, &bytes, address))
        memory_begins(address, bytes - (address - base), kind);
}

#define mem_alloc_done(code, address, bytes) begins(code, *(address), bytes, "legacy")
#define managed_alloc_done(code, address, bytes, flags) begins(code, *(address), bytes, "managed")
#define host_alloc_done(code, address, bytes, ...) begins(code, (uint64_t)*(address), bytes, "pinned")
#define host_register_done(code, address, bytes, flags) begins(code, address, bytes, "registered")
#define pool_alloc_done(code, address, bytes, stream) begins(code, *(address), bytes, "pool")
#define pool_alloc_from_done(code, address, bytes, pool, stream) begins(code, *(address), bytes, "pool")
#define pool_import_pointer_done(code, address, pool, shared) imported(code, *(address), "pool-imported")
#define ipc_open_done(code, address, handle, flags) imported(code, *(address), "imported")
#define vmm_import_done(code, memory, shared, type)                                                                    \
    if (!(code))                                                                                                       \
    thing_is(*(memory), "vmm-imported", 1)
#define vmm_map_done(code, address, bytes, offset, memory, flags) begins(code, address, bytes, thing_word(memory, "vmm"))
#define mem_free_done(code, address) ends(code, address)
#define pool_free_done(code, address, stream) ends(code, address)
#define host_free_done(code, address) ends(code, address)
#define host_unregister_done(code, address) ends(code, address)
#define ipc_close_done(code, address) ends(code, address)
#define vmm_unmap_done(code, address, bytes) ends(code, address)
#define stream_create_done(code, stream, flags, ...)                                                                   \
    if (!(code))                                                                                                       \
    thing_is(*(stream), (flags)&1 ? "non-blocking" : "blocking", 1)
#define event_create_done(code, event, flags)                                                                          \
    if (!(code))                                                                                                       \
    thing_is(*(event), (flags)&4 ? "interprocess" : "own", 1)
#define ipc_open_event_done(code, event, handle)                                                                       \
    if (!(code))                                                                                                       \
    thing_is(*(event), "imported", 1)
#define capture_begin_done(code, stream, mode)                                                                         \
    if (!(code))                                                                                                       \
    thing_is(stream, "capturing", 1)
#define capture_end_done(code, stream, graph) thing_is(stream, "non-blocking", 1)

/* The driver's functions are handed out as ours. */
static int served(int code, void **function)
{
    struct stub *stub = !code && function ? stub_at(*function) : NULL;
    if (stub)
        *function = stub->exported;
    return code;
}

EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    int (*real)(const char *, void **, int, uint64_t) = (int (*)(const char *, void **, int, uint64_t))real_of(stubs + AT_cuGetProcAddress);
    return served(real(symbol, function, version, flags), function);
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    int (*real)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))real_of(stubs + AT_cuGetProcAddress_v2);
    return served(real(symbol, function, version, flags, status), function);
}

EXPORT const char *recorder_memory_word(uint64_t address)
{
    return memory_word(address);
}

EXPORT const char *recorder_stream_word(uint64_t stream)
{
    return stream_word((const void *)stream);
}
