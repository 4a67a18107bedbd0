"""Share an allocator's memory with another process, as MPI libraries do, and see what it comes with.

An allocator cuts blocks out of larger pieces that it took from the driver. A handle stands for the whole
piece, so whoever opens a block's must add the block's offset; and as long as it is open, the whole piece
stays in use, even when the allocator has given it back. Two blocks of one piece are exported, opened and
read here; then they are freed and given back while the other process still has them open.

Memory of stream-ordered pools (`cudaMallocAsync`) and of virtual memory management (PyTorch's expandable
segments) has no such handles: the driver refuses, and so does every library that shares device memory this
way (MPI with GPU IPC, UCX's cuda_ipc). Which setting makes an application's memory such is told.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Block,
    Check,
    Context,
    DriverError,
    Finding,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    mib,
    pattern,
)

CACHED, PART = 8 << 20, 3 << 20
"""Bytes that are allocated and freed first, so that the allocator has a piece to cut from, and of each block
that is cut from it."""

NOISE_BYTES = 2 << 20
SETTLE_S = 2.0

EXPANDABLE = "PyTorch expandable"


class AllocatorIpc(Check):
    id = "allocator-ipc"
    title = "an allocator's blocks can be shared between processes"
    requires = frozenset({"legacy-ipc", "multi-process"})
    needs_allocators = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device, name in ctx.allocators:
            for variant in (name, EXPANDABLE) if name == "PyTorch" else (name,):
                roles = {"exporter": export, "importer": read}
                params = {"allocator": variant}
                yield Probe(variant, roles, (device,), params, deadline_s=60.0, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        if refused := exporter.get("refused"):
            yield judge_refusal(done.probe, refused, exporter["kind"], exporter["chosen_by"])
            return
        piece, kept, missing = exporter["piece"], exporter["kept"], exporter["missing"]
        if importer["wrong"]:
            yield Finding.fail(
                f"{done.probe}: a block's handle and offset led to other memory", *importer["wrong"]
            )
        elif abs(missing) > NOISE_BYTES and abs(missing - piece) > NOISE_BYTES:
            yield Finding.error(
                f"{done.probe}: used device memory changed by {missing} B across the probe, which is not "
                "what was shared",
                remedy="another process allocates or frees on this device; run the check on an idle one",
            )
        elif missing > NOISE_BYTES:
            yield Finding.fail(
                f"{done.probe}: {missing} B did not come back after the importer had closed everything",
                f"the shared piece has {piece} B; waited {SETTLE_S:g} s for it",
            )
        else:
            share = "share one handle" if exporter["one_handle"] else "have a handle each"
            yield Finding.ok(
                f"{done.probe}: blocks can be shared, data right",
                f"two blocks of {mib(PART)} {share}, at offsets {exporter['offsets']}",
                f"open, they kept {mib(kept)} in use that the allocator had given back",
            )


def judge_refusal(name: str, refused: str, kind: str, chosen_by: str) -> Finding:
    sees = f"with {chosen_by}, whoever exports its memory sees: {refused}"
    if kind == "plain":
        return Finding.fail(
            f"{name}: its memory cannot be shared, though it is the driver's plain kind", sees
        )
    if name == "PyTorch":  # not we have chosen this kind but who set up this node
        return Finding.warn(
            f"{name}: its memory cannot be shared by IPC handles, because of a setting of this environment",
            sees,
            remedy=f"unset {chosen_by.partition('=')[0]} where programs share device memory (GPU-aware MPI)",
        )
    return Finding.ok(f"{name}: its memory cannot be shared by IPC handles, as documented", sees)


def export(w: Worker) -> None:
    w.peer.recv()  # the importer has a context
    allocator = w.allocator(w.params["allocator"])
    stream = allocator.stream()
    allocator.alloc(PART, stream).free()
    stream.synchronize()
    allocator.release()
    before = w.gpu.memory_used()

    allocator.alloc(CACHED, stream).free()
    blocks = [allocator.alloc(PART, stream) for _ in range(2)]
    for number, block in enumerate(blocks):
        block.write(pattern(PART, number))
    w.record(kind=allocator.kind, chosen_by=allocator.chosen_by)
    try:
        handles = [block.ipc_handle() for block in blocks]
    except DriverError as error:
        if not error.is_refusal:
            raise
        w.record(refused=str(error))
        w.peer.send([])
        return
    pieces = dict(w.gpu.allocation_of(block.address) for block in blocks)
    offsets = [offset(w, block) for block in blocks]
    w.peer.send(list(zip(handles, offsets, strict=True)))
    w.peer.recv()  # opened and read

    for block in blocks:
        block.free()
    stream.synchronize()
    allocator.release()
    given_back = w.gpu.memory_used()
    w.peer.send("given back")
    w.peer.recv()  # closed
    w.wait_until(lambda: w.gpu.memory_used() - before <= NOISE_BYTES, SETTLE_S)
    w.record(
        one_handle=handles[0] == handles[1],
        offsets=offsets,
        piece=sum(pieces.values()),
        kept=given_back - w.gpu.memory_used(),
        missing=w.gpu.memory_used() - before,
    )


def offset(w: Worker, block: Block) -> int:
    """Where the block lies in what its handle opens to, in bytes."""
    base, _ = w.gpu.allocation_of(block.address)
    return block.address - base if w.gpu.expects("export-interior-pointer") == "base" else 0


def read(w: Worker) -> None:
    w.gpu.memory_used()  # makes a context
    w.peer.send("ready")
    wrong, mappings = [], []
    for number, (handle, offset) in enumerate(w.peer.recv()):
        with w.step(f"open block {number + 1}"):
            mappings.append(w.gpu.open_ipc(handle))
        if change := difference(mappings[-1].read(PART, offset), pattern(PART, number)):
            wrong.append(f"block {number + 1}: {change}")
    w.record(wrong=wrong)
    if not mappings:
        return
    w.peer.send("read")
    w.peer.recv()  # freed and given back
    for mapping in mappings:
        mapping.close()
    w.peer.send("closed")


CHECK = AllocatorIpc()
