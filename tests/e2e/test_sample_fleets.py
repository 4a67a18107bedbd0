"""The sample fleets equal the tool's current reports on two simulated nodes."""

from __future__ import annotations

import pytest

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.report import report_json
from tests import golden
from tests.e2e.conftest import Command
from tests.sample_fleets import CHECKS, FAULTY, SOUND, kept


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize("profile", [SOUND, FAULTY])
def test_sample_equals_the_tools_report(doctor: Command, profile: str) -> None:
    ended = doctor("check", *CHECKS, "--simulate", profile, "--json")
    found = summary.of(report_json.loads(ended.stdout), "", ended.returncode)
    golden.check(f"fleet/{profile}.json", kept(found))
