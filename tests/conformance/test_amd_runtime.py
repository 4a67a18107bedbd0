"""AMD's real runtime under the real binding, on a machine without an AMD GPU: what can be seen of it there.

Debian 12 packages that of ROCm 5.2.3. That it loads and has our calls shows nothing of what they do on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.api.gpu import BackendUnavailable
from tests.conformance.remote import Remote
from tests.conftest import AMDHIP
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.amdhip, pytest.mark.hip]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The name under which bindings load it is in Debian's package for developers alone."""
    assert AMDHIP is not None
    directory = tmp_path / "lib"
    directory.mkdir()
    (directory / "libamdhip64.so").symlink_to(AMDHIP)
    return {"LD_LIBRARY_PATH": str(directory), "ROCM_PATH": str(tmp_path)}


def told(code: str, env: dict[str, str]) -> list[str]:
    """What a program that has the backend's driver as ``driver`` prints, as JSON."""
    begin = (
        "import json, pathlib; from contextlib import nullcontext\n"
        "from gpuipc_doctor.api.gpu import BackendUnavailable\n"
        "from gpuipc_doctor.backends.hip import HipDriver\n"
        "driver = HipDriver(lambda operation: nullcontext(), pathlib.Path('/'))\n"
    )
    command = [sys.executable, "-c", begin + code]
    ended = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    answer: list[str] = json.loads(ended.stdout)
    return answer


def test_it_has_every_call_of_ours(env: dict[str, str]) -> None:
    ask = (
        "import ctypes; library = ctypes.CDLL('libamdhip64.so')\n"
        "print(json.dumps([name for name in driver.calls.values() if not hasattr(library, name)]))"
    )
    assert told(ask, env) == []


def test_a_call_that_it_has_not_is_reported_by_name(env: dict[str, str]) -> None:
    ask = (
        "driver.calls = {'newer': 'hipExtGetLastError'}\n"
        "try: driver.call('newer')\n"
        "except BackendUnavailable as error: print(json.dumps([error.reason, error.remedy]))"
    )
    reason, remedy = told(ask, env)
    assert "libamdhip64.so has no hipExtGetLastError, which hip-python needs" in reason
    assert "update the driver, or install the hip-python release for this driver" in remedy


def test_no_device_is_told_as_that(env: dict[str, str], tmp_path: Path) -> None:
    """``hipInit`` of 5.2.3 says ``hipErrorInvalidDevice``, which is no reason to read the kernel's log."""
    remote = Remote("hip", root=str(tmp_path), env=env)
    try:
        with pytest.raises(BackendUnavailable) as caught:
            _ = remote.devices
    finally:
        remote.exit()
    assert "this node has no AMD GPU" in caught.value.reason
    assert not caught.value.broken
