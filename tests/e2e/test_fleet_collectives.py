"""Collectives over several nodes: simulated nodes of this machine, whose NCCL meets over TCP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

pytestmark = pytest.mark.cuda

SSH = """#!/bin/sh
# ssh [OPTION]... NODE -- COMMAND: the node is a process of this machine
while [ "$1" != -- ]; do node=$1; shift; done
shift
case $node in
    {cases}
esac
[ "$profile" != hangs ] || exec sleep 4713
export NCCL_HOSTID=$node
exec sh -c "$* --simulate $profile"
"""

TWO = "collectives-two"

Fleet = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """``command({"a": faults, "b": ""}, "--deadline", "5")``: nodes with these collective faults, if any, or
    with this profile."""

    def words(nodes: Mapping[str, str], *given: str) -> list[str]:
        cases = []
        for node, faults in nodes.items():
            profile = faults or TWO
            if "call:" in faults:
                profile = str(tmp_path / f"{node}.yaml")
                text = f"description: x\nextends: {TWO}\ncollective-faults:\n  - {faults}\n"
                text += "expect: {exit: 12}\n"
                Path(profile).write_text(text)
            cases.append(f"{node}) profile={profile} ;;")
        (tmp_path / "ssh").write_text(SSH.format(cases="\n    ".join(cases)))
        (tmp_path / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        reach = ["--via", "ssh", "-w", ",".join(nodes), "--into", str(tmp_path / "out")]
        tail = ["--largest", "2097152", *given, "--", "--backend", "cuda", "--simulate", TWO]
        return [sys.executable, "-m", "gpuipc_doctor", "fleet", "collectives", *reach, *tail]

    return words


@pytest.fixture
def fleet(command: Callable[..., list[str]]) -> Fleet:
    def run(nodes: Mapping[str, str], *given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(nodes, *given), capture_output=True, text=True, timeout=100)

    return run


def rounds(into: Path) -> dict[str, list[dict[str, Any]]]:
    """Round → the ranks of all its groups."""
    told = map(json.loads, (into / "rounds.jsonl").read_text().splitlines())
    return {
        one["round"]["name"]: [rank for group in one["groups"] for rank in group["ranks"]] for one in told
    }


def seconds(into: Path) -> float:
    """Of the round of all nodes."""
    told = map(json.loads, (into / "rounds.jsonl").read_text().splitlines())
    return next(one["seconds"] for one in told if one["round"]["name"] == "all together")


def processes(directory: Path, words: str = "fleet take-part") -> list[str]:
    """Those of nodes that this test started: its directory is in their PATH."""
    ended = subprocess.run(["pgrep", "-f", words], capture_output=True, text=True)
    found = []
    for pid in ended.stdout.split():
        with contextlib.suppress(OSError):
            found += [pid] * (str(directory).encode() in Path("/proc", pid, "environ").read_bytes())
    return found


def test_two_healthy_nodes_pass_by_sockets(fleet: Fleet, tmp_path: Path) -> None:
    ended = fleet({"a": "", "b": ""})
    assert ended.returncode == 0, ended
    found = rounds(tmp_path / "out")
    together = found["all together"]
    assert [(rank["node"], rank["rank"]) for rank in together] == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]
    assert {rank["ending"] for rank in together} == {"done"}
    assert {rank["cases"] for rank in together} == {30}
    assert all(rank["start_s"] > 0 and rank["first_s"] > 0 and len(rank["speeds"]) == 2 for rank in together)
    assert {via for rank in together for via in rank["transports"]} == {"P2P/CUMEM", "NET/Socket/0"}
    assert {via for rank in found["each node alone"] for via in rank["transports"]} == {"P2P/CUMEM"}
    assert all(rank["network"].startswith("Socket: ") for rank in together)
    assert not processes(tmp_path)


def test_wrong_element_above_a_size_is_named_with_its_place(fleet: Fleet, tmp_path: Path) -> None:
    ended = fleet({"a": "", "b": "{call: all-reduce, do: corrupt-last, min: 1 MiB, rank: 3, type: bfloat16}"})
    assert ended.returncode == 12, ended
    found = rounds(tmp_path / "out")
    assert all(not rank["wrong_cases"] for rank in found["each node alone"])
    *right, wrong = found["all together"]
    assert [rank["wrong_cases"] for rank in right] == [0, 0, 0]
    assert wrong["node"] == "b"
    assert [(one["operation"], one["kind"], one["nbytes"]) for one in wrong["wrong"]] == [
        ("all-reduce", "bfloat16", 1 << 20)
    ]
    assert "element 524287" in wrong["wrong"][0]["says"]


def test_hang_costs_one_deadline_and_leaves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    ended = fleet({"a": "", "b": "{call: all-gather, do: hang, rank: 2}"}, "--deadline", "8")
    assert ended.returncode == 12, ended
    together = rounds(tmp_path / "out")["all together"]
    assert {rank["ending"] for rank in together} == {"hung"}
    assert {rank["operation"] for rank in together} == {"all-gather of 2 B, bfloat16"}
    assert 8 <= seconds(tmp_path / "out") < 20
    assert not processes(tmp_path)


@pytest.mark.parametrize(
    ("faults", "operation", "failure"),
    [
        (
            "{call: init, do: error, code: 2, rank: 2}",
            "start",
            "ncclCommInitRank returned ncclSystemError (2)",
        ),
        ("{call: all-reduce, do: segv, rank: 3, min: 1 KiB}", "all-reduce of", "crashed by SIGSEGV"),
        ("{call: send, do: error, code: 3, rank: 2}", "all-to-all of", "ncclInternalError (3)"),
    ],
)
def test_failed_call_is_told_by_its_rank_and_ends_the_round(
    fleet: Fleet, tmp_path: Path, faults: str, operation: str, failure: str
) -> None:
    ended = fleet({"a": "", "b": faults}, "--deadline", "100")
    assert ended.returncode == 12, ended
    together = rounds(tmp_path / "out")["all together"]
    (failed,) = [rank for rank in together if rank["ending"] == "failed" and rank["node"] == "b"]
    assert failed["operation"].startswith(operation)
    assert failure in failed["failure"]
    assert not any(rank["ending"] == "done" for rank in together)
    assert seconds(tmp_path / "out") < 60


def test_node_without_a_library_is_named_and_left_out(fleet: Fleet, tmp_path: Path) -> None:
    ended = fleet({"a": "", "b": "", "c": "healthy-single", "d": "no-such-profile"})
    assert ended.returncode == 11, ended
    said = " ".join(ended.stdout.split())
    assert "c takes no part: no NCCL found; searched: " in said
    assert "d takes no part: no-such-profile: no such simulator profile" in said
    assert [rank["node"] for rank in rounds(tmp_path / "out")["all together"]] == ["a", "a", "b", "b"]


def test_node_alone_is_refused(fleet: Fleet) -> None:
    ended = fleet({"a": ""})
    assert (ended.returncode, ended.stdout) == (2, "")
    alone = "name at least two nodes; one alone: gpuipc-doctor check collective-data"
    assert ended.stderr == f"gpuipc-doctor fleet collectives: {alone}\n"


def test_other_gpus_are_a_warning_and_take_part(fleet: Fleet, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    devices = "[{backend: cuda, name: NVIDIA A100-SXM4-40GB, memory: 40 GiB, arch: sm_80}]"
    other.write_text(f"description: x\nextends: {TWO}\ndevices: {devices}\nexpect: {{exit: 0}}\n")
    ended = fleet({"a": "", "b": str(other), "c": ""})
    assert ended.returncode == 0, ended
    said = " ".join(ended.stdout.split())
    assert "GPUs: 1 × NVIDIA A100-SXM4-40GB on b, 2 × NVIDIA H200 on a,c" in said
    assert [rank["node"] for rank in rounds(tmp_path / "out")["all together"]] == ["a", "a", "b", "c", "c"]


@pytest.mark.full
def test_login_that_hangs_costs_half_the_budget_at_most(fleet: Fleet, tmp_path: Path) -> None:
    ended = fleet(
        {"a": "", "b": "", "c": "hangs"}, "--budget", "90", "--deadline", "10", "--largest", "65536"
    )
    assert ended.returncode == 11, ended
    assert "c takes no part: no answer within 45 s" in ended.stdout
    assert {rank["ending"] for rank in rounds(tmp_path / "out")["all together"]} == {"done"}
    assert not processes(tmp_path, "sleep 4713")


def test_head_that_cannot_be_reached_is_told_with_its_address(fleet: Fleet) -> None:
    command = [
        sys.executable,
        "-m",
        "gpuipc_doctor",
        "fleet",
        "take-part",
        "--head",
        "127.0.0.1:1,127.0.0.2:1",
    ]
    command += ["collective-data", "--simulate", TWO]
    ended = subprocess.run(command, input="x" * 32, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 11
    tried = "127.0.0.1:1 (Connection refused), 127.0.0.2:1 (Connection refused)"
    assert ended.stderr == f"gpuipc-doctor: the head of this run cannot be reached; tried: {tried}\n"


def test_interruption_in_a_round_leaves_nothing(command: Callable[..., list[str]], tmp_path: Path) -> None:
    words = command({"a": "", "b": "{call: all-gather, do: hang, rank: 2}"}, "--deadline", "300")
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until("both nodes run ranks together", lambda: len(_hanging()) >= 4, 60)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=100)
    assert running.returncode == 130
    until("no process of a node is left", lambda: not processes(tmp_path))
    assert not _hanging()


def _hanging() -> list[str]:
    """Processes that have loaded the simulated library."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if "/libnccl.so" in maps.read_text():
                found.append(maps.parent.name)
        except OSError:
            continue
    return found


