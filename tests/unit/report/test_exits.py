"""Exit codes, and the output for Nagios."""

import re
from typing import Any

import pytest
from hypothesis import given

from gpuipc_doctor.model import Exit, Finding, Status
from gpuipc_doctor.report import exits, node_content
from gpuipc_doctor.report_types import Report, Result
from tests.sample_reports import PROPERTY, gpus, healthy, replaced, reports, seed_002


def ended(status: Status, **changes: Any) -> Report:
    """A run whose worst finding has this status."""
    worst = Result("ipc-stale", Finding(status, "so", "so it is"), ("cuda:0",))
    return replaced(healthy(gpus(2)), worst, **changes)


@pytest.mark.parametrize(
    ("report", "code", "strict_code", "nagios_code"),
    [
        (ended(Status.PASS), 0, 0, 0),
        (ended(Status.SKIP), 0, 0, 0),
        (ended(Status.WARN), 0, 10, 1),
        (ended(Status.ERROR), 11, 11, 3),
        (ended(Status.FAIL), 12, 12, 2),
        (ended(Status.PASS, probes_run=0), 3, 3, 3),
        (ended(Status.WARN, probes_run=0), 3, 3, 3),
        (ended(Status.ERROR, probes_run=0), 3, 3, 3),
        (ended(Status.FAIL, probes_run=0), 12, 12, 2),
        (ended(Status.PASS, probes_run=0, needs_gpu=False), 0, 0, 0),
        (ended(Status.WARN, probes_run=0, needs_gpu=False), 0, 10, 1),
        (ended(Status.PASS, interrupted=True), 130, 130, 3),
        (ended(Status.FAIL, interrupted=True), 130, 130, 2),
    ],
)
def test_exit_codes(report: Report, code: int, strict_code: int, nagios_code: int) -> None:
    assert exits.code(report) == code
    assert exits.code(report, strict=True) == strict_code
    assert exits.code(report, nagios=True) == nagios_code


def test_every_code_has_a_meaning() -> None:
    assert {int(code) for code in Exit} == {0, 1, 2, 3, 10, 11, 12, 130}
    assert set(exits.MEANINGS) == set(Exit)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            healthy(gpus(2)),
            "GPUIPC OK - 6 checks passed | pass=6 skip=0 warn=0 error=0 fail=0 time=21.4s",
        ),
        (
            ended(Status.ERROR),
            "GPUIPC UNKNOWN - ipc-stale on cuda:0: so it is | pass=5 skip=0 warn=0 error=1 fail=0 time=21.4s",
        ),
        (
            ended(Status.PASS, probes_run=0),
            "GPUIPC UNKNOWN - nothing was tested | pass=6 skip=0 warn=0 error=0 fail=0 time=21.4s",
        ),
        (
            ended(Status.PASS, interrupted=True),
            "GPUIPC UNKNOWN - interrupted | pass=6 skip=0 warn=0 error=0 fail=0 time=21.4s",
        ),
    ],
)
def test_nagios_line(report: Report, line: str) -> None:
    assert node_content.nagios(report).splitlines()[0] == line


def test_simulated_run_is_marked_for_nagios() -> None:
    simulated = replaced(seed_002(), simulated="nvidia-460.32.03")
    assert node_content.nagios(simulated).startswith("GPUIPC CRITICAL - SIMULATED ipc-reopen on cuda:0-3; ")


@PROPERTY
@given(reports)
def test_only_the_first_line_has_performance_data(report: Report) -> None:
    output = node_content.nagios(report)
    assert output.count("|") == 1
    assert re.match(r"GPUIPC (OK|WARNING|CRITICAL|UNKNOWN) - [^\n|]* \| pass=\d+ .* time=[\d.]+s\n", output)
