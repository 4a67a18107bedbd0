"""The recorder writes what a process calls. Each class that two programs use is tried, or says why not."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from gpuipc_doctor.files import yamlfile
from gpuipc_doctor.simulator import build
from gpuipc_doctor.simulator.node import prepare
from tests.recorder import coverage
from tests.recorder.generate import compile_library

REASONS: dict[str, str] = yamlfile.read(coverage.NOT_TRIED, None).data

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder's stubs are of x86-64")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with recorders before the simulated libraries."""
    directory, simulated = tmp_path_factory.mktemp("recorder"), build.build()
    compile_library("cuda", simulated / "libcuda.so.1", directory)
    compile_library("nccl", simulated / build.COLLECTIVES["nccl"], directory)
    return directory


def recorded(
    libraries: Path, into: Path, *command: str, node: Mapping[str, str] = MappingProxyType({})
) -> set[str]:
    preload = " ".join(str(libraries / name) for name in ("libcuda.so.1", "libnccl.so.2"))
    env = {**os.environ, **node, "LD_PRELOAD": preload, "GPUIPC_RECORD": str(into)}
    subprocess.run(command, env=env, capture_output=True, check=False, timeout=120)
    return {line for path in into.iterdir() for line in path.read_text().splitlines()}


@x86_64
@pytest.mark.cuda
def test_classes_of_a_check_are_recorded(libraries: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "gpuipc_doctor", "check", "ipc-vmm", "collective-data")
    library = ("--nccl-lib", str(libraries / "libnccl.so.2"))
    found = recorded(libraries, tmp_path, *command, *library, "--simulate", "collectives-two")
    assert "copy-to-device bytes=<=1M to=vmm-imported from=host" in found
    assert "vmm-export flags=0 type=1" in found
    of_nccl = {line for line in found if line.startswith("all-reduce ")}
    assert any("type=bfloat16" in line and "thread=other" in line for line in of_nccl)
    assert any("grouped" in line and "+odd" in line for line in of_nccl)
    assert any("type=float8e4m3 bytes=<=64K" in line and "operation=maximum" in line for line in of_nccl)
    assert any(" comm=split " in line for line in found)


@x86_64
@pytest.mark.cuda
def test_process_that_ends_by_a_signal_has_written_its_classes(libraries: Path, tmp_path: Path) -> None:
    """Its calls of a library that it opens by name, of which one is known by name only."""
    text = (
        "import ctypes, os, signal\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "driver.cuInit(0)\n"
        "driver.cuProfilerStart()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "node").mkdir()
    (tmp_path / "classes").mkdir()
    node = prepare("healthy-cuda", tmp_path / "node").env
    found = recorded(libraries, tmp_path / "classes", sys.executable, "-c", text, node=node)
    assert found == {"init flags=0", "cuProfilerStart"}


def test_each_class_that_two_programs_use_is_tried_or_says_why_not() -> None:
    tried = coverage.of_checks()
    missing = [f"{call} {each}" for (call, each), by in coverage.of_programs().items() if len(by) > 1]
    missing = [found for found in missing if (found.split(" ", 1)[0], found.split(" ", 1)[1]) not in tried]
    unexplained = [found for found in missing if not any(re.search(reason, found) for reason in REASONS)]
    assert unexplained == []
    assert [reason for reason in REASONS if not any(re.search(reason, found) for found in missing)] == []


def test_page_is_made_of_the_tables() -> None:
    """If not: python3 -m tests.recorder.coverage."""
    assert coverage.PAGE.read_text() == coverage.page(coverage.of_programs(), coverage.of_checks(), REASONS)


@x86_64
@pytest.mark.full
@pytest.mark.cuda
def test_checks_try_what_the_table_says(libraries: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "gpuipc_doctor", "check", "--all", "--simulate", "collectives-two")
    found = recorded(libraries, tmp_path, *command, "--nccl-lib", str(libraries / "libnccl.so.2"))
    assert coverage.of_checks() - coverage.classes(found) == set()
