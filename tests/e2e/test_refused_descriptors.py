"""If a seccomp filter refuses pidfd_getfd, the finding blames the environment, not the driver."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

REFUSE = str(Path(__file__).parents[1] / "fixtures/refuse_syscall.py")
PIDFD_GETFD = 438


def refusing(code: int, *command: str) -> subprocess.CompletedProcess[str]:
    filtered = [sys.executable, REFUSE, str(PIDFD_GETFD), str(code), sys.executable, *command]
    return subprocess.run(filtered, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_filter_is_real() -> None:
    attempt = (
        "import os; from gpuipc_doctor.worker import descriptors\n"
        "try: print(descriptors.fetch(os.getpid(), 1))\n"
        "except OSError as error: print(error.errno)\n"
        "print(open('/proc/self/status').read())"
    )
    said = refusing(errno.EPERM, "-c", attempt).stdout
    assert said.startswith(f"{errno.EPERM}\n")
    assert "\nSeccomp:\t2\n" in said


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "code"),
    [
        pytest.param("cuda:0", errno.EPERM, marks=pytest.mark.cuda),
        pytest.param("hip:0", errno.EPERM, marks=[pytest.mark.hip, pytest.mark.full]),
        pytest.param("cuda:0", errno.ENOSYS, marks=[pytest.mark.cuda, pytest.mark.full]),
    ],
)
def test_environment_is_blamed_and_not_the_driver(device: str, code: int) -> None:
    command = ("check", "ipc-vmm", "--simulate", "healthy-both", "--device", device, "--json")
    ended = refusing(code, "-m", "gpuipc_doctor.cli.main", *command)
    report = json.loads(ended.stdout)
    findings = {
        result["probe"]: (result["finding"]["status"], result["finding"]["key"])
        for result in report["results"]
        if result["check"] == "ipc-vmm"
    }
    assert findings == {
        "data": ("WARN", "pidfd-refused"),
        "many": ("PASS", "many"),
        "mapped many times": ("PASS", "remaps"),
        "contexts": ("PASS", "imports-again"),
        "exporter gone": ("PASS", "outlives"),
        "importer gone": ("PASS", "returned"),
    }
    assert os.strerror(code) in ended.stdout
    assert "this environment refuses pidfd_getfd" in ended.stdout
    remedies = [result["finding"]["remedy"] for result in report["results"] if result["probe"] == "data"]
    assert ["Linux 5.6" in remedy for remedy in remedies] == [code == errno.ENOSYS]
