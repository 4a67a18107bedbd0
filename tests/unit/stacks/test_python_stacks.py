"""Python stacks of a real process, with its local variables, which are compared and never shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuipc_doctor.job.processes import read_process
from gpuipc_doctor.stacks import python_stacks

PROGRAM = """
import sys, threading, time

def work(secret):
    number = 40
    while True:
        print(number, flush=True)
        sys.stdin.readline()
        number += 1

if len(sys.argv) > 1:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
work("correct-horse")
"""


def stack(pid: int) -> python_stacks.PythonStack:
    process = read_process(pid, lambda tid, used_s: 0.0, frozenset())
    assert process
    return python_stacks.dump(process)


@pytest.mark.parametrize("threads", [[], ["with another thread"]], ids=["alone", "two-threads"])
def test_variables_change_with_progress_but_not_while_waiting(threads: list[str]) -> None:
    """Another thread may also change them, and then they show nothing about the main thread."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *threads], stdin=pipe, stdout=pipe, text=True
    ) as child:
        try:
            assert child.stdin
            assert child.stdout
            child.stdout.readline()
            before = stack(child.pid)
            assert before.variables.get((1, "number")) == (None if threads else "40")
            assert stack(child.pid).digest == before.digest
            child.stdin.write("\n")
            child.stdin.flush()
            child.stdout.readline()
            after = stack(child.pid)
            assert after.variables.get((1, "number")) == (None if threads else "41")
            assert (after.digest == before.digest) is bool(threads)
        finally:
            child.kill()
