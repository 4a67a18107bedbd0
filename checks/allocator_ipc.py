"""Share an allocator's memory with another process, as MPI libraries do.

An allocator cuts blocks out of larger pieces from the driver. A handle refers to the whole piece, so the
importer must add the block's offset. While the handle is open, the whole piece stays in use even if the
allocator releases it. This check exports, opens and reads two blocks of one piece, then frees and releases
them while the other process still has them open.

Memory of stream-ordered pools (`cudaMallocAsync`) and of virtual memory management (PyTorch's expandable
segments) has no IPC handles: the driver refuses to export it. Libraries that share device memory by handle
(MPI with GPU IPC, UCX's cuda_ipc) fail with such memory. The check reports the setting that selects this
memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    DriverError,
    Evidence,
    Finding,
    Meter,
    Observed,
    Probe,
    ProbeOutcome,
    Worker,
    begin_when_asked,
    differences,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    leak_report,
    pattern,
    unless_refused,
)
from gpuipc_doctor.api.allocator import Allocator, Block, Stream, give_back, use_once
from gpuipc_doctor.api.allocator import probe as allocator_probe

CACHED, PART = 8 << 20, 3 << 20
"""Bytes of the piece that is put into the allocator's cache, and of each block that is then cut from this
piece."""

EXPANDABLE = "PyTorch expandable"


class AllocatorIpc(Check):
    id = "allocator-ipc"
    title = "an allocator's blocks can be shared between processes"
    requires = frozenset({"legacy-ipc", "multi-process"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            for variant in (name, EXPANDABLE) if name == "PyTorch" else (name,):
                yield allocator_probe(variant, device, {"exporter": export, "importer": read})

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        if refused := exporter.get("refused"):
            yield judge_refusal(done.probe, refused, exporter["kind"], exporter["chosen_by"])
            return
        bad = [*judge_exchange(done)]
        if importer["wrong"]:
            bad.append(
                Finding.fail(
                    "other-memory",
                    "{allocator}: a block's IPC handle and offset opened the wrong memory",
                    *importer["wrong"],
                    allocator=done.probe,
                )
            )
        bad += leak_report(done.roles["exporter"]).judge(exporter["piece"])
        yield from bad
        if not bad:
            yield Finding.ok(
                "shared",
                "{allocator}: blocks can be shared, data correct",
                Evidence.seen(
                    "two blocks of {part:mib} share one handle, at offsets {offsets}"
                    if exporter["one_handle"]
                    else "two blocks of {part:mib} have different handles, at offsets {offsets}",
                    part=PART,
                    offsets=exporter["offsets"],
                ),
                Evidence.measured(
                    "{kept:mib} that the allocator had released stayed in use until both blocks were closed",
                    kept=exporter["kept"],
                ),
                allocator=done.probe,
            )


def judge_refusal(allocator: str, refused: str, kind: str, chosen_by: str) -> Finding:
    sees = Evidence.seen(
        "with {chosen_by}, exporting the memory fails: {refused}", chosen_by=chosen_by, refused=refused
    )
    if kind == "plain":
        return Finding.fail(
            "plain-memory-refused",
            "{allocator}: its memory cannot be shared although it is plain device memory",
            sees,
            allocator=allocator,
        )
    if allocator == "PyTorch":  # This tool did not choose the kind of memory; the node's settings did.
        return Finding.warn(
            "refused-by-setting",
            "{allocator}: {setting} prevents sharing its memory by IPC handles",
            sees,
            remedy=f"unset {chosen_by.partition('=')[0]} where programs share device memory (GPU-aware MPI)",
            allocator=allocator,
            setting=chosen_by,
        )
    return Finding.ok(
        "refused",
        "{allocator}: its memory cannot be shared by IPC handles, as documented",
        sees,
        allocator=allocator,
    )


def export(w: Worker) -> None:
    begin_when_asked(w)  # the importer has a context
    allocator = w.allocator(w.params["allocator"])
    stream = allocator.stream()
    use_once(allocator, stream, PART)
    meter, given_back, exchanged = Meter(w), list[int](), list[str]()

    def share() -> None:
        share_blocks(w, allocator, stream, exchanged)
        given_back.append(meter.used().nbytes)
        w.peer.send("given back")
        w.peer.recv()  # closed

    meter.watch("the importer had closed everything", share)
    w.peer.send(None)
    w.record(exchanged=exchanged, kept=given_back[-1] - meter.used().nbytes)


def share_blocks(w: Worker, allocator: Allocator, stream: Stream, exchanged: list[str]) -> None:
    """Export two blocks, exchange data in them and release them. A refused export is recorded."""
    allocator.alloc(CACHED, stream).free()
    blocks = [allocator.alloc(PART, stream) for _ in range(2)]
    for number, block in enumerate(blocks):
        block.write(pattern(PART, number))
    w.record(kind=allocator.kind, chosen_by=allocator.chosen_by)
    handles = unless_refused(lambda: [block.ipc_handle() for block in blocks])
    if isinstance(handles, DriverError):
        w.record(refused=str(handles))
        w.observe(Observed.REFUSED, str(handles))
        w.peer.send([])
    else:
        pieces = dict(w.gpu.allocation_of(block.address) for block in blocks)
        offsets = [offset(w, block) for block in blocks]
        w.record(one_handle=handles[0] == handles[1], offsets=offsets, piece=sum(pieces.values()))
        w.peer.send(list(zip(handles, offsets, strict=True)))
        for number, block in enumerate(blocks):
            exchanged += exchange_as_exporter(w, block, PART, f"block {number + 1}")
    for block in blocks:
        block.free()
    give_back(allocator, stream)


def offset(w: Worker, block: Block) -> int:
    """Offset of the block in the opened memory, in bytes."""
    base, _ = w.gpu.allocation_of(block.address)
    return block.address - base if w.gpu.expects("export-interior-pointer") == "base" else 0


def read(w: Worker) -> None:
    w.gpu.memory_used()  # makes a context
    w.peer.send("ready")
    wrong, exchanged = list[str](), list[str]()
    while (shared := w.peer.recv()) is not None:
        mappings = []
        for number, (handle, offset) in enumerate(shared):
            with w.step(f"open block {number + 1}"):
                mappings.append(w.gpu.open_ipc(handle))
            data = mappings[-1].read(PART, offset)
            wrong += differences(f"block {number + 1}", data, pattern(PART, number))
        for number, (mapping, (_, offset)) in enumerate(zip(mappings, shared, strict=True)):
            exchanged += exchange_as_importer(w, mapping, PART, f"block {number + 1}", offset=offset)
        w.peer.recv()  # freed and released
        for mapping in mappings:
            mapping.close()
        w.peer.send("closed")
    w.record(wrong=wrong, exchanged=exchanged)


CHECK = AllocatorIpc()
