"""The results of `mpi-collectives`: what ranks have called and compared in all launches, and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.api import Evidence, Finding, Json, ProbeOutcome
from gpuipc_doctor.histories.group_cases import Case
from gpuipc_doctor.histories.message_memories import DEVICE

from ._mpi_collectives_cases import SIZES, documented_gap

SHOWN = 7
"""Maximum wrong results in a finding."""


def in_json(case: Case, says: str) -> dict[str, Json]:
    """A wrong result as a rank records it."""
    return {
        "call": case.call,
        "case": str(case),
        "memory": case.memory,
        "form": case.form,
        "nbytes": case.nbytes,
        "says": says,
    }


def results(ended: ProbeOutcome) -> list[Json]:
    """What each rank has called and compared until its end, in this launch and those before it."""
    kept = ("cases", "compared", "wrong", "made")
    this = [
        {"rank": rank, **{name: records[name] for name in kept}}
        for rank, records in ended.records.items()
        if "cases" in records
    ]
    return [*ended.params["before"], *this]


def judge_data(done: ProbeOutcome) -> Iterator[Finding]:
    """The FAIL for wrong data, and the SKIP for wrong data of what the library does not support."""
    gaps, (undocumented, documented) = done.params["unsupported"], wrong_results(done)
    if undocumented:
        yield Finding.fail(
            "wrong-data",
            "{calls} delivered wrong data: {failures} of {results} results of {library}",
            *shown(undocumented),
            *common(undocumented, done.roles),
            calls=list(dict.fromkeys(each["call"] for each in undocumented)),
            failures=len(undocumented),
            results=sum(rank["cases"] for rank in results(done)),
            **figures(done),
        )
    if documented:
        lacks = [documented_gap(each["call"], each["memory"], gaps) for each in documented]
        yield Finding.skip(
            "unsupported",
            "not supported by {library}, as it documents: {gaps}; the data of {calls} is wrong, as expected",
            *shown(documented),
            calls=list(dict.fromkeys(each["call"] for each in documented)),
            gaps=list(dict.fromkeys(lacks)),
            **figures(done),
        )


def judge_calls(done: ProbeOutcome) -> Iterator[Finding]:
    """The FAIL for calls that ended an earlier launch; else the PASS, unless data is wrong."""
    gaps = done.params["unsupported"]
    failed = [how for _, call, memory, how in done.params["failed"] if not documented_gap(call, memory, gaps)]
    calls = (*by_call(calls_made(done)), *not_made(done))
    undocumented, _ = wrong_results(done)
    if failed:
        says = "some calls failed; {cases} others of {ranks} ranks returned"
        yield Finding.fail("some-failed", says, *map(Evidence.seen, failed), *calls, **figures(done))
    elif not undocumented:
        yield Finding.ok(
            "correct",
            "{cases} collectives and one-sided operations of {ranks} ranks correct, {compared:mib} compared",
            *calls,
            **figures(done),
        )


def figures(done: ProbeOutcome) -> dict[str, Json]:
    return {
        "library": done.records["rank 0"]["library"],
        "ranks": len(done.roles),
        "cases": calls_made(done).total(),
        "compared": sum(rank["compared"] for rank in results(done)),
    }


def calls_made(done: ProbeOutcome) -> Counter[str]:
    """Call → how often rank 0 has called it."""
    of_first = (Counter(rank["made"]) for rank in results(done) if rank["rank"] == "rank 0")
    return sum(of_first, Counter[str]())


def wrong_results(done: ProbeOutcome) -> tuple[list[Json], list[Json]]:
    """The wrong results, and those of what the library does not support by documentation."""
    undocumented, documented = list[Json](), list[Json]()
    for rank in results(done):
        for each in rank["wrong"]:
            is_documented = documented_gap(each["call"], each["memory"], done.params["unsupported"])
            (documented if is_documented else undocumented).append({"rank": rank["rank"], **each})
    return undocumented, documented


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
    calls = {times: [call for call in made if made[call] == times] for times in made.values()}
    made_so_often = (f"{times} × {', '.join(calls[times])}" for times in sorted(calls, reverse=True))
    yield Evidence.seen("{made}", made="; ".join(made_so_often))


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
    if untried := params["untried"]:
        yield Evidence.seen("omitted: {untried}", untried=untried)
    if lacks := first["lacks"]:
        yield Evidence.seen("omitted because this node or library has none: {lacks}", lacks=lacks)
