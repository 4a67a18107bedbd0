"""Before a job, only its GPUs are tested, with as few initialisations as possible."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gpuipc_doctor.api import loader
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import Status, Tier
from gpuipc_doctor.node import gpus
from gpuipc_doctor.probe_types import Probe
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.config import SiteConfig, Waiver
from gpuipc_doctor.supervise.blame import conclude
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session


def run(profile: str, job_gpus: str, logs: Path, config: SiteConfig | None = None) -> Report:
    request = Request(tier=Tier.PROLOG, job_gpus=job_gpus, keep_logs=logs, deadline_s=3.0, budget_s=90.0)
    logs.mkdir()
    with options.node(profile) as node:
        return engine.run(request, config or SiteConfig(), node, Silent())


def calls(logs: Path) -> Counter[str]:
    """Driver call → number of times that all workers together made it."""
    lines = (json.loads(line) for file in logs.rglob("*.journal") for line in file.read_text().splitlines())
    return Counter(line["operation"] for line in lines if line["event"] == "armed")


def said(report: Report) -> dict[tuple[str, str], Status]:
    return {(result.check, result.subject): result.finding.status for result in report.results}


@pytest.mark.cuda
def test_gpus_cost_two_initialisations_together_and_three_contexts_each(tmp_path: Path) -> None:
    report = run("healthy-cuda", "", tmp_path / "logs")
    assert said(report) == {
        ("gpu-health", "cuda:0"): Status.PASS,
        ("gpu-health", "cuda:1"): Status.PASS,
        ("ipc-reopen", "cuda:0"): Status.PASS,
        ("ipc-reopen", "cuda:1"): Status.PASS,
        ("known-versions", "node"): Status.PASS,
    }
    made = calls(tmp_path / "logs")
    assert made["cuInit"] == 2  # an exporter and an importer that visit all GPUs
    assert made["cuCtxCreate"] + made["cuDevicePrimaryCtxRetain"] == 2 * 3


@pytest.mark.cuda
@pytest.mark.hip
def test_only_the_gpus_of_the_job_are_tested(tmp_path: Path) -> None:
    report = run("healthy-both", "1,7", tmp_path / "logs")  # the run queries HIP's driver and CUDA's
    (unknown,) = (result for result in report.results if result.finding.status is Status.ERROR)
    assert "no GPU 7" in sentences.summary(unknown.finding)
    assert [info.id for info in report.checks].count("driver-init") == 1
    report = run("healthy-both", "1", tmp_path / "more-logs")
    assert [device.label for device in report.devices] == ["cuda:1", "hip:1"]
    assert report.worst() is Status.PASS


@pytest.mark.cuda
def test_missing_gpu_is_an_error_and_the_others_are_tested(tmp_path: Path) -> None:
    report = run("healthy-cuda", "1,7", tmp_path / "logs")
    assert said(report)["driver-init", "node"] is Status.ERROR
    assert said(report)["ipc-reopen", "cuda:1"] is Status.PASS
    assert "no GPU 7; it lists 0, 1" in sentences.summary(report.results[0].finding)


@pytest.mark.cuda
def test_job_with_unknown_gpus_tests_no_gpu(tmp_path: Path) -> None:
    report = run("healthy-cuda", "NoDevFiles", tmp_path / "logs")
    assert (report.probes_run, report.worst()) == (0, Status.ERROR)
    assert calls(tmp_path / "logs") == {}


LOST = """\
description: The kernel lists three GPUs, of which the third answers no more.
extends: healthy-cuda
files:
  /sys/bus/pci/devices/0000:1c:00.0/revision: "0xff\\n"
  /proc/driver/nvidia/gpus/0000:1c:00.0/information: |
    Model: NVIDIA H200
    GPU UUID: GPU-33333333-3333-3333-3333-333333333333
    Device Minor: 2
"""


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("job_gpus", "tested", "key"),
    [("2", [], "off-bus"), ("0,2", ["cuda:0"], "off-bus"), ("0", ["cuda:0"], "")],
)
def test_gpu_off_the_bus_fails_the_jobs_that_were_given_it(
    job_gpus: str, tested: list[str], key: str, tmp_path: Path
) -> None:
    profile = tmp_path / "lost.yaml"
    profile.write_text(LOST)
    report = run(str(profile), job_gpus, tmp_path / "logs")
    assert [device.label for device in report.devices] == tested
    bad = [result.finding for result in report.results if result.finding.status is not Status.PASS]
    assert [finding.key for finding in bad if finding.status is Status.FAIL] == ([key] if key else [])
    assert calls(tmp_path / "logs")["cuInit"] == (2 if tested else 0)


@pytest.mark.cuda
def test_hang_is_blamed_on_its_gpu_only(tmp_path: Path) -> None:
    profile = tmp_path / "one-hangs.yaml"
    profile.write_text(
        "description: one hangs\nextends: healthy-cuda\n"
        "faults: [{call: context-create, device: 1, do: hang}]\n"
    )
    report = run(str(profile), "", tmp_path / "logs")
    assert said(report)["ipc-reopen", "cuda:0"] is Status.PASS
    assert said(report)["ipc-reopen", "cuda:1"] is Status.FAIL


@pytest.mark.cuda
def test_gpus_are_initialised_without_a_check_that_opens_them(tmp_path: Path) -> None:
    config = SiteConfig(disabled={"ipc-reopen": Waiver("ticket 4711", "site.yaml:3")})
    report = run("healthy-cuda", "1", tmp_path / "logs", config)
    assert said(report)["driver-init", "node"] is Status.PASS
    assert said(report)["ipc-reopen", "node"] is Status.SKIP
    assert calls(tmp_path / "logs")["cuInit"] == 1


@pytest.mark.cuda
def test_gpu_without_a_required_capability_is_skipped_when_opened() -> None:
    file = Path(__file__).parent.parent / "fixtures" / "demanding.py"
    with options.node("healthy-cuda") as node, Session(node, Limits()) as session:
        devices = gpus.of_job(node.root, "0").devices
        probe = Probe("", {"one": loader.role(file, "touch")}, devices)
        outcome = session.run("demanding", file, probe, until=float("inf"))
    finding = conclude(outcome)
    assert (finding.status, finding.key) == (Status.SKIP, "unfit")
    assert sentences.summary(finding) == "cuda:0 lacks levitation (its driver says so)"
    assert finding.values["lacking"] == ["levitation"]
