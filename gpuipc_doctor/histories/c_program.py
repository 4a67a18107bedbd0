"""A history as a C program for the driver's vendor: no header and no library of ours, one `dlopen`.

Each process of the history is one of the program, forked before the driver is loaded. The first one has them
take their steps in order, prints each, and stops at the first that fails. All wait until the last step is
done: on a correct driver an exporter that ended first would end what others have open.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.histories.operations import History, Operation
from gpuipc_doctor.histories.steps import step

LIBRARIES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}

CALLS = {  # what the program calls it → CUDA's symbol, HIP's symbol
    "init": ("cuInit", "hipInit"),
    "count": ("cuDeviceGetCount", "hipGetDeviceCount"),
    "retain": ("cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain"),
    "reset": ("cuDevicePrimaryCtxReset_v2", "hipDevicePrimaryCtxReset"),
    "create": ("cuCtxCreate_v2", "hipCtxCreate"),  # CUDA 13's header calls another by the name without _v2
    "destroy": ("cuCtxDestroy_v2", "hipCtxDestroy"),
    "set": ("cuCtxSetCurrent", "hipCtxSetCurrent"),
    "sync": ("cuCtxSynchronize", "hipDeviceSynchronize"),
    "alloc": ("cuMemAlloc_v2", "hipMalloc"),
    "release": ("cuMemFree_v2", "hipFree"),
    "to_device": ("cuMemcpyHtoD_v2", "hipMemcpyHtoD"),
    "to_host": ("cuMemcpyDtoH_v2", "hipMemcpyDtoH"),
    "on_device": ("cuMemcpyDtoD_v2", "hipMemcpyDtoD"),
    "get": ("cuIpcGetMemHandle", "hipIpcGetMemHandle"),
    "open_handle": ("cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle"),
    "close_handle": ("cuIpcCloseMemHandle", "hipIpcCloseMemHandle"),
}


class NotInC(Exception):
    """The history has an operation that the program cannot do."""


def source(history: History) -> str:
    """The program. Raises `NotInC`."""
    operations = [operation for operation in history.operations if operation.do != "rest"]
    cases = [line for number, one in enumerate(operations) for line in _case(history, number, one)]
    things = max([0, *(max(one.makes, one.on, one.of) for one in operations)]) + 1
    values = {
        "library": LIBRARIES[history.backend],
        "symbols": _symbols(history.backend, "\n".join(cases)),
        "steps": len(operations),
        "things": things,
        "processes": max(history.processes, default=0) + 1,
        "times": history.times,
        "by": ", ".join(str(operation.by) for operation in operations),
        "killed": ", ".join(str(int(operation.do == "kill")) for operation in operations),
        "devices": ", ".join(
            str(history.processes[number].device if number in history.processes else 0)
            for number in range(max(history.processes, default=0) + 1)
        ),
        "primary": ", ".join(
            str(int(number not in history.processes or history.processes[number].primary))
            for number in range(max(history.processes, default=0) + 1)
        ),
        "cases": "\n".join(cases),
    }
    text = _PROGRAM
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _symbols(backend: str, used: str) -> str:
    """A macro for each call that the program makes: it names the call where it fails."""
    always = ("init", "count", "retain", "reset", "create", "destroy", "set", "sync", "to_device", "to_host")
    return "\n".join(
        f'#define {name}(...) call("{symbols[backend == "hip"]}", __VA_ARGS__)'
        for name, symbols in CALLS.items()
        if name in always or f"{name}(" in used
    )


def _case(history: History, number: int, operation: Operation) -> Iterator[str]:
    """The C statements of one step."""
    on, of, makes = operation.on, operation.of, operation.makes
    nbytes = f"{operation.nbytes}ul"
    enter = f"enter(where[{on}]);"
    lines = {
        "allocate": f"size[{makes}] = {nbytes}; where[{makes}] = current; enter(current);"
        f" alloc(&at[{makes}], {nbytes}); get(&handle[{makes}], at[{makes}]);",
        "export": f"{enter} get(&handle[{on}], at[{on}]);",
        "open": f"size[{makes}] = size[{on}]; where[{makes}] = current; enter(current);"
        f" open_handle(&at[{makes}], handle[{on}], 1);",
        "close": f"{enter} close_handle(at[{on}]);",
        "free": f"{enter} release(at[{on}]);",
        "free-open": f"{enter} release(at[{on}]);",
        "write": f"{enter} fill({on}, {operation.stamp});",
        "read": f"{enter} compare({on}, {_shown(history, number)});",
        "copy": f"{enter} on_device(at[{on}], at[{of}], size[{on}]); sync();",
        "create-context": f"create(&context[{makes}], 0, device); current = {makes};",
        "use-context": f"current = {on};",
        "end-context": f"end({on});",
        "kill": "raise(SIGKILL);",
    }
    if operation.do not in lines:
        raise NotInC(f"step {number + 1} ({operation.do}) has no C: programs are of legacy IPC handles only")
    says = f"{number + 1}. {step(operation, primary=history.processes[operation.by].primary)}"
    yield f'    case {number}: puts("{says}"); {lines[operation.do]} break;'


def _shown(history: History, at: int) -> int:
    """The stamp that a read must find; 0 where the contents are not known."""
    from gpuipc_doctor.histories.model import Model

    model = Model(history)
    operations = [operation for operation in history.operations if operation.do != "rest"]
    for operation in operations[:at]:
        model.apply(operation)
    return model.apply(operations[at]).stamp


_PROGRAM = """\
/* A history of legal operations that a driver failed, found by gpuipc-doctor (ipc-histories).
 * cc -o history history.c -ldl && ./history; exits 1 at the step that fails, 0 when none does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = @steps@, THINGS = @things@, PROCESSES = @processes@, TIMES = @times@ };
struct handle { char bytes[64]; };
static const int by[] = { @by@ }, killed[] = { @killed@ };
static const int devices[] = { @devices@ }, primary[] = { @primary@ };

/* shared by all processes: what was exported, and sizes */
static struct shared { struct handle handle[THINGS]; uint64_t size[THINGS]; } *shared;
#define handle shared->handle
#define size shared->size

