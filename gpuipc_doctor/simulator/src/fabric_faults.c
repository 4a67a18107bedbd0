/* Messages of libfabric and UCX that go wrong as GPUIPC_SIM_FABRIC says; preloaded into their test programs.
 *
 * Built without either's headers. libfabric's calls are entries of tables that hang on its objects (rdma/fi_*.h);
 * each table begins with its size, so a copy of it can have an entry replaced whatever else its version holds. A
 * provider that is not here can be asked for all the same, and is another one then.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- the faults ---- */

static const char *const effects[] = {"hang", "abort", "segv", "corrupt-byte", NULL};
enum effect { HANG, ABORT, SEGV, CORRUPT_BYTE };

enum { MAX_FAULTS = 16, MAX_LINE = 256 };
static struct fault {
    char call[8]; /* init, send */
    enum effect effect;
    uint64_t min, max;
} faults[MAX_FAULTS];
static int fault_count;
static char asked_for[32], instead[32]; /* providers */

static void refuse(const char *what)
{
    fprintf(stderr, "simulated fabric: %s\n", what);
    _exit(1);
}

static void read_fault(const char *line)
{
    struct fault *fault = &faults[fault_count];
    char effect[16];
    if (fault_count == MAX_FAULTS || sscanf(line, "fault call=%7s do=%15s min=%ju max=%ju", fault->call, effect,
                                            &fault->min, &fault->max) != 4)
        refuse(line);
    int i = 0;
    while (effects[i] && strcmp(effects[i], effect))
        i++;
    if (!effects[i])
        refuse(line);
    fault->effect = i;
    fault_count++;
}

static void __attribute__((constructor)) read_file(void)
{
    const char *name = getenv("GPUIPC_SIM_FABRIC");
    FILE *file = name ? fopen(name, "r") : NULL;
    char line[MAX_LINE];
    if (!file)
        refuse("there is no file GPUIPC_SIM_FABRIC");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "provider asked=%31s is=%31s", asked_for, instead) != 2)
            read_fault(line);
    fclose(file);
}

/* Named as the function that a stack of a hung libfabric shows. */
static __attribute__((noinline)) void ofi_cq_readfrom(void)
{
    for (volatile bool over = false; !over;)
        usleep(1000);
}

static volatile int *volatile nowhere = NULL;

static void strike(const char *call, void *buffer, uint64_t bytes)
{
    for (const struct fault *fault = faults; fault < faults + fault_count; fault++) {
        if (strcmp(fault->call, call) || bytes < fault->min || bytes > fault->max)
            continue;
        switch (fault->effect) {
        case HANG:
            ofi_cq_readfrom();
            break;
        case ABORT:
            abort();
        case SEGV:
            *nowhere = 0;
            break;
        case CORRUPT_BYTE:
            if (bytes)
                ((unsigned char *)buffer)[bytes / 2] += 0x10; /* sent; a provider on another one does it twice */
        }
    }
}

static void *demand(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        refuse(name);
    return found;
}

/* libfabric's verbs provider looks through all symbols of the kernel, twice at each start, where it has no device
 * either. The kernel of a simulated node does not tell them. */
EXPORT FILE *fopen(const char *path, const char *mode)
{
    if (!strcmp(path, "/proc/kallsyms")) {
        errno = ENOENT;
        return NULL;
    }
    FILE *(*real)(const char *, const char *) = demand("fopen");
    return real(path, mode);
}

/* ---- libfabric: fi_getinfo, and from fi_fabric down to an endpoint's tagged messages ---- */

enum { FABRIC_OPS = 3, DOMAIN_OPS = 3, QUEUE_OPS = 3, EP_TAGGED = 7 }; /* words of the objects */
enum { OPEN_DOMAIN = 1, OPEN_QUEUE = 2, OPEN_ENDPOINT = 3, READ_QUEUE = 1 }; /* words of the tables */
enum { TAGGED_SEND = 4, TAGGED_INJECT = 7 };
enum { INFO_FABRIC_ATTR = 13, ATTR_PROVIDER = 2 };

typedef void **object;

enum { MAX_OBJECTS = 64 };
static struct replaced {
    object object;
    void **table; /* as the provider made it */
} replaced[MAX_OBJECTS];

static void **original(object object)
{
    struct replaced *each = replaced;
    while (each < replaced + MAX_OBJECTS && each->object != object)
        each++;
    if (each == replaced + MAX_OBJECTS)
        refuse("an object that is not known");
    return each->table;
}

