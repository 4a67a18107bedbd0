/* What the table does not say of NCCL's calls. Memory is the driver's recorder's to know: it answers if preloaded. */
struct unique_id {
    char internal[128];
};

static const char *const kinds[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",     "uint64",
                                    "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};

static const char *kind_word(unsigned kind)
{
    return kind < sizeof kinds / sizeof *kinds ? kinds[kind] : "?";
}

static uint64_t kind_bytes(unsigned kind)
{
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return kind < sizeof bytes ? bytes[kind] : 1;
}

static const char *operation_word(unsigned operation)
{
    static const char *const words[] = {"sum", "product", "maximum", "minimum", "average"};
    return operation < 5 ? words[operation] : "pre-multiplied";
}

static const char *place_word(const void *from, const void *to, uint64_t bytes, void *comm)
{
    uint64_t all = bytes * (uint64_t)thing_number(comm), a = (uint64_t)from, b = (uint64_t)to;
    return a == b || (a > b && a < b + all) || (b > a && b < a + all) ? "in-place" : "out-of-place";
}

static __thread int depth;
static __thread unsigned grouped;

static const char *group_word(void)
{
    grouped += depth > 0;
    return depth ? "grouped" : "alone";
}

#define group_start_done(code) (depth++, (void)0)
static void group_end_done(int code)
{
    (void)code;
    if (depth && !--depth) {
        if (grouped)
            record("group calls=%s", count_word(grouped));
        grouped = 0;
    }
}

static unsigned communicators;
enum { IN_PROGRESS = 7 }; /* of communicators that do not block, as PyTorch's */
#define comm_init_done(code, comm, ranks, ...)                                                                         \
    if (!(code) || (code) == IN_PROGRESS)                                                                              \
    thing_is(*(comm), communicators++ ? "second" : "first", ranks)
#define comm_init_config_done(code, comm, ranks, ...) comm_init_done(code, comm, ranks)
#define comm_split_done(code, comm, color, key, out, config)                                                           \
    if ((!(code) || (code) == IN_PROGRESS) && *(out)) \
    thing_is(*(out), strncmp(thing_word(comm, "?"), "split", 5) ? "split" : "split-of-split", thing_number(comm))

static const char *number_word(uint64_t number)
{
    char *word = buffer();
    snprintf(word, WORD, "%llx", (unsigned long long)number);
    return word;
}
