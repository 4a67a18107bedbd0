"""Stacks of a whole process, running and asleep, without stopping it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuipc_doctor.stacks import stacks
from tests.waiting import until


@contextmanager
def started(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_sleeping_process_is_read_from_its_memory() -> None:
    with started("import time; print(flush=True); time.sleep(600)") as pid:
        until(
            "it sleeps", lambda: any("sleep" in frame for own in stacks(pid)[0].get(pid, ()) for frame in own)
        )
        found, refused = stacks(pid)
        assert (list(found), refused) == ([pid], {})
        assert stacks(pid, asleep=())[0] == {}


def test_running_process_is_sampled() -> None:
    with started("print(flush=True)\nwhile True: pass") as pid:
        found, refused = stacks(pid)
        if refused:
            pytest.skip(refused.popitem()[1])
        assert any("python" in frame for own in found[pid] for frame in own)
        assert stacks(pid, samples={pid: [("given",)]})[0] == {pid: (("given",),)}


def test_process_that_has_ended_has_no_stack() -> None:
    with started("print(flush=True)") as pid:
        os.waitpid(pid, 0)
        assert stacks(pid) == ({}, {})
