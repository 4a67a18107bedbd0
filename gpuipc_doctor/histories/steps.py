"""Write a history as numbered steps in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuipc_doctor.histories.operations import WHOLE, History, Operation

SENTENCES: Mapping[str, str] = {
    "allocate": "process {by} allocates buffer {makes} ({nbytes} B) and exports its IPC handle",
    "export": "process {by} exports the IPC handle of buffer {on} again",
    "open": "process {by} opens the IPC handle of buffer {on}: mapping {makes}",
    "close": "process {by} closes mapping {on}",
    "free": "process {by} frees buffer {on}",
    "close-in-thread": "process {by} closes mapping {on} in another thread",
    "free-in-thread": "process {by} frees buffer {on} in another thread",
    "free-open": "process {by} frees buffer {on}, which is still open in another process",
    "write": "process {by} writes contents {stamp} through {on}",
    "read": "process {by} reads {on} and compares",
    "copy": "process {by} copies {of} to {on} on the device",
    "open-in-thread": "process {by} opens the IPC handle of buffer {on} in another thread: mapping {makes}",
    "write-in-thread": "process {by} writes contents {stamp} through {on} in another thread",
    "read-in-thread": "process {by} reads {on} in another thread and compares",
    "fill": "process {by} fills {on} with a number of {kind} bits",
    "ask": "process {by} asks the driver about byte {offset} of {on}",
    "copy-across-streams": "process {by} copies {of} to {on} in one stream; another stream waits",
    "create-event": "process {by} creates event {makes} and exports its IPC handle",
    "open-event": "process {by} opens the IPC handle of event {on}: {makes}",
    "copy-and-record": "process {by} copies {of} to {on} on the device and at once records event {within}",
    "wait-event": "process {by} waits for event {on}",
    "destroy-event": "process {by} destroys event {on}",
    "write-by-kernel": "process {by} writes contents {stamp} through {on} by a kernel",
    "read-by-kernel": "process {by} reads {on} by a kernel and compares",
    "fork": "process {by} forks a child, which exits at once",
    "idle": "process {by} and all others idle for four seconds",
    "create": "process {by} creates physical memory {makes} ({nbytes} B)",
    "import": "process {by} imports physical memory {on}, exported as a file descriptor: {makes}",
    "create-fabric": "process {by} creates physical memory {makes} ({nbytes} B) to export as a fabric handle",
    "import-fabric": "process {by} imports physical memory {on}, exported as a fabric handle: {makes}",
    "map": "process {by} maps physical memory {on}: view {makes}",
    "unmap": "process {by} unmaps view {on}",
    "release": "process {by} releases physical memory {on}",
    "create-pool": "process {by} creates memory pool {makes}, which can be exported",
    "import-pool": "process {by} imports memory pool {on}, exported as a file descriptor: {makes}",
    "allocate-from-pool": "process {by} allocates memory {makes} ({nbytes} B) from pool {on}",
    "import-pointer": "process {by} imports the pointer of memory {on} into pool {of}: memory {makes}",
    "free-to-pool": "process {by} frees memory {on} to its pool",
    "trim": "process {by} trims pool {on}",
    "destroy-pool": "process {by} destroys pool {on}",
    "create-context": "process {by} creates context {makes}, which becomes current",
    "use-context": "process {by} makes {on} current",
    "end-context": "process {by} {ends}",
    "kill": "process {by} is killed",
    "rest": "process {by} has released everything",
}
"""Operation → its sentence. All operations are listed here."""


def step(operation: Operation, *, primary: bool, device: str = "") -> str:
    """One operation in words.

    ``primary``: whether the process's first context is the primary one. ``device``: label of the process's
    device, empty if all processes use the same.
    """
    if operation.on:
        ends = f"destroys context {operation.on}"
    else:
        ends = "resets its primary context" if primary else "destroys its context and creates another"
    context = f"context {operation.on}" if operation.on else "its first context"
    values = {
        "by": f"{operation.by} ({device})" if device else operation.by,
        "on": context if operation.do == "use-context" else operation.on,
        "of": operation.of,
        "makes": operation.makes,
        "nbytes": operation.nbytes,
        "kind": operation.kind,
        "offset": operation.offset,
        "within": operation.within,
        "stamp": operation.stamp,
        "ends": ends,
    }
    sentence = SENTENCES[operation.do].format(**values)
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
    numbered = [
        f"{number}. {_step(history, operation, several=several)}"
        for number, operation in enumerate(history.operations, first)
    ]
    again = f"repeated {history.times} times, each time with new objects"
    return [*numbered, again] if history.times > 1 else numbered


def _step(history: History, operation: Operation, *, several: bool) -> str:
    plan = history.processes[operation.by]
    device = f"{history.backend}:{history.index(operation.by)}" if several else ""
    return step(operation, primary=plan.primary, device=device)
