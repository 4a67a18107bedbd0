"""Run every collective of NCCL or RCCL with one rank on each GPU, and compare every element on every rank.

A whole node can pass tests of its drivers while every collective hangs or returns wrong data. All-reduce,
all-gather, reduce-scatter, broadcast, reduce, a ring of sends and an all-to-all run at sizes from 0 B to
64 MiB around the edges of the library's protocols, in place and between two buffers, in two streams, and in a
communicator split from the first one; then as training programs call them (`collective.as_used`): averages
and maxima, bfloat16 and fp8, in groups, from another thread, in the default stream and in one with priority,
at unaligned addresses. Every case has buffers of its own and data of its own, in a type in which results are
exact. A wrong case is varied until it is known what it needs to be wrong. If something is wrong, hangs or
fails, the launch is repeated with one transport switched off at a time.

All collective checks share one launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from gpuipc_doctor.api import (
    Evidence,
    Finding,
    Json,
    ProbeOutcome,
    Subject,
)
from gpuipc_doctor.collective import channels
from gpuipc_doctor.collective.launch import CollectiveCheck, by_rank, take_part
from gpuipc_doctor.collective.transport_switches import CONTROLS

__all__ = ["take_part"]

SHOWN = 3
"""Maximum wrong results listed in a finding."""


class CollectiveData(CollectiveCheck):
    id = "collective-data"
    title = "NCCL's or RCCL's collectives return correct data"
    subject = Subject.COLLECTIVES
    workarounds: ClassVar = CONTROLS

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        ranks, first = by_rank(done), done.records["rank 0"]
        transports = channels.in_words(channels.most(rank["channels"] for rank in ranks.values()))
        values: dict[str, Json] = {
            "name": done.params["name"],
            "version": first["version"],
            "transports": transports or "channels that its log does not name",
            "ranks": len(ranks),
        }
        failed = [(name, each) for name, rank in ranks.items() for each in rank["failed"]]
        if failed:
            failures = sum(rank["failures"] for rank in ranks.values())
            says = (
                "{operations} returned wrong data{where}: {failures} of {results} results, over {transports}"
            )
            yield Finding.fail(
                "wrong-data",
                says,
                *(
                    Evidence.seen("{rank}: {case}: {says}", rank=rank, **_of(each))
                    for rank, each in failed[:SHOWN]
                ),
                *(
                    [Evidence.seen("ranks with correct data: {right}", right=right)]
                    if (right := [name for name in ranks if name not in dict(failed)])
                    else []
                ),
                *_tested(done),
                remedy="set in the jobs what helped above; if nothing did, run no such jobs here, and try "
                "another version of the library with --nccl-lib",
                operations=list(dict.fromkeys(each["operation"] for _, each in failed)),
                where=_where(first["needs"]),
                failures=failures,
                results=sum(rank["cases"] for rank in ranks.values()),
                **values,
            )
            return
        says = (
            "{name} {version}: {cases} collectives of {ranks} ranks correct, {compared:mib} compared, "
            "over {transports}"
        )
        alone = "{name} {version}: {cases} collectives of one rank correct, {compared:mib} compared"
        lacks = (
            [Evidence.seen("not tested: this version has no {lacks}", lacks=first["lacks"])]
            if first["lacks"]
            else []
        )
        if refused := first.get("refused"):
            lacks.append(Evidence.seen("not tested: reductions of fp8: {refused}", refused=refused))
        yield Finding.ok(
            "correct",
            says if len(ranks) > 1 else alone,
            *lacks,
            *_tested(done),
            cases=first["cases"],
            compared=sum(rank["compared"] for rank in ranks.values()),
            **values,
        )


def _of(failed: Json) -> dict[str, Json]:
    return {"case": failed["case"], "says": failed["says"]}


def _where(needs: Json) -> str:
    """What the first wrong case needs to be wrong, in words; what was not tried without is not said."""
    if not needs["always"]:
        return " at times"
    words = list(needs["words"])
    if needs["least"]:
        words.append(f"from {needs['least']} B on")
    return f" {', '.join(words)}" if words else ""


def _tested(done: ProbeOutcome) -> Iterable[Evidence]:
    """Which library was tested and why, and which others lie on the node."""
    values = {"file": done.params["file"], "via": done.params["via"]}
    yield Evidence.seen("library: {file}, found by: {via}", **values)
    if others := done.params["others"]:
        yield Evidence.seen("other libraries, not tested: {others}", others=others)
    kinds = Counter(channels.in_words(rank["channels"]) for rank in done.records.values())
    if len(kinds) > 1:
        yield Evidence.seen(
            "channels differ by rank: {channels}", channels=[each or "none" for each in kinds]
        )


CHECK = CollectiveData()
