"""Known issues of a running job: by stack, by loaded version, by both; and settings without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.job.document import Cause, JobReport, Rank, Verdict
from gpuipc_doctor.job.issues import matching, wrong_settings
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, load
from gpuipc_doctor.knownissues.entry import Reference, Workaround
from gpuipc_doctor.model import Effect
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.versions import Range

ISSUE = KnownIssue(
    id="ucx-hangs",
    title="UCX waits for itself",
    component="ucx",
    kind="hang",
    status="fixed",
    symptom="It hangs.",
    references=(Reference("fix", "https://example.org"),),
    affected=(Range("ucx", "1.17.0", fixed="1.18.0"),),
    signatures=(Signature((r"\bucp_waits_for_itself\b",), Confidence.HIGH),),
    detected_by=("mpi-small-message",),
    workarounds=(Workaround("use UCX 1.18.0 or newer"),),
)

IN_THE_BUG = ("main (app)", "PMPI_Recv (libmpi.so.40)", "ucp_waits_for_itself (libucp.so.0)")
ELSEWHERE = ("main (app)", "PMPI_Recv (libmpi.so.40)")


def report(path: tuple[str, ...], cause: Cause = Cause.ALL_WAIT, **versions: str) -> JobReport:
    rank = Rank(
        rank=3, host="n1", pid=7, program="app", doing=Kind.RECEIVES.value, operation="MPI_Recv",
        path=path, versions=versions,
    )  # fmt: skip
    verdict = Verdict(cause=cause)
    return JobReport(taken=1.0, seconds=5.0, looks=4, size=1, ranks=(rank,), verdict=verdict)


@pytest.mark.parametrize(
    ("path", "version", "relation"),
    [
        (IN_THE_BUG, "1.17.0", Relation.CONFIRMED),
        (ELSEWHERE, "1.17.0", Relation.LATENT),
        (IN_THE_BUG, "1.18.1", Relation.NEW),
        (ELSEWHERE, "1.18.1", None),
    ],
)
def test_issue_is_joined_by_stack_and_loaded_version(
    path: tuple[str, ...], version: str, relation: Relation | None
) -> None:
    found = list(matching(report(path, ucx=version), [ISSUE]))
    assert [each.relation for each in found] == [relation] * (relation is not None)
    assert all(each.ranks == (3,) and each.checks == ("mpi-small-message",) for each in found)


def test_secondary_issue_says_no_more_than_the_verdict() -> None:
    assert list(matching(report(IN_THE_BUG, ucx="1.17.0"), [replace(ISSUE, secondary=True)])) == []


def test_issue_of_a_stack_without_a_version_is_uncertain() -> None:
    (found,) = matching(report(IN_THE_BUG), [ISSUE])
    assert found.relation is Relation.UNKNOWN


@pytest.mark.parametrize("cause", [Cause.HOST_LATE, Cause.RUNS, Cause.STOPPED, Cause.RANK_ENDED])
def test_version_alone_does_not_explain_a_late_or_running_job(cause: Cause) -> None:
    assert list(matching(report(ELSEWHERE, cause, ucx="1.17.0"), [ISSUE])) == []


def test_library_that_is_not_loaded_has_no_issues() -> None:
    assert list(matching(report(ELSEWHERE), load(()))) == []


def test_setting_that_the_loaded_version_ignores_is_reported() -> None:
    rank = Rank(
        rank=0, host="n1", pid=7, program="app", doing="", operation="", path=(),
        settings={"NCCL_RAS_ENABLE": "1"}, versions={"nccl": "2.20.5"},
    )  # fmt: skip
    (setting,) = wrong_settings([rank, rank])
    assert (setting.name, setting.effect) == ("NCCL_RAS_ENABLE", Effect.DEAD)
