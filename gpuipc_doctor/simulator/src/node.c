/* Read GPUIPC_SIM_NODE: one record a line, `kind key=value …`, values percent-encoded. */
#include "sim.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const call_names[CALLS + 1] = {
#define CALL(constant, name) [CALL_##constant] = name,
#include "calls.def"
#undef CALL
};

static struct node the_node;
static unsigned line_number;

/* A simulated node that is not what its file says must not answer at all: a wrong answer would be believed. */
__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    flockfile(stderr);
    fprintf(stderr, "simulated driver: %s:%u: ", getenv("GPUIPC_SIM_NODE"), line_number);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    funlockfile(stderr);
    abort();
}

static void decode(char *text)
{
    char *out = text;
    for (; *text; text++) {
        unsigned byte;
        if (*text == '%' && sscanf(text + 1, "%2x", &byte) == 1) {
            *out++ = (char)byte;
            text += 2;
        } else {
            *out++ = *text;
        }
    }
    *out = '\0';
}

static int64_t number(const char *key, const char *value)
{
    char *end;
    errno = 0;
    long long result = strtoll(value, &end, 10);
    if (errno || *end || end == value)
        refuse("%s=%s is not a number", key, value);
    return result;
}

static void copy_text(char *to, size_t bytes, const char *key, const char *value)
{
    if (strlen(value) >= bytes)
        refuse("%s is longer than %zu bytes", key, bytes - 1);
    strcpy(to, value);
}

#define TEXT(member) copy_text(member, sizeof(member), key, value)
#define IS(word) (!strcmp(key, word))

static int word_of(const char *const *words, const char *key, const char *value)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], value))
            return i;
    refuse("unknown %s %s", key, value);
}

static const char *const backends[BACKENDS + 1] = {BACKEND_NAMES};
/* In the order of enum device_mode. */
static const char *const modes[] = {"usual", "exclusive", "confidential", "integrated", NULL};
static const char *const conditions[] = {"always", "context-was-destroyed", "opened-before", "overlap",
                                         "exporter-exports", "third-in-block", "by-descriptor", "slot",
                                         "crowded", "full", "other-thread", "two-devices", "importer-gone",
                                         "forked", "idle", "odd-address", "inside", "pool-imported", "held",
                                         "earlier", "of-import", "peer-enabled", "default-stream",
                                         "pinned", "registered", "between-imports", "granted", "late", NULL};
/* In the order of enum fault_effect. */
static const char *const effects[EFFECTS + 1] = {"error",  "hang",    "hang-ignore-term", "segv",  "abort",
                                      "corrupt-byte", "corrupt-page", "stale", "collide", "leak", "keep",
                                      "delay",  "chatter", "orphan",           "lose-device", "late", "coarse",
                                      "skip",   "snapshot", "lose-writes",     "accept", "renumber", "latest",
                                      "leak-descriptor", "wrap", "corrupt-from", "stale-part", "end-another",
                                      "end-block", "end-count", "wipe", "sticky", "leak-addresses", "leak-thread",
                                      "leak-host", "lag", "blank", "misstate", "in-turn", "drift", "saw", "level", "walk",
                                      "misplace", "premature",
                                      "reject", "kernels-read-stale", "kernels-lose-writes", "kernels-lose-adds",
                                      "kernels-miss-last", "kernels-see-no-flag", "kernels-see-flag-late", "kernels-lose-hot-adds",
                                      "recycle", NULL};

static int device_number(int backend, int64_t index)
{
    for (int i = 0; i < the_node.devices; i++)
        if ((int)the_node.device[i].backend == backend && the_node.device[i].index == index)
            return i;
    refuse("no %s device %lld", backends[backend], (long long)index);
}

static void read_sim(const char *key, const char *value, void *record)
{
    (void)record;
    if (IS("format")) {
        if (number(key, value) != 1)
            refuse("format %s is not known", value);
    } else if (IS("profile")) {
        TEXT(the_node.profile);
    } else {
        refuse("unknown key %s", key);
    }
}

