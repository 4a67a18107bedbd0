/* libnvidia-ml.so.1: what the tool and nvidia-ml-py need. It looks on; it takes no part. */
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_GPU_IS_LOST = 15,
    NVML_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
};

static unsigned users;

static bool initialized(void)
{
    return users;
}

static bool works_before_init(enum call call)
{
    return call == CALL_nvml_init;
}

const struct face face = {
    .initialized = initialized,
    .works_before_init = works_before_init,
    .backend = CUDA,
    .granularity = 512,
    .not_initialized = NVML_UNINITIALIZED,
    .unsupported = NVML_NOT_SUPPORTED,
    .lost = NVML_GPU_IS_LOST,
};

EXPORT const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS:
        return "Success";
    case NVML_UNINITIALIZED:
        return "Uninitialized";
    case NVML_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_NOT_FOUND:
        return "Not Found";
    case NVML_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Unknown Error";
    }
}

int nvml_init(void)
{
    if (!*node()->nvidia_driver)
        return NVML_DRIVER_NOT_LOADED;
    if (state_join(false))
        return NVML_UNKNOWN;
    users++;
    return SUCCESS;
}

int nvml_init_flags(unsigned flags)
{
    (void)flags; /* what to do without a GPU or a permission; neither arises here */
    return nvml_init();
}

int nvml_shutdown(void)
{
    users--;
    return SUCCESS;
}

static int give_text(char *to, unsigned bytes, const char *text)
{
    if (!to)
        return NVML_INVALID_ARGUMENT;
    if (strlen(text) >= bytes)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(to, text);
    spoil_text(to);
    return SUCCESS;
}

int nvml_driver_version(char *text, unsigned bytes)
{
    return give_text(text, bytes, node()->nvidia_driver);
}

/* As the real one: CUDA's major version, then the driver's. */
int nvml_version(char *text, unsigned bytes)
{
    char version[80];
    snprintf(version, sizeof version, "%d.%s", node()->cuda_driver / 1000, node()->nvidia_driver);
    return give_text(text, bytes, version);
}

struct nvml_confidential { /* nvmlConfComputeSystemState_t */
    unsigned environment, feature, tools;
};

int nvml_confidential(struct nvml_confidential *state)
{
    if (!state)
        return NVML_INVALID_ARGUMENT;
    bool on = false;
    for (int i = 0; i < node()->devices; i++)
        on |= node()->device[i].mode == CONFIDENTIAL;
    *state = (struct nvml_confidential){.environment = on, .feature = on};
    return SUCCESS;
}

int nvml_cuda_version(int *version)
{
    if (!version)
        return NVML_INVALID_ARGUMENT;
    *version = node()->cuda_driver;
    return SUCCESS;
}

/* A handle is the device's description in the node. */
static const struct device *nth(unsigned index)
{
    for (int i = 0; i < node()->devices; i++)
        if (node()->device[i].backend == CUDA && index-- == 0)
            return &node()->device[i];
    return NULL;
}

static int number_of(const void *gpu)
{
    const struct device *device = gpu;
    return device >= node()->device && device < node()->device + node()->devices ? (int)(device - node()->device)
                                                                                  : -1;
}

static int check(const void *gpu, const void *out)
{
    if (number_of(gpu) < 0 || !out)
        return NVML_INVALID_ARGUMENT;
    return state_device_lost(number_of(gpu)) ? NVML_GPU_IS_LOST : SUCCESS;
}

int nvml_device_count(unsigned *count)
{
    if (!count)
        return NVML_INVALID_ARGUMENT;
    for (*count = 0; nth(*count); ++*count)
        ;
    return SUCCESS;
}

int nvml_device_by_index(unsigned index, void **found)
{
    if (!found || !nth(index))
        return NVML_INVALID_ARGUMENT;
    *found = (void *)nth(index);
    return check(*found, found);
}

int nvml_device_by_uuid(const char *uuid, void **found)
{
    if (!uuid || !found)
        return NVML_INVALID_ARGUMENT;
    for (unsigned i = 0; nth(i); i++)
        if (!strcmp(nth(i)->uuid, uuid))
            return nvml_device_by_index(i, found);
    return NVML_NOT_FOUND;
}

static bool pci_numbers(const char *text, unsigned number[4])
{
    return sscanf(text, "%x:%x:%x.%x", &number[0], &number[1], &number[2], &number[3]) == 4;
}

