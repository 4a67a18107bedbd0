"""See that shared device memory comes back once nobody has it open any more.

Four ends of a mapping: the importer closes it; the exporter frees first and the importer closes later; the
importer exits with it open; the importer is killed with it open. After each, and after the exporter's free,
as much memory must be in use as before it. In between, a long loop of opening and closing must not creep;
the control is as long a loop of another call, which opens nothing.

The segment is memory of the exporter's device, so it must come back there, wherever the importer's context
was. What an open and close costs may be kept on either device, so over a pair both are watched for creep.

Where the driver counts the memory of all processes together, a change of the size of our segment, which is an
odd one, is ours and any other is not: then somebody else uses the device, and this check cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from itertools import count
from operator import or_

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Finding,
    IpcMapping,
    Json,
    Line,
    Probe,
    ProbeOutcome,
    Series,
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

OPENS = 256
SAMPLED = range(8, OPENS + 1, 8)
"""Rounds of a loop after which used memory is read."""

CREEP_BYTES = 64 << 10
"""Growth over the whole loop, in bytes, that the lower bound of the slope must exceed to be creep."""

SETTLE_S = 2.0
"""For a driver to finish what it does after a process has ended."""


class IpcRelease(Check):
    id = "ipc-release"
    title = "shared memory is given back when nobody has it open"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            closing = {"exporter": watch_close, "importer": close_and_exit}
            yield Probe("close and exit", closing, devices, exclusive=True)
            yield Probe("kill", {"exporter": watch_kill, "importer": be_killed}, devices, exclusive=True)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        findings = [judge_missing(end, missing) for end, missing in exporter["missing"].items()]
        if importer["wrong"]:
            findings.append(Finding.fail("the importer saw wrong data", *importer["wrong"]))
        loops = loops_of(done)
        creeps = [judge_creep(label, loop["opening"], loop["control"]) for label, loop in loops.items()]
        if any(creeps):
            # What crept away is missing in the end, too: that is no second finding, and nobody else's doing.
            fails = (finding for finding in findings if finding and finding.status is Status.FAIL)
            findings = [*creeps, *fails]
        bad = [finding for finding in findings if finding]
        ends = [f"after {end}" for end in exporter["missing"]]
        found = [sensitivity(label, **loop) for label, loop in loops.items()]
        yield from bad or [Finding.ok("memory came back", *ends, *found)]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        for label, loop in loops_of(done).items():
            lines = (
                Line(text, tuple(used - loop[name][0] for used in loop[name]))
                for name, text in (("opening", "opening and closing"), ("control", "opening nothing"))
            )
            yield Series(
                f"used memory of {label}, beyond the first sample", "rounds", tuple(SAMPLED), tuple(lines)
            )


def loops_of(done: ProbeOutcome) -> dict[str, Mapping[str, Json]]:
    """By device, the used memory that was sampled there while the importer opened and closed in a loop."""
    roles = (done.records["exporter"], done.records["importer"])
    return {
        device.label: role["loops"]
        for device, role in zip(done.devices, roles, strict=False)  # one device: one loop
        if "loops" in role
    }


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


def judge_creep(device: str, opening: list[int], control: list[int]) -> Finding | None:
    """Judge a device's used memory, in bytes, after each of the `SAMPLED` rounds of opening and closing."""
    growth = slope(SAMPLED, opening)
    if growth.low <= unsuspicious(control):
        return None
    return Finding.fail(
        f"used memory of {device} grows by {growth.estimate:.0f} B with each open and close",
        f"95 % interval {growth.low:.0f} to {growth.high:.0f} B, {OPENS} opens",
    )


def unsuspicious(control: list[int]) -> float:
    """Bytes with each round by which used memory may grow while nothing is opened."""
    return max(CREEP_BYTES / OPENS, slope(SAMPLED, control).high)


