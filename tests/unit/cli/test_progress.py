"""The progress display, with and without a terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO

import pytest

from gpuipc_doctor.cli.progress import Display, progress
from gpuipc_doctor.cli.stdio import redraw


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[IO[str], int]]:
    """A stream that writes to a terminal, and the descriptor from which its output is read."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    screen, end = pty.openpty()
    with open(end, "w") as stream:  # noqa: PTH123 a descriptor has no path
        yield stream, screen
    os.close(screen)


def shown(screen: int, until: str) -> str:
    text = ""
    while until not in text:
        text += os.read(screen, 65536).decode()
    return text


@pytest.mark.parametrize(
    ("finished", "head"),
    [
        (0, "0/2 probes done, about 1 s left"),
        (2, "2 probes done, repeating what failed"),
        (3, "2 probes done, concluding"),
    ],
)
def test_display_does_not_say_that_all_is_done_while_probes_are_repeated(finished: int, head: str) -> None:
    display = Display()
    display.planned(["ipc-stale"] * 2)
    for number in range(3):
        display.started(str(number), "ipc-stale on cuda:0", 10.0)
    for number in range(finished):
        display.finished(str(number))
    assert display.text(100).splitlines()[0] == head


def test_time_left_follows_what_checks_took_and_the_pace_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    display = Display()
    display.planned(["ipc-stale"] * 5 + ["mpi-histories", "mpi-collectives"])
    assert display.text(100) == "0/7 probes done, about 10 s left"
    for number in range(5):
        display.started(f"ipc-stale {number}", "ipc-stale", 10.0)
        display.finished(f"ipc-stale {number}")
    now = 4.0  # twice as long as on the measured node
    assert display.text(100) == "5/7 probes done, about 17 s left"


@pytest.mark.parametrize("width", [40, 60, 100])
def test_narrow_terminal_shortens_names_and_shows_all_times(width: int) -> None:
    display = Display()
    display.planned(["ipc-stale"] * 9)
    display.started("a", "ipc-concurrent (descriptors, large) on cuda:10 > cuda:11", 10.0)
    display.started("b", "ipc-stale on cuda:0", 2.5)
    lines = display.text(width).splitlines()
    assert lines[0] == "0/9 probes done, about 4 s left"[:width]
    assert all(len(line) <= width for line in lines)
    shown = [re.search(r"\d+\.\d s +deadline .*$", line) for line in lines[1:]]
    assert [match and match[0] for match in shown] == [
        "0.0 s  deadline 10 s a call",
        "0.0 s  deadline 2.5 s a call",
    ]


def test_many_threads_may_report_progress(terminal: tuple[IO[str], int]) -> None:
    stream, screen = terminal

    def run(number: int) -> None:
        for repeat in range(50):
            display.started(f"{number}.{repeat}", "probe", 1.0)
            display.finished(f"{number}.{repeat}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    with progress(stream) as display:
        display.planned(["ipc-stale"] * 200)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shown(screen, "200 probes done, concluding")


def test_nothing_is_written_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress(stream) as display:
        display.planned(["ipc-stale"] * 1)
        display.started("a", "ipc-reopen on cuda:0", 10.0)
        display.finished("a")
    assert stream.getvalue() == ""


def test_terminal_that_cannot_redraw_is_not_used(
    terminal: tuple[IO[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress(terminal[0]) as display:
        assert not isinstance(display, Display)


def test_without_a_terminal_rich_is_not_imported() -> None:
    code = (
        "import sys; from gpuipc_doctor.cli.progress import progress\n"
        "with progress() as p: p.planned([])\n"
        "sys.exit('rich' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0
    )


def test_no_line_of_progress_is_wider_than_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrapped line stays on the screen, and the next one stacks below it."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((60, 24)))
    redraw("12/40 done, 3 running, nid001234 for 12 s; 1 bad, 0 without a report", last=False)
    redraw("40/40 done", last=True)
    assert [len(line) for line in capsys.readouterr().err.strip("\r\n").split("\r")] == [59, 59]
    display = Display()
    display.planned(["ipc-stale"] * 3)
    display.started("a", "mpi-small-message (rank 0, rank 1) on cuda:0 > cuda:1", 10.0)
    assert max(map(len, display.text(60).splitlines())) <= 60
