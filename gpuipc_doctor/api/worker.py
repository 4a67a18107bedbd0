"""What a role function sees: its process, its partner, its GPU, MPI."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.api.gpu import Gpu, Memory
from gpuipc_doctor.model import AtRest, Json


class TellingRecord(enum.Enum):
    """Names of records that speak for or against a role's failure: their text becomes evidence of it.

    All other records only say where the role ran.
    """

    CONTROL = "control"
    WRONG = "wrong"
    REFUSED = "refused"


class Peer(Protocol):
    """Another role of the probe. Losing it ends this role as a casualty, not as a culprit."""

    def send(self, value: Json | bytes) -> None: ...
    def recv(self) -> Json:
        """Wait for the partner's next value (`bytes` arrive as `bytes`)."""

    def has_news(self) -> bool:
        """Whether `recv` would return, or end this role, at once. For a partner that sends and then waits."""

    def send_descriptor(self, descriptor: int) -> bool:
        """Give the partner a copy of a descriptor, as it asks for it, and say whether it got one."""

    def recv_descriptor(self) -> int:
        """The partner's descriptor, in a message (``SCM_RIGHTS``); ours to close."""

    def fetch_descriptor(self) -> int:
        """The partner's descriptor, taken from its process (``pidfd_getfd``); ours to close.

        Raises `OSError` where the kernel refuses that; then the partner sends no other.
        """

    def wait_gone(self) -> None:
        """Wait until the partner's process has ended."""


class Mpi(Protocol):
    """``MPI_COMM_WORLD`` as a rank sees it. Addresses may be the host's or a GPU's; sizes are bytes.

    An MPI call that fails raises `DriverError`, as a driver call does.
    """

    rank: int
    size: int

    @property
    def node(self) -> str:
        """The name of the node that this rank is on."""

    def library_version(self) -> str: ...
    def send(self, address: int, nbytes: int, to: int, tag: int = 0) -> None: ...
    def recv(self, address: int, nbytes: int, source: int, tag: int = 0) -> None: ...
    def isend(self, address: int, nbytes: int, to: int, tag: int = 0) -> object:
        """Start sending; what it returns goes to ``wait``."""

    def irecv(self, address: int, nbytes: int, source: int, tag: int = 0) -> object: ...
    def wait(self, requests: Sequence[object]) -> None: ...
    def barrier(self) -> None: ...
    def any_says(self, mine: bool) -> bool:
        """Whether any rank says so. All wait for all, as at a barrier."""

    def ping_pong(self, address: int, nbytes: int, partner: int, rounds: int) -> list[float]:
        """Blocking messages there and back, armed as one operation; seconds one way for each round."""

    def finalize(self) -> None:
        """End MPI. The worker does it where the role function has not."""


class Fabric(Protocol):
    """libfabric and UCX by their own programs, each a child of this process and armed under its name."""

    def look(self, programs: Mapping[str, str], results: str | None, *, transports: bool) -> dict[str, Json]:
        """What they, ``/sys`` and the files in the directory ``results`` say of the fabric.

        ``libfabric`` and ``ucx``: versions; ``interfaces`` and ``transports``: see `fabric.interfaces`;
        ``adapters`` and ``ports``: see `fabric.devices`; ``health``: see `fabric.healthcheck`.
        ``programs``: name → file. ``transports``: whether UCX is asked for them.
        """

    def routes(self, fi_info: str | None, *, across: bool, stated: str | None) -> list[str]:
        """The providers that an MPI would send small messages through, within this node or ``across``.

        ``stated``: the name of the fabric that the site states; then those of that one.
        """

    def ping_pong(
        self, program: str, route: str, nbytes: int, rounds: int, stated: str | None
    ) -> dict[str, Json]:
        """Both roles call it: messages there and back between two processes of ``program``.

        ``route``: a provider of libfabric, or whose memory UCX is to send. How it ended: see
        `fabric.message_pair.judge`. ``chosen``: the variables by which UCX was told the ``stated`` fabric.
        """


class ChildGone(Exception):
    """A process that a role started has ended; the one argument says how: a signal's name, or ``exit 1``."""


