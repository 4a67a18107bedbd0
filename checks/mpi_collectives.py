"""Call collectives and one-sided operations with device memory, and compare every element on every rank.

Applications do more than send and receive: they reduce, broadcast and exchange, and put into windows. Four
ranks call each collective, blocking, non-blocking and in place, and each one-sided operation on a window in
device memory, completed by a fence, a lock or a flush. The messages are of 8 B to 32 MiB, some of a derived
type, and lie in what applications hold: an allocation, MiB into it, a pool, VMM memory, two adjacent mappings
and pinned host memory. Collectives are also made in a split communicator and repeated with other data in the
same buffers, which a library that works on an old copy delivers wrong; some calls into host memory, with zero
elements or counts, after a local flush and in a dynamic window. Sums are exact in every type and order. What
exceeds the share of memory is omitted and named.

A table has what MPI programs call more seldom, as recorded (docs/coverage.md): buffered, synchronous and ready
sends, matched receives, MPI_Waitsome and MPI_Testany, 40 pending receives, the largest tags, packed data,
subarrays and structs, duplicated, Cartesian, inter- and session communicators, collectives of neighbours,
persistent and more non-blocking collectives, one-sided operations with a request or between MPI_Win_post and
MPI_Win_wait. What the library does not have is named.

After a crash or hang, fresh ranks try the other calls. In the `soak` tier all GPUs take part, four at a time,
by six ranks, the table is longer and has messages of more than 2 GiB, if the share of memory allows these;
persistent and partitioned requests are started many times, two threads send at once, and the ranks idle
before a call.

What a library does not support by documentation is tried last. If it fails, that is a SKIP:

| library | calls or memory | source |
|---|---|---|
| Open MPI, built with CUDA | accumulate, get-accumulate, fetch-and-op, compare-and-swap; non-blocking collectives | docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/cuda.html; for 4.x the FAQ "runcuda" |
| Open MPI over UCX | all one-sided operations and windows; non-blocking reductions | the same pages |
| Open MPI or MPICH without CUDA, over UCX with CUDA | all collectives but broadcast, all one-sided operations: the library itself copies and adds as in host memory | open-mpi/ompi#9906, pmodels/mpich#3519 and #4832 |
| MPICH 3.4 on AMD GPUs | reductions, one-sided operations | github.com/pmodels/mpich/wiki/GPU-Support-Matrix-(3.4.x) |
| Intel MPI | derived types, which are not called | its own message: not implemented |
| Intel MPI on NVIDIA GPUs | memory of pools and VMM: it shares memory by cuIpcGetMemHandle only | NVIDIA's CUDA driver API, cuIpcGetMemHandle |
| Open MPI or MPICH over UCX on AMD GPUs | VMM memory: UCX shares memory by IPC handles, which are for memory of hipMalloc | AMD's HIP API, hipIpcGetMemHandle |

Options: ``ranks``, and ``sizes`` (a list of bytes) instead of the default ones.
"""  # noqa: E501  # rows of a table

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    Finding,
    Observed,
    Probe,
    ProbeOutcome,
    Subject,
    Tier,
    Worker,
    watched,
)
from gpuipc_doctor.api.message_sizes import SIZES_OPTION
from gpuipc_doctor.histories import restarted_calls
from gpuipc_doctor.histories.group_calls import GroupCalls
from gpuipc_doctor.histories.group_cases import FENCE, Case
from gpuipc_doctor.histories.message_memories import KINDS, VMM, footprint
from gpuipc_doctor.histories.mpi_library_limits import (
    unsupported_calls,
    unsupported_memory,
    untried_table,
)
from gpuipc_doctor.histories.used_calls import COMMUNICATORS, cases_of

from ._mpi_collectives_cases import SIZES, cases, documented_gap, is_given_up
from ._mpi_collectives_results import in_json, judge_calls, judge_data, results

RANKS, SOAK_RANKS = 4, 6

BUFFERS = 3
"""Buffers of the largest size that a rank may hold at a time."""

LEAST_ROOM = 65_536
"""Bytes of a buffer below which there is no test: the largest of repeated and restarted cases."""

ROUNDS = 30
REPEATED = {
    Case(0, "MPI_Allreduce", 4096, "int32"): "collective",
    Case(0, "MPI_Put", 4096, "int32", form=FENCE): "window made and filled",
}
"""Cases that are repeated `ROUNDS` times, to find what each leaves in the process; and what they are."""

MOST_WRONG = 50
"""Maximum wrong results of a rank that are recorded."""


