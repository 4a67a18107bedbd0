"""Tests of check dcgm-diag: findings from recorded results, and the option that asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import Context, Finding, Probe
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli.check_options import parsed
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import planner
from gpuipc_doctor.site.config import SiteConfig
from tests.checks.judging import check, conclude, gpu

PASS, SKIP = ["software", "PASS", "0", [], False], ["software", "SKIP", "0", [], False]
FAIL = ["software", "FAIL", "1", ["row remapping is pending"], False]
MILD = ["software", "FAIL", "0", ["Persistence mode for {GPU 0} is disabled"], True]
WARN = ["Denylist", "WARN", "0,1", [], False]
TOLD = {"program": "/usr/bin/dcgmi", "exit": 0}
NO_ENGINE = "Error: unable to establish a connection to the specified host: localhost"


def judged(**told: Any) -> Finding:
    (finding,) = conclude("dcgm-diag", {"allocator": {**TOLD, **told}})
    return finding


@pytest.mark.parametrize(
    ("tests", "more", "expected"),
    [
        ([PASS], {}, "PASS passed"),
        ([PASS, SKIP], {}, "PASS passed"),
        ([["software", "PASS", "0", ["a note"], True]], {}, "PASS passed"),
        ([SKIP], {}, "SKIP all-skipped"),
        ([], {}, "SKIP all-skipped"),
        ([PASS, FAIL], {"exit": 226}, "FAIL failed"),
        ([FAIL, MILD], {"error": "interrupted"}, "FAIL failed"),
        ([MILD], {"exit": 226}, "WARN settings"),
        ([PASS, WARN], {}, "WARN settings"),
        ([PASS], {"error": "unsupported GPU"}, "ERROR not-tested"),
        ([PASS, ["software", "NOT RUN", "0", [], False]], {}, "ERROR not-tested"),
        ([PASS], {"exit": 226}, "ERROR contradiction"),
    ],
)
def test_verdict_is_dcgms_and_what_it_cannot_tell_is_an_error(
    tests: list[Any], more: dict[str, Any], expected: str
) -> None:
    finding = judged(version="4.2.3", tests=tests, **{"error": "", **more})
    assert f"{finding.status.value} {finding.key}" == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"program": ""}, "SKIP no-dcgmi"),
        ({"exit": None}, "ERROR no-answer"),
        ({"exit": 235, "said": NO_ENGINE}, "SKIP no-engine"),
        ({"exit": 0, "said": ""}, "ERROR unreadable"),
        ({"exit": -9, "said": "{garbage"}, "ERROR unreadable"),
    ],
)
def test_dcgmi_that_does_not_answer_accuses_no_gpu(told: dict[str, Any], expected: str) -> None:
    finding = judged(**told)
    assert f"{finding.status.value} {finding.key}" == expected


def test_failure_quotes_dcgm_and_names_the_gpu() -> None:
    finding = judged(version="4.2.3", error="", tests=[FAIL, MILD])
    assert sentences.summary(finding) == "DCGM 4.2.3: software failed"
    assert [*sentences.evidence(finding)] == [
        "software, GPU 1: row remapping is pending",
        "software, GPU 0: Persistence mode for (GPU 0) is disabled",
    ]


def test_what_dcgm_could_not_test_is_named() -> None:
    odd = judged(version="", error="", tests=[["software", "NOT RUN", "0", [], False]])
    told = judged(version="", error="unsupported GPU", tests=[["software", "NOT RUN", "0", [], False]])
    assert sentences.summary(odd) == "DCGM of unknown version could not test: NOT RUN"
    assert sentences.summary(told) == "DCGM of unknown version could not test: unsupported GPU"


def test_only_nvidia_gpus_are_tested() -> None:
    (skip,) = check("dcgm-diag").probes(Context((gpu(0, "hip"),)))
    assert isinstance(skip, Finding)
    assert skip.key == "no-device"
    (probe,) = check("dcgm-diag").probes(Context((gpu(0, "hip"), gpu(0))))
    assert isinstance(probe, Probe)


@pytest.mark.parametrize("option", [["--with-dcgm"], []])
def test_option_adds_the_check_and_without_it_no_tier_has_it(
    option: list[str],
) -> None:
    options = parsed(["--all", "--tier", "prolog", *option])
    chosen = planner.select(options.request(SiteConfig()), SiteConfig())
    assert ("dcgm-diag" in [item.check.id for item in chosen if isinstance(item, LoadedCheck)]) == bool(
        option
    )
