"""A history of messages as a C program for an MPI's vendor, which needs only ``mpi.h`` and the GPU driver.

Each rank prints each of its steps before it performs the step, and compares whole buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.histories.c_drivers import driver_of
from gpuipc_doctor.histories.message_layouts import BLANK, LAYOUTS
from gpuipc_doctor.histories.message_model import Model, legal
from gpuipc_doctor.histories.message_operations import OF_ALL, TYPES
from gpuipc_doctor.histories.message_rank import MARGIN, PAGE
from gpuipc_doctor.histories.message_state import ANY_SOURCE, ANY_TAG, WHERE, Part, Receive
from gpuipc_doctor.histories.message_steps import steps
from gpuipc_doctor.histories.operations import History, Operation
from gpuipc_doctor.vendors import SUPPORTED

_TEMPLATE = Path(__file__).with_name("mpi_program.c")
"""The C program: ``@name@`` stands for parts that vary by history."""

_KINDS = list(LAYOUTS)


def source(history: History) -> str:
    """The history as a C program. With a correct MPI it prints "all steps succeeded" and exits with 0.

    Collectives and one-sided operations are left out; then it says so and exits with 2.
    """
    once = replace(history, times=1)
    model, operations = Model(once), legal(once)
    known = [(operation, model.ready(operation.by), model.apply(operation).parts) for operation in operations]
    body = []
    for number, (step, says) in enumerate(zip(known, steps(once.of(operations)), strict=True), 1):
        who = "1" if step[0].do in OF_ALL else f"me == {step[0].by - 1}"
        body.append(f'    if ({who}) {{ step({number}, "{says}"); {_statements(*step)} }}')
    left = [
        f"    if (me == {request.by - 1}) {{ {_statements(Operation('wait', 0, on), (), request.parts)} }}"
        for on, request in model.requests.items()
        if request.parts
    ]
    layouts = (f"{{ {one.begin}, {one.block}, {one.stride}, {one.split} }}" for one in LAYOUTS.values())
    driver = driver_of(history.backend)
    values = {
        "ranks": max(2, *history.processes),
        "things": 1 + max((operation.makes for operation in operations), default=0),
        "kinds": ", ".join(layouts),
        "blank": BLANK,
        "margin": MARGIN,
        "page": PAGE,
        "times": history.times,
        "steps": "\n".join(body),
        "left": "\n".join(left),
        "library": SUPPORTED[history.backend].library,
        "allocate": driver.allocate,
        "free": driver.free,
        "copy": driver.copy,
        "begin": driver.begin,
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _statements(op: Operation, ready: Sequence[int], parts: Sequence[Part]) -> str:
    """The C statements of an operation: those of its class, with values."""
    layout = _KINDS.index(op.kind) if op.kind in _KINDS else 0
    typed = (
        f"1, type({layout}, {op.nbytes})" if LAYOUTS[_KINDS[layout]].is_derived else f"{op.nbytes}, MPI_BYTE"
    )
    peer = "MPI_ANY_SOURCE" if op.peer == ANY_SOURCE else f"rank({op.within}, {op.peer - 1})"
    to, comm = f"{peer}, {'MPI_ANY_TAG' if op.tag == ANY_TAG else op.tag}", f"comm[{op.within}]"
    truncates = any(isinstance(part, Receive) and part.truncates for part in parts)
    values = {
        **{"on": op.on, "of": op.of, "makes": op.makes, "nbytes": op.nbytes, "communicator": op.within},
        **{"layout": layout, "typed": typed, "on_device": int(op.kind == WHERE[0])},
        "message": f"buffer({op.on}, {layout}), {typed}, {to}",
        "into": f"buffer({op.of}, {layout}), {typed}, {to}",
        "out": f"buffer({op.on}, {layout}), {typed}, {to}, {comm}",
        "from_": f"{to}, {comm}",
        "fill": f"fill({op.on}, {layout}, {op.nbytes}, {op.stamp});",
        "checked": "too_long" if truncates else "try",
        "looks": " ".join(_look(part) for part in parts),
        "prepared": " ".join(map(_prepared, parts)),
        "requests": ", ".join(f"request[{number}]" for number in ready),
        "count": len(ready),
        "all_seen": " ".join(
            f"request[{number}] = all[{place}]; {_look(part, f'seen[{place}]')}"
            for place, (number, part) in enumerate(zip(ready, parts, strict=False))
        ),
    }
    return TYPES[op.do].c.format(**values)


def _prepared(part: Part) -> str:
    if isinstance(part, Receive):
        return f"clear({part.posted.on});"
    sent = part.sent
    return f"fill({sent.on}, {_KINDS.index(sent.kind)}, {sent.nbytes}, {sent.stamp});"


def _look(part: Part, status: str = "status") -> str:
    """C statements that compare received or sent data."""
    if isinstance(part, Receive):
        if part.message is None or part.truncates:
            return ""
        into, sent = part.posted, part.message.sent
        source = f"rank({part.message.within}, {sent.by - 1})"
        status = f" look(&{status}, {source}, {sent.tag}, {sent.nbytes});"
    else:
        into, sent, status = part.sent, part.sent, ""
    kind = _KINDS.index(into.kind)
    return f"compare({into.on}, {kind}, {into.nbytes}, {sent.stamp}, {sent.nbytes});{status}"
