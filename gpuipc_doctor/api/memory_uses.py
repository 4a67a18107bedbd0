"""Imported memory as PyTorch, CuPy and UCX use it: by which copy, with which memory, in which stream.

What they call was recorded (tests/recorder). A driver may be right for plain copies from and to the host, and
wrong for these. Each use has a slot of the memory; the exporter writes all slots, then the importer makes the
uses, then the exporter reads the slots that were written. Roles record what was wrong as
``uses``, for `judge_exchange`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from gpuipc_doctor.api.data_patterns import differences, pattern
from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import CopyCall, Gpu, Memory, SharedEvent, StreamKind
from gpuipc_doctor.api.worker import Worker

OWN, HOST, PINNED, REGISTERED, BESIDE, NOTHING = (
    "own device memory",
    "pageable memory",
    "pinned memory",
    "registered memory",
    "another import",
    "",
)

SLOT = 60_004
"""Bytes of a use; no multiple of 16."""


class Use(NamedTuple):
    """A copy between imported and other memory. ``into``: the imported memory is written."""

    call: CopyCall | None
    """None: a fill."""
    other: str
    stream: StreamKind
    into: bool = False

    def on(self, gpu: Gpu) -> str:
        call = gpu.name_of(self.call.value if self.call else "fill-32")
        stream = "the default stream" if self.stream is StreamKind.DEFAULT else "a stream"
        with_other = f" {'from' if self.into else 'to'} {self.other}" if self.call else ""
        return f"{call}{with_other} in {stream}"


USES = (
    Use(CopyCall.FROM_DEVICE, PINNED, StreamKind.DEFAULT),
    Use(CopyCall.FROM_DEVICE, PINNED, StreamKind.OWN),
    Use(CopyCall.FROM_DEVICE, HOST, StreamKind.DEFAULT),
    Use(CopyCall.FROM_DEVICE, REGISTERED, StreamKind.OWN),
    Use(CopyCall.BY_ADDRESS, PINNED, StreamKind.OWN),
    Use(CopyCall.BY_ADDRESS, OWN, StreamKind.DEFAULT),
    Use(CopyCall.BY_ADDRESS, REGISTERED, StreamKind.OWN),
    Use(CopyCall.ON_DEVICE, OWN, StreamKind.DEFAULT),
    Use(CopyCall.ON_DEVICE, BESIDE, StreamKind.OWN),
    Use(CopyCall.PEER, OWN, StreamKind.OWN),
    Use(CopyCall.TO_DEVICE, PINNED, StreamKind.DEFAULT, into=True),
    Use(CopyCall.TO_DEVICE, PINNED, StreamKind.OWN, into=True),
    Use(CopyCall.TO_DEVICE, HOST, StreamKind.DEFAULT, into=True),
    Use(CopyCall.TO_DEVICE, REGISTERED, StreamKind.OWN, into=True),
    Use(CopyCall.BY_ADDRESS, PINNED, StreamKind.DEFAULT, into=True),
    Use(CopyCall.BY_ADDRESS, OWN, StreamKind.OWN, into=True),
    Use(CopyCall.ON_DEVICE, OWN, StreamKind.DEFAULT, into=True),
    Use(CopyCall.PEER, OWN, StreamKind.DEFAULT, into=True),
    Use(None, NOTHING, StreamKind.DEFAULT, into=True),
)

NBYTES = len(USES) * SLOT
"""Bytes of imported memory that the uses take."""

UNIT = b"\x4d\x3b\x2a\x19"
"""What a fill repeats."""

LATE_S = 5.0
"""Seconds after which a query must say of work that has ended that it is done."""


def use_as_exporter(w: Worker, memory: Memory, beside: Memory) -> list[str]:
    """Take the exporter's part; returns the wrong data that it read. ``beside`` is also shared."""
    w.peer.recv()  # the importer has read what was written before
    memory.write(b"".join(pattern(SLOT, slot) for slot in range(len(USES))))
    w.peer.send("written")
    wrong = []
    for slot in w.peer.recv():
        place = beside if USES[slot].other == BESIDE else memory
        found = place.read(SLOT, slot * SLOT)
        wrong += differences(f"after {USES[slot].on(w.gpu)}", found, _written(slot))
    w.peer.send("read")
    return wrong


