"""The emulated kernel driver alone: it refuses ioctls that it does not emulate, and names them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kfd import emulated
from tests.waiting import LIMIT_S

ASK = """
import errno, fcntl, os, sys
path, request = sys.argv[1], int(sys.argv[2], 16)
try:
    fcntl.ioctl(os.open(path, os.O_RDWR), request, bytearray(request >> 16 & 0x3fff))
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("played")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated.build(tmp_path_factory.mktemp("kfd"))


@pytest.mark.parametrize(
    ("path", "request_code", "answer", "reported"),
    [
        ("/dev/kfd", 0x80084B01, "played", ""),
        ("/dev/kfd", 0xC0184B26, "ENOTTY", "KFD ioctl 0x26 (DBG_TRAP) is not played"),
        pytest.param(
            "/dev/kfd",
            0xC0184B7F,
            "ENOTTY",
            "KFD ioctl 0x7f (of no known name) is not played",
            marks=pytest.mark.full,
        ),
        ("/dev/dri/renderD128", 0xC0186442, "ENOTTY", "render node's ioctl 0x42 is not played"),
    ],
)
def test_ioctl_that_is_not_emulated_is_refused_by_name(
    tmp_path: Path, library: Path, path: str, request_code: int, answer: str, reported: str
) -> None:
    (tmp_path / "vram0").mkdir()
    env = {**os.environ, "LD_PRELOAD": str(library), "KFD_EMULATOR": str(tmp_path)}
    command = [sys.executable, "-c", ASK, path, hex(request_code)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer
    assert reported in done.stderr
    assert bool(reported) is bool(done.stderr)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({}, "mmdebstrap is not installed"),
        ({"mmdebstrap": "exit 100"}, "no libamdhip64-9 of unstable experimental on "),
    ],
)
def test_runtime_that_cannot_be_fetched_is_named(tmp_path: Path, programs: dict[str, str], said: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("awk", "rm"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    root = tmp_path / "rocm-9"
    command = ["/bin/sh", str(emulated.HERE / "root.sh"), str(root), "libamdhip64-9", "unstable experimental"]
    done = subprocess.run(
        command, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{root}: {said}" in done.stderr
    assert not root.exists()


@pytest.mark.skipif(not emulated.runtimes(), reason="needs Debian's libamdhip64-5")
@pytest.mark.kfd
def test_node_leaves_nothing_and_returns_the_exit_code(tmp_path: Path) -> None:
    (runtime, *_) = emulated.chosen_runtimes()
    command = [sys.executable, "-m", "tests.kfd.emulated", runtime.name, "--gpus", "1", "--"]
    command += ["sh", "-c", "test -e /dev/kfd && test -e /dev/dri/renderD128 && exit 7"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run(command, env=env, cwd=emulated.REPOSITORY, check=False).returncode == 7
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not emulated.runtimes(), reason="needs Debian's libamdhip64-5")
@pytest.mark.kfd
def test_node_has_its_own_shared_memory() -> None:
    with emulated.node(emulated.chosen_runtimes()[0], gpus=1) as node:
        name = f"gpuipc-test-{os.getpid()}"
        command = [*node.enter, "sh", "-c", f"ls -A /dev/shm && > /dev/shm/{name}"]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b""
        assert not Path("/dev/shm", name).exists()


@pytest.mark.skipif(not emulated.runtimes(), reason="needs Debian's libamdhip64-5")
@pytest.mark.kfd
def test_each_runtime_names_its_packages() -> None:
    for runtime in emulated.chosen_runtimes():
        assert f"libamdhip64-{runtime.generation} " in runtime.packages
        print(f"{runtime.name}: {runtime.packages}")  # noqa: T201  # the runtimes that were tested


@pytest.mark.full
@pytest.mark.skipif(not emulated.runtimes(), reason="needs Debian's libamdhip64-5")
@pytest.mark.kfd
def test_advice_on_a_node_that_is_not_simulated_is_about_its_own_gpus() -> None:
    asked = ("check", "allocator-growth", "mpi-gpu-aware", "known-versions", "--backend", "hip", "--json")
    with emulated.node(emulated.chosen_runtimes()[0]) as node:
        command = [*node.enter, sys.executable, "-m", "gpuipc_doctor", *asked]
        env = {**os.environ, **node.env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = [result["finding"] for result in json.loads(done.stdout)["results"]]
    assert "no-allocator" in {finding["key"] for finding in found}
    said = "\n".join(finding["summary"] + finding["remedy"] for finding in found).lower()
    assert [word for word in ("simulated", "cuda", "nvidia") if word in said] == []


@pytest.mark.full
@pytest.mark.skipif(not emulated.runtimes(), reason="needs Debian's libamdhip64-5")
@pytest.mark.kfd
def test_buffers_of_two_gpus_are_distinguished(tmp_path: Path) -> None:
    """In this history, buffers of both GPUs have the same inode number at the same time. The deadline is
    long, because compiling HIP's kernels on a busy machine took longer than half the usual one."""
    (tmp_path / "patient.yaml").write_text(f"deadline_s: {LIMIT_S / 2}\n")
    history = Path(__file__).parent / "buffers_of_two_gpus.json"
    with emulated.node(emulated.chosen_runtimes()[0]) as node:
        command = [*node.enter, sys.executable, "-m", "gpuipc_doctor", "replay", str(history)]
        command += ["--config", str(tmp_path / "patient.yaml")]
        done = subprocess.run(
            command,
            env={**os.environ, **node.env},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout
