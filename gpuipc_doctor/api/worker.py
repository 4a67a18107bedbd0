"""The interface of a role function: its process, partner, GPU and MPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import Buffer, Gpu, GpuStream, Memory
from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Baseline, Observed


class Peer(Protocol):
    """Another role of the probe. If it ends, this role also ends, but is not blamed."""

    def send(self, value: Json | bytes) -> None: ...
    def recv(self) -> Json:
        """Wait for the partner's next value. A value of type `bytes` arrives unchanged."""

    def recv_or_end(self) -> Json:
        """As `recv`, but None if the partner ends first."""

    def has_news(self) -> bool:
        """Whether `recv` would return, or end this role, without waiting. The partner must wait after
        sending."""

    def send_descriptor(self, descriptor: int) -> bool:
        """Pass a descriptor to a partner that calls `recv_descriptor` or `fetch_descriptor`; returns whether
        it arrived."""

    def recv_descriptor(self) -> int:
        """The partner's descriptor, received in a message (``SCM_RIGHTS``); this role closes it."""

    def fetch_descriptor(self) -> int:
        """The partner's descriptor, fetched from its process (``pidfd_getfd``); this role closes it.

        Raises `OSError` if the kernel refuses; the partner's ``send_descriptor`` then returns False.
        """

    def wait_gone(self) -> None:
        """Wait until the partner's process has ended."""


