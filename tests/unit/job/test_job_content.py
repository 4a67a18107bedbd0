"""Output of `job`: screens, Markdown and pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.job import job_content
from gpuipc_doctor.job.document import (
    Cause,
    Difference,
    Growth,
    JobReport,
    MatchedIssue,
    Progress,
    Rank,
    Verdict,
)
from gpuipc_doctor.job.merging import merge
from gpuipc_doctor.job.roles import BY_GPU, IN_ORDER
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.report_types import Relation
from tests import golden

HOSTILE = "\x1b[31m<script>alert(1)</script>`|\n# x"

WAITING = ("main (app)", "step (app)", "PMPI_Allreduce (libmpi.so.12)")


def rank(number: int, kind: Kind, path: tuple[str, ...], **more: object) -> Rank:
    fixed = {"program": "app", "operation": "", "reason": "", **more}
    return Rank(
        rank=number, host=f"n{number // 8 + 1}", pid=4000 + number, doing=kind.value, path=path, **fixed
    )  # type: ignore[arg-type]


def report(*ranks: Rank, size: int = 16) -> JobReport:
    return merge([replace(EMPTY, ranks=ranks, size=size)], {})


EMPTY = JobReport(
    taken=1764000000.0, seconds=4.8, looks=4, size=None, ranks=(), verdict=None,  # type: ignore[arg-type]
)  # fmt: skip

ONE_LATE = report(
    *(rank(n, Kind.COLLECTIVE, WAITING, operation="MPI_Allreduce") for n in range(15)),
    rank(15, Kind.SLEEPS, ("main (app)", "step (app)", "write_checkpoint (app)"),
         operation="write_checkpoint (app)", reason="sleeps in hrtimer_nanosleep"),
)  # fmt: skip

STUCK = replace(
    report(
        *(rank(n, Kind.COLLECTIVE, WAITING, operation="MPI_Allreduce") for n in range(16) if n != 5),
        rank(5, Kind.RECEIVES, (*WAITING[:2], "PMPI_Recv (libmpi.so.12)"), operation="MPI_Recv"),
    ),
    issues=(
        MatchedIssue(
            id="ucx-hangs", title="UCX waits for itself", relation=Relation.LATENT,
            reason="ucx 1.17.0 is affected (1.17.0 to before 1.18.0)",
            remedy="use UCX 1.18.0 or newer", checks=("mpi-small-message",), ranks=tuple(range(16)),
        ),
    ),
    differences=(Difference(name="UCX_TLS", ranks={"rc": tuple(range(15)), "": (15,)}),),
    since=Progress(earlier=1764000000.0, moved=(), still=tuple(range(16))),
    unable={"sampled stacks on n2": "perf is not installed"},
)  # fmt: skip

GROWTH = (
    Growth(rank=1, pid=4001, what="device memory", per_minute=13.4 * 2**30, low=13.2 * 2**30,
           high=13.9 * 2**30, first=1476 << 20, last=14 << 30),
    Growth(rank=1, pid=4001, what="descriptors", per_minute=60.2, low=59.0, high=61.1, first=20, last=80),
)  # fmt: skip
MOVING = replace(EMPTY, ranks=(rank(0, Kind.MOVES, WAITING), rank(1, Kind.MOVES, WAITING)), size=2)
GROWS = merge([replace(MOVING, watched_s=60.0, growth=GROWTH)], {})


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize("name", ["one-late", "stuck", "grows"])
def test_screen(name: str) -> None:
    shown = {"one-late": ONE_LATE, "stuck": STUCK, "grows": GROWS}[name]
    golden.check(f"job/{name}.txt", job_content.screen(shown, width=80, color=False))


def test_verdict_does_not_call_waiting_ranks_healthy() -> None:
    waits = rank(0, Kind.COLLECTIVE, WAITING, operation="MPI_Bcast")
    moves = job_content.screen(report(waits, rank(1, Kind.MOVES, WAITING), size=2), width=80, color=False)
    assert "PASS   some ranks make progress; rank 0 waits in MPI_Bcast" in moves
    loops = job_content.screen(report(waits, rank(1, Kind.LOOPS, WAITING), size=2), width=80, color=False)
    assert "cannot tell" in loops
    assert "Do: rerun with --save FILE, and a minute later with --since FILE" in loops
    again = report(waits, rank(1, Kind.LOOPS, WAITING), size=2)
    saved = job_content.screen(again, width=80, color=False, saved="stuck.json")
    assert "Do: a minute later, rerun with --since stuck.json" in saved
    since = replace(again, since=Progress(earlier=1.0, moved=(), still=(0, 1)))
    assert "--since" not in job_content.screen(since, width=80, color=False)


def test_parent_of_a_vfork_is_not_sent_to_dmesg() -> None:
    parent = rank(0, Kind.KERNEL, WAITING, operation="kernel_clone")
    remedy = "Do: check the child (pstree -p PID): the rank waits until the"
    assert remedy in job_content.screen(report(parent, size=1), width=80, color=False)


def test_markdown() -> None:
    golden.check("job/stuck.md", job_content.ticket(STUCK))


def test_screen_of_ten_thousand_ranks_in_many_places_is_one_screen() -> None:
    places = [(*WAITING[:2], f"function_{number % 300} (app)") for number in range(10_000)]
    ranks = [rank(n, Kind.COMPUTES, place) for n, place in enumerate(places)]
    assert len(job_content.screen(report(*ranks, size=10_000), width=80, color=False).splitlines()) < 100


def test_text_of_processes_is_escaped_everywhere() -> None:
    path = ("main (app)", HOSTILE)
    hostile = report(
        rank(0, Kind.COLLECTIVE, path, operation=HOSTILE, program=HOSTILE, settings={"UCX_TLS": HOSTILE}),
        rank(1, Kind.SLEEPS, path, operation=HOSTILE, program=HOSTILE, reason=HOSTILE),
        size=2,
    )
    hostile = replace(hostile, unable={HOSTILE: HOSTILE}, ras=(HOSTILE,))
    screen = job_content.screen(hostile, width=80, color=False)
    page, ticket = job_content.html(hostile), job_content.ticket(hostile)
    assert "\x1b" not in screen + page + ticket
    assert "<script>alert" not in page + ticket
    assert "\n# x" not in ticket


def test_page_has_the_verdict_and_every_part() -> None:
    page = job_content.html(STUCK)
    for words in ("rank 5 waits in MPI_Recv", "UCX waits for itself", "UCX_TLS", "perf is not installed"):
        assert words in page


@pytest.mark.parametrize(
    ("numbered", "says"), [(IN_ORDER, "ranks numbered by start"), (BY_GPU, "ranks numbered by GPU")]
)
def test_screen_says_how_ranks_were_numbered(numbered: str, says: str) -> None:
    some = replace(ONE_LATE, ranks=tuple(replace(rank, numbered=numbered) for rank in ONE_LATE.ranks))
    assert says in job_content.screen(some, width=80, color=False)


@pytest.mark.parametrize(("seen", "says"), [(16, "every rank waits"), (8, "the 8 of 16 ranks seen wait")])
def test_sentence_on_all_ranks_is_about_those_that_were_seen(seen: int, says: str) -> None:
    ranks = (
        rank(n, Kind.ENDS, ("PMPI_Finalize (libmpi.so.12)",), operation="MPI_Finalize") for n in range(seen)
    )
    verdict = Verdict(cause=Cause.FINALIZE, waiting=tuple(range(seen)))
    seen_here = replace(EMPTY, ranks=tuple(ranks), size=16, verdict=verdict)
    assert job_content.sentence(seen_here) == f"{says} in MPI_Finalize"


def test_screen_with_a_wait_in_level_zero_says_experimental() -> None:
    waits = rank(0, Kind.DEVICE, ("main (app)", "zeEventHostSynchronize (libze_intel_gpu.so.1)"))
    others = rank(0, Kind.DEVICE, ("main (app)", "cuStreamSynchronize (libcuda.so.1)"))
    says = "EXPERIMENTAL: never run on an Intel GPU"
    assert says in job_content.screen(report(waits), width=80, color=False)
    assert says not in job_content.screen(report(others), width=80, color=False)
