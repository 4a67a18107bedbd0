/* The devices of this process: which of the node's it sees, in which order, and what they say of themselves. */
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int visible[MAX_DEVICES], visible_count;
static bool initialized;

/* Whether `token` is an abbreviation of `uuid`; dashes do not count, as AMD's serial numbers have none. */
static bool abbreviates(const char *token, const char *uuid)
{
    for (; *token; token++) {
        if (*token == '-')
            continue;
        while (*uuid == '-')
            uuid++;
        if (tolower((unsigned char)*token) != tolower((unsigned char)*uuid++))
            return false;
    }
    return true;
}

static int chosen(const char *token, const int *from, int count)
{
    if (!strncmp(token, "GPU-", 4) || !strncmp(token, "MIG-", 4)) {
        int found = -1;
        for (int i = 0; i < count; i++)
            if (abbreviates(token, node()->device[from[i]].uuid)) {
                if (found >= 0)
                    return -1; /* ambiguous */
                found = from[i];
            }
        return found;
    }
    char *end;
    long index = strtol(token, &end, 10);
    return end != token && !*end && index >= 0 && index < count ? from[index] : -1;
}

/* Both vendors: the list ends before the first entry that names no device; a device named twice hides all. */
static int keep_visible(const char *value, int *list, int count)
{
    int kept[MAX_DEVICES], n = 0;
    char *copy = strdup(value), *rest = NULL;
    for (char *token = strtok_r(copy, ", ", &rest); token; token = strtok_r(NULL, ", ", &rest)) {
        int device = chosen(token, list, count);
        if (device < 0)
            break;
        for (int i = 0; i < n; i++)
            if (kept[i] == device) {
                free(copy);
                return 0;
            }
        kept[n++] = device;
    }
    free(copy);
    memcpy(list, kept, sizeof(int) * (size_t)n);
    return n;
}

/* Level Zero's: a set of devices, "0,2.1" (compute-runtime, execution_environment.cpp); what is no number of one is
 * left out, and the order stays. */
static void keep_masked(const char *mask)
{
    bool is_named[MAX_DEVICES] = {false};
    int kept = 0;
    for (const char *entry = mask; entry; entry = strchr(entry, ',')) {
        entry += *entry == ',';
        char *end;
        long index = strtol(entry, &end, 10);
        if (end != entry && (!*end || *end == ',' || *end == '.') && index >= 0 && index < visible_count)
            is_named[index] = true;
    }
    for (int i = 0; i < visible_count; i++)
        if (is_named[i])
            visible[kept++] = visible[i];
    visible_count = kept;
}

void find_visible(void)
{
    visible_count = 0;
    for (int i = 0; i < node()->devices; i++)
        if (node()->device[i].backend == face.backend)
            visible[visible_count++] = i;
    if (face.backend == ZE) {
        const char *mask = getenv("ZE_AFFINITY_MASK");
        if (mask && *mask)
            keep_masked(mask);
        return;
    }
    const char *cuda = getenv("CUDA_VISIBLE_DEVICES");
    if (face.backend == CUDA) {
        if (cuda)
            visible_count = keep_visible(cuda, visible, visible_count);
        /* CUDA shows a process one MIG instance only, and it before whole GPUs. */
        if (visible_count && !strncmp(node()->device[visible[0]].uuid, "MIG-", 4))
            visible_count = 1;
        return;
    }
    /* ROCr hides devices first and numbers the rest anew; HIP chooses among those, by AMD's variable or else
     * by NVIDIA's, and takes an empty value for none. */
    const char *rocr = getenv("ROCR_VISIBLE_DEVICES"), *hip = getenv("HIP_VISIBLE_DEVICES");
    if (rocr)
        visible_count = keep_visible(rocr, visible, visible_count);
    const char *choice = hip && *hip ? hip : cuda;
    if (choice && *choice)
        visible_count = keep_visible(choice, visible, visible_count);
}

int sim_init(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (initialized)
        return SUCCESS;
    find_visible();
    if (!visible_count)
        return NO_DEVICE;
    if (state_join(true))
        return OPERATING_SYSTEM;
    initialized = true;
    return SUCCESS;
}

bool sim_initialized(void)
{
    return initialized;
}

bool sees_index(int index)
{
    for (int i = 0; i < visible_count; i++)
        if (node()->device[visible[i]].index == index)
            return true;
    return false;
}

int visible_devices(void)
{
    return visible_count;
}

int ordinal_device(int ordinal)
{
    return ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : -1;
}

int device_ordinal(int device)
{
    for (int i = 0; i < visible_count; i++)
        if (visible[i] == device)
            return i;
    return -1;
}

static const struct device *seen(int ordinal)
{
    int device = ordinal_device(ordinal);
    return device < 0 ? NULL : &node()->device[device];
}

int sim_driver_version(int *version)
{
    if (!version)
        return INVALID_VALUE;
    *version = face.backend == CUDA ? node()->cuda_driver : node()->hip_driver;
    return SUCCESS;
}

int sim_device_count(int *count)
{
    if (!count)
        return INVALID_VALUE;
    *count = visible_count;
    return SUCCESS;
}

int sim_device_get(int *out, int device)
{
    if (!out)
        return INVALID_VALUE;
    if (!seen(device))
        return INVALID_DEVICE;
    *out = device;
    return SUCCESS;
}

static int give_text(char *to, int bytes, const char *text)
{
    if (!to || bytes <= 0)
        return INVALID_VALUE;
    snprintf(to, (size_t)bytes, "%s", text);
    spoil_text(to);
    return SUCCESS;
}