class MpiCollectives(Check):
    id = "mpi-collectives"
    title = "collectives and one-sided operations on device memory"
    subject = Subject.MPI
    requires = frozenset({"multi-process"})
    needs_mpi = True
    options: ClassVar = {"ranks": {"type": "integer", "minimum": 2, "maximum": 8}, "sizes": SIZES_OPTION}

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        assert ctx.mpi is not None
        for devices in groups_of_devices(ctx):
            usual = SOAK_RANKS if ctx.tier is Tier.SOAK else RANKS
            number = 2 if ctx.mpi.launch.shows else ctx.options.get("ranks", usual)
            buffers = BUFFERS * -(-number // len(devices))
            room = ctx.room(devices) // buffers
            if room < LEAST_ROOM:
                yield Finding.skip(
                    "share-too-small",
                    "the share of memory is {share} B of a device; {ranks} ranks need {needed} B",
                    remedy="raise most_gib or fraction in the site config's section memory",
                    share=ctx.room(devices),
                    needed=LEAST_ROOM * buffers,
                    ranks=number,
                )
                continue
            params = {
                "sizes": sorted(ctx.options.get("sizes", SIZES)),
                "room": room,
                "derived": "derived types" not in ctx.mpi.lacks,
                "unsupported": [
                    *unsupported_calls(ctx.mpi, devices[0].backend),
                    *unsupported_memory(ctx.mpi, devices[0].backend),
                ],
                "untried": untried_table(ctx.mpi),
                "on_host": "" if ctx.mpi.has_gpu_path else ctx.mpi.why_not,
                "soak": ctx.tier is Tier.SOAK,
                "failed": [],
                "before": [],
            }
            yield Probe("", ranks(number), devices, params, launch=ctx.mpi.launch)

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        """The cases after the one that ended the probe, in fresh ranks, except those like it."""
        assert failed.blamed is not None
        role = failed.roles[failed.blamed]
        if not role.operation or "number" not in role.records:
            return
        how = (
            f"{role.records['case']}: {' or '.join(failed.suspects)} {role.ending.value} in {role.operation}"
        )
        this = [role.operation, role.records["call"], role.records["memory"], how]
        yield failed.follow_up(
            "the rest",
            ranks(len(failed.roles)),
            after=role.records["number"],
            failed=[*failed.params["failed"], this],
            before=results(failed),
        )

    def replay(self, failed: ProbeOutcome, without: Collection[str] = ()) -> Probe | None:
        wrong = sorted({each["call"] for rank in failed.records.values() for each in rank.get("wrong", ())})
        return failed.follow_up("", ranks(len(failed.roles)), only=wrong) if wrong else None

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        yield from judge_data(done)
        yield from judge_calls(done)


def groups_of_devices(ctx: Context) -> Iterator[tuple[Device, ...]]:
    """For each backend, the devices of the ranks: the last four, in soak all in groups of four.

    Other MPI checks use the first devices. If the launcher shows each rank its own devices, two ranks have
    theirs."""
    assert ctx.mpi is not None
    if ctx.mpi.launch.shows:
        yield from ctx.a_pair_or_device_of_each_backend
        return
    for devices in ctx.devices_of_each_backend:
        yield devices[-RANKS:]
        if ctx.tier is Tier.SOAK:
            for first in range(0, len(devices) - RANKS, RANKS):
                yield devices[first : first + RANKS]


def take_part(w: Worker) -> None:
    if not w.mpi.rank:
        first_line = w.mpi.library_version().partition("\n")[0].partition(",")[0]
        library = " ".join(first_line.replace("Version:", "").split())
        w.record(library=library)
        w.observe(Observed.LIBRARY, library)
    group = GroupCalls(w)
    kinds = group.memories.kinds
    granule = w.gpu.granule if VMM in kinds else 1
    lacks = [kind for kind in KINDS if kind not in kinds]
    w.record(lacks=lacks)
    room = w.params["room"]
    too_large = [kind for kind in kinds if footprint(kind, 1, granule) > room]
    too_large += [str(case) for case in cases_of(soak=w.params["soak"]) if case.nbytes > room]
    w.record(too_large=too_large)
    made = Counter[str]()
    record(w, group, made)
    for case in cases(w.params, w.mpi.size, kinds, granule):
        note(w, case)
        if group.perform(case):
            made[case.call] += 1
        else:
            lacks.append(absent(case))
        record(w, group, made)
    w.record(lacks=list(dict.fromkeys(lacks)))
    if w.params["soak"]:
        lacks += soak(w, group, made)
        w.record(lacks=lacks)
    repeat(w, group)
    w.excuse("")
    w.mpi.finalize()


def soak(w: Worker, group: GroupCalls, made: Counter[str]) -> list[str]:
    """Persistent and partitioned requests, two threads, and a call after idling; returns what the library
    lacks of these."""
    failed = [call for _, call, _, _ in w.params["failed"]]
    lacks = []
    for case, act in restarted_calls.SOAK:
        if case.call not in (*failed, *w.params["unsupported"]):
            note(w, case)
            if group.perform(case, act):
                made[f"{case.call}, {case.form}"] += 1
            else:
                lacks.append(f"{case.call}, {case.form}")
            record(w, group, made)
    return lacks


def absent(case: Case) -> str:
    """What the library lacks of a case: its call, or what it needs for its form."""
    return f"{case.call} {case.form}" if case.form in COMMUNICATORS else case.call


def note(w: Worker, case: Case) -> None:
    """Record the case that follows. If it ends the rank, documentation decides what that means."""
    w.record(number=case.number, call=case.call, memory=case.memory, case=str(case))
    w.excuse(documented_gap(case.call, case.memory, w.params["unsupported"]))


def record(w: Worker, group: GroupCalls, made: Counter[str]) -> None:
    results = group.results
    wrong = [in_json(case, says) for case, says in results.wrong[:MOST_WRONG]]
    w.record(cases=results.cases, compared=results.compared, made=dict(made), wrong=wrong)


def repeat(w: Worker, group: GroupCalls) -> None:
    """Two small cases, many times, if they have not failed before."""
    failed = w.params["failed"]
    for case, what in REPEATED.items():
        if case.call not in w.params["unsupported"] and not is_given_up(case, failed):
            note(w, case)
            for _ in watched(w, what, range(ROUNDS)):
                group.perform(case)


def ranks(number: int) -> dict[str, Callable[[Worker], None]]:
    return {f"rank {place}": take_part for place in range(number)}


CHECK = MpiCollectives()