class Mpi(Protocol):
    """``MPI_COMM_WORLD`` as seen by a rank. Addresses may be the host's or a GPU's; sizes are bytes.

    A failed MPI call raises `DriverError`, as a driver call does.
    """

    rank: int
    size: int

    @property
    def node(self) -> str:
        """Name of this rank's node."""

    def library_version(self) -> str: ...
    def send(self, address: int, nbytes: int, to: int, tag: int = 0) -> None: ...
    def recv(self, address: int, nbytes: int, source: int, tag: int = 0) -> None: ...
    def isend(self, address: int, nbytes: int, to: int) -> object:
        """Start sending; pass the result to ``wait``."""

    def irecv(self, address: int, nbytes: int, source: int) -> object: ...
    def wait(self, requests: Sequence[object]) -> None: ...
    @property
    def api(self) -> Any:
        """mpi4py's MPI module, for functions without a method here. Call such functions through ``call``."""

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of mpi4py, journalled under its name in C."""

    def is_truncation(self, error: DriverError) -> bool:
        """Whether the error means that a message was too long for its receive."""

    def is_unsupported(self, error: DriverError) -> bool:
        """Whether the error means that the library does not have the operation."""

    def barrier(self) -> None: ...
    def any_says(self, mine: bool) -> bool:
        """Whether ``mine`` is true on any rank. Collective, like a barrier."""

    def first_says(self, number: int) -> int:
        """The number that rank 0 passes. Collective, like a barrier."""

    def ping_pong(self, address: int, nbytes: int, partner: int, rounds: int) -> list[float]:
        """Send blocking messages to ``partner`` and back; returns seconds one way for each round.

        All rounds together have one deadline.
        """

    def finalize(self) -> None:
        """Finalise MPI. The worker does it if the role function has not."""


class Fabric(Protocol):
    """libfabric and UCX, through their programs. Each is a child process, journalled under its name."""

    def look(self, programs: Mapping[str, str], results: str | None, *, transports: bool) -> dict[str, Json]:
        """Facts about the fabric from the ``programs`` (name → file), ``/sys`` and the files in ``results``.

        Keys: ``libfabric`` and ``ucx`` (versions); ``interfaces`` and, if asked for, ``transports`` (see
        `worker.fabric_interfaces`); ``adapters`` and ``ports`` (`node.fabric_devices`); ``health``
        (`worker.cxi_healthcheck`).
        """

    def routes(self, fi_info: str | None, *, across: bool, stated: str | None) -> list[str]:
        """Providers that an MPI would use for small messages, within this node or ``across`` nodes.

        If the site config names a fabric (``stated``), the result has only this fabric's providers.
        """

    def ping_pong(
        self,
        program: str,
        route: str,
        sizes: Sequence[int],
        rounds: int,
        stated: str | None,
        operations: Sequence[str] = ("message",),
        *,
        apart: bool = False,
    ) -> dict[str, Json]:
        """Send messages to the other role's process of ``program`` and back; both roles call it. Only UCX's
        program takes several ``sizes``, and the ``operations`` ``put`` and ``get``.

        ``apart``: each program in a PID namespace of its own, if nothing speaks against it (`why_not_apart`).
        ``route`` is a libfabric provider, or the kind of memory that UCX sends from. Returns the result of
        `worker.message_pair.judge`; its key ``chosen`` has the variables that make UCX use the ``stated``
        fabric, and ``carried`` what carried the largest size: see `worker.ucx_protocols.carried`.
        """

    def why_not_apart(self) -> str:
        """Why this process may not give a program a PID namespace; empty if it may."""

    def carried(self, nbytes: int, backend: str) -> Mapping[str, Json]:
        """The same, from what UCX or Open MPI printed here since the last call: see `carriers.telling`."""

    def register_dmabuf(self, descriptor: int, address: int, nbytes: int) -> dict[str, list[str]]:
        """Register memory with each RDMA adapter: see `worker.verbs.register_dmabuf`."""


class Communicator(Protocol):
    """A communicator of NCCL or RCCL, as seen by one rank.

    Addresses are of device memory, counts are in elements of type ``kind`` (``float32``), and calls are
    queued in a stream. A ``reduction`` is a ``sum``, a ``maximum``, an ``average`` or, of floats, the sum of
    ``doubled`` elements. A failed call raises `DriverError`.
    """

    rank: int
    size: int

    def all_reduce(
        self, source: int, target: int, count: int, kind: str, stream: GpuStream, reduction: str = "sum"
    ) -> None:
        """Reduce the elements of all ranks."""

    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        kind: str,
        root: int,
        stream: GpuStream,
        reduction: str = "sum",
    ) -> None:
        """Reduce the elements of all ranks on rank ``root``."""

    def broadcast(
        self, source: int, target: int, count: int, kind: str, root: int, stream: GpuStream
    ) -> None: ...
    def all_gather(self, source: int, target: int, count: int, kind: str, stream: GpuStream) -> None:
        """Gather ``count`` elements of each rank."""

    def reduce_scatter(
        self, source: int, target: int, count: int, kind: str, stream: GpuStream, reduction: str = "sum"
    ) -> None:
        """Reduce the elements of all ranks; each rank gets its ``count`` elements of the result."""

    def send(self, source: int, count: int, kind: str, to: int, stream: GpuStream) -> None: ...
    def recv(self, target: int, count: int, kind: str, source: int, stream: GpuStream) -> None: ...
    def check(self) -> None:
        """Raise `DriverError` if work in a stream has failed."""

    def split(self, color: int, key: int, size: int, rank: int) -> Communicator:
        """A communicator of the ranks with the same ``color``, ordered by ``key``: of how many ranks it is,
        and which of them is this one, the caller knows."""

    def register(self, buffer: Memory) -> Callable[[], None]:
        """Register a buffer; returns the function that deregisters it."""

    def destroy(self) -> None: ...
    def abort(self) -> None: ...


class Collectives(Protocol):
    """NCCL or RCCL, loaded in this process."""

    @property
    def version(self) -> str:
        """The library's version as it reports it: ``2.28.9``."""

    def lacks(self, *calls: str) -> list[str]:
        """Those of these functions that this version of the library lacks."""

    def unique_id(self) -> bytes: ...
    def init(self, size: int, unique_id: bytes, rank: int) -> Communicator:
        """Create a communicator on this role's device; all ranks take part."""

    def group(self) -> AbstractContextManager[None]:
        """Start all calls inside the block together at its end."""

    def alloc(self, nbytes: int) -> Buffer:
        """Device memory allocated by the library (``ncclMemAlloc``)."""

    def log(self) -> str:
        """What this process has printed so far; the library prints its transports there."""