int sim_device_name(char *name, int bytes, int device)
{
    return seen(device) ? give_text(name, bytes, seen(device)->name) : INVALID_DEVICE;
}

/* CUDA gives the 16 bytes of the uuid; HIP the 16 hexadecimal digits of a serial number, as text. */
int sim_device_uuid(unsigned char *uuid, int device)
{
    if (!seen(device))
        return INVALID_DEVICE;
    if (!uuid)
        return INVALID_VALUE;
    memset(uuid, 0, 16);
    const char *digit = seen(device)->uuid + strlen("GPU-");
    for (int i = 0; *digit && i < (face.backend == HIP ? 16 : 32); digit++) {
        if (*digit == '-')
            continue;
        unsigned nibble = (unsigned)(isdigit((unsigned char)*digit) ? *digit - '0' : (*digit | 32) - 'a' + 10);
        if (face.backend == HIP)
            uuid[i] = (unsigned char)*digit;
        else
            uuid[i / 2] |= (unsigned char)(i % 2 ? nibble : nibble << 4);
        i++;
    }
    return SUCCESS;
}

int sim_device_pci(char *text, int bytes, int device)
{
    if (!seen(device))
        return INVALID_DEVICE;
    char pci[sizeof seen(0)->pci];
    strcpy(pci, seen(device)->pci);
    for (char *c = pci; *c && face.backend == CUDA; c++)
        *c = (char)toupper((unsigned char)*c); /* CUDA writes it so, HIP does not */
    return give_text(text, bytes, pci);
}

void device_pci_numbers(int ordinal, int *domain, int *bus, int *slot)
{
    sscanf(seen(ordinal)->pci, "%x:%x:%x", (unsigned *)domain, (unsigned *)bus, (unsigned *)slot);
}

int sim_device_by_pci(int *out, const char *text)
{
    if (!out || !text)
        return INVALID_VALUE;
    unsigned wanted[4], has[4];
    if (sscanf(text, "%x:%x:%x.%x", &wanted[0], &wanted[1], &wanted[2], &wanted[3]) != 4)
        return INVALID_VALUE;
    for (int i = 0; i < visible_count; i++)
        if (sscanf(seen(i)->pci, "%x:%x:%x.%x", &has[0], &has[1], &has[2], &has[3]) == 4 &&
            !memcmp(has, wanted, sizeof has)) {
            *out = i;
            return SUCCESS;
        }
    return INVALID_DEVICE;
}

int sim_device_memory(size_t *bytes, int device)
{
    if (!seen(device))
        return INVALID_DEVICE;
    if (!bytes)
        return INVALID_VALUE;
    *bytes = fault_asks(MISSTATE) ? fault_bytes(MISSTATE) : seen(device)->memory;
    return SUCCESS;
}

/* "9.0", or a gfx name, which is major, one digit minor, one digit stepping: gfx90a is 9.0, gfx1100 11.0. */
int sim_device_capability(int *major, int *minor, int device)
{
    if (!seen(device))
        return INVALID_DEVICE;
    if (!major || !minor)
        return INVALID_VALUE;
    const char *arch = seen(device)->arch;
    char digits[32];
    size_t length;
    *major = *minor = 0;
    if (sscanf(arch, "gfx%31[0-9a-f]", digits) == 1 && (length = strlen(digits)) >= 3) {
        *minor = digits[length - 2] - '0';
        digits[length - 2] = '\0';
        *major = atoi(digits);
    } else {
        sscanf(arch, "%d.%d", major, minor);
    }
    return SUCCESS;
}

int device_attribute(const struct attribute_numbers *numbers, int *value, int attribute, int device)
{
    int domain = 0, bus = 0, slot = 0, major = 0, minor = 0;
    int code = sim_device_capability(&major, &minor, device);
    if (code)
        return code;
    device_pci_numbers(device, &domain, &bus, &slot);
    *value = attribute == numbers->pci_bus            ? bus
             : attribute == numbers->pci_device       ? slot
             : attribute == numbers->pci_domain       ? domain
             : attribute == numbers->capability_major ? major
             : attribute == numbers->capability_minor ? minor
                                                      : 0;
    for (size_t i = 0; i < numbers->count; i++)
        if (numbers->fixed[i].number == attribute)
            *value = numbers->fixed[i].value;
    return SUCCESS;
}

int sim_can_access_peer(int *yes, int device, int peer)
{
    if (!yes)
        return INVALID_VALUE;
    if (!seen(device) || !seen(peer))
        return INVALID_DEVICE;
    *yes = device != peer && node()->peer[ordinal_device(device)][ordinal_device(peer)];
    return SUCCESS;
}

/* ---- errors ---- */

static const struct {
    int code;
    const char *text, *name[BACKENDS];
} errors[] = {
#define ERROR(constant, number, text, ...) {number, text, {__VA_ARGS__}},
#include "errors.def"
#undef ERROR
};

const char *error_name(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return errors[i].name[face.backend];
    return NULL;
}

const char *error_text(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code && errors[i].name[face.backend])
            return errors[i].text;
    return NULL;
}

int sim_error_name(int code, const char **text)
{
    return text && (*text = error_name(code)) ? SUCCESS : INVALID_VALUE;
}

int sim_error_string(int code, const char **text)
{
    return text && (*text = error_text(code)) ? SUCCESS : INVALID_VALUE;
}

int sim_unsupported(void)
{
    return face.unsupported;
}
