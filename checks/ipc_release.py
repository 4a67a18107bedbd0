"""See that shared device memory comes back once nobody has it open any more.

Four ends of a mapping: the importer closes it; the exporter frees first and the importer closes later; the
importer exits with it open; the importer is killed with it open. After each, and after the exporter's free,
as much memory must be in use as before it. In between, a long loop of opening and closing must not creep.

The driver counts the memory of all processes together, so a change of the size of our segment, which is an
odd one, is ours and any other is not: then somebody else uses the device, and this check cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Finding,
    IpcMapping,
    Probe,
    ProbeOutcome,
    Status,
    Worker,
    difference,
    pattern,
    slope,
)

NBYTES = 37 << 20
"""Large beside the 2 MiB blocks in which drivers keep their own books, small beside any GPU, and no size that
others are likely to ask for."""

NOISE_BYTES = 4 << 20
"""Change of used memory that says nothing: a block or two of a driver's own."""

OPENS, SAMPLE_EVERY = 256, 8
CREEP_BYTES = 64 << 10
"""Growth over the whole loop, in bytes, that the lower bound of the slope must exceed to be creep."""

SETTLE_S = 2.0
"""For a driver to finish what it does after a process has ended."""


class IpcRelease(Check):
    id = "ipc-release"
    title = "shared memory is given back when nobody has it open"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for device in ctx.devices:
            closing = {"exporter": watch_close, "importer": close_and_exit}
            yield Probe("close and exit", closing, (device,), exclusive=True)
            yield Probe("kill", {"exporter": watch_kill, "importer": be_killed}, (device,), exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        findings = [judge_missing(end, missing) for end, missing in exporter["missing"].items()]
        if importer["wrong"]:
            findings.append(Finding.fail("the importer saw wrong data", *importer["wrong"]))
        if creep := judge_creep(exporter.get("creep", [])):
            # What crept away is missing in the end, too: that is no second finding, and nobody else's doing.
            findings = [
                creep,
                *(finding for finding in findings if finding and finding.status is Status.FAIL),
            ]
        bad = [finding for finding in findings if finding]
        yield from bad or [Finding.ok("memory came back", *(f"after {end}" for end in exporter["missing"]))]


def judge_missing(end: str, missing: int) -> Finding | None:
    """Judge the bytes by which used memory differs from before, once ``end`` was over."""
    if abs(missing) <= NOISE_BYTES:
        return None
    if abs(missing - NBYTES) <= NOISE_BYTES:
        return Finding.fail(
            f"{missing} B of device memory did not come back after {end}",
            f"the shared segment had {NBYTES} B; waited {SETTLE_S:g} s for it",
        )
    return Finding.error(
        f"used device memory changed by {missing} B across the probe, which is not our segment's size",
        f"seen after {end}",
        remedy="another process allocates or frees on this device; run the check on an idle one",
    )


def judge_creep(samples: list[tuple[int, int]]) -> Finding | None:
    """Judge used memory, in bytes, over the number of mappings opened and closed so far."""
    if not samples:
        return None
    growth = slope([opened for opened, _ in samples], [used for _, used in samples])
    if growth.low * OPENS <= CREEP_BYTES:
        return None
    return Finding.fail(
        f"used device memory grows by {growth.estimate:.0f} B with each open and close",
        f"95 % interval {growth.low:.0f} to {growth.high:.0f} B, {OPENS} opens",
    )


# -- exporters --------------------------------------------------------------------------------------------


def watch_close(w: Worker) -> None:
    missing = {}
    before_importer = used(w)
    w.peer.send("start")
    w.peer.recv()  # the importer has a context
    before = used(w)

    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        w.peer.recv()  # closed
    missing["the importer closed it"] = not_back(w, before)

    before_freeing = used(w)
    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
    w.peer.send("freed")
    w.peer.recv()  # closed
    missing["the exporter freed it and then the importer closed it"] = not_back(w, before_freeing)

    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        creep = []
        for opened in range(SAMPLE_EVERY, OPENS + 1, SAMPLE_EVERY):
            w.peer.recv()  # so many opened and closed
            creep.append((opened, used(w)))
            w.peer.send("go on")

    without_importer = used(w) - (before - before_importer)  # its context goes along
    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        w.peer.wait_gone()
    missing["the importer exited with it open"] = not_back(w, without_importer)
    w.record(missing=missing, creep=creep)


def watch_kill(w: Worker) -> None:
    before_importer = used(w)
    w.peer.send("start")
    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        w.peer.wait_gone()
    w.record(missing={"the importer was killed with it open": not_back(w, before_importer)})


def share(w: Worker, buffer: Buffer) -> None:
    """Fill a segment, export it, and wait until the importer has opened it."""
    buffer.write(pattern(NBYTES, 0))
    w.peer.send(buffer.ipc_handle())
    w.peer.recv()


def used(w: Worker) -> int:
    free, total = w.gpu.memory_info()
    return total - free


def not_back(w: Worker, before: int) -> int:
    """Bytes that are in use beyond ``before``, once they no longer are or `SETTLE_S` have passed."""
    w.wait_until(lambda: used(w) - before <= NOISE_BYTES, SETTLE_S)
    return used(w) - before


# -- importers --------------------------------------------------------------------------------------------


def close_and_exit(w: Worker) -> None:
    wrong: list[str] = []
    w.peer.recv()  # start
    w.gpu.memory_info()  # makes a context
    w.peer.send("context made")

    open_shared(w, wrong, "to close it").close()
    w.peer.send("closed")

    mapping = open_shared(w, wrong, "to close it after the exporter's free")
    w.peer.recv()  # freed
    mapping.close()
    w.peer.send("closed")

    handle = w.peer.recv()
    w.peer.send("in a loop")
    for opened in range(1, OPENS + 1):
        with w.step(f"open and close, round {opened} of {OPENS}"):
            w.gpu.open_ipc(handle).close()
        if opened % SAMPLE_EVERY == 0:
            w.peer.send(opened)
            w.peer.recv()

    open_shared(w, wrong, "to exit with it open")
    w.record(wrong=wrong)


def be_killed(w: Worker) -> None:
    wrong: list[str] = []
    w.peer.recv()  # start
    open_shared(w, wrong, "to be killed with it open")
    w.record(wrong=wrong)
    w.die()


def open_shared(w: Worker, wrong: list[str], why: str) -> IpcMapping:
    """Open the segment that the exporter shares next, and note what is wrong with its data."""
    with w.step(f"open a segment {why}"):
        mapping = w.gpu.open_ipc(w.peer.recv())
        if wrong_data := difference(mapping.read(NBYTES), pattern(NBYTES, 0)):
            wrong.append(f"opened {why}: {wrong_data}")
    w.peer.send("opened")
    return mapping


CHECK = IpcRelease()
