"""Tests of AMD's real runtime and binding that need no AMD GPU.

The runtime is ROCm 5.2.3 of Debian 12. These tests show that it loads and has our calls, not what they do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.api.driver_errors import BackendUnavailable
from tests.conformance.remote import Remote
from tests.conftest import AMDHIP
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.amdhip, pytest.mark.hip]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The runtime's variables. Only Debian's development package has the name that bindings load."""
    assert AMDHIP is not None
    directory = tmp_path / "lib"
    directory.mkdir()
    (directory / "libamdhip64.so").symlink_to(AMDHIP)
    return {"LD_LIBRARY_PATH": str(directory), "ROCM_PATH": str(tmp_path)}


def told(code: str, env: dict[str, str]) -> list[str]:
    """The output of a program that has the backend's driver as ``driver``, parsed as JSON."""
    begin = (
        "import json, pathlib; from contextlib import nullcontext\n"
        "from gpuipc_doctor.api.driver_errors import BackendUnavailable\n"
        "from gpuipc_doctor.worker.backends.hip import HipDriver\n"
        "driver = HipDriver(lambda operation: nullcontext(), pathlib.Path('/'))\n"
    )
    command = [sys.executable, "-c", begin + code]
    ended = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    answer: list[str] = json.loads(ended.stdout)
    return answer


def test_runtime_exports_every_call_of_the_backend(env: dict[str, str]) -> None:
    ask = (
        "import ctypes; library = ctypes.CDLL('libamdhip64.so')\n"
        "print(json.dumps([name for name in driver.calls.values() if not hasattr(library, name)]))"
    )
    assert told(ask, env) == ["hipMemGetHandleForAddressRange"]  # HIP 7 has it; ipc-dmabuf is SKIP without


def test_missing_call_is_reported_by_name(env: dict[str, str]) -> None:
    ask = (
        "driver.calls = {'newer': 'hipExtGetLastError'}\n"
        "try: driver.call('newer')\n"
        "except BackendUnavailable as error: print(json.dumps([error.reason, error.remedy]))"
    )
    reason, remedy = told(ask, env)
    assert "libamdhip64.so has no hipExtGetLastError, which hip-python needs" in reason
    assert "update the driver, or install the hip-python release for this driver" in remedy


def test_missing_device_is_reported_as_such(env: dict[str, str], tmp_path: Path) -> None:
    """``hipInit`` of 5.2.3 returns ``hipErrorInvalidDevice``, which is no reason to read the kernel's log."""
    remote = Remote("hip", root=str(tmp_path), env=env)
    try:
        with pytest.raises(BackendUnavailable) as caught:
            _ = remote.devices
    finally:
        remote.exit()
    assert "this node has no AMD GPU" in caught.value.reason
    assert not caught.value.broken
