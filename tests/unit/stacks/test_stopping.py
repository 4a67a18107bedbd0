"""Processes that are stopped for a moment continue unchanged; some are not stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuipc_doctor.job.document import Process
from gpuipc_doctor.stacks import stopping
from gpuipc_doctor.stacks.debuggers import find_program
from gpuipc_doctor.stacks.stopping import NotStopped, stacks
from tests.waiting import until

IN_A_SYSTEM_CALL = "print('ready', flush=True); print(input())"

IGNORING = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""

IN_STATE_D = """
#include <stdio.h>
#include <unistd.h>
int main(void) { puts("ready"); fflush(stdout); if (!vfork()) { sleep(600); _exit(0); } return 0; }
"""
"""A parent that waits uninterruptibly for the child of its vfork(2)."""

IN_C = """
#include <stdio.h>
#include <unistd.h>
void wait_for_input(void) { char byte; while (read(0, &byte, 1) > 0) {} }
int main(void) { puts("ready"); fflush(stdout); wait_for_input(); puts("done"); return 0; }
"""


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def compiled(source: str, place: Path) -> str:
    (place / "program.c").write_text(source)
    program = place / "program"
    subprocess.run(["gcc", "-O0", "-o", program, place / "program.c"], check=True)
    return str(program)


def process(child: subprocess.Popen[str], program: str = "python3") -> Process:
    return Process(pid=child.pid, parent=1, uid=0, program=program)


def seen(pid: int) -> tuple[str, str, str]:
    """State, tracer and system call of the main thread."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
    call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    return fields["State"][0], fields["TracerPid"], call


@pytest.fixture(params=["py-spy", "gdb"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(stopping, "LIMIT_S", 60.0)  # under load, gdb takes longer than 2 s
    monkeypatch.setattr(
        stopping, "find_program", lambda asked: find_program(asked) if asked == name else None
    )
    return name


def test_process_in_a_system_call_continues_it(tool: str) -> None:
    with running(sys.executable, "-c", IN_A_SYSTEM_CALL) as child:
        until("it reads", lambda: seen(child.pid) == ("S", "0", "0"))
        found = stacks(process(child))[child.pid]
        assert any(frame.startswith(("read ", "__read", "__GI___libc_read", "[libc")) for frame in found), (
            found
        )
        until("it reads again", lambda: seen(child.pid) == ("S", "0", "0"))
        assert child.communicate("a line\n")[0] == "a line\n"


def test_process_that_ignores_signals_is_unchanged(tool: str) -> None:
    with running(sys.executable, "-c", IGNORING) as child:
        until("it sleeps", lambda: seen(child.pid)[0] == "S")
        before = seen(child.pid)
        assert stacks(process(child))
        until("it sleeps again", lambda: seen(child.pid)[:2] == before[:2])


def test_program_without_python_is_read_by_a_debugger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "LIMIT_S", 60.0)
    with running(compiled(IN_C, tmp_path)) as child:
        found = stacks(process(child, "program"))[child.pid]
        assert "wait_for_input (program)" in found
        assert "main (program)" in found
        assert child.communicate("x")[0] == "done\n"


def test_tool_that_takes_too_long_leaves_the_process_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "LIMIT_S", 0.05)
    monkeypatch.setattr(stopping, "find_program", lambda name: find_program(name) if name == "gdb" else None)
    with running(sys.executable, "-c", IN_A_SYSTEM_CALL) as child:
        for _ in range(5):
            with pytest.raises(NotStopped, match="took longer"):
                stacks(process(child))
            until("it is neither traced nor stopped", lambda: seen(child.pid)[:2] == ("S", "0"))
        assert child.communicate("a line\n")[0] == "a line\n"


def test_traced_process_is_left_to_its_tracer() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    seize, detach = 0x4206, 17
    with running(sys.executable, "-c", IN_A_SYSTEM_CALL) as child:
        assert libc.ptrace(seize, child.pid, None, None) == 0
        with pytest.raises(NotStopped, match=f"traced by process {os.getpid()}"):
            stacks(process(child))
        assert seen(child.pid)[1] == str(os.getpid())
        libc.ptrace(0x4207, child.pid, None, None)  # PTRACE_INTERRUPT, for it to be detached
        os.waitpid(child.pid, 0x40000000)
        libc.ptrace(detach, child.pid, None, None)


def test_stopped_process_stays_stopped() -> None:
    with running(sys.executable, "-c", IN_A_SYSTEM_CALL) as child:
        os.kill(child.pid, signal.SIGSTOP)
        until("it is stopped", lambda: seen(child.pid)[0] == "T")
        with pytest.raises(NotStopped, match="already stopped"):
            stacks(process(child))
        assert seen(child.pid)[0] == "T"


def test_process_in_state_d_is_not_stopped(tmp_path: Path) -> None:
    with running(compiled(IN_STATE_D, tmp_path)) as child:
        until("it is in state D", lambda: seen(child.pid)[0] == "D")
        with pytest.raises(NotStopped, match="state D"):
            stacks(process(child, "program"))
        assert seen(child.pid)[:2] == ("D", "0")


def test_ended_process_is_reported_as_such() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(NotStopped, match="ended"):
        stacks(Process(pid=child.pid, parent=1, uid=0, program="true"))
