"""Tests of ``--require``: the subjects that must have been tested."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli import check, compare


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mpu", "'mpu' is no subject of the verdict; did you mean 'mpi'?"),
        ("NCCL", "'NCCL' is no subject of the verdict; its checks are of `collectives`"),
        ("memory,", "'' is no subject of the verdict"),
        ("gpudirect", "'gpudirect' is no subject of the verdict; there are collectives, fabric, memory, mpi"),
    ],
)
def test_unknown_subject_is_a_usage_error(given: str, says: str) -> None:
    ran = CliRunner().invoke(check.command, ["--all", "--require", given])
    assert ran.exit_code == 2
    assert says in ran.output


def test_compare_requires_subjects_only_of_a_verdict() -> None:
    ran = CliRunner().invoke(compare.command, ["--require", "mpi", "README.md", "README.md"])
    assert ran.exit_code == 2
    assert "add --accept" in ran.output
