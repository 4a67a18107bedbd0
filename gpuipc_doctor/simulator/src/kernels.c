/* Modules and kernels. A kernel is known by its name: those of gpuipc_doctor/worker/backends/kernels.ptx and kernels.hip are
 * played, with the parameters that all of them have. A kernel is done when its launch returns, and an error in it is
 * the launch's; only a kernel that waits for a flag, and those behind it in its stream, run on until the value is
 * there or the time is over: four microseconds for each load. The order of loads and stores, caches, and what the threads
 * of a kernel do to each other are not simulated: every load sees the latest store, but for faults.
 */
#include "allocations.h"

#include <stdlib.h>
#include <string.h>

enum kernel { FILL, COMPARE, ADD, COPY, STORE, WAIT, KERNELS };

static const char *const kernel_names[KERNELS] = {"gpuipc_fill", "gpuipc_compare", "gpuipc_add",
                                                  "gpuipc_copy", "gpuipc_store",   "gpuipc_wait"};

struct module {
    struct module *next;
    char *text;
    char functions[KERNELS]; /* the address of the nth stands for its function */
};

static struct module *modules;

int sim_module_load(void **module, const void *image)
{
    struct context *context;
    int code = enter_context(&context);
    const char *text = image;
    if (code)
        return code;
    if (!module || !image)
        return INVALID_VALUE;
    if ((*text != '.' && *text != '/') || !strstr(text, kernel_names[0])) /* binary code, or another program's */
        return face.unsupported;
    struct module *new = calloc(1, sizeof *new);
    if (!new || !(new->text = strdup(text)))
        abort();
    new->next = modules;
    *module = modules = new;
    return SUCCESS;
}

int sim_module_unload(void *module)
{
    struct module **place = &modules;
    while (*place && *place != module)
        place = &(*place)->next;
    struct module *found = *place;
    if (!found)
        return INVALID_HANDLE;
    *place = found->next;
    free(found->text);
    free(found);
    return SUCCESS;
}

