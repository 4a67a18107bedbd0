"""Simulated NCCL and RCCL with faults: found and blamed, and nothing is invented on healthy nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.simulator import drill, profile
from gpuipc_doctor.simulator.profile import Profile
from tests.e2e.conftest import Command
from tests.e2e.test_faults import check

CHECKS = ("collective-data", "collective-speed", "collective-start")

BESIDE_THEM = "ipc-reopen"
"""With another check in the run, their launch shares its GPUs after a while; other tests have them alone."""

IN_EVERY_RUN = (
    "collectives-wrong-cumem",
    "collectives-one",
)
"""A fault of two checks, and an odd node; a slow pair and a healthy node are below.

tests/checks judges other data, errors and losses.
"""


def runs() -> list[object]:
    stated = [one for one in map(profile.load, profile.names()) if one.has_collectives]
    return [
        pytest.param(
            one,
            backend,
            id=f"{one.name}-{backend}",
            marks=[
                getattr(pytest.mark, backend),
                *([] if one.name in IN_EVERY_RUN else [pytest.mark.full]),
            ],
        )
        for one in stated
        for backend in one.expect
    ]


def found_on(stated: Profile, directory: Path, *arguments: str) -> tuple[Report, int]:
    config = directory / "share.yaml"
    config.write_text(f"memory: {{most_gib: {stated.memory.most_gib}}}\n")
    deadline = ["--deadline", str(stated.deadline_s)] if stated.deadline_s else []
    return check("--simulate", stated.name, "--config", str(config), *deadline, *arguments)


@pytest.mark.parametrize(("stated", "backend"), runs())
def test_fault_is_found_and_blamed(stated: Profile, backend: str, tmp_path: Path) -> None:
    report, code = found_on(stated, tmp_path, "--backend", backend, *CHECKS, BESIDE_THEM)
    verdict = drill.judge(stated.expect[backend], drill.rows(report), code)
    assert verdict.missed == ()
    assert verdict.invented == ()


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "call: all-reduce, type: bfloat16, min: 8 MiB",
            "all-reduce returned wrong data of bfloat16, from 8388608 B on:",
        ),
        ("call: reduce-scatter, where: thread", "reduce-scatter returned wrong data in another thread:"),
        ("call: all-reduce, reduction: average", "all-reduce returned wrong data as average:"),
        ("call: all-reduce, reduction: maximum", "all-reduce returned wrong data as maximum:"),
        ("call: all-reduce, reduction: doubled", "all-reduce returned wrong data as doubled:"),
        ("call: all-gather, where: group", "all-gather returned wrong data in a group of three:"),
        ("call: broadcast, where: default-stream", "broadcast returned wrong data in the default stream:"),
        ("call: all-reduce, where: graph", "all-reduce returned wrong data in a graph launched twice:"),
        ("call: recv, where: graph", "ring of two messages returned wrong data in a graph launched twice:"),
        ("call: all-reduce, type: float8e4m3", "all-reduce returned wrong data of float8e4m3:"),
        ("call: all-gather, in-place: true, min: 1 MiB", "all-gather returned wrong data in place"),
        ("call: all-reduce, split: true", "all-reduce returned wrong data in a split communicator:"),
        ("call: all-reduce, rank: 1, nth: 30", "all-reduce returned wrong data at times:"),
        ("call: recv, min: 1 MiB", "wrong data from 1048580 B on:"),
    ],
)
def test_wrong_data_say_what_they_need(fault: str, says: str, tmp_path: Path) -> None:
    """A property is said only if the same case without it is right: no other one by its side is."""
    finding = wrong_with(fault, tmp_path)
    assert finding.key == "wrong-data"
    assert says in sentences.summary(finding)


@pytest.mark.full
@pytest.mark.cuda
def test_wrong_data_after_idling_are_found_in_soak(tmp_path: Path) -> None:
    fault = "call: all-reduce, where: idle, min: 16 MiB, max: 16 MiB"
    assert wrong_with(fault, tmp_path).key == "correct"
    assert wrong_with(fault, tmp_path, "--tier", "soak").key == "wrong-data"


def wrong_with(fault: str, directory: Path, *arguments: str) -> Finding:
    node = directory / "node.yaml"
    node.write_text(
        "description: A fault.\nextends: collectives-two\n"
        f"collective-faults: [{{{fault}, do: corrupt-last}}]\n"
    )
    report, _ = check("collective-data", "--simulate", str(node), "--no-workarounds", *arguments)
    (finding,) = [result.finding for result in report.results if result.check == "collective-data"]
    return finding


@pytest.mark.full  # tests/checks/test_collective_speed.py judges its figures
@pytest.mark.cuda
def test_slow_pair_is_the_slowest(tmp_path: Path) -> None:
    """On a busy machine others may be far from the usual pair as well, and none is reported: the cross above.

    tests/unit/collective/test_figures.py has from when on a pair is slow.
    """
    report, _ = found_on(profile.load("collectives-slow-pair"), tmp_path, "collective-speed")
    (finding,) = [result.finding for result in report.results if result.check == "collective-speed"]
    evidence = "\n".join(sentences.evidence(finding))
    assert "slowest of 6 pairs: cuda:1 and cuda:2, " in evidence
    assert "measured again: cuda:1 and cuda:2: " in evidence


@pytest.mark.cuda
def test_pass_says_what_was_compared_and_by_which_transport(tmp_path: Path) -> None:
    report, _ = found_on(profile.load("collectives-two"), tmp_path, "collective-data")
    (finding,) = [result.finding for result in report.results if result.check == "collective-data"]
    assert finding.status is Status.PASS
    assert "2 channels P2P/CUMEM" in sentences.summary(finding)
    assert finding.values["compared"] > 1 << 20
    assert "library: /usr/lib64/libnccl.so.2, found by: default" in sentences.evidence(finding)


@pytest.mark.cuda
def test_setting_that_keeps_peers_apart_warns_and_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    report, _ = check("collective-speed", "--simulate", "collectives-two", "--backend", "cuda")
    [finding] = [each.finding for each in report.results if each.check == "collective-speed"]
    assert (finding.status, finding.key) == (Status.WARN, "through-host")
    told = sentences.evidence(finding)
    assert [line for line in told if line.startswith("Tried NCCL_P2P_DISABLE=0: helps, ") and "GB/s" in line]


@pytest.mark.cuda
def test_checks_share_one_launch(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    report, code = found_on(profile.load("collectives-two"), tmp_path, *CHECKS, "--keep-logs", str(logs))
    assert code == 0
    assert {result.check for result in report.results} >= set(CHECKS)
    assert len(list(logs.glob("*collective*"))) == 1


@pytest.mark.cuda
def test_node_without_library_is_skipped_and_says_where_it_was_searched() -> None:
    report, code = check("collective-start", "--simulate", "healthy-cuda")
    (finding,) = [result.finding for result in report.results if result.check == "collective-start"]
    assert (finding.status, finding.key, code) == (Status.SKIP, "no-library", 3)
    assert "/opt/nvidia/hpc_sdk" in "".join(sentences.evidence(finding))


LOST = "a killed rank and the others' abort left"


@pytest.mark.full  # tests/checks judges what the ranks of a killed one record
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("faults", "of_launch", "of_killed"),
    [
        ("", {}, {}),
        (
            "[{call: abort, do: leak, bytes: 32 MiB}, {call: abort, do: leak-shared}]",
            {"device-left": "left 32 MiB of device memory", "shared-left": "left 2 files in /dev/shm"},
            {"device-left": f"{LOST} 32 MiB of device memory", "shared-left": f"{LOST} 2 files in /dev/shm"},
        ),
        (
            "[{call: abort, do: hang, rank: 1}]",
            {"hung": "rank 1: ncclCommAbort #1"},
            {"hung": "rank 1: ncclCommAbort #1 (a rank is killed) hung"},
        ),
        (
            "[{call: init, do: hang, rank: 0, nth: 3}]",
            {"hung": "rank 0 or rank 1: ncclCommInitRank #3 (communicator 2 of 15) hung"},
            {"hung": "rank 0 or rank 1: ncclCommInitRank #3 (communicator after a rank was killed) hung"},
        ),
    ],
    ids=["healthy", "abort-leaves", "abort-hangs", "first-rank-hangs"],
)
def test_killed_rank_and_abort_in_soak(
    faults: str, of_launch: dict[str, str], of_killed: dict[str, str], tmp_path: Path
) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(
        "description: A fault.\nextends: collectives-two\n"
        + (f"collective-faults: {faults}\n" if faults else "")
    )
    config = tmp_path / "share.yaml"
    config.write_text("memory: {most_gib: 0.001}\n")
    chosen = ("--tier", "soak", "--no-workarounds", "--deadline", "5", "--config", str(config))
    report, _ = check("collective-start", "--simulate", str(node), *chosen)
    for probe, expected in (("", of_launch), ("killed rank", of_killed)):
        results = [one for one in report.results if (one.check, one.probe) == ("collective-start", probe)]
        found = {one.finding.key: sentences.summary(one.finding) for one in results}
        if not expected:
            assert [one.finding.status for one in results] == [Status.PASS]
        for key, says in expected.items():
            # Which of two hanging ranks is told first depends on load.
            assert says in found[key].replace("rank 1 or rank 0", "rank 0 or rank 1")


@pytest.mark.full
@pytest.mark.cuda
def test_gpus_hidden_from_ranks_are_named_and_the_others_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a task to which Slurm gave one of the node's GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    report, code = found_on(profile.load("collectives-two"), tmp_path, "collective-data")
    found = {result.finding.key: result.finding for result in report.results}
    assert (found["hidden"].status, found["correct"].status, code) == (Status.SKIP, Status.PASS, 0)
    says = sentences.summary(found["hidden"])
    assert "1 of 2 GPUs on the PCI bus not tested: CUDA_VISIBLE_DEVICES=1 hides them" in says
    assert "collectives of one rank correct" in sentences.summary(found["correct"])


@pytest.mark.full
@pytest.mark.cuda
def test_instance_of_a_gpu_is_skipped() -> None:
    report, code = check("collective-data", "--simulate", "mig-instance", "--backend", "cuda")
    (finding,) = [result.finding for result in report.results if result.check == "collective-data"]
    assert (finding.status, finding.key, code) == (Status.SKIP, "mig", 3)
    assert "NCCL does not work between the instances of a GPU (MIG)" in sentences.summary(finding)


@pytest.mark.cuda
def test_library_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    bad = tmp_path / "libnccl.so.2"
    bad.write_text("no library")
    report, code = check("collective-data", "--simulate", "healthy-cuda", "--nccl-lib", str(bad))
    (finding,) = [result.finding for result in report.results if result.check == "collective-data"]
    assert (finding.status, finding.key, code) == (Status.ERROR, "unavailable", 11)
    assert f"cannot load {bad}" in sentences.summary(finding)


@pytest.mark.full
@pytest.mark.cuda
def test_library_without_a_call_is_an_error_that_names_the_call(tmp_path: Path) -> None:
    import subprocess

    source, old = tmp_path / "old.c", tmp_path / "libnccl.so.2"
    source.write_text("int ncclGetVersion(int *version) { *version = 2708; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", old, source], check=True)
    report, code = check("collective-data", "--simulate", "healthy-cuda", "--nccl-lib", str(old))
    (finding,) = [result.finding for result in report.results if result.check == "collective-data"]
    assert (finding.status, code) == (Status.ERROR, 11)
    assert f"{old} has no ncclGetUniqueId" in sentences.summary(finding)


@pytest.mark.full
@pytest.mark.cuda
def test_screen_of_the_documentation_is_what_the_command_prints(doctor: Command, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/collectives.md").read_text()
    (shown,) = re.findall(r"```text\n(FAIL  .*?)```", page, re.DOTALL)
    config = tmp_path / "share.yaml"
    config.write_text("memory: {most_gib: 0.01}\n")
    ended = doctor(
        "check", "collective-data", "--simulate", "collectives-wrong-cumem", "--config", str(config)
    )
    without_figures = re.compile(r"\d+\.\d(?= to|\s+GB/s)")
    assert (
        without_figures.sub("#", shown).split()
        == without_figures.sub(
            "#", ended.stdout[ended.stdout.index("FAIL  collective-data on") :].partition("SIMULATED")[0]
        ).split()
    )
