"""A rank's view of MPI: mpi4py with raw pointers as buffers, each call journalled under its C name.

Imported in ranks only: importing mpi4py's MPI module loads the MPI library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from time import perf_counter
from typing import Any

from gpuipc_doctor import node_name
from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.model import DriverFault

Request = Any
"""A pending operation, only for `Communicator.wait`."""


_ABSENT = re.compile(r"\S*libmpi[^/\s]*: cannot open shared object file: No such file")


def load_mpi4py(arm: Arm) -> Any:
    """mpi4py's MPI module, which loads its library without initialising it. Raises `BackendUnavailable`."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        with arm("dlopen libmpi"):
            from mpi4py import MPI
    except ImportError as error:
        raise BackendUnavailable(f"cannot load mpi4py: {error}", "pip install 'mpi4py>=4'") from error
    except RuntimeError as error:  # mpi4py's wheels look for the MPI library when they are imported
        # It lists every missing file; only existing files that fail to load matter.
        tried = [line for line in str(error).splitlines()[1:] if not _ABSENT.match(line)]
        raise BackendUnavailable(
            ": ".join(["mpi4py finds no MPI library", *tried]),
            "load your MPI's module, or name the MPI library with --mpi-lib",
        ) from error
    return MPI


class Communicator:
    """``MPI_COMM_WORLD`` of a job with ``ranks`` ranks, or a part of it (`among`). Buffers may be in host or
    device memory.

    Raises `BackendUnavailable` if mpi4py or its MPI library cannot be loaded, or the launcher belongs to
    another MPI; `DriverError` if an MPI call fails.
    """

    def __init__(self, ranks: int, arm: Arm) -> None:
        self._arm = arm
        self._api = load_mpi4py(arm)
        library = self.library_version().partition("\n")[0] or "a library without a version"
        # Under this launcher MPICH ends the process instead of returning an error.
        if "OMPI_COMM_WORLD_SIZE" in os.environ and "Open MPI" not in library:
            raise _mismatch("Open MPI's launcher", library)
        with self._armed("MPI_Init_thread"):
            self._api.Init_thread()
        self._world = self._api.COMM_WORLD
        self._is_part = False
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        if self.size != ranks and "SLURM_PROCID" in os.environ and not _launchers_words():
            raise BackendUnavailable(
                f"srun started {ranks} ranks of {library}, but the size of MPI_COMM_WORLD is {self.size}",
                "set SLURM_MPI_TYPE to the interface that the library speaks, pmi2 or pmix (srun --mpi=list)",
            )
        if self.size != ranks:
            raise _mismatch(
                f"{ranks} ranks were started, but MPI_COMM_WORLD has size {self.size}; the launcher", library
            )

    def among(self, ranks: Sequence[int]) -> Communicator:
        """A communicator of some of the ranks, in this order; only these ranks call the method."""
        part = copy(self)
        group = self._world.Get_group().Incl(ranks)
        with self._armed("MPI_Comm_create_group"):
            part._world = self._world.Create_group(group)
        part._is_part, part.rank, part.size = True, part._world.Get_rank(), part._world.Get_size()
        return part

    def library_version(self) -> str:
        text: str = self._api.Get_library_version()
        return text.strip("\0\n ")

    @property
    def node(self) -> str:
        """Name of this rank's node."""
        return node_name.full()

    def send(self, address: int, nbytes: int, to: int, tag: int = 0) -> None:
        self.call("MPI_Send", self._world.Send, self._buffer(address, nbytes), to, tag)

    def recv(self, address: int, nbytes: int, source: int, tag: int = 0) -> None:
        self.call("MPI_Recv", self._world.Recv, self._buffer(address, nbytes), source, tag)

    def isend(self, address: int, nbytes: int, to: int) -> Request:
        return self.call("MPI_Isend", self._world.Isend, self._buffer(address, nbytes), to)

    def irecv(self, address: int, nbytes: int, source: int) -> Request:
        return self.call("MPI_Irecv", self._world.Irecv, self._buffer(address, nbytes), source)

    def wait(self, requests: Sequence[Request]) -> None:
        self.call("MPI_Waitall", self._api.Request.Waitall, list(requests))

    @property
    def api(self) -> Any:
        """mpi4py's MPI module, for functions without a method here; see `call`."""
        return self._api

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of mpi4py, armed under its C name."""
        with self._armed(name):
            return function(*arguments)

    def is_truncation(self, error: DriverError) -> bool:
        """Whether the error means that a message was too long for its receive."""
        return bool(self._api.Get_error_class(error.fault.code) == self._api.ERR_TRUNCATE)

    def is_unsupported(self, error: DriverError) -> bool:
        """Whether the error means that the library, as it was built or set, does not have the operation."""
        return bool(self._api.Get_error_class(error.fault.code) == self._api.ERR_UNSUPPORTED_OPERATION)

    def barrier(self) -> None:
        self.call("MPI_Barrier", self._world.Barrier)

    def any_says(self, mine: bool) -> bool:
        ours, all_of_us, byte = bytearray([mine]), bytearray(1), self._api.BYTE
        with self._armed("MPI_Allreduce"):
            self._world.Allreduce([ours, byte], [all_of_us, byte], op=self._api.BOR)
        return any(all_of_us)

    def first_says(self, number: int) -> int:
        """Broadcast rank 0's number; returns it in every rank."""
        with self._armed("MPI_Bcast"):
            return int(self._world.bcast(number))

    def ping_pong(self, address: int, nbytes: int, partner: int, rounds: int) -> list[float]:
        """Send back and forth; rank 0 begins. Returns half of each round trip's time, meaningful only in rank
        0."""
        buffer, send, recv = self._buffer(address, nbytes), self._world.Send, self._world.Recv
        times = []
        with self._armed(f"MPI_Send and MPI_Recv, {rounds} rounds"):
            for _ in range(rounds):
                started = perf_counter()
                if self.rank == 0:
                    send(buffer, partner)
                    recv(buffer, partner)
                else:
                    recv(buffer, partner)
                    send(buffer, partner)
                times.append((perf_counter() - started) / 2)
        return times

    def finalize(self) -> None:
        """End MPI, or only the communicator if it is a part; a second call does nothing."""
        if self._is_part:
            if self._world != self._api.COMM_NULL:
                self.call("MPI_Comm_free", self._world.Free)
        elif not self._api.Is_finalized():
            self.call("MPI_Finalize", self._api.Finalize)

    def _buffer(self, address: int, nbytes: int) -> list[Any]:
        return [self._api.memory.fromaddress(address, nbytes), nbytes, self._api.BYTE]

    @contextmanager
    def _armed(self, call: str) -> Iterator[None]:
        """Arm ``call``; an MPI error disarms it and becomes a `DriverError`."""
        failure = None
        with self._arm(call):
            try:
                yield
            except self._api.Exception as error:
                failure = DriverFault(call, error.Get_error_code(), error.Get_error_string())
        if failure:
            raise DriverError(failure)


def _launchers_words() -> list[str]:
    """Names of the variables that an MPI launcher has set."""
    return [name for name in os.environ if name.startswith(("PMI_", "PMIX_", "OMPI_COMM_WORLD_"))]


def _mismatch(launcher: str, library: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"{launcher} and the library, {library}, belong to different MPIs",
        "use the mpiexec that belongs to the library, or name the library with --mpi-lib",
    )
