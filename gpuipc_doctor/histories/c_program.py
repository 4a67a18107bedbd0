"""A history as a C program that needs only the vendor's driver, which it loads with `dlopen`.

Each process of the history is a process of the program, forked before the driver is loaded. The first process
lets all take their steps in order, prints each step, and stops at the first that fails. All processes wait
until the last step is done, because on a correct driver an exporter that ends early ends the others'
mappings. Descriptors are passed through a socket that all processes share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.histories.contents import unit_of
from gpuipc_doctor.histories.memory_model import FILLS, Model
from gpuipc_doctor.histories.operations import History, Operation
from gpuipc_doctor.histories.steps import steps

LIBRARIES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}

CALLS = {  # what the program calls it → CUDA's symbol, HIP's symbol
    "init": ("cuInit", "hipInit"),
    "count": ("cuDeviceGetCount", "hipGetDeviceCount"),
    "version": ("cuDriverGetVersion", "hipRuntimeGetVersion"),
    "retain": ("cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain"),
    "reset": ("cuDevicePrimaryCtxReset_v2", "hipDevicePrimaryCtxReset"),
    "create": ("cuCtxCreate_v2", "hipCtxCreate"),  # CUDA 13's header redefines the plain name
    "destroy": ("cuCtxDestroy_v2", "hipCtxDestroy"),
    "set": ("cuCtxSetCurrent", "hipCtxSetCurrent"),
    "sync": ("cuCtxSynchronize", "hipDeviceSynchronize"),
    "info": ("cuMemGetInfo_v2", "hipMemGetInfo"),
    "alloc": ("cuMemAlloc_v2", "hipMalloc"),
    "release": ("cuMemFree_v2", "hipFree"),
    "to_device": ("cuMemcpyHtoD_v2", "hipMemcpyHtoD"),
    "to_host": ("cuMemcpyDtoH_v2", "hipMemcpyDtoH"),
    "on_device": ("cuMemcpyDtoD_v2", "hipMemcpyDtoD"),
    "fill_8": ("cuMemsetD8_v2", "hipMemsetD8"),
    "fill_16": ("cuMemsetD16_v2", "hipMemsetD16"),
    "fill_32": ("cuMemsetD32_v2", "hipMemsetD32"),
    "get": ("cuIpcGetMemHandle", "hipIpcGetMemHandle"),
    "open_handle": ("cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle"),
    "close_handle": ("cuIpcCloseMemHandle", "hipIpcCloseMemHandle"),
    "create_memory": ("cuMemCreate", "hipMemCreate"),
    "export_memory": ("cuMemExportToShareableHandle", "hipMemExportToShareableHandle"),
    "import_memory": ("cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle"),
    "reserve": ("cuMemAddressReserve", "hipMemAddressReserve"),
    "map": ("cuMemMap", "hipMemMap"),
    "allow": ("cuMemSetAccess", "hipMemSetAccess"),
    "unmap": ("cuMemUnmap", "hipMemUnmap"),
    "unreserve": ("cuMemAddressFree", "hipMemAddressFree"),
    "drop": ("cuMemRelease", "hipMemRelease"),
    "create_pool": ("cuMemPoolCreate", "hipMemPoolCreate"),
    "export_pool": ("cuMemPoolExportToShareableHandle", "hipMemPoolExportToShareableHandle"),
    "import_pool": ("cuMemPoolImportFromShareableHandle", "hipMemPoolImportFromShareableHandle"),
    "allow_pool": ("cuMemPoolSetAccess", "hipMemPoolSetAccess"),
    "from_pool": ("cuMemAllocFromPoolAsync", "hipMallocFromPoolAsync"),
    "to_pool": ("cuMemFreeAsync", "hipFreeAsync"),
    "export_pointer": ("cuMemPoolExportPointer", "hipMemPoolExportPointer"),
    "import_pointer": ("cuMemPoolImportPointer", "hipMemPoolImportPointer"),
    "trim": ("cuMemPoolTrimTo", "hipMemPoolTrimTo"),
    "destroy_pool": ("cuMemPoolDestroy", "hipMemPoolDestroy"),
}

_TEMPLATE = Path(__file__).with_name("program.c")
"""The C program: ``@name@`` stands for parts that vary by history, ``//@ WORD`` precedes optional parts."""

LEAKS = 12
"""Minimum repetitions for which the program also checks for leaks."""


class NotInC(Exception):
    """The history has an operation that cannot be written in C."""


