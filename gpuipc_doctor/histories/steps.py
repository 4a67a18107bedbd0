"""Write a history of memory as numbered steps in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from gpuipc_doctor.histories.memory_operations import TYPES
from gpuipc_doctor.histories.operations import WHOLE, History, Operation

_FIELDS = tuple(field.name for field in fields(Operation))


def step(operation: Operation, *, primary: bool, device: str = "") -> str:
    """One operation in words.

    ``primary``: whether the process's first context is the primary one. ``device``: label of the process's
    device, empty if all processes use the same.
    """
    if operation.on:
        ends = f"destroys context {operation.on}"
    else:
        ends = "resets its primary context" if primary else "destroys its context and creates another"
    values = {name: getattr(operation, name) for name in _FIELDS} | {
        "by": f"{operation.by} ({device})" if device else operation.by,
        "context": f"context {operation.on}" if operation.on else "its first context",
        "ends": ends,
    }
    sentence = TYPES[operation.do].says.format(**values)
    if operation.length:
        taken = f" from byte {operation.start} on" if operation.of else ""
        sentence += f" ({operation.length} B at byte {operation.offset}{taken and ','}{taken})"
    if operation.kind == WHOLE:
        sentence += ", all of it in one copy"
    if operation.device:
        sentence += f", on device {operation.device - 1} of the history"
    return f"at the same time, {sentence}" if operation.beside else sentence


def steps(history: History, first: int = 1) -> Sequence[str]:
    """The history's steps in order: ``1. process 1 allocates …``; with devices if there are several."""
    several = len({plan.device for plan in history.processes.values()}) > 1

    def said(operation: Operation) -> str:
        device = f"{history.backend}:{history.index(operation.by)}" if several else ""
        return step(operation, primary=history.processes[operation.by].primary, device=device)

    return history.numbered(map(said, history.operations), first)
