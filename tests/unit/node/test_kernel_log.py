"""Lines of the kernel's log on processes that ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuipc_doctor.node import kernel_log

RECORDS = (
    b"6,1,1000000,-;Out of memory: Killed process 7 (python3) of an earlier job\n",
    b"6,2,9000000,-;eth0: link up\n",
    b"3,3,9500000,-;Out of memory: Killed process 4711 (python3) total-vm:9kB\n SUBSYSTEM=memory\n",
    b"3,4,9600000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=4711, name=python3, GPU has fallen off the bus.\n",
    b"not a record",
)


def test_lines_since_the_job_started_tell_why_a_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(RECORDS)
    monkeypatch.setattr(kernel_log, "LOG", Path(os.devnull))
    monkeypatch.setattr(kernel_log.os, "read", lambda *_: next(left, b""))
    found = kernel_log.since(5 * os.sysconf("SC_CLK_TCK"))
    assert [line.partition(" (")[0] for line in found] == [
        "kernel log: Out of memory: Killed process 4711",
        "kernel log: NVRM: Xid",
    ]


def test_log_that_cannot_be_read_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "LOG", tmp_path / "absent")
    assert kernel_log.since(0) == ()