int sim_module_get_function(void **function, void *module, const char *name)
{
    struct module *found = modules;
    while (found && found != module)
        found = found->next;
    if (!found)
        return INVALID_HANDLE;
    if (!function || !name)
        return INVALID_VALUE;
    for (int i = 0; i < KERNELS; i++)
        if (!strcmp(kernel_names[i], name) && strstr(found->text, name)) {
            *function = &found->functions[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

static bool find_kernel(const char *function, enum kernel *kernel)
{
    for (const struct module *each = modules; each; each = each->next)
        for (int i = 0; i < KERNELS; i++)
            if (function == &each->functions[i]) {
                *kernel = (enum kernel)i;
                return true;
            }
    return false;
}

/* ---- what a kernel reaches ---- */

struct view { /* of memory, by a kernel */
    struct allocation *allocation;
    uint64_t begin; /* the allocation's address */
    uint32_t faults;
};

static bool is_faulty(const struct view *view, enum fault_effect effect)
{
    return view->faults >> (effect - KERNELS_READ_STALE) & 1u;
}

static int reach(uint64_t address, uint64_t bytes, struct view *view)
{
    const struct context *context = current_context();
    struct block *block = find_block(address);
    if (!block || block->device < 0)
        return ILLEGAL_ADDRESS;
    struct allocation *allocation = find_allocation(block, address, bytes);
    bool is_own = block->kind == OWN || block->kind == POOL;
    bool is_elsewhere = is_own && block->device != context->device;
    if (!allocation || allocation->ended || (is_elsewhere && !(context->peers >> block->device & 1u)))
        return ILLEGAL_ADDRESS;
    *view = (struct view){allocation, block->base + allocation->offset,
                          is_elsewhere ? context->peer_faults : allocation->flaw.kernels};
    return SUCCESS;
}

static int load(const struct view *view, uint64_t address, void *to, uint64_t bytes)
{
    struct allocation *allocation = view->allocation;
    if (!is_faulty(view, KERNELS_READ_STALE))
        return sim_copy_from_device(to, address, bytes);
    if (!allocation->first_view) {
        if (!(allocation->first_view = malloc(allocation->bytes)))
            abort();
        int code = sim_copy_from_device(allocation->first_view, view->begin, allocation->bytes);
        if (code)
            return code;
    }
    memcpy(to, allocation->first_view + (address - view->begin), bytes);
    return SUCCESS;
}

static int store(const struct view *view, uint64_t address, const void *from, uint64_t bytes)
{
    return is_faulty(view, KERNELS_LOSE_WRITES) ? SUCCESS : sim_copy_to_device(address, from, bytes);
}

/* ---- the kernels ---- */

struct launch {
    enum kernel kernel;
    struct view view, from; /* from: of a copy */
    uint64_t memory, count, result;
    uint32_t a, b, c, d;
    bool has_begun; /* of a wait: */
    uint32_t seen_first;
    uint64_t until; /* ms */
};

enum { ELEMENTS = 16 << 10 }; /* handled at a time */
static uint32_t elements[ELEMENTS];

static uint64_t number_at(const struct launch *launch, uint64_t done)
{
    return launch->count - done < ELEMENTS ? launch->count - done : ELEMENTS;
}

static int fill(const struct launch *launch)
{
    struct launch part = *launch;
    int code = SUCCESS;
    part.count -= part.count && is_faulty(&launch->view, KERNELS_MISS_LAST);
    for (uint64_t done = 0; done < part.count && !code; done += ELEMENTS) {
        uint64_t number = number_at(&part, done);
        for (uint64_t i = 0; i < number; i++)
            elements[i] = launch->a * (uint32_t)(done + i) + launch->b;
        code = store(&launch->view, launch->memory + 4 * done, elements, 4 * number);
    }
    return code;
}

static int compare(const struct launch *launch)
{
    uint64_t result[3];
    int code = sim_copy_from_device(result, launch->result, sizeof result);
    for (uint64_t done = 0; done < launch->count && !code; done += ELEMENTS) {
        uint64_t number = number_at(launch, done);
        code = load(&launch->view, launch->memory + 4 * done, elements, 4 * number);
        for (uint64_t i = 0; i < number && !code; i++) {
            uint32_t place = (uint32_t)(done + i);
            if (elements[i] == launch->a * place + launch->b)
                continue;
            uint64_t found = (done + i) << 32 | elements[i];
            result[0]++;
            result[1] = found < result[1] ? found : result[1];
            result[2] += elements[i] == launch->c * place + launch->d;
        }
    }
    return code ? code : sim_copy_to_device(launch->result, result, sizeof result);
}

/* Other processes add at the same time; the state's lock makes it atomic. */
static int add(const struct launch *launch)
{
    enum { LOST_OF = 4096, HOT = 4096 };
    bool is_hot = launch->b >= HOT && is_faulty(&launch->view, KERNELS_LOSE_HOT_ADDS);
    int code = SUCCESS;
    for (uint64_t done = 0; done < launch->count && !code; done += ELEMENTS) {
        uint64_t number = number_at(launch, done), at = launch->memory + 4 * done;
        state_lock();
        code = sim_copy_from_device(elements, at, 4 * number);
        for (uint64_t i = 0; i < number; i++) {
            bool loses = is_faulty(&launch->view, KERNELS_LOSE_ADDS) && (done + i) % LOST_OF == LOST_OF / 2;
            elements[i] += launch->a * (launch->b - (loses || is_hot));
        }
        code = code ? code : sim_copy_to_device(at, elements, 4 * number);
        state_unlock();
    }
    return code;
}

static int copy(const struct launch *launch)
{
    uint64_t step = sizeof elements, bytes = launch->count;
    int code = SUCCESS;
    bytes -= bytes && is_faulty(&launch->view, KERNELS_MISS_LAST);
    for (uint64_t done = 0; done < bytes && !code; done += step) {
        uint64_t now = bytes - done < step ? bytes - done : step;
        code = load(&launch->from, launch->result + done, elements, now);
        if (!code)
            code = store(&launch->view, launch->memory + done, elements, now);
    }
    return code;
}

/* Whether the wait is over. */
static bool waited(struct launch *launch)
{
    enum { LOADS_PER_MS = 250 };
    uint64_t present = now_ms();
    uint32_t flag;
    if (load(&launch->view, launch->memory, &flag, sizeof flag))
        return true;
    if (!launch->has_begun) {
        launch->has_begun = true;
        launch->seen_first = flag;
        launch->until = present + launch->count / LOADS_PER_MS;
    }
    if (is_faulty(&launch->view, KERNELS_SEE_FLAG_LATE))
        flag = launch->seen_first;
    bool is_seen = flag == launch->a && !is_faulty(&launch->view, KERNELS_SEE_NO_FLAG);
    uint64_t result = is_seen ? 1 : 2;
    if (!is_seen && present < launch->until)
        return false;
    sim_copy_to_device(launch->result, &result, sizeof result);
    return true;
}

static int run(const struct launch *launch)
{
    switch (launch->kernel) {
    case FILL:
        return fill(launch);
    case COMPARE:
        return compare(launch);
    case ADD:
        return add(launch);
    case COPY:
        return copy(launch);
    case STORE:
        return store(&launch->view, launch->memory, &launch->a, sizeof launch->a);
    default:
        return SUCCESS;
    }
}

static bool run_later(void *what)
{
    struct launch *launch = what;
    if (launch->kernel == WAIT && !waited(launch))
        return false;
    run(launch);
    free(launch);
    return true;
}

int sim_kernel_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                      void **extra)
{
    struct view result;
    enum kernel kernel;
    int code = stream_check(stream);
    if (code)
        return code;
    if (!find_kernel(function, &kernel))
        return INVALID_HANDLE;
    if (!parameters || !grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z)
        return INVALID_VALUE;
    if (extra || shared_bytes)
        return face.unsupported;
    struct launch launch = {.kernel = kernel};
    memcpy(&launch.memory, parameters[0], sizeof launch.memory);
    memcpy(&launch.count, parameters[1], sizeof launch.count);
    memcpy(&launch.result, parameters[2], sizeof launch.result);
    memcpy(&launch.a, parameters[3], sizeof launch.a);
    memcpy(&launch.b, parameters[4], sizeof launch.b);
    memcpy(&launch.c, parameters[5], sizeof launch.c);
    memcpy(&launch.d, parameters[6], sizeof launch.d);
    bool is_single = kernel == STORE || kernel == WAIT;
    if (is_single && (uint64_t)grid_x * grid_y * grid_z * block_x * block_y * block_z != 1)
        return face.unsupported;
    uint64_t bytes = is_single ? 4 : kernel == COPY ? launch.count : 4 * launch.count;
    if ((code = reach(launch.memory, bytes, &launch.view)))
        return code;
    if (kernel == COPY && (code = reach(launch.result, bytes, &launch.from)))
        return code;
    if ((kernel == COMPARE || kernel == WAIT) &&
        (code = reach(launch.result, kernel == COMPARE ? 24 : 8, &result)))
        return code;
    bool is_first = !stream_is_waiting(stream);
    if (is_first)
        stream_finish(stream);
    if (is_first && kernel != WAIT)
        return run(&launch);
    struct launch *later = malloc(sizeof *later);
    if (!later)
        abort();
    *later = launch;
    if (is_first && waited(later))
        free(later);
    else
        stream_until(stream, run_later, later);
    return SUCCESS;
}
