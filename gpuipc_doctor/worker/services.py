"""Services of a worker for its role function."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from gpuipc_doctor import node_name
from gpuipc_doctor.api import loader
from gpuipc_doctor.api.allocator import Allocator
from gpuipc_doctor.api.capabilities import words_of_lack
from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.api.equal_gpus import FEWEST
from gpuipc_doctor.api.memory_counter import NOISE_BYTES
from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.model import Device, Json
from gpuipc_doctor.probe_types import Baseline, Observed
from gpuipc_doctor.supervise.assignment import (
    Assignment,
    RoleFiles,
    announced,
    device_from_json,
    device_to_json,
)
from gpuipc_doctor.supervise.journal import Journal
from gpuipc_doctor.worker import children
from gpuipc_doctor.worker.allocators import open_allocator
from gpuipc_doctor.worker.backends import Backend, open_backend
from gpuipc_doctor.worker.backends.device import DriverGpu
from gpuipc_doctor.worker.peer import Peer, PeerLost
from gpuipc_doctor.worker.stack_timer import StackTimer

if TYPE_CHECKING:
    from gpuipc_doctor.worker.fabric import Fabric
    from gpuipc_doctor.worker.mpi_communicator import Communicator
    from gpuipc_doctor.worker.nccl import Library


class Unfit(Exception):
    """A GPU of this probe lacks a capability that the check requires."""


class HostMemory:
    """Host memory at a fixed address."""

    def __init__(self, nbytes: int) -> None:
        import ctypes

        self.nbytes = nbytes
        self._array = ctypes.create_string_buffer(nbytes)
        self.address = ctypes.addressof(self._array)

    def write(self, data: bytes, offset: int = 0) -> None:
        memoryview(self._array).cast("B")[offset : offset + len(data)] = data

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        end = self.nbytes if nbytes is None else offset + nbytes
        return bytes(memoryview(self._array).cast("B")[offset:end])


def _is_at_baseline(backend: Backend, device: Device, used: int) -> bool:
    return backend.memory_used_from_outside(device) <= used + NOISE_BYTES


class Drivers:
    """The drivers and the MPI that this process has opened. In a tour they are kept from visit to visit."""

    def __init__(self) -> None:
        self.opened: dict[str, Backend] = {}
        self.worker: Worker
        self.kept: dict[str, Json] = {}
        self._world: Communicator | None = None

    def open(self, name: str, root: str) -> Backend:
        if name not in self.opened:
            self.opened[name] = open_backend(name, self._armed, root)
        return self.opened[name]

    def world(self, ranks: int) -> Communicator:
        """``MPI_COMM_WORLD`` of this number of ranks, initialised at first use."""
        from gpuipc_doctor.worker.mpi_communicator import Communicator

        self._world = self._world or Communicator(ranks, self._armed)
        return self._world

    def _armed(self, operation: str) -> AbstractContextManager[None]:
        return self.worker.armed(operation)


class Worker:
    """The worker as seen by a role function; implements ``api.Worker``."""

    def __init__(
        self,
        files: RoleFiles,
        assignment: Assignment,
        peer_fds: Sequence[int],
        journal: Journal,
        timer: StackTimer,
        drivers: Drivers,
    ) -> None:
        self.role = files.role
        self._inbox = files.inbox
        self._turn_file = files.turn
        self._directory = files.directory
        self._assignment = assignment
        self._peer_fds = tuple(peer_fds)
        self._journal = journal
        self._timer = timer
        self._drivers = drivers
        self._allocators: list[Allocator] = []
        drivers.worker = self

    @property
    def params(self) -> Mapping[str, Json]:
        return self._assignment.params

    @property
    def deadline_s(self) -> float:
        return self._assignment.deadline_s

    @cached_property
    def gpus(self) -> tuple[DriverGpu, ...]:
        return tuple(self._open(device) for device in self._assignment.devices)

    def _open(self, device: Device) -> DriverGpu:
        backend = self._backend(device.backend)
        try:
            gpu = backend.gpu(device, by_process=self.by_process)
        except BackendUnavailable:
            if not self._assignment.ranks or device == self._own_device:
                raise
            return backend.hidden(device)  # by a launcher that binds GPUs: it is another rank's
        check = getattr(loader.module(Path(self._assignment.check_file)), "CHECK", None)
        # Also tested here: a prolog has not tested before, and an administrator can change the mode.
        if check and check.requires and (lacking := check.requires - gpu.capabilities):
            self._journal.keep("lacking", sorted(lacking))
            raise Unfit(f"{device.label} {words_of_lack(device.vendor, lacking)}")
        return gpu

    @property
    def node(self) -> str:
        return node_name.full()

    @property
    def shared_memory(self) -> Path:
        return Path(self._assignment.root, "dev/shm")

    @property
    def gpu(self) -> DriverGpu:
        return self.gpus[self._assignment.devices.index(self._own_device)]

    @property
    def _own_device(self) -> Device:
        devices = self._assignment.devices
        return devices[self._assignment.place % len(devices)]

    def prepare(self) -> None:
        """Initialise the driver before the start signal, which takes time and no device memory."""
        assignment = self._assignment
        if assignment.waits_for_turn and not (assignment.starter or assignment.ends):
            for backend, _ in self._unopened:
                backend.initialise()
            self._timer.rest()

    def rendezvous(self) -> None:
        """At the start of a later visit of a tour, wait until every role has come, and connect to the
        others. Ranks make their visits in turn."""
        assignment = self._assignment
        if assignment.among:
            self._timer.rest()
            self._await_turn()
        if assignment.rendezvous > 1:
            from gpuipc_doctor.worker import node_socket

            try:
                self._peer_fds = node_socket.connect(
                    self._directory, assignment.place, self._journal, assignment.rendezvous
                )
            except OSError as error:
                raise PeerLost from error

    def begin(self) -> None:
        """Wait for the start signal and for idle devices. Only the first role reads the devices' memory
        use."""
        if not self._assignment.waits_for_turn:
            return
        if self._assignment.place != 0:
            self._timer.rest()
            self.peer.recv()
            return
        for backend, device in self._unopened:
            backend.is_seen_from_outside(device)  # NVML is also slow
        self._timer.rest()
        baselines = self._await_turn()
        used, _ = self.wait_for_baseline(baselines)
        waited = zip(used, baselines, strict=True)
        self._journal.keep("baselines", [now if rest.used is not None else None for now, rest in waited])
        for peer in self.peers if self._peer_fds else ():
            peer.send(None)

    def _await_turn(self) -> Sequence[Baseline]:
        with self._journal.waiting():
            while (baselines := announced(self._turn_file)) is None:
                time.sleep(0.005)
        return baselines

    def wait_for_baseline(self, baselines: Sequence[Baseline]) -> tuple[list[int], bool]:
        devices = self._unopened
        for (backend, device), rest in zip(devices, baselines, strict=True):
            if rest.used is not None:
                self.wait_until(partial(_is_at_baseline, backend, device, rest.used), rest.patience_s)
        used = [backend.memory_used_from_outside(device) for backend, device in devices]
        return used, all(backend.is_seen_from_outside(device) for backend, device in devices)

    def memory_of_nobody(self) -> list[tuple[int, list[int]] | None]:
        return [backend.memory_of_nobody(device) for backend, device in self._unopened]

    @property
    def _unopened(self) -> list[tuple[Backend, Device]]:
        return [(self._backend(device.backend), device) for device in self._assignment.devices]

    def record_holders(self) -> None:
        """After a call that ran out of memory, record how much is free, and which processes hold the rest."""
        with self._journal.aside():
            held = [holder for gpu in self.gpus for holder in gpu.memory_holders()]
            with suppress(DriverError):
                self._journal.keep("memory", [gpu.memory_left() for gpu in self.gpus])
        self._journal.keep("holders", held)

    def record_refusals(self, error: DriverError) -> None:
        """After a failed call, record which of the devices refuses it by design."""
        with suppress(DriverError):
            reasons = [(gpu.device.label, gpu.refuses_by_design(error)) for gpu in self.gpus]
            self._journal.keep("by_design", next((" ".join(each) for each in reasons if each[1]), ""))

    def host_memory(self, nbytes: int) -> HostMemory:
        return HostMemory(nbytes)

    def allocator(self, name: str) -> Allocator:
        allocator = open_allocator(name, self.gpu)
        self._allocators.append(allocator)
        return allocator

    @property
    def by_process(self) -> bool:
        return self._assignment.by_process

    def share_devices(self) -> None:
        self._journal.keep("shares", self.by_process)

    @property
    def goes_on(self) -> bool:
        return bool(self._assignment.then)

    @property
    def kept(self) -> dict[str, Json]:
        return self._drivers.kept

    def clock(self) -> float:
        return time.monotonic()

    def without_processor_s(self) -> float:
        _, waited, *_ = [*quietly(Path("/proc/thread-self/schedstat")).split(), "0", "0"]
        return int(waited) / 1e9

    @cached_property
    def mpi(self) -> Communicator:
        if not self._assignment.ranks:
            raise RuntimeError(f"role {self.role} is not a rank: only probes with a launcher have MPI")
        from gpuipc_doctor.node import loaded

        communicator = self._drivers.world(self._assignment.ranks)
        if self._assignment.among:
            communicator = communicator.among(self._assignment.among)
        self._journal.keep("loaded", loaded.fabric())
        return communicator

    def mpi_facts(self, library: str | None, backends: Sequence[str]) -> dict[str, Json]:
        from gpuipc_doctor.worker import mpi_survey

        return mpi_survey.report(library, backends, self.armed)

    def finish(self) -> None:
        """The worker's last steps after its role function returned."""
        self._journal.tell_returned()
        children.remove_files_of_ended()
        if self._assignment.then:
            for allocator in self._allocators:
                allocator.leave()
            for backend in self._drivers.opened.values():
                backend.end_contexts(self._assignment.keeps)
        is_last_of_mpi = self._assignment.among or not self._assignment.then
        if "mpi" in vars(self) and is_last_of_mpi:
            self.mpi.finalize()

    @property
    def peer(self) -> Peer:
        return self.peers[0]

    @cached_property
    def peers(self) -> tuple[Peer, ...]:
        if not self._peer_fds and self._assignment.ranks == 2:
            from gpuipc_doctor.worker import node_socket

            place = self._assignment.place
            if self._assignment.nodes == 1:
                self._peer_fds = node_socket.connect(self._directory, place, self._journal)
            else:
                self._peer_fds = (node_socket.connect_nodes(self._directory, place, self._journal),)
        if not self._peer_fds:
            raise RuntimeError(f"role {self.role} has no peer: the probe has no second role or rank")
        return tuple(Peer(fd, self._journal) for fd in self._peer_fds)

    @cached_property
    def fabric(self) -> Fabric:
        from gpuipc_doctor.worker import node_socket
        from gpuipc_doctor.worker.fabric import Fabric

        assignment = self._assignment
        host = node_socket.host() if assignment.nodes > 1 else "127.0.0.1"
        return Fabric(assignment.place, Path(assignment.root), self.armed, lambda: self.peer, host)

    def collectives(self, library: str) -> Library:
        from gpuipc_doctor.worker.nccl import Library

        return Library(library, self.gpu, self.armed, self.observe)

    def start(self, act: Callable[[children.Child], None]) -> children.ChildProcess:
        if not self._assignment.starter or self._drivers.opened:
            why = "the role is not in Probe.starters, or has opened a driver"
            raise RuntimeError(f"role {self.role} cannot start a process: {why}")
        journal = self._journal
        return children.start(act, self._assignment, journal.add_returned, journal.disarm)

    def _backend(self, name: str) -> Backend:
        return self._drivers.open(name, self._assignment.root)

    def discover(self, backend: str) -> dict[str, Json]:
        opened = self._backend(backend)
        return {
            "devices": [device_to_json(device) for device in opened.devices()],
            "on_bus": opened.driver.absence.on_bus(),
            "off_bus": opened.driver.absence.off_bus(),
            "instances": opened.driver.absence.instances_given(),
            "hiding": opened.driver.absence.hiding(),
            "mistakes": opened.driver.absence.mistakes(),
            "facts": [[fact.name, fact.value, fact.source] for fact in opened.versions()],
        }

    def compare_gpus(self, backend: str, found: Sequence[Json], *, few: bool = False) -> dict[str, Json]:
        devices = [device_from_json(device) for device in found]
        enough = few or len(devices) >= FEWEST
        return self._backend(backend).driver.compare_gpus(devices) if enough else {}

    def gpu_health(self, gpus: Sequence[Sequence[str]], after: int = -1) -> dict[str, Json]:
        from gpuipc_doctor.worker import health_figures

        return health_figures.read(self.armed, self._assignment.root, gpus, after)

    def dcgm(self, limit_s: float) -> dict[str, Json]:
        from gpuipc_doctor.worker import dcgm

        with self.armed("dcgmi"):
            return dcgm.run(self.wait_until, limit_s)

    def armed(self, operation: str) -> AbstractContextManager[None]:
        self._timer.renew()
        return self._journal.armed(operation)

    def step(self, text: str) -> AbstractContextManager[None]:
        return self._journal.step(text)

    def record(self, **facts: Json) -> None:
        self._journal.record(facts)

    def observe(self, name: Observed, text: str) -> None:
        self._journal.keep("observed", text, name.value)

    def excuse(self, gap: str) -> None:
        self._journal.keep("unsupported", gap)

    def act_for(self, check: str) -> None:
        self._journal.keep("acts_for", check)

    def tested(self, library: str, version: str) -> None:
        self._journal.keep("tested", version, library)

    def price(self, figure: float, unit: str) -> None:
        self._journal.keep("price", (figure, unit))

    def reach(self, trying: int, at: int, do: str, waits_for: int | None = None) -> None:
        self._journal.keep("reached", (trying, at, do, waits_for))

    def keep_meter(self, device: str, entries: Json) -> None:
        self._journal.keep("meters", entries, device)

    def keep_loop(self, loop: Json) -> None:
        self._journal.keep("loop", loop)

    def keep_usage(self, what: str, figures: Json) -> None:
        self._journal.keep("usage", figures, what)

    def tell(self, news: Json) -> None:
        self._journal.begin_anew()
        with self._journal.waiting():
            self._mouth.write(json.dumps(news).encode() + b"\n")
            self._mouth.flush()

    @cached_property
    def _mouth(self) -> BinaryIO:
        return self._inbox.open("wb")

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        until = time.monotonic() + limit_s
        while not (holds := condition()) and time.monotonic() < until:
            time.sleep(0.02)
        return holds

    def hang_up(self) -> None:
        if self._peer_fds:
            for peer in self.peers:
                peer.hang_up()

    def die(self) -> NoReturn:
        self._journal.dying()
        self.hang_up()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")