def sensitivity(device: str, opening: list[int], control: list[int], otherwise: int) -> str:
    """Say how much creep would have been found in these samples, by adding it to them.

    Drivers count in blocks, so creep is seen in steps. The largest power of two that divides all figures is
    taken for the block; were it not for ``otherwise``, the used bytes with a segment of our odd size less or
    more, memory that never changed could be divided by too much.
    """
    seen = reduce(or_, [*opening, *control], otherwise)
    block = seen & -seen
    limit = unsuspicious(control)

    def found(blocks: int) -> bool:
        crept = [used + blocks * done // OPENS * block for done, used in zip(SAMPLED, opening, strict=True)]
        return slope(SAMPLED, crept).low > limit

    at_least = int((limit - slope(SAMPLED, opening).low) * OPENS / block)
    smallest = next(blocks for blocks in count(max(at_least, 1)) if found(blocks))
    return (
        f"{OPENS} opens that keep {smallest * block} B or more of {device} would have been found: its used "
        f"memory was seen in multiples of {block} B"
    )


# -- exporters --------------------------------------------------------------------------------------------


def watch_close(w: Worker) -> None:
    missing = {}
    before_importer = w.gpu.memory_used()
    w.peer.send("start")
    w.peer.recv()  # the importer has a context
    before = w.gpu.memory_used()

    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        w.peer.recv()  # closed
    missing["the importer closed it"] = not_back(w, before)

    before_freeing = w.gpu.memory_used()
    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
    w.peer.send("freed")
    w.peer.recv()  # closed
    missing["the exporter freed it and then the importer closed it"] = not_back(w, before_freeing)

    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        loops = {"opening": watch_loop(w), "control": watch_loop(w), "otherwise": before_freeing}

    without_importer = w.gpu.memory_used() - (before - before_importer)  # its context goes along
    with w.gpu.alloc(NBYTES) as buffer:
        share(w, buffer)
        w.peer.wait_gone()
    missing["the importer exited with it open"] = not_back(w, without_importer)
    w.record(missing=missing, loops=loops)


def watch_loop(w: Worker) -> list[int]:
    """Used memory, in bytes, after each of the `SAMPLED` rounds of the importer's loop."""
    samples = []
    for _ in SAMPLED:
        w.peer.recv()  # so many rounds are over
        samples.append(w.gpu.memory_used())
        w.peer.send("go on")
    return samples


def watch_kill(w: Worker) -> None:
    before_importer = w.gpu.memory_used()
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


def not_back(w: Worker, before: int) -> int:
    """Bytes that are in use beyond ``before``, once they no longer are or `SETTLE_S` have passed."""
    w.wait_until(lambda: w.gpu.memory_used() - before <= NOISE_BYTES, SETTLE_S)
    return w.gpu.memory_used() - before


# -- importers --------------------------------------------------------------------------------------------


def close_and_exit(w: Worker) -> None:
    wrong: list[str] = []
    w.peer.recv()  # start
    with w.gpu.alloc(NBYTES):  # makes a context
        with_segment = w.gpu.memory_used()
    w.peer.send("context made")

    open_shared(w, wrong, "to close it").close()
    w.peer.send("closed")

    mapping = open_shared(w, wrong, "to close it after the exporter's free")
    w.peer.recv()  # freed
    mapping.close()
    w.peer.send("closed")

    handle = w.peer.recv()
    w.peer.send("in a loop")
    opening = repeat(w, "open and close", lambda: w.gpu.open_ipc(handle).close())
    control = repeat(w, "only ask for the free memory", w.gpu.memory_info)

    open_shared(w, wrong, "to exit with it open")
    w.record(wrong=wrong, loops={"opening": opening, "control": control, "otherwise": with_segment})


def repeat(w: Worker, what: str, call: Callable[[], object]) -> list[int]:
    """Make a call `OPENS` times; read used memory, as the exporter does, after the `SAMPLED` ones."""
    samples = []
    for done in range(1, OPENS + 1):
        with w.step(f"{what}, round {done} of {OPENS}"):
            call()
        if done in SAMPLED:
            samples.append(w.gpu.memory_used())
            w.peer.send(done)
            w.peer.recv()
    return samples


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