def use_as_importer(w: Worker, memory: Memory, beside: Memory) -> list[str]:
    """Take the importer's part; returns the wrong data that it read."""
    w.peer.send("ready")
    w.peer.recv()  # the exporter has written
    wrong, written = [], []
    streams = {kind: w.gpu.create_stream(kind) for kind in (StreamKind.DEFAULT, StreamKind.OWN)}
    with ExitStack() as resources:
        others = {BESIDE: beside, NOTHING: memory, **_others(w, resources)}
        for slot, use in enumerate(USES):
            here, stream, other = memory.address + slot * SLOT, streams[use.stream], others.get(use.other)
            if other is None:
                continue
            with w.step(use.on(w.gpu)):
                if use.call is None:
                    stream.fill(here, UNIT, SLOT // len(UNIT))
                elif use.other == BESIDE:
                    stream.copy_by(use.call, other.address + slot * SLOT, here, SLOT)
                elif use.into:
                    other.write(_written(slot))
                    stream.copy_by(use.call, here, other.address, SLOT)
                else:
                    stream.copy_by(use.call, other.address, here, SLOT)
                stream.synchronize()
            if use.into or use.other == BESIDE:
                written.append(slot)
            else:
                wrong += differences(use.on(w.gpu), other.read(SLOT), pattern(SLOT, slot))
    w.peer.send(written)
    w.peer.recv()  # the exporter has read
    return wrong


def _written(slot: int) -> bytes:
    """What the use of a slot leaves where the exporter reads."""
    if USES[slot].call is None:
        return UNIT * (SLOT // len(UNIT))
    return pattern(SLOT, slot if USES[slot].other == BESIDE else slot + len(USES))


def _others(w: Worker, resources: ExitStack) -> dict[str, Memory]:
    """The other memory of each kind that this device has. Not managed memory: with its first use the driver
    takes 126 MiB that no process holds (one H200), which `run.idle_wait` could not tell from a loss."""
    registered, kinds = w.host_memory(SLOT), w.gpu.unexportable_kinds
    found: dict[str, Memory] = {HOST: w.host_memory(SLOT), OWN: resources.enter_context(w.gpu.alloc(SLOT))}
    if "pinned-host" in kinds:
        found[PINNED] = resources.enter_context(w.gpu.alloc_pinned(SLOT))
    try:
        resources.enter_context(w.gpu.registered(registered))
        found[REGISTERED] = registered
    except DriverError as error:  # some sandboxes and integrated GPUs lock no pages of others
        if not (error.is_refusal or error.is_not_supported):
            raise
    return found


# -- events ----------------------------------------------------------------------------------------------


def order_as_exporter(w: Worker, memory: Memory) -> list[str]:
    """Share an event, as PyTorch does with each tensor; returns the wrong data that this role read."""
    if not w.gpu.shares_events:
        return []
    stream, event = w.gpu.create_stream(StreamKind.DEFAULT), w.gpu.create_event()
    stream.fill(memory.address, UNIT, SLOT // len(UNIT))
    event.record(stream)
    w.peer.send(event.ipc_handle())
    w.peer.recv()  # the importer waits for nothing more of it, and has recorded it
    event.synchronize()
    wrong = differences("after the importer's event", memory.read(SLOT), UNIT[::-1] * (SLOT // len(UNIT)))
    w.peer.send("read")
    w.peer.recv()  # the importer has destroyed it
    event.destroy()
    return wrong


def order_as_importer(w: Worker, memory: Memory) -> list[str]:
    """Wait for the shared event in each way, write, and record it; returns what was wrong."""
    if not w.gpu.shares_events:
        return []
    stream, event = w.gpu.create_stream(StreamKind.DEFAULT), w.gpu.open_event(w.peer.recv())
    wrong = []
    with w.step("wait for an imported event in the default stream"):
        event.wait(stream)
        stream.synchronize()
        if not _is_done_soon(w, event):
            query = w.gpu.name_of("event-query")
            wrong.append(f"{query} of an imported event says not ready {LATE_S:g} s after a stream waited")
        event.synchronize()
    wrong += differences("after the exporter's event", memory.read(SLOT), UNIT * (SLOT // len(UNIT)))
    with w.step("record an imported event in the default stream"):
        stream.fill(memory.address, UNIT[::-1], SLOT // len(UNIT))
        event.record(stream)
    w.peer.send("recorded")
    w.peer.recv()
    event.destroy()
    w.peer.send("destroyed")
    return wrong


def _is_done_soon(w: Worker, event: SharedEvent) -> bool:
    end = w.clock() + LATE_S
    while not event.is_done():
        if w.clock() > end:
            return False
    return True
