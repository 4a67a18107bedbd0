/* What generated wrappers (generate.py) use of recorder.c. */
#include <stddef.h>
#include <stdint.h>

struct stub {
    const char *name;
    void *real;     /* of the library behind */
    void *exported; /* ours */
    long called;
};
extern struct stub stubs[];

void record(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *size_word(uint64_t bytes);
const char *count_word(uint64_t count);
const char *memory_word(uint64_t address);
void memory_begins(uint64_t base, uint64_t bytes, const char *kind);
void memory_ends(uint64_t base);
unsigned memories_of(const char *kind);
void thing_is(const void *handle, const char *word, long number);
const char *thing_word(const void *handle, const char *unknown);
long thing_number(const void *handle);
const char *stream_word(const void *stream);
void *real_of(struct stub *stub);
struct stub *stub_at(const void *function);
