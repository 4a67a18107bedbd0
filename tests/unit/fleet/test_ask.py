"""Running commands on nodes: a hanging node delays no other, and ends at its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.fleet import node_blocks, summary
from gpuipc_doctor.fleet.ask import NOT_ASKED, LaunchOptions, Shipped, Target, Via, ask, run_interruptibly
from gpuipc_doctor.fleet.directory import SUMMARY
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.supervise import tree
from tests.sample_fleets import HEALTHY, named
from tests.waiting import LIMIT_S, until


class Recorder:
    """Records reports; creates the file ``release`` after ``expected`` reports."""

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
    """Directory with a stand-in for `ssh` that runs its last argument locally."""
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nfor word; do :; done\nexec sh -c "$word"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def pair(one: str, other: str) -> Target:
    return Target(f"{one}+{other}", one, (one, other), uses=(one, other))


def test_hanging_pair_delays_no_other(node: Path) -> None:
    """The hanging pair ends only after all pairs that do not need its nodes."""
    release = node / "release"
    command = f"case $0$1 in n1n2) until [ -e {release} ]; do sleep 0.01; done ;; esac; echo said >&2; exit 3"
    targets = [pair("n1", "n2"), pair("n3", "n4"), pair("n5", "n6"), pair("n3", "n5"), pair("n1", "n6")]
    recorder = Recorder(3, release)
    ask(targets, LaunchOptions(Via.SSH, ("sh", "-c", command), fanout=2), recorder)
    assert list(recorder.reports)[3:] == ["n1+n2", "n1+n6"]
    assert {(report.state, report.reason) for report in recorder.reports.values()} == {
        (State.NO_ANSWER, "said")
    }


ANSWER = named(HEALTHY, "")
COMMAND = ("fleet", "check", "--via", "ssh", "-w", "n[1-3]", "--into", "out")


WAITS = """
import pkgutil, sys, time
from pathlib import Path
function, sys.argv = sys.argv[1], ["gpuipc-doctor", *sys.argv[2:]]
owner, _, name = function.rpartition(".")
real = pkgutil.resolve_name(function)
def wait(*given, **named):
    if Path("go").exists():
        return real(*given, **named)
    Path("waits").touch()
    time.sleep(4711)
