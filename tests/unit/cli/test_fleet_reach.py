"""How the nodes of a fleet are reached: what the site, the command line and Slurm have to say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.cli.fleet_reach import Reach

SITE = "fleet:\n  srun: [--exclusive, --gres=gpu:4]\n  ssh: [-oProxyJump=login2]\n"

ASKED: dict[str, Any] = {
    "nodes": "n1",
    "partition": "gpu",
    "reservation": None,
    "all_idle": False,
    "fanout": 1,
    "deadline": 1.0,
    "budget": None,
    "patience": 1.0,
    "launch_options": ("-v",),
    "tool": None,
}


@pytest.mark.parametrize(
    ("via", "around", "options"),
    [
        pytest.param("slurm", None, ("--exclusive", "--gres=gpu:4", "--partition=gpu", "-v"), id="a job"),
        pytest.param("slurm", "7", ("-v",), id="a step has what its allocation has"),
        pytest.param("ssh", None, ("-oProxyJump=login2", "-v"), id="ssh"),
        pytest.param("ssh", "7", ("-oProxyJump=login2", "-v"), id="ssh in an allocation"),
    ],
)
def test_what_the_site_wants_of_a_job_is_said(
    via: str, around: str | None, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if around:
        monkeypatch.setenv("SLURM_JOB_ID", around)
    way = Reach(**ASKED, via=via).way("driver-init", "--config", str(tmp_path / "site.yaml"))
    assert way.options == options
