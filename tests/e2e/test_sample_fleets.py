"""The sample fleets are made up of what the tool says today of two simulated nodes."""

from __future__ import annotations

import pytest

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.report import report_json
from tests import golden
from tests.e2e.conftest import Command
from tests.sample_fleets import CHECKS, FAULTY, SOUND, kept


@pytest.mark.cuda
@pytest.mark.parametrize("profile", [SOUND, FAULTY])
def test_a_sample_is_what_the_tool_says(doctor: Command, profile: str) -> None:
    ended = doctor("check", *CHECKS, "--simulate", profile, "--json")
    found = summary.of(report_json.loads(ended.stdout), "", ended.returncode)
    golden.check(f"fleet/{profile}.json", kept(found))
