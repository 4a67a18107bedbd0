"""GPU-aware Intel MPI moves simulated device memory between two ranks through CUDA IPC.

Run as a script, this file is one of the ranks.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZES = (1, 16, 4096, 100_000, 8 << 20)
ROUNDS = 3

if __name__ != "__main__":
    import pytest

    from gpuipc_doctor.model import Node
    from gpuipc_doctor.simulator.node import prepare

    pytestmark = [pytest.mark.mpi, pytest.mark.cuda]

    RunRanks = Callable[[str, int], "subprocess.CompletedProcess[str]"]

    @pytest.fixture
    def run_ranks() -> Iterator[RunRanks]:
        """``run_ranks(profile, step)`` runs two ranks on such a node, the second on device ``step``."""
        shared = Path("/dev/shm")
        state = Path(tempfile.mkdtemp(prefix="gpuipc-test-", dir=shared if shared.is_dir() else None))
        try:
            yield lambda profile, step: _mpiexec(prepare(profile, state), step)
        finally:
            shutil.rmtree(state)

    @pytest.mark.parametrize("step", [0, 1], ids=["one-device", "a-device-each"])
    def test_two_ranks_exchange_device_memory(run_ranks: RunRanks, step: int) -> None:
        ended = run_ranks("healthy-cuda", step)
        assert ended.returncode == 0, ended.stderr
        exchanged = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank"))
        assert exchanged == [f"rank {rank}: {len(SIZES) * ROUNDS} right" for rank in (0, 1)]

    def test_data_is_moved_through_ipc_handles(run_ranks: RunRanks) -> None:
        ended = run_ranks("abort-ipc-open", 0)
        assert ended.returncode != 0, "opening a handle aborts on this node, but the data arrived"

    def _mpiexec(node: Node, step: int) -> subprocess.CompletedProcess[str]:
        prefix = Path(os.environ["GPUIPC_TEST_MPI"], "impi")
        libraries = node.env["LD_LIBRARY_PATH"].split(":")
        environment = {
            **os.environ,
            **node.env,
            "LD_LIBRARY_PATH": ":".join([*libraries, str(prefix / "lib")]),
            "MPI4PY_MPIABI": "mpich",
            "MPI4PY_LIBMPI": str(prefix / "lib" / "libmpi.so.12"),
            "I_MPI_ROOT": str(prefix),
            "I_MPI_OFFLOAD": "1",
            "I_MPI_OFFLOAD_CUDA_LIBRARY": f"{libraries[0]}/libcuda.so.1",
            "I_MPI_FABRICS": "shm",
            "FI_PROVIDER_PATH": str(prefix / "lib"),
        }
        command = [str(prefix / "bin" / "mpiexec"), "-n", "2", sys.executable, __file__, str(step)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


def rank_main(step: int) -> None:
    """Send each size there and back, with new bytes in each round, and compare at the other device."""
    from cuda.bindings import driver
    from mpi4py import MPI

    from gpuipc_doctor.api import pattern

    def call(result: tuple[Any, ...]) -> Any:
        error, *values = result
        assert not error, error
        return values[0] if values else None

    call(driver.cuInit(0))
    world = MPI.COMM_WORLD
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(world.rank * step))))
    right = 0
    for nbytes in SIZES:
        address = int(call(driver.cuMemAlloc(nbytes)))
        buffer = [MPI.memory.fromaddress(address, nbytes), MPI.BYTE]
        for round_ in range(ROUNDS):
            for sender in (0, 1):
                data = pattern(nbytes, sender, round_)
                if world.rank == sender:
                    call(driver.cuMemcpyHtoD(address, data, nbytes))
                    world.Send(buffer, 1 - sender)
                else:
                    call(driver.cuMemsetD8(address, 0, nbytes))
                    world.Recv(buffer, sender)
                    arrived = ctypes.create_string_buffer(nbytes)
                    call(driver.cuMemcpyDtoH(ctypes.addressof(arrived), address, nbytes))
                    right += arrived.raw == data
        call(driver.cuMemFree(address))
    # One write: print makes two if Python is unbuffered, and the launcher would merge the ranks' lines.
    sys.stdout.write(f"rank {world.rank}: {right} right\n")
    sys.stdout.flush()


if __name__ == "__main__":
    rank_main(int(sys.argv[1]))