def source(history: History) -> str:
    """The history as a C program. Raises `NotInC`."""
    operations = [operation for operation in history.operations if operation.do != "rest"]
    if history.times > 1 and any(operation.do == "kill" for operation in operations):
        raise NotInC("cannot write C code: the repeated history kills a process")
    cases = [line for number, one in enumerate(operations) for line in _case(history, operations, number)]
    owners = {operation.makes: operation.by for operation in operations}
    exports = ("import", "import-fabric", "import-pool", "import-pointer")
    places = range(max(history.processes, default=0) + 1)
    body = "\n".join(cases)
    values = {
        "library": LIBRARIES[history.backend],
        "steps": len(operations),
        "things": max([0, *(max(operation.makes, operation.on, operation.of) for operation in operations)])
        + 1,
        "processes": len(places),
        "times": history.times,
        "by": _list(operation.by for operation in operations),
        "exporters": _list(
            owners[operation.on] if operation.do in exports else 0 for operation in operations
        ),
        "killed": _list(int(operation.do == "kill") for operation in operations),
        "devices": _list(map(history.index, places)),
        "primary": _list(int(n not in history.processes or history.processes[n].primary) for n in places),
        "cases": body,
    }
    goes_on = _goes_on(history.of(operations))
    values["goes_on"] = _list(map(int, goes_on))
    shape = (
        f"{'@beside' if any(goes_on) else '@in_turn'} {'@repeated' if history.times >= LEAKS else '@once'}"
    )
    text = "".join(_used(f"{body} {shape}"))
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return _named(history.backend, text.replace("\n}\n\n", "\n}\n"))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _used(uses: str) -> Iterator[str]:
    """The template's lines. A part below a line ``//@ WORD …`` is kept if one of its words is used."""
    used = True
    for line in _TEMPLATE.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith("//@"):
            used = any(word in uses for word in line.split()[1:] or [""])
        elif used:
            yield line


def _named(backend: str, program: str) -> str:
    for name, symbols in CALLS.items():
        program = re.sub(rf"\b{name}\(", f'call("{symbols[backend == "hip"]}", ', program)
    return program.replace(", )", ")")