class ChildHangs(Exception):
    """A process that a role started does not answer in time."""


class Child(Protocol):
    """A process that a role started, as the function sees it that runs there."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All devices of the probe, by a driver that this process has loaded itself."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors that came with the latest message; this process's to close."""

    def progress(self, number: int) -> None:
        """Say how far this process has come, even should it end."""

    def recv(self) -> Json:
        """Wait for the role's next message; where the role has ended, this process ends, too."""

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None: ...


class ChildProcess(Protocol):
    """A process that a role started, as the role sees it."""

    @property
    def pid(self) -> int: ...
    @property
    def call(self) -> str:
        """The driver call that it made last, and may be in."""

    @property
    def progress(self) -> int:
        """How far it has come, as it said last."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors that came with the latest message; the role's to close."""

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None:
        """Raises `ChildGone`."""

    def recv(self, limit_s: float) -> Json:
        """Its next message. Raises `ChildGone` and, after so many seconds, `ChildHangs`."""

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""

    def end(self, limit_s: float) -> str:
        """Have it exit as programs do and wait for that; says how it ended. Raises `ChildHangs`."""


class Worker(Protocol):
    """The process in which a role function runs, as the role function sees it."""

    @property
    def role(self) -> str: ...
    @property
    def node(self) -> str:
        """The name of the node that this role runs on."""

    @property
    def gpu(self) -> Gpu:
        """This role's device: the probe's only one, or of several the first role's first, and so on."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All devices of the probe, in the probe's order."""

    def wait_for_rest(self, at_rest: Sequence[AtRest]) -> tuple[list[int], bool]:
        """Wait until the devices are at rest again, where it is known what that is; returns how they are.

        That is the bytes in use on each, as a process finds that does nothing with it, and whether it can be
        such a one: where NVML does not tell, a context has to be made for it.
        """

    def host_memory(self, nbytes: int) -> Memory:
        """Ordinary memory of this process, as zeros."""

    def allocator(self, name: str) -> Allocator:
        """One of `Context.allocators` on ``gpu``; imports its library, which may take seconds."""

    def clock(self) -> float:
        """Seconds since some time before this process began."""

    @property
    def peer(self) -> Peer:
        """The first of ``peers``: of two roles, the other one."""

    @property
    def peers(self) -> Sequence[Peer]:
        """For the first role, all others in the probe's order; for each of those, the first role alone."""

    @property
    def mpi(self) -> Mpi:
        """MPI, initialised by the first use, for roles that are ranks."""

    @property
    def fabric(self) -> Fabric: ...
    def start(self, act: Callable[[Child], None]) -> ChildProcess:
        """Start a process that calls ``act`` and ends. For roles that are `Probe.starters`."""

    @property
    def params(self) -> Mapping[str, Json]: ...
    @property
    def deadline_s(self) -> float:
        """Seconds that a single operation may take."""

    def discover(self, backend: str) -> dict[str, Json]:
        """Initialise a backend's driver: its ``devices`` and ``facts``, as JSON.

        ``on_bus`` is the number of its GPUs that the node's PCI bus lists, ``hiding`` the variables that
        hide devices from this process.
        """

    def mpi_facts(self, library: str | None, backends: Sequence[str]) -> dict[str, Json]:
        """Load an MPI library (the one that mpi4py finds, when None) without initialising it: see
        `mpi.survey.report`. Raises `BackendUnavailable`."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """Say in the check's own words what follows; a failure inside names it beside the driver call."""

    def armed(self, operation: str) -> AbstractContextManager[None]:
        """Blame what ends this process inside the block on ``operation``. GPU calls arm themselves."""

    def record(self, **facts: Json) -> None:
        """Keep facts for ``judge``; they survive a later crash of this worker. See `TellingRecord`."""

    def tell(self, news: Json) -> None:
        """Tell whoever listens to this probe, now. For one that goes on and on: its journal begins anew."""

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Ask ``condition`` again and again until it holds or ``limit_s`` seconds are over; says which."""

    def die(self, signal_name: str = "SIGKILL") -> NoReturn:
        """End this process by a signal as part of the procedure; the role counts as completed."""
