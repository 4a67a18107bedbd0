"""A GPU that is full: who holds its memory is told once, and nothing is tested on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuipc_doctor.model import Json
from tests.e2e.conftest import Command
from tests.e2e.test_prolog import AMPLE, Site

pytestmark = pytest.mark.cuda

MIB = 1 << 20

UVM = "7f0000000000-7f2000000000 rw-s 00000000 00:06 500 {}\n"
"""A line of /proc/PID/maps: 128 GiB of a file."""


def node(directory: Path, gpus: str, files: dict[str, str] | None = None, **more: Json) -> str:
    """A node with GPUs of 142336 MiB, each named by its ``held`` MiB and its holder: ``142286/4711, 0/0``."""
    devices = [
        {
            "backend": "cuda",
            "name": "NVIDIA H200",
            "memory": "142336 MiB",
            "held": f"{held} MiB",
            "holder": int(holder),
        }
        for held, holder in (gpu.split("/") for gpu in gpus.split(", "))
    ]
    file = directory / "node.yaml"
    said = {"description": "Full.", "extends": "full-gpu", "devices": devices, "files": files or {}, **more}
    file.write_text(json.dumps(said))  # JSON is also YAML
    return str(file)


def found(doctor: Command, simulated: str, *checks: str) -> tuple[Json, int]:
    ended = doctor("check", *(checks or ("ipc-reopen",)), "--simulate", simulated, "--json")
    assert ended.stderr == ""
    return json.loads(ended.stdout), ended.returncode


@pytest.mark.parametrize(
    ("gpus", "files", "says", "code"),
    [
        ("142286/4711", {}, ("ERROR", "no-room"), 11),
        ("141210/4711", {}, ("ERROR", "no-room"), 11),  # 1.1 GiB: one context and not two
        ("141036/4711", {}, None, 0),  # 1.3 GiB
        ("142286/0", {}, ("FAIL", "memory-lost"), 12),
        ("142286/-1", {}, ("ERROR", "no-room"), 11),
        ("141036/0", {}, None, 0),  # lost, but not lacking
        # NVML still lists a process that has ended.
        ("142286/2000000000", {}, ("FAIL", "memory-lost"), 12),
        # The holder may have managed memory, which NVML counts for no process.
        ("142286/4711", {"/proc/4711/maps": UVM.format("/dev/nvidia-uvm")}, ("ERROR", "no-room"), 11),
        ("142286/4711", {"/proc/4711/maps": UVM.format("/tmp/data")}, ("ERROR", "no-room"), 11),
        # Where a GPU is a NUMA node, pages of files take its free memory, and give it back.
        (
            "141700/0",
            {"/proc/driver/nvidia/gpus/0000:11:00.0/numa_status": "Node: 1\nStatus: online\n"},
            None,
            0,
        ),
    ],
)
def test_full_gpu_is_told_once(
    doctor: Command,
    tmp_path: Path,
    gpus: str,
    files: dict[str, str],
    says: tuple[str, str] | None,
    code: int,
) -> None:
    report, exit_code = found(doctor, node(tmp_path, gpus, files))
    bad = [r for r in report["results"] if r["finding"]["status"] not in ("PASS", "SKIP")]
    assert [(r["finding"]["status"], r["finding"]["key"]) for r in bad] == ([says] if says else [])
    assert exit_code == code
    tested = [r for r in report["results"] if r["check"] == "ipc-reopen" and r["finding"]["status"] == "PASS"]
    assert bool(tested) == (says is None)


def test_holder_is_described(doctor: Command, tmp_path: Path) -> None:
    report, _ = found(doctor, node(tmp_path, "142286/4711"))
    (finding,) = (r["finding"] for r in report["results"] if r["finding"]["key"] == "no-room")
    assert finding["summary"] == (
        "too little free memory: process 4711 (vllm, alice, job 77) holds 142286 MiB; "
        "50 MiB free, 1280 MiB needed"
    )
    (holder,) = finding["evidence"]
    assert holder["values"]["about"].startswith("of alice, Slurm job 77, ")
    assert holder["values"]["about"].endswith("its parent is alive")


def test_orphan_is_described(doctor: Command, tmp_path: Path) -> None:
    stat = "4711 (vllm) S 1 4711 4700 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 9 0 100 1 1\n"
    report, _ = found(doctor, node(tmp_path, "142286/4711", {"/proc/4711/stat": stat}))
    (finding,) = (r["finding"] for r in report["results"] if r["finding"]["key"] == "no-room")
    assert finding["evidence"][0]["values"]["about"].endswith("no parent is left but init")


def test_other_gpus_are_tested(doctor: Command, tmp_path: Path) -> None:
    report, code = found(doctor, node(tmp_path, "0/0, 142286/4711, 0/0, 0/0"), "ipc-reopen", "ipc-peer")
    by_status = {
        status: {
            label
            for result in report["results"]
            if result["finding"]["status"] == status
            for label in result["devices"]
        }
        for status in ("PASS", "ERROR")
    }
    assert by_status == {"PASS": {"cuda:0", "cuda:2", "cuda:3"}, "ERROR": {"cuda:1"}}
    assert code == 11


def test_check_all_is_a_short_screen_that_begins_with_the_full_gpu(doctor: Command) -> None:
    ended = doctor("check", "--all", "--simulate", "full-gpu")
    lines = ended.stdout.splitlines()
    assert " ".join(" ".join(lines[1:3]).split()).startswith(
        "CANNOT TELL: driver-init on cuda:0: too little free memory: process 4711 (vllm, alice"
    )
    assert len(lines) < 50
    assert ended.stdout.count("\nERROR ") == 1


@pytest.mark.parametrize(("check", "codes"), [("driver-init", {11}), ("environment", {0, 3})])
def test_check_that_needs_no_memory_is_not_refused(doctor: Command, check: str, codes: set[int]) -> None:
    assert doctor("check", check, "--simulate", "full-gpu").returncode in codes


def test_call_that_fails_for_lack_of_memory_ends_the_tests_of_its_gpu(
    doctor: Command, tmp_path: Path
) -> None:
    """NVML tells nothing, so the first context's failure does."""
    faults = [
        {"call": "nvml-init", "do": "error", "error": "UNKNOWN"},
        {"call": "primary-retain", "do": "error", "error": "OUT_OF_MEMORY"},
    ]
    file = node(tmp_path, "0/0", faults=faults)
    report, code = found(doctor, file, "ipc-reopen", "ipc-handles", "ipc-stale", "ipc-release")
    assert sum(result["finding"]["status"] == "ERROR" for result in report["results"]) <= (
        os.cpu_count() or 1
    )
    assert {r["finding"]["key"] for r in report["results"] if r["finding"]["status"] == "SKIP"} >= {
        "not-begun"
    }
    assert code == 11


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ("142286/4711", "too little free memory: process 4711 (vllm, alice, job 77) holds 142286 MiB"),
        ("0/0, 0/0, 142286/4711, 0/0", "ERROR driver-init on cuda:2"),
        ("142286/0", "memory lost: 142286 MiB belong to no living process"),
        ("142286/-1", "too little free memory: 50 MiB free, 1280 MiB needed"),
    ],
)
def test_prolog_lets_the_job_start_unless_the_site_drains(tmp_path: Path, gpus: str, says: str) -> None:
    site = Site(tmp_path)
    node(tmp_path, gpus)
    for policy, code in ({}, 0), ({"on_busy": "drain"}, 11):
        site.write("./node.yaml", policy)
        exit_code, line, said = site.prolog(*AMPLE)
        assert says in line
        assert (exit_code, said) == (code, "")


def test_prolog_asks_only_for_its_jobs_gpus(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(node(tmp_path, "0/0, 142286/4711, 0/0, 0/0"), {"on_busy": "drain"})
    assert site.prolog(*AMPLE, gpus="0,2,3")[0] == 0
    assert site.prolog(*AMPLE, gpus="0,1")[0] == 11
