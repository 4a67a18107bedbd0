"""The epilog on simulated nodes: what rose since the prolog, in time, without a context."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.test_prolog import AMPLE, POLICY
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cuda

SLURM_PAGE = Path(__file__).parents[2] / "docs/slurm.md"

RISES = r"cuda:0, NVLink 3 to cuda:1: \d+ more NVLink replays in [\d.]+ s"


class Node:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, simulate: str, **prolog: object) -> None:
        section = {**POLICY, "simulate": simulate, "log": "log.jsonl", **prolog}
        (self.directory / "site.yaml").write_text(json.dumps({"prolog": section}))
        (self.directory / "site.yaml").chmod(0o644)

    def run(self, command: str, job: str, gpus: str = "", *arguments: str) -> tuple[int, str, str]:
        told = {"SLURM_JOB_ID": job, "SLURM_JOB_GPUS": gpus, "SLURM_JOB_UID": str(os.geteuid())}
        ended = subprocess.run(
            [
                sys.executable,
                "-I",
                "-m",
                "gpuipc_doctor",
                command,
                "--config",
                "site.yaml",
                *(arguments or AMPLE),
            ],
            cwd=self.directory,
            env={name: value for name, value in told.items() if value},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert "Traceback" not in ended.stderr
        assert ended.stdout.count("\n") == 1
        return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_rise_is_told_with_gpu_link_and_peer_and_drains_nothing(node: Node) -> None:
    node.write("nvlink-replays")
    assert node.run("prolog", "1", "0,1")[0] == 0
    code, line, said = node.run("epilog", "1", "0,1")
    assert (code, said) == (0, "")
    assert re.search(rf"\(nvlink-replays\) job 1: {RISES}", line), line
    assert "since the last epilog" not in line
    entry = json.loads((node.directory / "log.jsonl").read_text().splitlines()[-1])
    assert re.match(RISES.partition(" in ")[0], entry["epilog"]["rises"][0])


def test_only_the_jobs_gpus_count(node: Node) -> None:
    node.write("nvlink-replays")
    node.run("prolog", "1", "1")
    code, line, _ = node.run("epilog", "1", "1")
    assert code == 0
    assert "job 1: no error counter rose in " in line
    _, line, _ = node.run("epilog", "2", "0")  # without its prolog
    assert "job 2: no error counters from before the job of cuda:0" in line
    _, line, _ = node.run("epilog", "3", "0,1")
    assert re.search(rf"job 3: {RISES}, since the last epilog", line), line


def test_gpus_that_are_not_listed_are_told_and_no_others_count(node: Node) -> None:
    node.write("nvlink-replays", epilog_fail={"nvlink-replay": 1})
    node.run("epilog", "1", "0")
    code, line, _ = node.run("epilog", "2", "5")
    assert code == 0
    assert "cuda:0" not in line
    assert "the kernel does not list GPU 5 of the job" in line


@pytest.mark.parametrize(
    ("policy", "code", "says"),
    [
        ({"epilog_fail": {"nvlink-replay": 1}}, 12, "FAIL epilog: job 1: cuda:0, NVLink 3"),
        (
            {"epilog_fail": {"nvlink-replay": 1}, "shadow": True},
            0,
            "would drain, but shadow mode is on: FAIL",
        ),
        ({"epilog_fail": {"nvlink-replay": 10**12, "xid": 1}}, 0, "job 1: cuda:0, NVLink 3"),
    ],
)
def test_sites_threshold_decides(node: Node, policy: dict[str, object], code: int, says: str) -> None:
    node.write("nvlink-replays", **policy)
    node.run("prolog", "1", "0")
    found, line, _ = node.run("epilog", "1", "0")
    assert found == code
    assert f") {says}" in line
    if code:
        (pattern,) = re.findall(r"^    (\^gpuipc-doctor: .*)$", SLURM_PAGE.read_text(), re.MULTILINE)
        reason = re.match(pattern, line)
        assert reason is not None
        assert (reason["status"], reason["check"]) == ("FAIL", "epilog")


def test_healthy_job_left_nothing(node: Node) -> None:
    node.write("equal-gpus")
    node.run("prolog", "1")
    code, line, said = node.run("epilog", "1")
    assert (code, said) == (0, "")
    assert re.search(r"job 1: no error counter rose in [\d.]+ s; nothing was left$", line), line


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("{call: nvml-device-links, do: hang}", "nvmlDevice"),
        ("{call: nvml-init, do: hang-ignore-term}", "nvmlInit"),
        ("{call: nvml-init, do: segv}", "nvmlInit"),
    ],
)
def test_nvml_that_hangs_or_crashes_costs_the_next_job_nothing(node: Node, fault: str, says: str) -> None:
    text = f"description: NVML fails.\nextends: nvlink-replays\nfaults: [{fault}]\n"
    (node.directory / "ours.yaml").write_text(text)
    node.write("ours.yaml", epilog_fail={"nvlink-replay": 1})
    began = time.monotonic()
    code, line, _ = node.run("epilog", "1", "", "--budget", "6")
    assert time.monotonic() - began < 7.5
    assert code == 0
    assert "ERROR" in line
    assert says in line


def test_counters_that_were_not_reported_at_both_times_are_told(node: Node) -> None:
    node.write("nvlink-replays")
    node.run("prolog", "1")
    fault = "{call: nvml-device-links, do: error, error: NOT_SUPPORTED}"
    text = f"description: No counters.\nextends: nvlink-replays\nfaults: [{fault}]\n"
    (node.directory / "ours.yaml").write_text(text)
    node.write("ours.yaml")
    code, line, _ = node.run("epilog", "1")
    assert code == 0
    assert "not reported at both times: NVLink CRC errors" in line
    node.write("nvlink-replays")
    _, line, _ = node.run("epilog", "2")
    assert "not reported at both times: NVLink CRC errors" in line


def test_bad_config_and_command_line_exit_with_0(node: Node) -> None:
    node.write("nvlink-replays", epilog_fail={"nvlink": 1})
    code, line, _ = node.run("epilog", "1")
    assert code == 0
    assert (
        "ERROR invalid config; nothing was compared: site.yaml:1: prolog.epilog_fail: unknown key 'nvlink'"
        in line
    )
    code, line, _ = node.run("epilog", "1", "", "--bugdet", "5")
    assert (code, "invalid command line: gpuipc-doctor epilog: " in line) == (0, True)