/* Give an object a table of its own, in which the caller then replaces entries. */
static void **own_table(object object, int word)
{
    void **table = object[word];
    struct replaced *free_one = replaced;
    while (free_one < replaced + MAX_OBJECTS && free_one->object && free_one->object != object)
        free_one++;
    size_t size = *(size_t *)table;
    void **copy = malloc(size);
    if (free_one == replaced + MAX_OBJECTS || !copy)
        refuse("too many objects");
    memcpy(copy, table, size);
    *free_one = (struct replaced){object, table};
    return object[word] = copy;
}

static ssize_t tagged_send(object ep, void *buffer, size_t bytes, void *desc, uint64_t to, uint64_t tag, void *context)
{
    ssize_t (*real)(object, void *, size_t, void *, uint64_t, uint64_t, void *) = original(ep)[TAGGED_SEND];
    strike("send", buffer, bytes);
    return real(ep, buffer, bytes, desc, to, tag, context);
}

static ssize_t tagged_inject(object ep, void *buffer, size_t bytes, uint64_t to, uint64_t tag)
{
    ssize_t (*real)(object, void *, size_t, uint64_t, uint64_t) = original(ep)[TAGGED_INJECT];
    strike("send", buffer, bytes);
    return real(ep, buffer, bytes, to, tag);
}

static int open_endpoint(object domain, void *info, object *ep, void *context)
{
    int (*real)(object, void *, object *, void *) = original(domain)[OPEN_ENDPOINT];
    int code = real(domain, info, ep, context);
    if (!code && (*ep)[EP_TAGGED]) {
        void **table = own_table(*ep, EP_TAGGED);
        table[TAGGED_SEND] = tagged_send;
        table[TAGGED_INJECT] = tagged_inject;
    }
    return code;
}

/* Who waits for a message that never comes rests between its polls, as who never sends it does. */
static ssize_t read_queue(object queue, void *entries, size_t count)
{
    ssize_t (*real)(object, void *, size_t) = original(queue)[READ_QUEUE];
    ssize_t read = real(queue, entries, count);
    if (read == -EAGAIN)
        usleep(100);
    return read;
}

static int open_queue(object domain, void *attributes, object *queue, void *context)
{
    int (*real)(object, void *, object *, void *) = original(domain)[OPEN_QUEUE];
    int code = real(domain, attributes, queue, context);
    if (!code)
        own_table(*queue, QUEUE_OPS)[READ_QUEUE] = read_queue;
    return code;
}

static int open_domain(object fabric, void *info, object *domain, void *context)
{
    int (*real)(object, void *, object *, void *) = original(fabric)[OPEN_DOMAIN];
    int code = real(fabric, info, domain, context);
    if (!code) {
        void **table = own_table(*domain, DOMAIN_OPS);
        table[OPEN_QUEUE] = open_queue;
        table[OPEN_ENDPOINT] = open_endpoint;
    }
    return code;
}

EXPORT int fi_fabric(void *attributes, object *fabric, void *context)
{
    int (*real)(void *, object *, void *) = demand("fi_fabric");
    int code = real(attributes, fabric, context);
    if (!code)
        own_table(*fabric, FABRIC_OPS)[OPEN_DOMAIN] = open_domain;
    return code;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, void **hints,
                      void *info)
{
    int (*real)(uint32_t, const char *, const char *, uint64_t, void **, void *) = demand("fi_getinfo");
    void **attributes = hints ? hints[INFO_FABRIC_ATTR] : NULL;
    char *provider = attributes ? attributes[ATTR_PROVIDER] : NULL;
    strike("init", NULL, 0);
    if (!provider || strcmp(provider, asked_for))
        return real(version, node, service, flags, hints, info);
    attributes[ATTR_PROVIDER] = instead;
    int code = real(version, node, service, flags, hints, info);
    attributes[ATTR_PROVIDER] = provider;
    return code;
}

/* ---- UCX ---- */

EXPORT void *ucp_tag_send_nbx(void *endpoint, void *buffer, size_t bytes, uint64_t tag, const void *parameters)
{
    void *(*real)(void *, void *, size_t, uint64_t, const void *) = demand("ucp_tag_send_nbx");
    strike("send", buffer, bytes);
    return real(endpoint, buffer, bytes, tag, parameters);
}
