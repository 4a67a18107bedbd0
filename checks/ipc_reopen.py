"""Reopen IPC memory after the importer destroyed and re-created its context.

As a control, the importer first opens other segments twice in the same context. Then it opens three segments,
closes them, destroys its context (or resets the primary context) and opens them again. The reopened segments
must also show data written later.

Steps and sizes are those of heterodb/toybox issue_20210314: on NVIDIA 455.32.00 and 460.32.03 the second
`cuIpcOpenMemHandle` returned CUDA_ERROR_INVALID_HANDLE unless the context was kept; on 450.102.04 it
succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    Observed,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    unlike_pattern,
    write_pattern,
)

SIZES = (146064, 226656, 154909264)
"""Bytes of the segments, as in the bug report."""

GLANCE = 1 << 20
"""Bytes of each segment verified at the first open; at the second open, the whole segment is verified."""

SEGMENTS = {"control": (1, 2), "tested": (1, 2, 3)}
"""Set → numbers of its segments, from 1; the control leaves out the largest, which takes time to verify."""

CONTROL = f"{len(SEGMENTS['control'])} segments opened twice in the same context"

VARIANTS = ("destroy-context", "reset-primary")
"""Ways to end the context. To save 0.1 s, the prolog tier tries only the first, that of the bug report."""

Segment = tuple[bytes, str, int]
"""An exported segment: handle, name of its set, number."""


class IpcReopen(Check):
    id = "ipc-reopen"
    title = "IPC memory reopens after its context was destroyed"
    tier = Tier.PROLOG
    requires = frozenset({"legacy-ipc", "multi-process", "contexts"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            for variant in VARIANTS[:1] if ctx.tier is Tier.PROLOG else VARIANTS:
                roles = {"exporter": export, "importer": reopen}
                yield Probe(variant, roles, devices, {"variant": variant}, fresh="context")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        importer = done.records["importer"]
        if importer["wrong"]:
            yield Finding.fail("wrong-data", "opened segments show wrong data", *importer["wrong"])
        exchanged = list(judge_exchange(done))
        yield from exchanged
        if not (importer["wrong"] or exchanged):
            yield Finding.ok(
                "reopened",
                "{segments} segments reopened ({variant}), {nbytes:mib} verified",
                Evidence.control(CONTROL),
                segments=len(SEGMENTS["tested"]),
                nbytes=sum(SIZES[number - 1] for number in SEGMENTS["tested"]),
                variant=done.probe,
            )


def export(w: Worker) -> None:
    buffers = []
    for which, numbers in SEGMENTS.items():
        segments = []
        for number in numbers:
            buffer = w.gpu.alloc(SIZES[number - 1])
            write_pattern(buffer, buffer.nbytes, *key(which, number))
            buffers.append(buffer)
            segments.append((buffer.ipc_handle(), which, number))
        w.peer.send(segments)
    exchanged = []
    for buffer in buffers:
        exchanged += exchange_as_exporter(
            w, buffer, buffer.nbytes, f"segment of {buffer.nbytes} B", whole=False
        )
    w.record(exchanged=exchanged)
    w.peer.recv()  # the importer has closed everything
    for buffer in buffers:
        buffer.free()


def reopen(w: Worker) -> None:
    new_context = {
        "destroy-context": w.gpu.create_context,
        "reset-primary": w.gpu.primary_context,
    }[w.params["variant"]]
    context = new_context()
    control, tested = w.peer.recv(), w.peer.recv()
    exchanged: list[str] = []
    wrong = open_all(w, control, "first open of control segment")
    wrong += open_all(w, control, "in the same context: second open of control segment", exchanged)
    w.observe(Observed.CONTROL, CONTROL)
    wrong += open_all(w, tested, "first open of segment")
    with w.step("end the context"):
        context.destroy()
    with w.step("make a new context"):
        new_context()
    wrong += open_all(w, tested, "second open, in a new context, of segment", exchanged)
    w.record(wrong=wrong, exchanged=exchanged)
    w.peer.send("closed")


def open_all(
    w: Worker, segments: Sequence[Segment], step: str, exchanged: list[str] | None = None
) -> list[str]:
    """Open, verify and close each segment; returns wrong data.

    With ``exchanged``, whole segments are verified and data is exchanged; ``exchanged`` receives the wrong
    data of the exchange.
    """
    wrong = []
    for handle, which, number in segments:
        nbytes = SIZES[number - 1]
        verified = min(nbytes, GLANCE) if exchanged is None else nbytes
        with w.step(f"{step} {number}, {nbytes} B"), w.gpu.open_ipc(handle) as mapping:
            if unlike := unlike_pattern(mapping, verified, *key(which, number)):
                wrong.append(f"{step} {number}: {unlike}")
            if exchanged is not None:
                exchanged += exchange_as_importer(w, mapping, nbytes, f"segment of {nbytes} B", whole=False)
    return wrong


def key(which: str, number: int) -> tuple[int, ...]:
    """Seed of a segment's data pattern."""
    return (*which.encode(), number)


CHECK = IpcReopen()