def _case(history: History, operations: list[Operation], number: int) -> Iterator[str]:
    operation = operations[number]
    on, of, makes = operation.on, operation.of, operation.makes
    nbytes = f"{operation.nbytes}ul"
    enter = f"enter(where[{on}]);"
    fd = "(void *)(intptr_t)fd"
    imported = "version < 70100000 ? (void *)&fd : (void *)(intptr_t)fd" if history.backend == "hip" else fd
    asked = "int version; version(&version); " if history.backend == "hip" else ""
    # HIP returns the pool's one descriptor each time, so it stays open until the pool is destroyed.
    keeps, posted = (" where[{pool}] = {fd};", "dup(fd)") if history.backend == "hip" else ("", "fd")
    closes = f" close(where[{on}]);" if history.backend == "hip" else ""
    device = f"device == devices[{_owner(operations, on)}]"
    sized = f"size[{makes}] = {nbytes};"
    length = f"{operation.length}ul" if operation.length else f"size[{on}]"
    width = FILLS.get(operation.kind, 4)
    value = int.from_bytes(unit_of(operation.stamp, width), "little")
    lines = {
        "allocate": f"{sized} where[{makes}] = current; enter(current); alloc(&at[{makes}], {nbytes});"
        f" get(&handle[{makes}], at[{makes}]); given(&handle[{makes}], 64);",
        "export": f"{enter} get(&handle[{on}], at[{on}]);",
        "open": f"size[{makes}] = size[{on}]; where[{makes}] = current; enter(current); at[{makes}] = 0;"
        f" open_handle(&at[{makes}], handle[{on}], 1); given(&at[{makes}], 8);",
        "close": f"{enter} close_handle(at[{on}]);",
        "free": f"{enter} release(at[{on}]);",
        "free-open": f"{enter} release(at[{on}]);",
        "write": f"{enter} fill({on}, {operation.offset}ul, {length}, {operation.stamp});",
        "fill": f"{enter} fill_{operation.kind}(at[{on}] + {operation.offset}ul, {value}u,"
        f" {length} / {width}ul); sync();",
        "read": f"{enter} {_compared(history, number)}",
        "copy": f"{enter} enter(where[{of}] >= 0 ? where[{of}] : where[{on}]);"
        f" on_device(at[{on}] + {operation.offset}ul, at[{of}] + {operation.start}ul, {length}); sync();",
        "create": f"{sized} enter(current); struct wanted wanted = {{ 1, 1, 1, device }};"
        f" create_memory(&at[{makes}], {nbytes}, &wanted, 0ul);",
        "import": f"if (me == exporters[{number}]) {{ int fd; export_memory(&fd, at[{on}], 1, 0ul);"
        f" mail(fd); break; }} {asked}int fd = mail(-1); enter(current); size[{makes}] = size[{on}];"
        f" import_memory(&at[{makes}], {imported}, 1); close(fd);",
        "create-fabric": f"{sized} enter(current); struct wanted wanted = {{ 1, 8, 1, device }};"
        f" create_memory(&at[{makes}], {nbytes}, &wanted, 0ul);",
        "import-fabric": f"if (me == exporters[{number}]) {{ export_memory(&handle[{on}], at[{on}], 8, 0ul);"
        f" break; }} enter(current); size[{makes}] = size[{on}];"
        f" import_memory(&at[{makes}], &handle[{on}], 8);",
        "map": f"size[{makes}] = size[{on}]; where[{makes}] = -1; enter(current); struct access access ="
        f" {{ 1, device, 3 }}; reserve(&at[{makes}], size[{on}], 0ul, 0ul, 0ul); map(at[{makes}], size[{on}],"
        f" 0ul, at[{on}], 0ul); allow(at[{makes}], size[{on}], &access, 1ul);",
        "unmap": f"enter(current); unmap(at[{on}], size[{on}]); unreserve(at[{on}], size[{on}]);",
        "release": f"enter(current); drop(at[{on}]);",
        "create-pool": f"enter(current); struct wanted wanted = {{ 1, 1, 1, device }};"
        f" create_pool(&at[{makes}], &wanted);{keeps.format(pool=makes, fd=-1)}",
        "import-pool": f"if (me == exporters[{number}]) {{ int fd; export_pool(&fd, at[{on}], 1, 0ul);"
        f"{keeps.format(pool=on, fd='fd')} mail({posted}); break; }}"
        f" int fd = mail(-1); enter(current); struct access access = {{ 1, device, 3 }};"
        f" import_pool(&at[{makes}], {fd}, 1, 0ul); close(fd);"
        f" if (!({device})) allow_pool(at[{makes}], &access, 1ul);{keeps.format(pool=makes, fd=-1)}",
        "allocate-from-pool": f"{sized} where[{makes}] = -1; enter(current);"
        f" from_pool(&at[{makes}], {nbytes}, at[{on}], 0ul); sync();",
        "import-pointer": f"if (me == exporters[{number}]) {{ export_pointer(&handle[{on}], at[{on}]);"
        f" break; }} size[{makes}] = size[{on}]; where[{makes}] = -1; enter(current);"
        f" import_pointer(&at[{makes}], at[{of}], &handle[{on}]);",
        "free-to-pool": f"enter(current); to_pool(at[{on}], 0ul); sync();",
        "trim": f"enter(current); trim(at[{on}], 0ul);",
        "destroy-pool": f"enter(current); destroy_pool(at[{on}]);{closes}",
        "create-context": f"create(&context[{makes}], 0, device); current = {makes};",
        "use-context": f"current = {on};",
        "end-context": f"end({on});",
        "fork": "if (!fork()) _exit(0); wait(0);",
        "idle": "sleep(1);",
        "kill": "raise(SIGKILL);",
    }
    if operation.do not in lines or operation.device:
        raise NotInC(f"step {number + 1} ({operation.do}) cannot be written in C")
    says = steps(replace(history, operations=(operation,)), number + 1)[0]
    yield f'    case {number}: {{ say("{says}"); {lines[operation.do]} break; }}'


def _goes_on(history: History) -> list[bool]:
    """For each operation, whether the next one begins before this one has ended."""
    model = Model(history)
    beside = [model.apply(operation).beside for operation in history.operations]
    return [*beside[1:], False]


def _owner(operations: list[Operation], number: int) -> int:
    return next((operation.by for operation in operations if operation.makes == number), 0)


def _compared(history: History, at: int) -> str:
    """The calls that read memory and compare what is known of it."""
    model = Model(history)
    operations = [operation for operation in history.operations if operation.do != "rest"]
    on = operations[at].on
    for operation in operations[:at]:
        model.apply(operation)
    parts = model.apply(operations[at]).parts
    if not parts:
        return f"compare({on}, 0ul, size[{on}], 0, 0l, 0);"
    stamps = [int.from_bytes(unit_of(one.stamp, 4), "little") if one.width else one.stamp for one in parts]
    return " ".join(
        f"compare({on}, {one.begin}ul, {one.end}ul, {stamp}u, {one.shift}l, {one.width});"
        for one, stamp in zip(parts, stamps, strict=True)
    )