static void read_version(const char *key, const char *value, void *record)
{
    (void)record;
    if (IS("nvidia-driver"))
        TEXT(the_node.nvidia_driver);
    else if (IS("cuda-driver"))
        the_node.cuda_driver = (int)number(key, value);
    else if (IS("hip-runtime"))
        the_node.hip_runtime = (int)number(key, value);
    else if (IS("ze-driver"))
        the_node.ze_driver = (int)number(key, value);
    else if (IS("ze-build"))
        the_node.ze_build = (int)number(key, value);
    else if (IS("hip-driver"))
        the_node.hip_driver = (int)number(key, value);
    else
        refuse("unknown key %s", key);
}

static void read_device(const char *key, const char *value, void *record)
{
    struct device *device = record;
    if (IS("backend"))
        device->backend = (enum backend)word_of(backends, key, value);
    else if (IS("index"))
        device->index = (int)number(key, value);
    else if (IS("name"))
        TEXT(device->name);
    else if (IS("uuid"))
        TEXT(device->uuid);
    else if (IS("pci"))
        TEXT(device->pci);
    else if (IS("memory"))
        device->memory = (uint64_t)number(key, value);
    else if (IS("held"))
        device->held = (uint64_t)number(key, value);
    else if (IS("holder"))
        device->holder = (int)number(key, value);
    else if (IS("granule"))
        device->granule = (uint64_t)number(key, value);
    else if (IS("addresses"))
        device->addresses = (uint64_t)number(key, value);
    else if (IS("imex"))
        device->imex = number(key, value);
    else if (IS("mode"))
        device->mode = (enum device_mode)word_of(modes, key, value);
    else if (IS("links"))
        device->links = (int)number(key, value);
    else if (IS("link-speed"))
        device->link_speed = (int)number(key, value);
    else if (IS("pcie-width"))
        device->pcie_width = (int)number(key, value);
    else if (IS("pcie-slot"))
        device->pcie_slot = (int)number(key, value);
    else if (IS("pcie-generation"))
        device->pcie_generation = (int)number(key, value);
    else if (IS("pcie-idle"))
        device->pcie_idle = (int)number(key, value);
    else if (IS("uncorrected"))
        device->uncorrected = (int)number(key, value);
    else if (IS("recovery"))
        device->recovery = (int)number(key, value);
    else if (IS("switched"))
        device->switched = (int)number(key, value);
    else if (IS("replays"))
        device->replays = (int)number(key, value);
    else if (IS("fabric"))
        device->fabric = (int)number(key, value);
    else if (IS("fabric-status"))
        device->fabric_status = (int)number(key, value);
    else if (IS("fabric-health"))
        device->fabric_health = (int)number(key, value);
    else if (IS("clique"))
        device->clique = (int)number(key, value);
    else if (IS("cluster"))
        device->cluster = (int)number(key, value);
    else if (IS("ecc"))
        device->ecc = (int)number(key, value);
    else if (IS("remap"))
        device->remap = (int)number(key, value);
    else if (IS("slowdown"))
        device->slowdown = (int)number(key, value);
    else if (IS("busy"))
        device->busy = (int)number(key, value);
    else if (IS("watts"))
        device->watts = (int)number(key, value);
    else if (IS("watts-limit"))
        device->watts_limit = (int)number(key, value);
    else if (IS("vbios"))
        TEXT(device->vbios);
    else if (IS("serial"))
        TEXT(device->serial);
    else if (IS("part-number"))
        TEXT(device->part_number);
    else if (IS("arch"))
        TEXT(device->arch);
    else
        refuse("unknown key %s", key);
}

struct peer {
    int backend;
    int64_t a, b, checked;
};

static void read_peer(const char *key, const char *value, void *record)
{
    struct peer *peer = record;
    if (IS("backend"))
        peer->backend = word_of(backends, key, value);
    else if (IS("a"))
        peer->a = number(key, value);
    else if (IS("b"))
        peer->b = number(key, value);
    else if (IS("checked"))
        peer->checked = number(key, value);
    else
        refuse("unknown key %s", key);
}