class ChildGone(Exception):
    """A process that a role started has ended; the argument says how: a signal's name, or ``exit 1``."""


class ChildHangs(Exception):
    """A process that a role started did not answer in time."""


class Child(Protocol):
    """A process that a role started, as seen by the function that runs in it."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All devices of the probe, through a driver loaded by this process."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors received with the latest message; this process closes them."""

    def progress(self, number: int) -> None:
        """Record this process's progress, which is kept even if the process ends."""

    def recv(self) -> Json:
        """Wait for the role's next message; if the role has ended, this process also ends."""

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None: ...


class ChildProcess(Protocol):
    """A process that a role started, as seen by the role."""

    @property
    def pid(self) -> int: ...
    @property
    def call(self) -> str:
        """The process's latest driver call, which may still be running."""

    @property
    def progress(self) -> int:
        """The latest progress that the process recorded."""

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors received with the latest message; this role closes them."""

    def send(self, value: Json, descriptors: Sequence[int] = ()) -> None:
        """Send a message to the process. Raises `ChildGone`."""

    def recv(self, limit_s: float) -> Json:
        """The process's next message. Raises `ChildGone`, or `ChildHangs` after ``limit_s`` seconds without a
        driver call or progress. Time in which the process waits for a processor is not counted."""

    def kill(self) -> None:
        """Kill the process and wait for its end."""

    def end(self, limit_s: float) -> str:
        """Let the process exit normally and wait for it; returns how it ended. Raises `ChildHangs`."""


class Worker(Protocol):
    """The process in which a role function runs, as seen by the role function."""

    @property
    def role(self) -> str: ...
    @property
    def node(self) -> str:
        """Name of this role's node."""

    @property
    def shared_memory(self) -> Path:
        """The directory ``/dev/shm``; a simulated node has its own."""

    @property
    def gpu(self) -> Gpu:
        """This role's device: the probe's only one, or the device with the role's index."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All devices of the probe, in the probe's order."""

    def wait_for_baseline(self, baselines: Sequence[Baseline]) -> tuple[list[int], bool]:
        """Wait until the devices are idle, if their idle level is known.

        Returns the bytes in use on each device without this process, and whether NVML reported all of them. A
        context is created on each device whose bytes NVML does not report.
        """

    def memory_of_nobody(self) -> list[tuple[int, list[int]] | None]:
        """For each device the bytes in use that no process holds, and the pids of those that hold some; None
        if unknown. Creates no context."""

    def host_memory(self, nbytes: int) -> Memory:
        """Ordinary memory of this process, as zeros."""

    def allocator(self, name: str) -> Allocator:
        """An allocator of `Context.allocators` on ``gpu``; imports its library, which may take seconds."""

    def clock(self) -> float:
        """Seconds since a fixed time before this process started."""

    def without_processor_s(self) -> float:
        """Seconds for which this process was ready to run but had no processor; 0 if unknown."""

    @property
    def by_process(self) -> bool:
        """Whether other probes run on the devices: see `Gpu.by_process`."""

    def share_devices(self) -> None:
        """Let other probes run on the devices from now on: see `Probe.alone_at_first`."""

    @property
    def goes_on(self) -> bool:
        """Whether this role's process runs another probe after this one."""

    @property
    def kept(self) -> dict[str, Json]:
        """Values for the probes that this process runs later."""

    @property
    def peer(self) -> Peer:
        """The first of ``peers``; with two roles, the other one."""

    @property
    def peers(self) -> Sequence[Peer]:
        """For the first role, all other roles in the probe's order; for any other role, only the first."""

    @property
    def mpi(self) -> Mpi:
        """MPI, initialised at first use, for roles that are ranks."""

    @property
    def fabric(self) -> Fabric: ...
    def collectives(self, library: str) -> Collectives:
        """Load NCCL or RCCL from this file. Raises `BackendUnavailable`."""

    def start(self, act: Callable[[Child], None]) -> ChildProcess:
        """Start a process that calls ``act`` and then ends. Only roles in `Probe.starters` may do so."""

    @property
    def params(self) -> Mapping[str, Json]: ...
    @property
    def deadline_s(self) -> float:
        """Seconds allowed for a single operation."""

    def discover(self, backend: str) -> dict[str, Json]:
        """Initialise a backend's driver; returns its ``devices`` and ``facts`` as JSON.

        ``on_bus`` is the number of its GPUs on the node's PCI bus, ``hiding`` the variables that hide devices
        from this process.
        """

    def compare_gpus(self, backend: str, found: Sequence[Json], *, few: bool = False) -> dict[str, Json]:
        """What equal GPUs should have in common, as JSON; empty for fewer than four devices, unless ``few``.

        ``found``: the devices of `discover`. ``traits``: label → trait → value. ``ways``: label → label → how
        one reaches the other, such as ``NV18``. See `equal_gpus`.
        """

    def gpu_health(self, gpus: Sequence[Sequence[str]], after: int = -1) -> dict[str, Json]:
        """Figures of GPUs' health, read without a context; see `worker.health_figures.read`."""

    def dcgm(self, limit_s: float) -> dict[str, Json]:
        """The result of NVIDIA's ``dcgmi diag -r 1``: see `worker.dcgm.run`."""

    def mpi_facts(self, library: str | None, backends: Sequence[str]) -> dict[str, Json]:
        """Load an MPI library, by default the one that mpi4py finds, without initialising it. See
        `worker.mpi_survey.report`. Raises `BackendUnavailable`."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """Name the next step; a failure in it is reported with this name and the driver call."""

    def armed(self, operation: str) -> AbstractContextManager[None]:
        """If this process ends inside the block, attribute its end to ``operation``. GPU calls need no such
        block."""

    def record(self, **facts: Json) -> None:
        """Keep facts for ``judge``; they survive a later crash of this worker. Only the check reads them."""

    def observe(self, name: Observed, text: str) -> None:
        """Keep a text that becomes evidence if this role fails later; the latest of each name counts."""

    def excuse(self, gap: str) -> None:
        """From now on, an end of this role in a call is a SKIP: by documentation, its library does not
        support ``gap``. An empty text ends that."""

    def act_for(self, check: str) -> None:
        """From now on, a failure of this role belongs to this one of the checks that share its launch."""

    def tested(self, library: str, version: str) -> None:
        """Keep the version that a library of collectives (``nccl``) reports."""

    def price(self, figure: float, unit: str) -> None:
        """Keep a figure that shows the cost of a workaround if the probe is rerun with one."""

    def reach(self, trying: int, at: int, do: str, waits_for: int | None = None) -> None:
        """Keep how far this rank has come in its history. See `probe_types.Reached`."""

    def keep_meter(self, device: str, entries: Json) -> None:
        """For `api.meter`: keep the entries of a device, empty for the role's own."""

    def keep_loop(self, loop: Json) -> None:
        """For `api.meter`: keep the samples so far of a watched loop; None after it."""

    def keep_usage(self, what: str, figures: Json) -> None:
        """For `api.process_leaks`: keep the process's figures after each repetition of an operation."""

    def tell(self, news: Json) -> None:
        """For endless probes: send a message to the probe's listener at once, and begin a new journal."""

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Poll ``condition`` until it holds or ``limit_s`` seconds are over; returns whether it holds."""

    def die(self) -> NoReturn:
        """Kill this process, as part of the test; the role counts as completed."""
