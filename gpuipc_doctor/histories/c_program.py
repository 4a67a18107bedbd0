"""A history as a C program that needs only the vendor's driver, which it loads with `dlopen`.

Each process of the history is a process of the program, forked before the driver is loaded. The first process
lets all take their steps in order, prints each step, and stops at the first that fails. All processes wait
until the last step is done, because on a correct driver an exporter that ends early ends the others'
mappings. Descriptors are passed through a socket that all processes share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.histories.c_drivers import NotInC, driver_of
from gpuipc_doctor.histories.contents import Part, unit_of
from gpuipc_doctor.histories.memory_model import Model
from gpuipc_doctor.histories.memory_operations import TYPES
from gpuipc_doctor.histories.memory_state import FILLS
from gpuipc_doctor.histories.operations import History, Operation
from gpuipc_doctor.histories.steps import steps
from gpuipc_doctor.vendors import SUPPORTED

_TEMPLATE = Path(__file__).with_name("program.c")
"""The C program: ``@name@`` stands for parts that vary by history, ``//@ WORD`` precedes optional parts."""

LEAKS = 12
"""Minimum repetitions for which the program also checks for leaks."""


def source(history: History) -> str:
    """The history as a C program. Raises `NotInC`."""
    operations = [operation for operation in history.operations if operation.do != "rest"]
    if history.times > 1 and any(operation.do == "kill" for operation in operations):
        raise NotInC("cannot write C code: the repeated history kills a process")
    model = Model(history)
    expected = [model.apply(operation) for operation in operations]
    owners = {operation.makes: operation.by for operation in operations}
    cases = [
        _case(history, number, operation, parts, owners.get(operation.on, 0))
        for number, (operation, (*_, parts)) in enumerate(zip(operations, expected, strict=True))
    ]
    places = range(max(history.processes, default=0) + 1)
    body = "\n".join(cases)
    objects = [number for each in operations for number in (each.makes, each.on, each.of)]
    goes_on = [*(each.beside for each in expected[1:]), False]
    exporters = (owners[each.on] if TYPES[each.do].exports else 0 for each in operations)
    values = {
        "library": SUPPORTED[history.backend].library,
        "steps": len(operations),
        "things": max([0, *objects]) + 1,
        "processes": len(places),
        "times": history.times,
        "by": _list(operation.by for operation in operations),
        "exporters": _list(exporters),
        "killed": _list(int(operation.do == "kill") for operation in operations),
        "devices": _list(map(history.index, places)),
        "primary": _list(int(n not in history.processes or history.processes[n].primary) for n in places),
        "cases": body,
        "goes_on": _list(map(int, goes_on)),
    }
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
    """The program with the vendor's functions, each called by ``call``."""

    def call(found: re.Match[str]) -> str:
        return f'call("{driver_of(backend).symbol(found[1])}", '

    return re.sub(r"\b(cu[A-Z]\w+)\(", call, program).replace(", )", ")")


def _case(history: History, number: int, operation: Operation, parts: Sequence[Part], exporter: int) -> str:
    on, makes = operation.on, operation.makes
    driver = driver_of(history.backend)
    keeps = driver.pools_have_one_descriptor
    width = FILLS.get(operation.kind, 4)
    values = {name: getattr(operation, name) for name in Operation.__slots__} | {
        "number": number,
        "enter": f"enter(where[{on}]);",
        "nbytes": f"{operation.nbytes}ul",
        "sized": f"size[{makes}] = {operation.nbytes}ul;",
        "length": f"{operation.length}ul" if operation.length else f"size[{on}]",
        "width": width,
        "value": int.from_bytes(unit_of(operation.stamp, width), "little"),
        "compared": _compared(on, parts),
        "device": f"device == devices[{exporter}]",
        "asked": driver.asks_version,
        "imported": driver.imported,
        "keeps_new": f" where[{makes}] = -1;" if keeps else "",
        "keeps_exported": f" where[{on}] = fd;" if keeps else "",
        "posted": "dup(fd)" if keeps else "fd",
        "closes": f" close(where[{on}]);" if keeps else "",
    }
    statements = TYPES[operation.do].c
    if not statements or operation.device:
        raise NotInC(f"step {number + 1} ({operation.do}) cannot be written in C")
    says = steps(replace(history, operations=(operation,)), number + 1)[0]
    return f'    case {number}: {{ say("{says}"); {statements.format(**values)} break; }}'


def _compared(on: int, parts: Sequence[Part]) -> str:
    """The calls that read memory and compare what is known of it."""
    if not parts:
        return f"compare({on}, 0ul, size[{on}], 0, 0l, 0);"
    stamps = [int.from_bytes(unit_of(one.stamp, 4), "little") if one.width else one.stamp for one in parts]
    return " ".join(
        f"compare({on}, {one.begin}ul, {one.end}ul, {stamp}u, {one.shift}l, {one.width});"
        for one, stamp in zip(parts, stamps, strict=True)
    )