/* of one process: addresses, contexts, and the context of each object */
static uint64_t at[THINGS];
static void *context[THINGS], *library;
static int where[THINGS], current, device, me;

#define call(symbol, ...) do { \\
    int (*function)() = (int (*)())dlsym(library, symbol); \\
    int code = function ? function(__VA_ARGS__) : -1; \\
    if (code) { printf("    %s returned %d\\n", symbol, code); _exit(1); } } while (0)
@symbols@

static void enter(int number) { set(context[number]); }

static void begin(void)
{
    if (primary[me]) retain(&context[0], device); else create(&context[0], 0, device);
    enter(current = 0);
}

__attribute__((unused)) static void end(int number)
{
    enter(number);
    if (number || !primary[me]) destroy(context[number]); else reset(device);
    if (number == 0) begin();
    current = 0;
}

static uint32_t word(uint64_t i, uint32_t stamp) { return stamp * 2654435761u ^ (uint32_t)i; }

__attribute__((unused)) static void fill(int number, uint32_t stamp)
{
    uint32_t *data = malloc(size[number] + 4);
    for (uint64_t i = 0; i <= size[number] / 4; i++) data[i] = word(i, stamp);
    to_device(at[number], data, size[number]);
    sync();
    free(data);
}

__attribute__((unused)) static void compare(int number, uint32_t stamp)
{
    unsigned char *data = calloc(size[number], 1);
    to_host(data, at[number], size[number]);
    for (uint64_t i = 0; stamp && i < size[number]; i++)
        if (data[i] != (unsigned char)(word(i / 4, stamp) >> i % 4 * 8)) {
            printf("    wrong data from byte %lu on\\n", (unsigned long)i); _exit(1);
        }
    free(data);
}

static void take(int step)
{
    switch (step) {
@cases@
    }
}

static void serve(int orders, int answers)
{
    int step, started = 0;
    while (read(orders, &step, sizeof step) == sizeof step) {
        if (!started++) {
            library = dlopen("@library@", RTLD_NOW);
            if (!library) { puts("    no @library@"); _exit(2); }
            int devices_here; init(0); count(&devices_here);
            if (device >= devices_here) { printf("    needs %d GPUs\\n", device + 1); _exit(2); }
            begin();
        }
        take(step);
        if (write(answers, &step, sizeof step) != sizeof step) _exit(2);
    }
    exit(0);
}

int main(void)
{
    int orders[PROCESSES][2], answers[PROCESSES][2], pid[PROCESSES], answer;
    signal(SIGPIPE, SIG_IGN);
    setlinebuf(stdout);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int p = 0; p < PROCESSES; p++) {
        if (pipe(orders[p]) || pipe(answers[p])) return 2;
        pid[p] = fork();
        if (!pid[p]) {
            for (int other = 0; other <= p; other++) { close(orders[other][1]); close(answers[other][0]); }
            device = devices[me = p];
            serve(orders[p][0], answers[p][1]);
        }
        close(answers[p][1]);
    }
    for (int round = 0; round < TIMES; round++)
        for (int step = 0; step < STEPS; step++) {
            int p = by[step], status;
            if (write(orders[p][1], &step, sizeof step) != sizeof step) return 1;
            if (read(answers[p][0], &answer, sizeof answer) == sizeof answer) continue;
            waitpid(pid[p], &status, 0);
            if (killed[step]) continue;
            if (WIFSIGNALED(status)) printf("    signal %d\\n", WTERMSIG(status));
            printf("step %d failed\\n", step + 1);
            for (int other = 0; other < PROCESSES; other++) if (other != p) kill(pid[other], SIGKILL);
            return WIFEXITED(status) && WEXITSTATUS(status) == 2 ? 2 : 1;
        }
    for (int p = 0; p < PROCESSES; p++) close(orders[p][1]); /* only now may any process end */
    while (wait(0) > 0) { }
    puts("all steps succeeded");
    return 0;
}
"""
