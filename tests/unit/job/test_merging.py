"""Merging the reports of several nodes; progress since an earlier report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.job import document, job_content
from gpuipc_doctor.job.document import Cause, Difference, JobReport, Rank, Verdict
from gpuipc_doctor.job.merging import merge
from gpuipc_doctor.job.progress import since
from gpuipc_doctor.job.waits import Kind


def rank(number: int, host: str, kind: Kind = Kind.COLLECTIVE, **more: object) -> Rank:
    operation = "MPI_Barrier" if kind is Kind.COLLECTIVE else "nap"
    fixed = {"pid": 100 + number, "program": "app", "path": ("main", operation), "doing": kind.value}
    return Rank(rank=number, host=host, operation=operation, **{**fixed, **more})  # type: ignore[arg-type]


def report(*ranks: Rank, size: int | None = 4) -> JobReport:
    runs = Verdict(cause=Cause.RUNS)
    return JobReport(taken=1.0, seconds=5.0, looks=4, size=size, ranks=ranks, verdict=runs)


def test_absent_rank_has_ended_only_if_every_node_answered() -> None:
    here = report(rank(0, "n1"), rank(1, "n1"), rank(2, "n1"))
    assert merge([here], {}).verdict.blamed == (3,)
    silent = merge([here], {"n2": "no answer within 180 s"})
    assert silent.verdict.cause is not Cause.RANK_ENDED
    assert silent.unable == {"n2": "no answer within 180 s"}


def test_processes_without_a_rank_are_numbered_over_all_nodes() -> None:
    merged = merge([report(rank(0, "n1"), size=None), report(rank(0, "n2"), size=None)], {})
    assert [(rank.rank, rank.host) for rank in merged.ranks] == [(0, "n1"), (1, "n2")]


def test_settings_and_versions_that_differ_are_listed() -> None:
    ranks = [rank(n, "n1", settings={"UCX_TLS": "rc"}, versions={"ucx": "1.17.0"}) for n in range(3)]
    ranks.append(rank(3, "n2", settings={}, versions={"ucx": "1.18.0"}))
    assert merge([report(*ranks)], {}).differences == (
        Difference(name="UCX_TLS", ranks={"rc": (0, 1, 2), "": (3,)}),
        Difference(name="ucx", ranks={"1.17.0": (0, 1, 2), "1.18.0": (3,)}),
    )


def test_setting_unique_to_each_rank_is_no_difference() -> None:
    ranks = [rank(n, "n1", settings={"UCX_NET_DEVICES": f"mlx5_{n}:1"}) for n in range(4)]
    assert merge([report(*ranks)], {}).differences == ()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
@pytest.mark.parametrize(
    ("gpus", "binds"),
    [
        ({"n1": ["0", "1"]}, True),
        ({"n1": ["0", "1", "2", "3"], "n2": ["0", "1", "2", "3"]}, True),
        ({"n1": ["0", "0", "1", "1"]}, True),
        ({"n1": ["0"], "n2": ["3"]}, True),
        ({"n1": ["0,1", "2,3"]}, True),
        ({"n1": ["0", "0", "2", "3"]}, False),  # two ranks on one GPU, and one GPU without a rank
        ({"n1": ["0", None]}, False),
        ({"n1": ["0", "1"], "n2": ["0", "0", "1"]}, False),
    ],
)
def test_gpus_assigned_by_the_launcher_are_no_difference(
    name: str, gpus: dict[str, list[str | None]], binds: bool
) -> None:
    bound = [(host, gpu) for host, those in gpus.items() for gpu in those]
    ranks = [
        rank(n, host, settings={} if gpu is None else {name: gpu}) for n, (host, gpu) in enumerate(bound)
    ]
    (difference,) = merge([report(*ranks)], {}).differences
    assert (difference.name, difference.binds) == (name, binds)
    assert ("the launcher binds" in job_content.ticket(merge([report(*ranks)], {}))) == binds


@pytest.mark.parametrize(
    ("each", "together"),
    [([True, False], True), ([False, None], False), ([None, None], None), ([None, True], True)],
)
def test_messages_of_any_node_count(each: list[bool | None], together: bool | None) -> None:
    reports = [report(rank(n, f"n{n}"), size=None) for n in range(2)]
    seen = [replace(one, messages=messages) for one, messages in zip(reports, each, strict=True)]
    assert merge(seen, {}).messages is together


def test_rank_sampled_deeper_in_the_same_call_has_not_moved() -> None:
    call = ("main (app)", "PMPI_Allreduce (libmpi.so.12)")
    before = report(*(rank(n, "n1", path=call) for n in range(2)))
    now = report(
        rank(0, "n1", path=(*call, "MPIDI_progress_test (libmpi.so.12)")),
        rank(1, "n1", path=("main (app)", "last_step (app)", call[-1])),
    )
    assert (since(before, now).still, since(before, now).moved) == ((0,), (1,))


def test_ranks_since_an_earlier_report_are_unmoved_moved_restarted_or_gone() -> None:
    before = report(*(rank(n, "n1") for n in range(5)))
    now = report(
        rank(0, "n1"),
        rank(1, "n1", path=("main", "other")),
        rank(2, "n1", pid=7),
        rank(3, "n1", Kind.MOVES),
    )
    seen = since(before, now)
    assert (seen.still, seen.moved, seen.restarted, seen.gone) == ((0,), (1, 3), (2,), (4,))
    assert document.loads(document.dumps(replace(now, since=seen))).since == seen