def test_node_of_four_is_named_and_the_run_is_resumed(fleet: Fleet, tmp_path: Path) -> None:
    faults = "{call: all-reduce, do: corrupt-last, min: 1 MiB, transport: NET}"
    nodes = {"a": "", "b": "", "c": faults, "d": ""}
    ended = fleet(nodes, "--json")
    assert ended.returncode == 12, ended
    told = json.loads(ended.stdout)
    assert told == json.loads((tmp_path / "out" / "collectives.json").read_text())
    (finding,) = [result["finding"] for result in told["results"]]
    assert (finding["status"], finding["key"], finding["values"]["who"]) == ("FAIL", "node", "c")
    assert "element 524287" in json.dumps(finding["evidence"])
    assert [one for one in rounds(tmp_path / "out") if "control" not in one] == [
        "each node alone",
        "all together",
        "search, round 2: 2 groups",
        "search, round 3: 2 groups",
        "search, round 4: 1 group",
        "search, round 5: 1 group",
    ]
    ended = fleet(nodes)
    assert ended.returncode == 2
    assert ended.stderr.endswith("has rounds already; name a new directory, or add --resume\n")
    log = tmp_path / "out" / "rounds.jsonl"
    before = log.read_text()
    log.write_text("".join(before.splitlines(keepends=True)[:-1]) + "{")  # as of a killed run
    assert fleet(nodes, "--resume").returncode == 12
    assert log.read_text().splitlines()[:-1] == before.splitlines()[:-1]