int nvml_device_by_pci(const char *pci, void **found)
{
    unsigned wanted[4], has[4];
    if (!pci || !found || !pci_numbers(pci, wanted))
        return NVML_INVALID_ARGUMENT;
    for (unsigned i = 0; nth(i); i++)
        if (pci_numbers(nth(i)->pci, has) && !memcmp(wanted, has, sizeof has))
            return nvml_device_by_index(i, found);
    return NVML_NOT_FOUND;
}

int nvml_device_index(void *gpu, unsigned *index)
{
    int code = check(gpu, index);
    if (!code)
        for (*index = 0; nth(*index) != gpu; ++*index)
            ;
    return code;
}

int nvml_device_uuid(void *gpu, char *text, unsigned bytes)
{
    int code = check(gpu, text);
    return code ? code : give_text(text, bytes, ((struct device *)gpu)->uuid);
}

int nvml_device_name(void *gpu, char *text, unsigned bytes)
{
    int code = check(gpu, text);
    return code ? code : give_text(text, bytes, ((struct device *)gpu)->name);
}

struct nvml_pci { /* nvmlPciInfo_t, version 3 */
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

int nvml_device_pci(void *gpu, struct nvml_pci *pci)
{
    unsigned number[4];
    int code = check(gpu, pci);
    if (code)
        return code;
    if (!pci_numbers(((struct device *)gpu)->pci, number))
        return NVML_UNKNOWN;
    *pci = (struct nvml_pci){.domain = number[0], .bus = number[1], .device = number[2], .id = 0x10de};
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", number[0] & 0xffff, number[1] & 0xff,
             number[2] & 0xff);
    snprintf(pci->text, sizeof pci->text, "%08X:%02X:%02X.0", number[0], number[1], number[2]);
    return SUCCESS;
}

int nvml_device_capability(void *gpu, int *major, int *minor)
{
    int code = check(gpu, major);
    if (!code && sscanf(((struct device *)gpu)->arch, "%d.%d", major, minor) != 2)
        code = NVML_UNKNOWN;
    return code;
}