setattr(pkgutil.resolve_name(owner), name, wait)
from gpuipc_doctor.__main__ import main
main()
"""
"""The tool, which waits in one of its functions until the file `go` exists."""


def _doctor(node: Path, script: str, waits: str = "") -> subprocess.Popen[str]:
    """`fleet check` of three nodes that each run the script with their name as $1; ``waits``: see `WAITS`."""
    (node / "answer").write_bytes(summary.dumps(ANSWER))
    (node / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do node=$1; shift; done\nset -- $node\n' + script
    )
    command = [sys.executable, *(("-c", WAITS, waits) if waits else ("-m", "gpuipc_doctor")), *COMMAND]
    return subprocess.Popen(command, cwd=node, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_interrupted_run_shows_its_results_and_how_to_resume(node: Path) -> None:
    with _doctor(node, "[ $1 = n1 ] || exec sleep 4711; exec cat answer") as running:
        until("n1 has answered", (node / f"out/n1{SUMMARY}").exists)
        running.send_signal(signal.SIGTERM)
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
        (signal.SIGHUP, "exec cat answer", "os.replace"),
    ],
    ids=["before it asks", "before the first answer", "while it writes"],
)
def test_interrupt_without_an_answer_leaves_no_torn_file_and_says_how_to_resume(
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


def test_task_that_outlasts_its_cancelling_delays_an_interrupt_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuipc_doctor.fleet.ask.CANCELLING_S", 0.1)

    async def swallow() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(4711)

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(swallow())


def test_failure_of_a_task_is_raised_and_ends_the_others() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(4711)
        finally:
            ended.append("the other")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("no more processes")

    async def both() -> None:
        await asyncio.gather(wait(), fail())

    with pytest.raises(OSError, match="no more processes"):
        run_interruptibly(both())
    assert ended == ["the other"]


def test_interrupt_kills_a_command_that_ignores_its_end(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command holds a pipe, whose end shows that it was killed."""
    monkeypatch.setattr("gpuipc_doctor.fleet.ask.GRACE_S", 0.1)
    os.mkfifo(node / "alive")
    monkeypatch.setattr(tree, "carry_priority", lambda pid: (node / "known").touch())
    begins = f"trap '' TERM; exec 9> {node}/alive; until [ -e {node}/known ]; do sleep 0.01; done"
    ignores = f"{begins}; kill -INT {os.getpid()}; while :; do sleep 0.1; done"
    (node / "ssh").write_text(f"#!/bin/sh\n{ignores}\n")
    alive = os.open(node / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(KeyboardInterrupt):
        ask([Target.of_node("n1")], LaunchOptions(Via.SSH, ("true",)), Recorder())
    os.set_blocking(alive, True)
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_interrupt_between_start_and_registration_of_a_command_ends_it(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio knew nothing of the command, which ran on."""
    os.mkfifo(node / "alive")
    (node / "ssh").write_text(f"#!/bin/sh\nexec 9> {node}/alive; touch {node}/begun; exec sleep 4711\n")
    alive = os.open(node / "alive", os.O_RDONLY | os.O_NONBLOCK)

    class InterruptedPopen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            until("the command has begun", (node / "begun").exists)
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGINT)

    def is_gone() -> bool:
        with contextlib.suppress(BlockingIOError):
            return os.read(alive, 1) == b""
        return False

    path = os.environ["PATH"]
    monkeypatch.setattr(subprocess, "Popen", InterruptedPopen)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(KeyboardInterrupt):
        ask([Target.of_node("n1")], LaunchOptions(Via.SSH, ("true",)), Recorder())
    until("the command was ended", is_gone)
    os.close(alive)


def test_interrupt_during_the_table_says_how_to_print_it(node: Path) -> None:
    with _doctor(node, "exec cat answer", "gpuipc_doctor.fleet.fold.fold") as running:
        until("it is there", (node / "waits").exists)
        running.send_signal(signal.SIGINT)
        shown, said = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, shown) == (130, "")
    assert said == "gpuipc-doctor: interrupted; to see the reports, run: gpuipc-doctor fleet report out\n"
    assert len(list((node / "out").glob(f"n[1-3]{SUMMARY}"))) == 3


def test_full_directory_is_reported_and_the_run_continues(node: Path) -> None:
    """A directory in place of n2's file stands for a full disk: it cannot be replaced."""
    with _doctor(node, "[ $1 != n2 ] || mkdir out/n2.summary.json.gz; exec cat answer") as running:
        shown, said = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, "3 PASS" in shown) == (1, True), shown
    assert shown.splitlines()[-1].endswith(" exit 1")
    assert "out: is a directory: further reports are shown but not saved" in said
    assert sorted(path.name for path in (node / "out").iterdir()) == [
        ".lock",
        *(f"n{number}{SUMMARY}" for number in (1, 2, 3)),
    ]


def test_budget_stops_running_nodes_and_leaves_out_the_rest(node: Path) -> None:
    recorder = Recorder()
    way = LaunchOptions(Via.SSH, ("sleep", "4711"), fanout=1, budget_s=0.3)
    ask([Target.of_node("n1"), Target.of_node("n2")], way, recorder)
    assert [report.state for report in recorder.reports.values()] == [State.DEADLINE, State.NO_ANSWER]
    assert recorder.reports["n2"].reason == NOT_ASKED


def test_process_left_by_ssh_does_not_delay_the_answer(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh master of ControlPersist keeps the standard error of the first ssh open."""
    monkeypatch.setattr("gpuipc_doctor.fleet.ask.GRACE_S", 0.1)
    command = f"until [ -e {node}/release ]; do sleep 0.01; done & echo said >&2; exit 3"
    recorder = Recorder()
    ask([Target.of_node("n1")], LaunchOptions(Via.SSH, ("sh", "-c", command)), recorder)
    (node / "release").touch()
    assert recorder.reports["n1"].reason == "said"


def test_endless_answer_is_cut_and_uses_little_memory(node: Path) -> None:
    """Two gigabytes, as a node with a broken tool may print."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    recorder = Recorder()
    ask([Target.of_node("n1")], LaunchOptions(Via.SSH, ("head", "-c", str(2 << 30), "/dev/zero")), recorder)
    assert recorder.reports["n1"].reason == "the answer is longer than 64 MiB"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


AS_USER = ("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups")
PLACES: dict[str, tuple[dict[str, Any], bool, bool | None]] = {
    "root's": ({"there": (0, 0o755)}, True, None),
    "root's, private": ({"there": (0, 0o700)}, True, False),
    "root's, sticky": ({"there": (0, 0o1777)}, True, True),
    "root's, for all": ({"there": (0, 0o777)}, False, False),
    "root's, for a group": ({"there": (0, 0o775)}, False, None),
    "root's sticky for a group": ({"there": (0, 0o1775)}, True, None),
    "theirs": ({"there": (4711, 0o755)}, False, True),
    "theirs, sticky": ({"there": (4711, 0o1777)}, False, True),
    "another's, sticky": ({"there": (4712, 0o1777)}, False, False),
    "another's, for all": ({"there": (4712, 0o777)}, False, False),
    "below theirs": ({"above": (4711, 0o755), "above/there": (0, 0o755)}, False, None),
    "theirs below root's sticky": ({"above": (0, 0o1777), "above/there": (4711, 0o700)}, False, True),
    "below a directory for all": ({"above": (0, 0o777), "above/there": (0, 0o1777)}, False, False),
    "below another's sticky": ({"above": (4712, 0o1777), "above/there": (0, 0o1777)}, False, False),
    "with a space": ({"a there": (0, 0o1777)}, True, True),
    "link": ({"there": (0, 0o1777), "link": "there"}, True, True),
    "link to theirs": ({"there": (4711, 0o755), "link": "there"}, False, True),
    "none": ({}, False, False),
}
"""Directories with owner and mode, and links → whether root and user 4711 may use the last of them; None: the
user cannot write there."""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to other users: needs root")
@pytest.mark.parametrize("way", ["srun", "ssh", "block"])
@pytest.mark.parametrize(
    ("user", "name"),
    [
        pytest.param(user, name, id=f"{'user' if user else 'root'}-{name}")
        for name, (_, *may) in PLACES.items()
        for user in ((), AS_USER)
        if may[bool(user)] is not None
    ],
)
def test_sent_tool_is_run_only_where_no_other_user_could_replace_it(
    node: Path, name: str, way: str, user: tuple[str, ...]
) -> None:
    made, *may = PLACES[name]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        Path(top).chmod(0o755)
        place = Path(top, "nowhere")
        for path, what in made.items():
            place = Path(top, path)
            if isinstance(what, str):
                place.symlink_to(what)
            else:
                place.mkdir()
                os.chown(place, what[0], what[0])
                place.chmod(what[1])
        tool = Path(top, "tool")
        tool.write_text('[ "$1" = --once ] && rm -f "$0"; echo ran\n')
        options = LaunchOptions(via=Via.SLURM, command=("a",), shipped=Shipped(tool, str(place)), job="7")
        words = options._on_node(Target.of_node("n1"))
        if way == "block":
            words = node_blocks._words(["n1"], options, 60.0)
            words = words[words.index("env") :]
            if place.exists():
                sent = place / "gpuipc-doctor.7"
                sent.write_text(tool.read_text())
                os.chown(sent, *[4711 if user else 0] * 2)
        elif way == "ssh":
            assert replace(options, via=Via.SSH).line(Target.of_node("n1")) == shlex.join(words)
        else:
            assert options.words(Target.of_node("n1"))[-len(words) :] == words
        with tool.open("rb") as file:
            ended = subprocess.run([*user, *words], stdin=file, capture_output=True, text=True)
        runs = may[bool(user)]
        assert (ended.stdout, ended.returncode) == (("ran\n", 0) if runs else ("", 126)), ended
        assert runs or (ended.stderr.count("\n"), "name another --ship-to" in ended.stderr) == (1, True)
        assert not place.exists() or list(place.iterdir()) == [] or (way == "block" and not runs)
