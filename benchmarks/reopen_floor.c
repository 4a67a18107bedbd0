/* The floor under `ipc-reopen`: what seed 002's steps cost without Python, processes started by fork.
 *
 * Exporter: initialise, make a context, allocate, fill and export three segments. Importer: initialise, make
 * a context, open, verify and close all three, destroy the context, make another, and do it again. Exits 0
 * when every byte was right; prints the failing call otherwise. Needs no CUDA headers: cc -O2 reopen_floor.c -ldl
 *
 *     reopen_floor [GPUS [PAIRS [own]]]
 *
 * A tour: PAIRS exporters and importers (1 by default) visit GPUS GPUs (1), each pair its share of them, one after
 * the other. With `own`, a pair sees only its share. CUDA_DEVICE_MAX_CONNECTIONS=1 gives contexts of one queue.
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

static void *new_context(int gpu)
{
    void *context;
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, gpu);
    return context;
}

static void destroy(void *context)
{
    CALL(cuCtxDestroy_v2, (void *), context);
}

static void export_on(int gpu, int to_importer, int from_importer)
{
    Handle handles[SEGMENTS];
    void *context = new_context(gpu);
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
    destroy(context); /* with its memory */
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

static void import_on(int gpu, int from_exporter, int to_exporter)
{
    Handle handles[SEGMENTS];
    void *context = new_context(gpu);
    for (size_t got = 0; got < sizeof handles;) {
        ssize_t more = read(from_exporter, (char *)handles + got, sizeof handles - got);
        if (more <= 0)
            exit(1);
        got += (size_t)more;
    }
    open_all(handles);
    destroy(context);
    context = new_context(gpu);
    open_all(handles);
    destroy(context);
    if (write(to_exporter, "x", 1) != 1)
        exit(1);
}

static void visit(int from, int to, void (*on)(int, int, int), int in, int out)
{
    CALL(cuInit, (unsigned), 0);
    for (int gpu = from; gpu < to; gpu++)
        on(gpu, in, out);
}

/* The processes of a pair; both visit the GPUs from one to another. */
static void start_pair(int from, int to)
{
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        exit(1);
    if (fork() == 0) {
        close(there[1]);
        visit(from, to, import_on, there[0], back[1]);
        exit(0);
    }
    if (fork() == 0) {
        close(back[1]);
        visit(from, to, export_on, there[1], back[0]);
        exit(0);
    }
    close(there[0]), close(there[1]), close(back[0]), close(back[1]);
}

static void see_only(int from, int to)
{
    char list[256] = "";
    for (int gpu = from; gpu < to; gpu++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", *list ? "," : "", gpu);
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
}

int main(int count, char **arguments)
{
    int gpus = count > 1 ? atoi(arguments[1]) : 1, pairs = count > 2 ? atoi(arguments[2]) : 1;
    int own = count > 3 && !strcmp(arguments[3], "own"), failed = 0, status;
    if (gpus < 1 || pairs < 1 || pairs > gpus || (count > 3 && !own) || count > 4) {
        fputs("usage: reopen_floor [GPUS [PAIRS [own]]]\n", stderr);
        return 2;
    }
    for (int pair = 0; pair < pairs; pair++) {
        int from = pair * gpus / pairs, to = (pair + 1) * gpus / pairs;
        if (own)
            see_only(from, to);
        start_pair(own ? 0 : from, own ? to - from : to);
    }
    while (wait(&status) > 0)
        failed |= !WIFEXITED(status) || WEXITSTATUS(status);
    return failed;
}
