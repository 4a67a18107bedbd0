"""Signals before the command line is read end the command in one line, with the documented code."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IMPORTING = """\
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

{before}
sys.meta_path.insert(0, Interrupts())
sys.argv = ["gpuipc-doctor", "list"]
from gpuipc_doctor.__main__ import main
main()
"""

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
MODULES = ["gpuipc_doctor.cli", "click", "gpuipc_doctor.cli.list"]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_during_the_imports_is_one_line(number: signal.Signals, module: str) -> None:
    ended = run(number, module)
    assert ended.returncode == 130
    assert ended.stderr.strip() == "gpuipc-doctor: interrupted before any result"
    assert not ended.stdout


def test_ignored_signal_stays_ignored() -> None:
    ended = run(signal.SIGHUP, "click", "signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert ended.returncode == 0
    assert ended.stdout


def run(number: signal.Signals, module: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = IMPORTING.format(module=module, number=int(number), before=before)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
