"""Asking nodes: one that hangs holds up nobody, one that does not answer has its deadline."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.fleet.ask import NOT_ASKED, LaunchOptions, Target, Via, ask
from gpuipc_doctor.fleet.directory import SUMMARY
from gpuipc_doctor.fleet.summary import NodeReport, State
from tests.sample_fleets import HEALTHY, named
from tests.waiting import LIMIT_S, until


class FindingSummary:
    """Keeps what comes, and does ``then`` when a name has come."""

    def __init__(self, expected: int = 0, release: Path | None = None) -> None:
        self.reports: dict[str, NodeReport] = {}
        self._expected, self._release = expected, release

    def started(self, name: str) -> None: ...

    def finished(self, report: NodeReport, full: bytes) -> None:
        self.reports[report.node] = report
        if self._release and len(self.reports) == self._expected:
            self._release.touch()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an `ssh` stands that is no ssh: it runs the last of its words here."""
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nfor word; do :; done\nexec sh -c "$word"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def pair(one: str, other: str) -> Target:
    return Target(f"{one}+{other}", one, (one, other), uses=(one, other))


def test_a_pair_that_hangs_holds_up_nobody(node: Path) -> None:
    """It ends only when all others that do not need its nodes have been told."""
    release = node / "release"
    command = f"case $0$1 in n1n2) until [ -e {release} ]; do sleep 0.01; done ;; esac; echo said >&2; exit 3"
    targets = [pair("n1", "n2"), pair("n3", "n4"), pair("n5", "n6"), pair("n3", "n5"), pair("n1", "n6")]
    told = FindingSummary(3, release)
    ask(targets, LaunchOptions(Via.SSH, ("sh", "-c", command), fanout=2), told)
    assert list(told.reports)[3:] == ["n1+n2", "n1+n6"]
    assert {(report.state, report.reason) for report in told.reports.values()} == {(State.NO_ANSWER, "said")}


ANSWER = named(HEALTHY, "")
COMMAND = ("fleet", "check", "--via", "ssh", "-w", "n[1-3]", "--into", "out")


WAITS = """
import pkgutil, sys, time
from pathlib import Path
function, sys.argv = sys.argv[1], ["gpuipc-doctor", *sys.argv[2:]]
owner, _, name = function.rpartition(".")
real = pkgutil.resolve_name(function)
def wait(*given):
    if Path("go").exists():
        return real(*given)
    Path("waits").touch()
    time.sleep(4711)
setattr(pkgutil.resolve_name(owner), name, wait)
from gpuipc_doctor.__main__ import main
main()
"""
"""The tool that stands still in one of its functions, until the file `go` is there."""


def _doctor(node: Path, script: str, waits: str = "") -> subprocess.Popen[str]:
    """`fleet check` of three nodes that each run the script, with $1 the node; ``waits``: see `WAITS`."""
    (node / "answer").write_bytes(summary.dumps(ANSWER))
    (node / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do node=$1; shift; done\nset -- $node\n' + script
    )
    command = [sys.executable, *(("-c", WAITS, waits) if waits else ("-m", "gpuipc_doctor")), *COMMAND]
    return subprocess.Popen(command, cwd=node, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_shows_what_is_known_and_how_to_resume(node: Path, number: int) -> None:
    with _doctor(node, "[ $1 = n1 ] || exec sleep 4711; exec cat answer") as running:
        until("n1 has answered", (node / f"out/n1{SUMMARY}").exists)
        running.send_signal(number)
        shown, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130
    assert "no report from n[2-3]" in shown
    assert "2 ERROR · 1 PASS" in shown
    assert said.endswith("gpuipc-doctor fleet check --resume --via ssh -w 'n[1-3]' --into out\n")


@pytest.mark.parametrize(
    ("number", "script", "waits"),
    [
        (signal.SIGINT, "", "gpuipc_doctor.fleet.directory.read"),
        (signal.SIGTERM, "touch waits; exec sleep 4711", ""),
        (signal.SIGHUP, "exec cat answer", "pathlib.Path.replace"),
    ],
    ids=["before it asks", "before the first answer", "while it writes"],
)
def test_an_interruption_without_an_answer_leaves_no_torn_file_and_says_how_to_resume(
    node: Path, number: int, script: str, waits: str
) -> None:
    with _doctor(node, script, waits) as running:
        until("it is there", (node / "waits").exists)
        (node / "go").touch()
        running.send_signal(number)
        shown, said = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, "no report from n" in shown) == (130, True), (shown, said)
    assert said.endswith("gpuipc-doctor fleet check --resume --via ssh -w 'n[1-3]' --into out\n")
    assert [path.name for path in (node / "out").glob(".*")] in ([], [".lock"])


def test_an_interruption_while_the_table_is_made_says_how_to_see_it(node: Path) -> None:
    with _doctor(node, "exec cat answer", "gpuipc_doctor.fleet.fold.fold") as running:
        until("it is there", (node / "waits").exists)
        running.send_signal(signal.SIGINT)
        shown, said = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, shown) == (130, "")
    assert said == "gpuipc-doctor: interrupted; for the reports, run: gpuipc-doctor fleet report out\n"
    assert len(list((node / "out").glob(f"n[1-3]{SUMMARY}"))) == 3


def test_a_directory_without_room_is_reported_and_asking_goes_on(node: Path) -> None:
    """A directory in place of the file of n2 stands for a full disk: no rename succeeds."""
    with _doctor(node, "[ $1 != n2 ] || mkdir out/n2.summary.json.gz; exec cat answer") as running:
        shown, said = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, "3 PASS" in shown) == (1, True), shown
    assert "out: Is a directory: reports without room are shown but not kept" in said
    assert sorted(path.name for path in (node / "out").iterdir()) == [
        ".lock",
        *(f"n{number}{SUMMARY}" for number in (1, 2, 3)),
    ]


def test_who_does_not_answer_has_a_deadline(node: Path) -> None:
    told = FindingSummary()
    way = LaunchOptions(Via.SSH, ("sleep", "4711"), deadline_s=0.3)
    ask([Target.of_node("n1")], way, told)
    assert told.reports["n1"].state is State.DEADLINE


def test_the_budget_of_all_ends_who_is_asked_and_leaves_out_the_rest(node: Path) -> None:
    told = FindingSummary()
    way = LaunchOptions(Via.SSH, ("sleep", "4711"), fanout=1, budget_s=0.3)
    ask([Target.of_node("n1"), Target.of_node("n2")], way, told)
    assert [report.state for report in told.reports.values()] == [State.DEADLINE, State.NO_ANSWER]
    assert told.reports["n2"].reason == NOT_ASKED


def test_what_ssh_leaves_behind_does_not_hold_the_answer(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master of ControlPersist has the standard error of the first ssh."""
    monkeypatch.setattr("gpuipc_doctor.fleet.ask.GRACE_S", 0.1)
    command = f"until [ -e {node}/release ]; do sleep 0.01; done & echo said >&2; exit 3"
    told = FindingSummary()
    ask([Target.of_node("n1")], LaunchOptions(Via.SSH, ("sh", "-c", command)), told)
    (node / "release").touch()
    assert told.reports["n1"].reason == "said"


def test_an_answer_without_an_end_is_cut_and_costs_no_memory(node: Path) -> None:
    """Two gigabytes, as a node with a broken tool may print."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = FindingSummary()
    ask([Target.of_node("n1")], LaunchOptions(Via.SSH, ("head", "-c", str(2 << 30), "/dev/zero")), told)
    assert told.reports["n1"].reason == "the answer is longer than 64 MiB"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