/* Each link leads to the next GPU that has links, as without NVSwitches. */
int nvml_link_remote(void *gpu, unsigned link, struct nvml_pci *pci)
{
    int code = check(gpu, pci), number = number_of(gpu);
    if (code || (int)link >= ((struct device *)gpu)->links)
        return code ? code : NVML_NOT_SUPPORTED;
    do
        number = (number + 1) % node()->devices;
    while (node()->device[number].links <= 0);
    return nvml_device_pci((void *)&node()->device[number], pci);
}

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvml_device_memory(void *gpu, struct nvml_memory *memory)
{
    int code = check(gpu, memory);
    if (code)
        return code;
    state_lock();
    memory->total = ((struct device *)gpu)->memory;
    memory->used = state_counted(number_of(gpu));
    state_unlock();
    if (memory->used > memory->total)
        memory->used = memory->total;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvml_device_memory_v2(void *gpu, struct nvml_memory_v2 *memory)
{
    struct nvml_memory plain;
    int code = memory ? nvml_device_memory(gpu, &plain) : NVML_INVALID_ARGUMENT;
    if (!code) {
        memory->total = plain.total;
        memory->reserved = 0;
        memory->free = plain.free;
        memory->used = plain.used;
    }
    return code;
}

struct nvml_process { /* nvmlProcessInfo_v2_t */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct list {
    unsigned room, count;
    struct nvml_process *to;
};

static void add_process(int32_t pid, uint64_t bytes, void *data)
{
    struct list *list = data;
    if (list->count < list->room)
        list->to[list->count] = (struct nvml_process){(unsigned)pid, bytes, UINT32_MAX, UINT32_MAX};
    list->count++;
}

int nvml_device_processes(void *gpu, unsigned *count, struct nvml_process *processes)
{
    int code = check(gpu, count);
    if (code)
        return code;
    struct list list = {.room = processes ? *count : 0, .to = processes};
    const struct device *device = gpu;
    if (device->holder < 0)
        return NVML_NOT_SUPPORTED;
    if (device->holder && device->held)
        add_process(device->holder, device->held, &list);
    state_lock();
    state_each_user(number_of(gpu), add_process, &list);
    state_unlock();
    *count = list.count;
    return list.count > list.room ? NVML_INSUFFICIENT_SIZE : SUCCESS;
}

static int give_number(void *gpu, unsigned *to, int value)
{
    int code = check(gpu, to);
    if (code)
        return code;
    if (value < 0)
        return NVML_NOT_SUPPORTED;
    *to = (unsigned)value;
    return SUCCESS;
}

/* Of 18 links, as an H100 has them: the first ones are active. */
int nvml_link_state(void *gpu, unsigned link, unsigned *active)
{
    enum { LINKS = 18 };
    int code = give_number(gpu, active, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->links);
    if (!code && link >= LINKS)
        return NVML_INVALID_ARGUMENT;
    if (!code)
        *active = link < *active;
    return code;
}

int nvml_link_type(void *gpu, unsigned link, unsigned *type)
{
    enum { TO_GPU = 0, TO_SWITCH = 2 };
    int code = nvml_link_state(gpu, link, type);
    if (!code && ((struct device *)gpu)->switched < 0)
        return NVML_NOT_SUPPORTED;
    if (!code)
        *type = ((struct device *)gpu)->switched ? TO_SWITCH : TO_GPU;
    return code;
}

int nvml_p2p_status(void *gpu, void *other, int capability, unsigned *status)
{
    enum { NVLINK = 2, NOT_CONNECTED = 3 };
    int code = check(other, status);
    code = code ? code : check(gpu, status);
    if (code)
        return code;
    if (capability != NVLINK)
        return NVML_NOT_SUPPORTED;
    bool linked = ((struct device *)gpu)->links > 0 && ((struct device *)other)->links > 0;
    *status = linked && node()->peer[number_of(gpu)][number_of(other)] ? 0 : NOT_CONNECTED;
    return SUCCESS;
}

int nvml_pcie_width(void *gpu, unsigned *width)
{
    return give_number(gpu, width, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->pcie_width);
}

int nvml_pcie_slot(void *gpu, unsigned *width)
{
    int code = nvml_pcie_width(gpu, width);
    if (!code)
        *width = (unsigned)((struct device *)gpu)->pcie_slot;
    return code;
}

int nvml_pcie_generation(void *gpu, unsigned *generation)
{
    int code = nvml_pcie_width(gpu, generation);
    if (!code)
        *generation = 5;
    return code;
}

/* A GPU without a context is idle, and may lower its link. */
int nvml_pcie_generation_now(void *gpu, unsigned *generation)
{
    int code = nvml_pcie_width(gpu, generation);
    if (code)
        return code;
    struct list users = {0};
    state_lock();
    state_each_user(number_of(gpu), add_process, &users);
    state_unlock();
    const struct device *device = gpu;
    *generation = (unsigned)(users.count ? device->pcie_generation : device->pcie_idle);
    return SUCCESS;
}

struct nvml_fabric { /* nvmlGpuFabricInfo_v3_t; version 2 ends with the mask */
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned mask;
    unsigned char summary;
};

int nvml_fabric(void *gpu, struct nvml_fabric *info)
{
    enum { VERSION_2 = 0x02000024, VERSION_3 = 0x03000028 };
    int code = check(gpu, info);
    if (code)
        return code;
    if (info->version != VERSION_2 && info->version != VERSION_3)
        return NVML_VERSION_MISMATCH;
    const struct device *device = gpu;
    memset(info->cluster, device->cluster, sizeof info->cluster);
    info->status = device->fabric_status;
    info->clique = (unsigned)device->clique;
    info->state = (unsigned char)device->fabric;
    info->mask = (unsigned)device->fabric_health;
    if (info->version == VERSION_3)
        info->summary = 0;
    return SUCCESS;
}

int nvml_uncorrected(void *gpu, int type, int counter, unsigned long long *errors)
{
    enum { UNCORRECTED = 1, VOLATILE = 0 };
    unsigned count;
    int code = give_number(gpu, errors ? &count : NULL, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->uncorrected);
    if (!code && (type != UNCORRECTED || counter != VOLATILE))
        return NVML_NOT_SUPPORTED;
    if (!code)
        *errors = count;
    return code;
}

int nvml_ecc(void *gpu, unsigned *now, unsigned *pending)
{
    if (!pending)
        return NVML_INVALID_ARGUMENT;
    int code = give_number(gpu, now, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->ecc);
    if (!code)
        *pending = *now;
    return code;
}

int nvml_remapped_rows(void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    if (!corrected || !uncorrected || !failed)
        return NVML_INVALID_ARGUMENT;
    int code = give_number(gpu, pending, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->remap);
    if (!code) {
        *failed = *pending == 2;
        *pending = *pending == 1;
        *corrected = 0;
        *uncorrected = *pending + *failed;
    }
    return code;
}

struct nvml_utilization { /* nvmlUtilization_t, percent */
    unsigned gpu, memory;
};

int nvml_utilization(void *gpu, struct nvml_utilization *rates)
{
    int code = give_number(gpu, rates ? &rates->gpu : NULL, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->busy);
    if (!code)
        rates->memory = rates->gpu;
    return code;
}

static int give_milliwatts(void *gpu, unsigned *to, int watts)
{
    return give_number(gpu, to, watts < 0 ? -1 : watts * 1000);
}

int nvml_power(void *gpu, unsigned *milliwatts)
{
    return give_milliwatts(gpu, milliwatts, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->watts);
}

int nvml_power_limit(void *gpu, unsigned *milliwatts)
{
    return give_milliwatts(gpu, milliwatts, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->watts_limit);
}

static int give_known(void *gpu, char *to, unsigned bytes, const char *text)
{
    int code = check(gpu, to);
    return code ? code : *text ? give_text(to, bytes, text) : NVML_NOT_SUPPORTED;
}

int nvml_vbios(void *gpu, char *text, unsigned bytes)
{
    return give_known(gpu, text, bytes, number_of(gpu) < 0 ? "" : ((struct device *)gpu)->vbios);
}

int nvml_serial(void *gpu, char *text, unsigned bytes)
{
    return give_known(gpu, text, bytes, number_of(gpu) < 0 ? "" : ((struct device *)gpu)->serial);
}

int nvml_part_number(void *gpu, char *text, unsigned bytes)
{
    return give_known(gpu, text, bytes, number_of(gpu) < 0 ? "" : ((struct device *)gpu)->part_number);
}

struct nvml_field { /* nvmlFieldValue_t */
    unsigned field, scope;
    int64_t at, latency;
    unsigned type, code;
    uint64_t value;
};

/* Counters rise with the time since boot, so that each process sees more than the one before. */
static int64_t field_of(const struct device *device, unsigned field, unsigned link)
{
    enum { SPEED = 90, PCIE_REPLAY = 94, ROWS_CORRECTABLE = 142, ROWS = 143, REPLAY = 161, CRC = 163, RECOVERY_ACTION = 230 };
    enum { RISING_LINK = 3 };
    struct timespec now;
    switch (field) {
    case SPEED:
        return device->link_speed;
    case RECOVERY_ACTION:
        return device->recovery;
    case REPLAY:
        if (device->replays < 0 || (int)link >= device->links)
            return -1;
        clock_gettime(CLOCK_BOOTTIME, &now);
        return link == RISING_LINK ? device->replays * (now.tv_sec * 1000 + now.tv_nsec / 1000000) / 1000 : 0;
    case REPLAY + 1:
    case CRC:
        return device->replays < 0 || (int)link >= device->links ? -1 : 0;
    case PCIE_REPLAY:
    case ROWS_CORRECTABLE:
    case ROWS:
        return device->replays < 0 ? -1 : 0;
    default:
        return -1;
    }
}

int nvml_field_values(void *gpu, int count, struct nvml_field *fields)
{
    enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };
    int code = check(gpu, fields);
    for (int i = 0; !code && i < count; i++) {
        int64_t value = field_of(gpu, fields[i].field, fields[i].scope);
        fields[i].code = value < 0 ? NVML_NOT_SUPPORTED : 0;
        fields[i].type = value > INT32_MAX ? UNSIGNED_LONG_LONG : UNSIGNED_INT;
        fields[i].value = value < 0 ? 0 : (uint64_t)value;
    }
    return code;
}

int nvml_slowdown(void *gpu, unsigned long long *reasons)
{
    enum { GPU_IDLE = 1, HARDWARE_SLOWDOWN = 8 };
    unsigned slow;
    int code = give_number(gpu, reasons ? &slow : NULL, number_of(gpu) < 0 ? -1 : ((struct device *)gpu)->slowdown);
    if (!code)
        *reasons = slow ? HARDWARE_SLOWDOWN : GPU_IDLE;
    return code;
}
