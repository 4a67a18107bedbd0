/* The floor under `ipc-reopen`: what seed 002's steps cost without Python, processes started by fork.
 *
 * Exporter: initialise, make a context, allocate, fill and export three segments. Importer: initialise, make
 * a context, open, verify and close all three, destroy the context, make another, and do it again. Exits 0
 * when every byte was right; prints the failing call otherwise. Needs no CUDA headers: cc -O2 reopen_floor.c -ldl
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long Pointer;
typedef struct { char bytes[64]; } Handle;

static const size_t SIZES[] = {146064, 226656, 154909264};
enum { SEGMENTS = sizeof SIZES / sizeof *SIZES, LAZY_ENABLE_PEER_ACCESS = 1 };

static void *driver(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return dlsym(library, name);
}

#define CALL(name, parameters, ...)                                       \
    do {                                                                  \
        int (*function) parameters = (int (*) parameters)driver(#name);   \
        int code = function(__VA_ARGS__);                                 \
        if (code) {                                                       \
            fprintf(stderr, #name " returned %d\n", code);                \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

static void fill(char *data, size_t size, int segment)
{
    char tile[4099];
    for (size_t i = 0; i < sizeof tile; i++)
        tile[i] = (char)(i * i + segment);
    for (size_t at = 0; at < size; at += sizeof tile)
        memcpy(data + at, tile, size - at < sizeof tile ? size - at : sizeof tile);
}

static void *new_context(void)
{
    void *context;
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, 0);
    return context;
}

static void exporter(int to_importer, int from_importer)
{
    Handle handles[SEGMENTS];
    CALL(cuInit, (unsigned), 0);
    new_context();
    for (int n = 0; n < SEGMENTS; n++) {
        Pointer address;
        char *data = malloc(SIZES[n]);
        fill(data, SIZES[n], n);
        CALL(cuMemAlloc_v2, (Pointer *, size_t), &address, SIZES[n]);
        CALL(cuMemcpyHtoD_v2, (Pointer, const void *, size_t), address, data, SIZES[n]);
        CALL(cuIpcGetMemHandle, (Handle *, Pointer), &handles[n], address);
        free(data);
    }
    CALL(cuCtxSynchronize, (void));
    char done;
    if (write(to_importer, handles, sizeof handles) != sizeof handles || read(from_importer, &done, 1) != 1)
        exit(1);
}

static void open_all(const Handle *handles)
{
    for (int n = 0; n < SEGMENTS; n++) {
        Pointer address;
        char *expected = malloc(SIZES[n]), *found = malloc(SIZES[n]);
        fill(expected, SIZES[n], n);
        CALL(cuIpcOpenMemHandle_v2, (Pointer *, Handle, unsigned), &address, handles[n], LAZY_ENABLE_PEER_ACCESS);
        CALL(cuMemcpyDtoH_v2, (void *, Pointer, size_t), found, address, SIZES[n]);
        if (memcmp(found, expected, SIZES[n])) {
            fprintf(stderr, "segment %d shows wrong data\n", n + 1);
            exit(1);
        }
        CALL(cuIpcCloseMemHandle, (Pointer), address);
        free(expected);
        free(found);
    }
}

static void importer(int from_exporter, int to_exporter)
{
    Handle handles[SEGMENTS];
    CALL(cuInit, (unsigned), 0);
    void *context = new_context();
    for (size_t got = 0; got < sizeof handles;) {
        ssize_t more = read(from_exporter, (char *)handles + got, sizeof handles - got);
        if (more <= 0)
            exit(1);
        got += (size_t)more;
    }
    open_all(handles);
    CALL(cuCtxDestroy_v2, (void *), context);
    new_context();
    open_all(handles);
    if (write(to_exporter, "x", 1) != 1)
        exit(1);
}

int main(void)
{
    int there[2], back[2], status;
    if (pipe(there) || pipe(back))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        close(there[1]);
        importer(there[0], back[1]);
        return 0;
    }
    close(there[0]);
    close(back[1]);
    exporter(there[1], back[0]);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
