"""The breaker: no more nodes drain than it lets, and what it cannot ask lets none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuipc_doctor.prolog import breaker
from gpuipc_doctor.site.policy import Breaker
from tests.waiting import LIMIT_S


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir(mode=0o755)
    return tmp_path / "shared"


def bounded(shared: Path, count: int) -> Breaker:
    return Breaker(str(shared), count, within_s=1e12)


def test_so_many_nodes_may_drain_and_each_as_often_as_it_likes(shared: Path) -> None:
    may = [not breaker.refusal(bounded(shared, 2), host) for host in ("a", "a", "b", "c", "b", "c")]
    assert may == [True, True, True, False, True, False]
    assert breaker.refusal(bounded(shared, 2), "c") == "2 nodes have been drained within 1e+12 s"


@pytest.mark.parametrize("old", [False, True])
def test_nodes_that_drain_at_once_share_no_slot(shared: Path, old: bool) -> None:
    if old:
        for number in range(1, 11):
            taken_ago(shared / f"slot-{number}-1", 1e6, "z")
    program = f"""
import sys
from gpuipc_doctor.site.policy import Breaker
from gpuipc_doctor.prolog import breaker
for number in range(20):
    print(breaker.refusal(Breaker({str(shared)!r}, 10, 1e5), f"{{sys.argv[1]}}{{number}}") == "")
"""
    nodes = [
        subprocess.Popen([sys.executable, "-c", program, who], stdout=subprocess.PIPE, text=True)
        for who in "abc"
    ]
    said = "".join(node.communicate(timeout=LIMIT_S)[0] for node in nodes)
    assert said.count("True") == 10
    assert said.count("False") == 50


def taken_ago(slot: Path, seconds: float, host: str) -> None:
    slot.symlink_to(host)
    at = time.time() - seconds
    os.utime(slot, (at, at), follow_symlinks=False)


def test_a_slot_is_free_again_when_so_much_time_has_passed(shared: Path) -> None:
    taken_ago(shared / "slot-1-4", 900, "a")
    one = Breaker(str(shared), 1, within_s=1000.0)
    assert [breaker.refusal(one, host) for host in "ba"] == ["1 node has been drained within 1000 s", ""]
    (shared / "slot-1-4").unlink()
    for use, ago in ((3, 2200), (4, 1100)):
        taken_ago(shared / f"slot-1-{use}", ago, "a")
    assert [breaker.refusal(one, host) for host in "ba"] == ["", "1 node has been drained within 1000 s"]
    assert sorted(path.name for path in shared.iterdir()) == ["slot-1-4", "slot-1-5"]


def test_an_old_slot_that_cannot_be_removed_changes_nothing(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for use, ago in ((3, 2200), (4, 1100)):
        taken_ago(shared / f"slot-1-{use}", ago, "a")

    def stale(path: Path) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "unlink", stale)
    assert breaker.refusal(Breaker(str(shared), 1, within_s=1000.0), "b") == ""


@pytest.mark.parametrize("ahead_s", [1000.0, 1e9])
def test_a_node_whose_clock_is_ahead_takes_no_slot_of_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    one = Breaker(str(shared), 1, within_s=1000.0)
    assert breaker.refusal(one, "a") == ""
    later = time.time() + ahead_s
    with monkeypatch.context() as clock_ahead:
        clock_ahead.setattr(time, "time", lambda: later)
        assert breaker.refusal(one, "b") == "1 node has been drained within 1000 s"
    assert breaker.refusal(one, "c") == "1 node has been drained within 1000 s"


def test_what_cannot_be_asked_lets_no_node_drain(tmp_path: Path) -> None:
    assert "cannot be used: No such file or directory" in breaker.refusal(bounded(tmp_path / "none", 1), "a")
    (tmp_path / "file").touch()
    assert "cannot be used: Not a directory" in breaker.refusal(bounded(tmp_path / "file", 1), "a")


def test_about_the_stated_share_of_the_nodes_may_drain() -> None:
    may = [not breaker.refusal(Breaker(share=0.1), f"node{number:04}") for number in range(2000)]
    assert 120 < sum(may) < 280
    assert not any(breaker.refusal(Breaker(), f"node{number:04}") for number in range(10))
    assert all(breaker.refusal(Breaker(share=0), f"node{number:04}") for number in range(10))
