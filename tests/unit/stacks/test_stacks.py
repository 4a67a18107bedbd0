"""Stacks of a sleeping process, without stopping it."""

from __future__ import annotations

import subprocess
import sys

from gpuipc_doctor.stacks.sleeping import stacks
from tests.waiting import until


def test_sleeping_process_is_read_from_its_memory() -> None:
    program = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        pid = process.pid
        try:
            until("it sleeps", lambda: "sleep" in str(stacks(pid, [pid])[0]))
            assert stacks(pid, ()) == ({}, {})
        finally:
            process.kill()
    assert "stack of a sleeping thread" in stacks(pid, [pid])[1]
