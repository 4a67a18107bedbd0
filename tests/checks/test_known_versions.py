"""Tests of check known-versions: findings from the node's versions."""

from __future__ import annotations

from datetime import date

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.api import Context, Finding
from gpuipc_doctor.knownissues import releases
from gpuipc_doctor.model import Fact, Status, Tier, Unexpected
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Join, Relation
from gpuipc_doctor.versions import parse
from tests.checks.judging import check

FACTS = (Fact("nvidia-driver", "460.32.03", "/proc"), Fact("mpich", None, "nowhere"))
BAD = Join("nvidia-ipc-reopen", "no second opening", Relation.LATENT, "460.32.03 is bad", "take 450.102.04")


def findings(context: Context) -> list[Finding]:
    return [finding for finding in check("known-versions").probes(context) if isinstance(finding, Finding)]


def test_versions_without_known_issues_pass_and_are_listed() -> None:
    (finding,) = findings(Context(inventory=FACTS))
    assert finding.status is Status.PASS
    assert sentences.evidence(finding) == ("nvidia-driver 460.32.03",)


def test_each_known_issue_is_a_warning_with_its_remedy() -> None:
    (finding,) = findings(Context(inventory=FACTS, version_matches=(BAD,)))
    assert (finding.status, finding.remedy, finding.issues) == (Status.WARN, BAD.remedy, {BAD.issue})
    assert sentences.summary(finding) == "nvidia-ipc-reopen: 460.32.03 is bad"
    assert check("known-versions").tier is Tier.PROLOG


def test_version_unexpected_by_the_site_is_a_warning_with_its_line() -> None:
    one = Unexpected("nvidia-driver", "460.32.03 (/proc)", "535 and later", "site.yaml:7", "ticket 4711")
    (finding,) = findings(Context(inventory=FACTS, unexpected=(one,)))
    assert (finding.status, finding.key) == (Status.WARN, "unexpected")
    assert sentences.summary(finding) == (
        "nvidia-driver is 460.32.03 (/proc); site.yaml:7 expects 535 and later"
    )
    assert sentences.evidence(finding) == ("ticket 4711",)


def test_versions_until_which_the_data_has_read_can_be_compared() -> None:
    until = {**releases.read_until()}
    date.fromisoformat(until.pop("date"))
    assert all(parse(name, version) for name, version in until.items())


@pytest.mark.parametrize(
    ("name", "version", "newer"),
    [
        ("nvidia-driver", "620.70.06", True),
        ("nvidia-driver", "610.57.04", False),
        ("nvidia-driver", "580.159.04", False),
        ("nccl", "2.32.6", True),
        ("nccl", "2.32.3", False),
        ("mpich", "6.0", True),
        ("slurm", "99.1", False),  # no entry depends on its version
        ("nvidia-driver", "of unknown form", False),
    ],
)
def test_version_beyond_the_data_is_named_with_the_datas_date(name: str, version: str, newer: bool) -> None:
    facts = (Fact(name, version, "/proc"),)
    unread = knownissues.newer_than_read(facts)
    (finding,) = findings(Context(inventory=facts, unread=unread))
    assert finding.status is Status.PASS
    assert (finding.key == "newer-than-data") == newer
    assert ("newer than our data of 20" in sentences.summary(finding)) == newer