static void read_fault(const char *key, const char *value, void *record)
{
    struct fault *fault = record;
    if (IS("backend"))
        fault->backend = strcmp(value, "any") ? word_of(backends, key, value) : -1;
    else if (IS("call"))
        fault->call = word_of(call_names, key, value);
    else if (IS("nth"))
        fault->nth = (unsigned)number(key, value);
    else if (IS("from"))
        fault->from = (unsigned)number(key, value);
    else if (IS("every"))
        fault->every = (unsigned)number(key, value);
    else if (IS("least"))
        fault->least = (unsigned)number(key, value);
    else if (IS("min"))
        fault->min = (uint64_t)number(key, value);
    else if (IS("max"))
        fault->max = (uint64_t)number(key, value);
    else if (IS("device"))
        fault->device = (int)number(key, value);
    else if (IS("exporter"))
        fault->exporter = (int)number(key, value);
    else if (IS("when"))
        fault->when = (enum fault_condition)word_of(conditions, key, value);
    else if (IS("peer"))
        fault->peer = number(key, value);
    else if (IS("do"))
        fault->effect = (enum fault_effect)word_of(effects, key, value);
    else if (IS("code"))
        fault->code = (int)number(key, value);
    else if (IS("bytes"))
        fault->bytes = (uint64_t)number(key, value);
    else if (IS("ms"))
        fault->ms = (unsigned)number(key, value);
    else
        refuse("unknown key %s", key);
}

static void read_fields(char *fields, void (*read)(const char *, const char *, void *), void *record)
{
    char *rest = NULL;
    for (char *field = strtok_r(fields, " ", &rest); field; field = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(field, '=');
        if (!value)
            refuse("%s is not key=value", field);
        *value++ = '\0';
        decode(value);
        read(field, value, record);
    }
}

static void read_line(char *line)
{
    line[strcspn(line, "\n")] = '\0';
    if (!*line)
        return;
    char *fields = strchr(line, ' ');
    fields = fields ? (*fields = '\0', fields + 1) : line + strlen(line);
    if (!strcmp(line, "sim")) {
        read_fields(fields, read_sim, NULL);
    } else if (!strcmp(line, "version")) {
        read_fields(fields, read_version, NULL);
    } else if (!strcmp(line, "device")) {
        if (the_node.devices == MAX_DEVICES)
            refuse("more than %d devices", MAX_DEVICES);
        struct device *device = &the_node.device[the_node.devices++];
        device->links = device->link_speed = device->pcie_width = device->ecc = device->remap = device->slowdown = -1;
        device->pcie_slot = 16;
        device->pcie_generation = device->pcie_idle = 5;
        device->busy = device->watts = device->watts_limit = device->replays = device->switched = -1;
        read_fields(fields, read_device, device);
    } else if (!strcmp(line, "peer")) {
        struct peer peer = {0};
        read_fields(fields, read_peer, &peer);
        const char *unchecked = getenv("CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK");
        if (!peer.checked || (unchecked && !strcmp(unchecked, "1")))
            the_node.peer[device_number(peer.backend, peer.a)][device_number(peer.backend, peer.b)] = true;
    } else if (!strcmp(line, "fault")) {
        if (the_node.faults == MAX_FAULTS)
            refuse("more than %d faults", MAX_FAULTS);
        struct fault *fault = &the_node.fault[the_node.faults++];
        *fault = (struct fault){.backend = -1, .call = -1, .device = -1, .exporter = -1, .effect = EFFECTS};
        read_fields(fields, read_fault, fault);
        if (fault->call < 0 || fault->effect == EFFECTS)
            refuse("a fault needs call= and do=");
    } else {
        refuse("unknown record %s", line);
    }
}

static void read_node(void)
{
    const char *path = getenv("GPUIPC_SIM_NODE");
    if (!path) {
        fputs("simulated driver: GPUIPC_SIM_NODE is not set, so there is no node to simulate\n", stderr);
        abort();
    }
    FILE *file = fopen(path, "re");
    if (!file)
        refuse("%s", strerror(errno));
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) != -1) {
        line_number++;
        read_line(line);
    }
    free(line);
    fclose(file);
}

const struct node *node(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_node);
    return &the_node;
}

int hip_release(void)
{
    return node()->hip_runtime / 100000;
}
