"""How the nodes of a fleet are reached: site config, command line and Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from gpuipc_doctor.cli.fleet_reach import Reach
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.report import report_json
from tests.sample_reports import gpus, healthy

SITE = "fleet:\n  srun: [--exclusive, --gres=gpu:4]\n  ssh: [-oProxyJump=login2]\n"

ASKED: dict[str, Any] = {
    "nodes": "n1",
    "partition": "gpu",
    "reservation": None,
    "all_idle": False,
    "fanout": 1,
    "rate": 10.0,
    "deadline": 1.0,
    "budget": None,
    "patience": 1.0,
    "launch_options": ("-v",),
    "tool": None,
}


OWN = """\
from gpuipc_doctor.api import Check
class Own(Check):
    id, title = "site-own", "of the site"
    def probes(self, ctx):
        return ()
CHECK = Own()
"""


def test_check_of_the_site_is_found_through_its_config(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    config = tmp_path / "site.yaml"
    config.write_text(f"checks_dirs: [{tmp_path}]\n")
    way = Reach(**ASKED, via="ssh").way("site-own", "--config", str(config))
    assert way.command[-3:] == ("site-own", "--config", str(config))
    with pytest.raises(click.UsageError, match="no check 'site-own'"):
        Reach(**ASKED, via="ssh").way("site-own")


def test_library_of_the_nodes_may_be_missing_here() -> None:
    """A login node may lack the nodes' MPI."""
    way = Reach(**ASKED, via="ssh").way("--all", "--mpi-lib", "/opt/cray/libmpi.so")
    assert way.command[-2:] == ("--mpi-lib", "/opt/cray/libmpi.so")


@pytest.mark.parametrize(
    ("asked", "says"),
    [("fabric-smal", "no check 'fabric-smal'; did you mean"), ("--all", "omit --all, or the names")],
)
def test_pairs_validate_checks_before_reaching_any_node(asked: str, says: str) -> None:
    ended = CliRunner().invoke(cli, ["fleet", "pairs", "--via", "ssh", "-w", "n[1-2]", "--", asked])
    assert (ended.exit_code, says in ended.output) == (2, True)


def test_pairs_pass_further_options_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = CliRunner().invoke(
        cli,
        ["fleet", "pairs", "--via", "ssh", "-w", "n[1-2]", "--", "--deadline", "5", "fabric-small-message"],
    )
    assert (ended.exit_code, "n1 - n2: no answer: ssh: " in ended.output) == (11, True), ended.output


def test_directory_without_answers_can_be_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of nodes that never answered are removed; a directory with a report stops the next run."""
    monkeypatch.setenv("PATH", str(tmp_path))
    ssh = tmp_path / "ssh"

    def fleet_check(node: str) -> Result:
        return CliRunner().invoke(
            cli, ["fleet", "check", "--via", "ssh", "-w", node, "--into", str(tmp_path / "out")]
        )

    assert "no report from nl: launch failed" in fleet_check("nl").output
    (tmp_path / "report").write_text(report_json.dumps(healthy(gpus(1))))
    ssh.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/report\n")
    ssh.chmod(0o755)
    second = fleet_check("n1")
    assert (second.exit_code, second.output.splitlines()[0][:19]) == (0, "ACCEPT 1"), second
    third = fleet_check("n1")
    assert (third.exit_code, "has 1 report already; name a new" in third.output) == (2, True), third


@pytest.mark.parametrize(
    ("via", "around", "options"),
    [
        pytest.param("slurm", None, ("--exclusive", "--gres=gpu:4", "--partition=gpu", "-v"), id="a job"),
        pytest.param("slurm", "7", ("-v",), id="a step has what its allocation has"),
        pytest.param("ssh", None, ("-oProxyJump=login2", "-v"), id="ssh"),
        pytest.param("ssh", "7", ("-oProxyJump=login2", "-v"), id="ssh in an allocation"),
    ],
)
def test_sites_job_options_are_passed_on(
    via: str, around: str | None, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if around:
        monkeypatch.setenv("SLURM_JOB_ID", around)
    way = Reach(**ASKED, via=via).way("driver-init", "--config", str(tmp_path / "site.yaml"))
    assert way.options == options
