"""Tours on simulated nodes of several GPUs: they blame the right GPU, and need few processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, evidence, full
from tests.e2e.test_prolog import Site

pytestmark = pytest.mark.cuda

NODE = """
description: Several H200.
extends: healthy-cuda
devices:
  - {{backend: cuda, name: NVIDIA H200, memory: 139 GiB, count: {count}}}
faults: [{faults}]
"""

SEED = ("--seed", "0")
"""The tours begin with the first GPU."""


def check(doctor: Command, path: Path, count: int, faults: str, *arguments: str) -> dict[str, Any]:
    """The report of a run on a simulated node of ``count`` GPUs with these faults."""
    node = path / "node.yaml"
    node.write_text(NODE.format(count=count, faults=faults))
    ran = doctor("check", *arguments, "--simulate", str(node), "--backend", "cuda", "--json")
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def worst(report: dict[str, Any], check: str) -> dict[str, str]:
    """Subject → status."""
    row: dict[str, str] = report["matrix"][check]
    return row


@pytest.mark.parametrize(
    "fault",
    [
        full("{call: ipc-open, device: 2, from: 2, do: segv}"),
        full("{call: ipc-open, device: 2, do: corrupt-byte}"),
        full("{call: ipc-close, device: 2, do: hang-ignore-term}"),
        full("{call: ipc-close, device: 2, do: lose-device}"),
    ],
    ids=["crash", "wrong-data", "hang", "lost"],
)
def test_fault_of_one_gpu_blames_it_and_keeps_the_others_pass(
    doctor: Command, tmp_path: Path, fault: str
) -> None:
    report = check(doctor, tmp_path, 4, fault, "ipc-stale", "--deadline", "5", *SEED)
    row = worst(report, "ipc-stale")
    bad = {"cuda:2", "cuda:1 > cuda:2"}  # importers on cuda:2
    if "lose-device" in fault:
        bad.add("cuda:2 > cuda:3")
    failed = {subject for subject, status in row.items() if status == "FAIL"}
    # After two hangs on cuda:2, no other probe of it is run; which two hang is a matter of time.
    left_out = {*bad, "cuda:2 > cuda:3"} - failed if "hang" in fault else set()
    assert failed == bad - left_out != set()
    assert {row[subject] for subject in left_out} <= {"SKIP"}
    assert {status for subject, status in row.items() if subject not in bad | left_out} == {"PASS"}
    for result in report["results"]:
        if result["finding"]["status"] == "FAIL":
            assert not any("same processes" in line for line in evidence(result["finding"]))


@pytest.mark.full
def test_fault_at_a_call_that_no_probe_reaches_alone_is_found_with_its_history(
    doctor: Command, tmp_path: Path
) -> None:
    """Each ipc-peer opens three handles: the seventh open of a process is in the third visit of its tour."""
    fault = "{call: ipc-open, nth: 7, do: corrupt-byte}"
    report = check(doctor, tmp_path, 3, fault, "ipc-peer", *SEED)
    bad = [result for result in report["results"] if result["finding"]["status"] == "FAIL"]
    assert len({tuple(result["devices"]) for result in bad}) == 2  # of six visits, the third and the sixth
    assert {evidence(result["finding"])[-1].count("ipc-peer on") for result in bad} == {2}
    isolated = check(doctor, tmp_path, 3, fault, "ipc-peer", "--isolate")
    assert set(worst(isolated, "ipc-peer").values()) == {"PASS"}


SERIAL = "{call: init, do: in-turn, ms: 500}"
"""A driver that serves two initialisations a second."""


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.full)])
def test_prolog_never_drains_a_healthy_node_by_its_number_of_gpus(tmp_path: Path, count: int) -> None:
    """On a busy machine there may be no time for all of them."""
    site, node = Site(tmp_path), tmp_path / "node.yaml"
    node.write_text(NODE.format(count=count, faults=SERIAL))
    site.write(str(node), {"on_error": "drain", "on_budget": "drain", "log": "log.jsonl"})
    exit_code, line, _ = site.prolog()
    assert exit_code == 0, line
    assert "PASS" in line


def test_prolog_blames_the_one_bad_gpu(tmp_path: Path) -> None:
    site, node = Site(tmp_path), tmp_path / "node.yaml"
    faults = f"{SERIAL}, {{call: ipc-open, device: 1, do: error, error: MAP_FAILED}}"
    node.write_text(NODE.format(count=2, faults=faults))
    site.write(str(node), {})
    exit_code, line, _ = site.prolog("--budget", "20")
    assert exit_code == 12
    assert "FAIL ipc-reopen on cuda:1" in line


def test_prolog_with_a_budget_shorter_than_one_initialisation_knows_nothing(tmp_path: Path) -> None:
    site, node = Site(tmp_path), tmp_path / "node.yaml"
    node.write_text(NODE.format(count=2, faults="{call: init, do: in-turn, ms: 60000}"))
    site.write(str(node), {"on_budget": "drain"})
    exit_code, line, _ = site.prolog("--budget", "8")
    assert (exit_code, "ERROR" in line) == (11, True), line


def test_two_of_eight_named_devices_that_do_not_exist_are_one_line(doctor: Command) -> None:
    named = [word for number in (0, 1, 2, 3, 4, 5, 8, 9) for word in ("--device", f"cuda:{number}")]
    ran = doctor("check", "ipc-stale", "--simulate", "eight-gpus", *named)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no device 'cuda:8, cuda:9'; there are cuda:0, " in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_check_with_a_budget_shorter_than_one_initialisation_says_that_nothing_was_tested(
    doctor: Command,
) -> None:
    ran = doctor("check", "ipc-stale", "--simulate", "eight-gpus", "--budget", "0.3")
    assert ran.returncode == 3, ran.stdout
    assert "driver-init: time budget exhausted" in ran.stdout
    assert "NOTHING WAS TESTED" in ran.stdout


@pytest.mark.parametrize(
    ("count", "processes"),
    [(2, 4), pytest.param(8, 4, marks=pytest.mark.full)],
)
def test_number_of_processes_hardly_grows_with_the_gpus(
    doctor: Command, tmp_path: Path, count: int, processes: int
) -> None:
    """Two roles in at most two tours (on two processors), and those that look for devices."""
    report = check(doctor, tmp_path, count, "", "ipc-reopen", "ipc-handles", "ipc-stale")
    assert report["exit_code"] == 0
    surveys = 3  # the one that keeps the driver open, the one that lists devices, NVML's
    assert report["processes"] <= processes + surveys
    assert report["initialisations"] <= processes + surveys - 1
    isolated = 2 * (4 * count + 4 * (count if count > 2 else count - 1))
    assert report["processes"] < isolated / min(count, 2)


@pytest.mark.full
def test_short_budget_on_eight_gpus_answers_what_most_applications_use(doctor: Command) -> None:
    ran = doctor("check", "--all", "--simulate", "eight-gpus", "--budget", "30", "--json", *SEED)
    matrix = json.loads(ran.stdout)["matrix"]
    for id_ in ("driver-init", "known-versions", "ipc-reopen", "ipc-handles"):
        assert set(matrix[id_].values()) == {"PASS"}, id_
    pairs = list(matrix["ipc-peer"].values())
    assert len(pairs) == 56
    assert pairs.count("PASS") > 28, pairs  # all of them, unless the two processors are busy


@pytest.mark.full
def test_gpu_that_keeps_memory_of_ended_processes_is_blamed_in_company(
    doctor: Command, tmp_path: Path
) -> None:
    """The exporter's process visits all GPUs; the importers that end are new at each."""
    report = check(doctor, tmp_path, 3, "{call: exit, device: 2, do: keep}", "ipc-release", *SEED)
    row = worst(report, "ipc-release")
    assert {subject for subject, status in row.items() if status != "PASS"} == {"cuda:2", "cuda:2 > cuda:0"}
