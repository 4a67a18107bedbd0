"""Call collectives and one-sided operations with device memory, and compare every element on every rank.

Applications do more than send and receive: they reduce, broadcast and exchange, and put into windows. Four
ranks call each collective, blocking, non-blocking and in place, and each one-sided operation on a window in
device memory, completed by a fence, a lock or a flush. The messages are of 8 B to 32 MiB, some of a derived
type, and lie in what applications hold: an allocation, MiB into it, a pool, VMM memory, two adjacent mappings
and pinned host memory. Sums are exact in every type and order. Some calls are repeated with other data in the
same buffers, which a library that works on an old copy delivers wrong.

After a crash or hang, fresh ranks try the other calls. In the `soak` tier all GPUs take part, four at a time,
and persistent and partitioned requests are started many times, two threads send at once, and the ranks idle
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    Evidence,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    watched,
)
from gpuipc_doctor.api.messages import SIZES_OPTION
from gpuipc_doctor.histories import group_calls as calls
from gpuipc_doctor.histories import restarted_calls
from gpuipc_doctor.histories.group_calls import Case, GroupCalls
from gpuipc_doctor.histories.message_memories import DEVICE, KINDS, VMM, footprint
from gpuipc_doctor.histories.mpi_library_limits import unsupported_calls, unsupported_memory

RANKS = 4

SIZES = (8, 1000, 4096, 65_544, (1 << 20) + 8, (32 << 20) + 8)
"""Bytes of the largest buffer of a rank: eager messages, the thresholds of rendezvous, pipelined copies."""

IN_PLACE_SIZES, DERIVED_SIZES = SIZES[1::3], SIZES[2::2]
OTHER_MEMORY = 65_544
"""Bytes in memory other than an allocation; `LARGE_CALLS` also send `SIZES[-2]` there."""

LARGE_CALLS = (
    calls.SENDRECV,
    "MPI_Allreduce",
    "MPI_Bcast",
    "MPI_Alltoall",
    "MPI_Allgather",
    "MPI_Reduce_scatter_block",
    "MPI_Put",
    "MPI_Get",
)
"""Calls that are also made with the largest size."""

RARER = (
    calls.SENDRECV_REPLACE,
    *("MPI_Exscan", "MPI_Allgatherv", "MPI_Scatterv", "MPI_Alltoallw", "MPI_Ireduce"),
)
"""Calls that are made with the three `RARER_SIZES` only, in an allocation; the last are more than 65,536
elements."""

RARER_SIZES = SIZES[2:5]
WITHOUT_DATA = (calls.SENDRECV, "MPI_Allreduce", "MPI_Bcast", "MPI_Alltoall")
"""Calls that are also made with zero elements."""

BUFFERS = 3
"""Buffers of the largest size that a rank may hold at a time."""

LEAST_ROOM = 65_536
"""Bytes of a buffer below which there is no test: the largest of repeated and restarted cases."""

COMPLETIONS = (calls.FENCE, calls.LOCK, calls.FLUSH)
ROUNDS = 30
REPEATED = {
    Case(0, "MPI_Allreduce", 4096, "int32"): "collective",
    Case(0, "MPI_Put", 4096, "int32", form=calls.FENCE): "window made and filled",
}
"""Cases that are repeated `ROUNDS` times, to find what each leaves in the process; and what they are."""

SHOWN, MOST_WRONG = 7, 50
"""Maximum wrong results in a finding, and of a rank in the report."""

ONE_SIDED = (*calls.ONE_SIDED, *calls.ATOMIC)
GROUPS = (calls.COLLECTIVES, calls.NONBLOCKING, ONE_SIDED)
ENOUGH = 2
"""After this many failed launches of a group of calls, or of calls that the library does not support, the
others are not made: each launch costs seconds, or a deadline."""

WINDOWS = ("MPI_Win_create", "MPI_Win_free")
DYNAMIC_WINDOWS = ("MPI_Win_create_dynamic", "MPI_Win_attach", "MPI_Win_detach")
COMPLETED_BY = {
    "MPI_Win_unlock": calls.LOCK,
    "MPI_Win_lock_all": calls.FLUSH,
    "MPI_Win_unlock_all": calls.FLUSH,
}
"""Function of windows → the completion of which it is part."""


class MpiCollectives(Check):
    id = "mpi-collectives"
    title = "collectives and one-sided operations on device memory"
    requires = frozenset({"multi-process"})
    needs_mpi = True
    options: ClassVar = {"ranks": {"type": "integer", "minimum": 2, "maximum": 8}, "sizes": SIZES_OPTION}

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        assert ctx.mpi is not None
        for devices in groups_of_devices(ctx):
            number = 2 if ctx.mpi.launch.shows else ctx.options.get("ranks", RANKS)
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
        records = {name: rank for name, rank in failed.records.items() if "cases" in rank}
        how = (
            f"{role.records['case']}: {' or '.join(failed.suspects)} {role.ending.value} in {role.operation}"
        )
        this = [role.operation, role.records["call"], role.records["memory"], how]
        params = {
            **failed.params,
            "after": role.records["number"],
            "failed": [*failed.params["failed"], this],
            "before": [
                *failed.params["before"],
                *({"rank": name, **kept(records[name])} for name in records),
            ],
        }
        roles = ranks(len(failed.roles))
        yield Probe("the rest", roles, failed.devices, params, failed.deadline_s, launch=failed.launch)

    def replay(self, failed: ProbeOutcome, without: Collection[str] = ()) -> Probe | None:
        wrong = sorted({each["call"] for rank in failed.records.values() for each in rank.get("wrong", ())})
        if not wrong:
            return None
        params = {**failed.params, "only": wrong}
        return Probe("", ranks(len(failed.roles)), failed.devices, params, launch=failed.launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        gaps = done.params["unsupported"]
        every = [
            *done.params["before"],
            *({"rank": name, **kept(records)} for name, records in done.records.items()),
        ]
        first = done.records["rank 0"]
        wrong = [{"rank": rank["rank"], **each} for rank in every for each in rank["wrong"]]
        undocumented: list[Json] = []
        documented: list[Json] = []
        for each in wrong:
            is_documented = documented_gap(each["call"], each["memory"], gaps)
            (documented if is_documented else undocumented).append(each)
        made = sum((Counter(rank["made"]) for rank in every if rank["rank"] == "rank 0"), Counter[str]())
        values: dict[str, Json] = {
            "library": first["library"],
            "ranks": len(done.roles),
            "cases": made.total(),
            "compared": sum(rank["compared"] for rank in every),
        }
        if undocumented:
            yield Finding.fail(
                "wrong-data",
                "{calls} delivered wrong data: {failures} of {results} results of {library}",
                *shown(undocumented),
                *common(undocumented, done.roles),
                calls=list(dict.fromkeys(each["call"] for each in undocumented)),
                failures=len(undocumented),
                results=sum(rank["cases"] for rank in every),
                **values,
            )
        if documented:
            yield Finding.skip(
                "unsupported",
                "{calls} delivered wrong data; by documentation, {library} does not support {gaps}",
                *shown(documented),
                calls=list(dict.fromkeys(each["call"] for each in documented)),
                gaps=list(
                    dict.fromkeys(documented_gap(each["call"], each["memory"], gaps) for each in documented)
                ),
                **values,
            )
        failed = [
            how for _, call, memory, how in done.params["failed"] if not documented_gap(call, memory, gaps)
        ]
        if failed:
            says = "some calls failed; {cases} others of {ranks} ranks returned"
            yield Finding.fail(
                "some-failed", says, *map(Evidence.seen, failed), *by_call(made), *not_made(done), **values
            )
        elif not undocumented:
            yield Finding.ok(
                "correct",
                "{cases} collectives and one-sided operations of {ranks} ranks correct, {compared:mib} "
                "compared",
                *by_call(made),
                *not_made(done),
                **values,
            )


def documented_gap(call: str, memory: str, unsupported: Collection[str]) -> str:
    """What the library does not support by documentation, of a case; empty if it supports the case."""
    if memory in unsupported:
        return memory
    return f"{call} on device memory" if call in unsupported else ""


def kept(records: Mapping[str, Json]) -> dict[str, Json]:
    """What a rank has compared until its end."""
    return {name: records[name] for name in ("cases", "compared", "wrong", "made")}


def groups_of_devices(ctx: Context) -> Iterator[tuple[Device, ...]]:
    """For each backend, the devices of the ranks: the last four, in soak all in groups of four.

    Other MPI checks use the first devices. If the launcher shows each rank its own devices, two ranks have
    theirs."""
    assert ctx.mpi is not None
    if ctx.mpi.launch.shows:
        yield from ctx.a_pair_or_device_of_each_backend
        return
    of_backend: dict[str, list[Device]] = {}
    for device in ctx.devices:
        of_backend.setdefault(device.backend, []).append(device)
    for devices in of_backend.values():
        yield tuple(devices[-RANKS:])
        if ctx.tier is Tier.SOAK:
            for first in range(0, len(devices) - RANKS, RANKS):
                yield tuple(devices[first : first + RANKS])


def cases(params: Json, number_of_ranks: int, kinds: Sequence[str], granule: int) -> list[Case]:
    """All cases of a launch, those that the library does not support last. ``granule``: of VMM memory."""
    unsupported = params["unsupported"]
    drawn = [
        case._replace(number=number, type=kind, root=number % number_of_ranks)
        for (number, case), kind in zip(enumerate(_drawn(params, kinds, granule), 1), cycle(calls.TYPES))
    ]
    drawn = [case for case in drawn if case.call in params.get("only", (case.call,))]
    ordered = sorted(drawn, key=lambda case: documented_gap(case.call, case.memory, unsupported) != "")
    numbers = [case.number for case in ordered]
    begin = 0
    if "after" in params:  # else it is a case of the soak tier, which comes after all others
        begin = numbers.index(params["after"]) + 1 if params["after"] in numbers else len(numbers)
    gaps = sum(bool(documented_gap(call, memory, unsupported)) for _, call, memory, _ in params["failed"])
    return [
        case
        for case in ordered[begin:]
        if not is_given_up(case, params["failed"])
        and not (gaps >= ENOUGH and documented_gap(case.call, case.memory, unsupported))
    ]


def _drawn(params: Json, kinds: Sequence[str], granule: int) -> Iterator[Case]:
    room = params["room"]
    sizes = [size for size in params["sizes"] if size <= room]

    def case(call: str, nbytes: int, memory: str = DEVICE, form: str = "") -> Case:
        return Case(0, call, nbytes, "", memory, form)

    two_sided = [
        call for call in (calls.SENDRECV, *calls.COLLECTIVES, *calls.NONBLOCKING) if call not in RARER
    ]
    if not sizes:
        return
    few = [size for size in sizes if size in RARER_SIZES] or sizes[-1:]
    for call in RARER:
        yield from (case(call, size) for size in few)
    for call in calls.CAN_BE_SPLIT:
        yield case(call, few[0], form=calls.SPLIT)
    for call in calls.CAN_BE_AGAIN:
        yield case(call, few[0], form=calls.AGAIN)
    for call in calls.CAN_BE_FLUSHED_LOCALLY:
        yield case(call, few[0], form=calls.FLUSH_LOCAL)
    for call in calls.CAN_BE_TO_HOST:
        yield case(call, few[0], form=calls.TO_HOST)
    for call in WITHOUT_DATA:
        yield case(call, 0)
    for call in ("MPI_Put", "MPI_Get"):
        yield case(call, few[0], form=calls.DYNAMIC)
    for call in two_sided:
        yield from (case(call, size) for size in sizes if size < SIZES[-1] or call in LARGE_CALLS)
        if call in calls.CAN_BE_IN_PLACE:
            yield from (case(call, size, form=calls.IN_PLACE) for size in sizes if size in IN_PLACE_SIZES)
    for call in calls.ONE_SIDED:
        for turn, size in enumerate(sizes):
            if size < SIZES[-1] or call in LARGE_CALLS:
                forms = COMPLETIONS if size < SIZES[-2] else COMPLETIONS[turn % 2 : turn % 2 + 1]
                yield from (case(call, size, form=form) for form in forms)
    for call in calls.ATOMIC:
        yield from (case(call, size, form=form) for size in sizes[:1] for form in COMPLETIONS)
    if params["derived"]:
        for call in calls.CAN_BE_DERIVED:
            yield from (case(call, size, form=calls.DERIVED) for size in sizes if size in DERIVED_SIZES)
            yield case(call, few[0], form=calls.NEGATIVE)
    for memory in kinds:
        if memory == DEVICE:
            continue
        elsewhere = [size for size in (OTHER_MEMORY, SIZES[-2]) if size <= sizes[-1]] or sizes[-1:]
        elsewhere = [size for size in elsewhere if footprint(memory, size, granule) <= room]
        if not elsewhere:
            continue
        for call in two_sided:
            yield from (
                case(call, size, memory) for size in elsewhere if size == elsewhere[0] or call in LARGE_CALLS
            )
        for call in (*calls.ONE_SIDED, *calls.ATOMIC):
            yield case(call, elsewhere[0], memory, calls.FLUSH)


def is_given_up(case: Case, failed: Sequence[Sequence[str]]) -> bool:
    """Whether to omit a case because its memory, its call, its completion, or `ENOUGH` calls of its group
    failed."""
    group = next((members for members in GROUPS if case.call in members), ())
    in_group = 0
    for operation, call, memory, _ in failed:
        if memory != DEVICE:
            if case.memory == memory:
                return True
            continue
        in_group += call in group
        if operation in DYNAMIC_WINDOWS:
            if case.form == calls.DYNAMIC:
                return True
            continue
        completion = COMPLETED_BY.get(operation, operation)
        if completion in (*COMPLETIONS, calls.FLUSH_LOCAL):
            if case.form == completion:
                return True
        elif call == case.call or (operation in WINDOWS and group == ONE_SIDED):
            return True
    return in_group >= ENOUGH


def shown(wrong: Sequence[Json]) -> Iterator[Evidence]:
    for each in wrong[:SHOWN]:
        yield Evidence.seen("{rank}: {case}: {says}", rank=each["rank"], case=each["case"], says=each["says"])


def common(wrong: Sequence[Json], roles: Iterable[str]) -> Iterator[Evidence]:
    """What all wrong results have in common."""
    for name in ("memory", "form"):
        of = {each[name] for each in wrong}
        if len(of) == 1 and (what := of.pop()) not in ("", DEVICE):
            yield Evidence.seen("all wrong results are of calls with {what}", what=what)
    if (smallest := min(each["nbytes"] for each in wrong)) > SIZES[0]:
        yield Evidence.seen("no result of less than {nbytes} B is wrong", nbytes=smallest)
    if right := [role for role in roles if role not in {each["rank"] for each in wrong}]:
        yield Evidence.seen("ranks with correct data: {right}", right=right)


def by_call(made: dict[str, int]) -> Iterator[Evidence]:
    yield Evidence.seen("{made}", made=", ".join(f"{times} × {call}" for call, times in made.items()))


def not_made(done: ProbeOutcome) -> Iterator[Evidence]:
    """What was omitted, and why."""
    first, params = done.records["rank 0"], done.params
    if params["on_host"]:
        says = "simulated device memory is host memory to this library; on a real GPU: {why_not}"
        yield Evidence.seen(says, why_not=params["on_host"])
    if large := [size for size in params["sizes"] if size > params["room"]]:
        says = "sizes omitted because the share of memory is too small: {large}"
        yield Evidence.seen(says, large=[f"{size} B" for size in large])
    if too_large := first["too_large"]:
        says = "omitted because the share of memory is too small: {too_large}"
        yield Evidence.seen(says, too_large=too_large)
    if not params["derived"]:
        yield Evidence.seen("derived types omitted: this library does not support them in device memory")
    if lacks := first["lacks"]:
        yield Evidence.seen("omitted because this node or library has none: {lacks}", lacks=lacks)


def take_part(w: Worker) -> None:
    if not w.mpi.rank:
        first_line = w.mpi.library_version().partition("\n")[0].partition(",")[0]
        w.record(library=" ".join(first_line.replace("Version:", "").split()))
    group = GroupCalls(w)
    kinds = group.memories.kinds
    granule = w.gpu.granule if VMM in kinds else 1
    w.record(lacks=[kind for kind in KINDS if kind not in kinds])
    w.record(too_large=[kind for kind in kinds if footprint(kind, 1, granule) > w.params["room"]])
    made = Counter[str]()
    record(w, group, made)
    for case in cases(w.params, w.mpi.size, kinds, granule):
        note(w, case)
        group.perform(case)
        made[case.call] += 1
        record(w, group, made)
    if w.params["soak"]:
        soak(w, group, made)
    repeat(w, group)
    w.record(unsupported="")
    w.mpi.finalize()


def soak(w: Worker, group: GroupCalls, made: Counter[str]) -> None:
    """Persistent and partitioned requests, two threads, and a call after idling."""
    failed = [call for _, call, _, _ in w.params["failed"]]
    lacks = [kind for kind in KINDS if kind not in group.memories.kinds]
    for what, case in restarted_calls.SOAK.items():
        if case.call not in (*failed, *w.params["unsupported"]):
            note(w, case)
            if restarted_calls.perform(group, what):
                made[f"{case.call}, {case.form}"] += 1
            else:
                lacks.append(f"{case.call}, {case.form}")
            record(w, group, made)
    w.record(lacks=lacks)


def note(w: Worker, case: Case) -> None:
    """Record the case that follows. If it ends the rank, documentation decides what that means."""
    w.record(
        number=case.number,
        call=case.call,
        memory=case.memory,
        case=str(case),
        unsupported=documented_gap(case.call, case.memory, w.params["unsupported"]),
    )


def record(w: Worker, group: GroupCalls, made: Counter[str]) -> None:
    results = group.results
    w.record(
        cases=results.cases,
        compared=results.compared,
        made=dict(made),
        wrong=[
            {
                "call": case.call,
                "case": str(case),
                "memory": case.memory,
                "form": case.form,
                "nbytes": case.nbytes,
                "says": says,
            }
            for case, says in results.wrong[:MOST_WRONG]
        ],
    )


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
