"""Start a probe's workers: each role by this process, or all ranks by an MPI launcher."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuipc_doctor.api import loader
from gpuipc_doctor.files import python
from gpuipc_doctor.model import Device, Node
from gpuipc_doctor.probe_types import Launch, Probe
from gpuipc_doctor.stacks.proc_files import RANK_VARIABLES
from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.supervise import rank, tree
from gpuipc_doctor.supervise.assignment import Assignment, Order, RoleFiles
from gpuipc_doctor.supervise.journal import Progress
from gpuipc_doctor.supervise.role import (
    ChildProcess,
    ForkedProcess,
    LaunchedProcess,
    RunningRole,
    WorkerProcess,
)
from gpuipc_doctor.vendors import SUPPORTED

LAUNCHER_LOG = "launcher.log"
"""The launcher's output, in the probe's directory."""

Fork = Callable[[set[str], Mapping[str, str], Order], int | None]
"""Fork a worker from the fork server with these imports and this environment; returns its pid, or None
without a fork server.
"""

_LISTS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")
"""Variables that are lists: an addition is put in front of the old value. Other variables are replaced."""

_OF_ONE_PROCESS = re.compile(r"PMI_|PMIX_(?!MCA_)|OMPI_COMM_WORLD_|SLURMD_NODENAME$")
"""Variables with which launchers give a process its rank, job and node.

Hydra would pass them on to ranks on other nodes.
"""


def imports(probe: Probe) -> set[str]:
    """Modules to import before a probe's workers are forked: see `worker.fork_server`."""
    return {device.backend for device in probe.devices} | set(probe.imports)


def environment_with(*additions: Mapping[str, str], unset: Collection[str] = frozenset()) -> dict[str, str]:
    """Our environment plus additions. Workers start elsewhere, so paths in PYTHONPATH become absolute.

    ``unset``: variables to leave out; of lists only our own environment's part.
    """
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    for addition in additions:
        for name, value in addition.items():
            present = environment.get(name) if name in _LISTS else None
            if name in _LISTS or name not in unset:
                environment[name] = f"{value}:{present}" if present else value
    if paths := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(
            str(Path(path).absolute()) for path in paths.split(os.pathsep) if path
        )
    return environment


@dataclass(frozen=True, slots=True)
class Visit:
    """A probe in a tour, with its check's file and the directory of its files.

    ``ranks``: the ranks of the tour's launch that have its roles, in this order; empty if the roles have the
    same names in the whole tour.
    """

    probe: Probe
    check_file: Path
    directory: Path
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts the roles of a probe, with ``marker`` in their environment.

    ``waits_for_turn``: they create no context before the start signal (see `turn`). ``temporary``: directory
    for temporary files of a launcher and its ranks; None: the usual one. Leftovers of Open MPI's launcher in
    the usual one make a later process with the same pid fail. ``later``: the visits after this probe in the
    same processes.
    """

    probe: Probe
    check_file: Path
    directory: Path
    node: Node
    marker: str
    fork: Fork
    waits_for_turn: bool = False
    temporary: Path | None = None
    later: tuple[Visit, ...] = ()
    tour: tuple[Device, ...] = ()
    """The devices of all visits, which AMD's processes see alike; empty for a single probe."""

    def start(self) -> dict[str, RunningRole]:
        return self._ranks(self.probe.launch) if self.probe.launch else self._children()

    def start_anew(self, roles: Iterable[str]) -> dict[str, RunningRole]:
        """Start some roles at a later visit of a tour, each in a new process that makes this visit and those
        behind it."""
        return {role: self._child(role, (), is_later=True) for role in roles}

    def _children(self) -> dict[str, RunningRole]:
        """Each role as a child process; socket pairs connect the first with each of the others."""
        first, *others = self.probe.roles
        pairs = {name: socket.socketpair() for name in others}
        ends = {first: [one for one, _ in pairs.values()]} | {name: [end] for name, (_, end) in pairs.items()}
        try:
            return {name: self._child(name, peers) for name, peers in ends.items()}
        finally:
            for end in itertools.chain(*pairs.values()):
                end.close()

    def _child(self, role: str, peers: Sequence[socket.socket], *, is_later: bool = False) -> RunningRole:
        files = self._assign(role, is_later=is_later)
        environment = environment_with(self.probe.env, self.node.env, unset=self.probe.unset)
        own = self._own(environment, role)
        if not any(name in visit.probe.concurrent for visit, name in self._stops_of(role)):
            own |= one_queue(self.probe.devices, environment)
        fds = {f"peer {number}": peer.fileno() for number, peer in enumerate(peers, 1)}
        with files.log.open("ab") as log:  # appending: see `evidence.bounded_logs`
            own_fds = {"log": log.fileno(), **fds}
            order = Order(str(self.directory), role, self.marker, own, files=own_fds)
            pid = self.fork(imports(self.probe), environment, order)
        if pid is not None:
            return _running(ForkedProcess(pid), files)
        command = [*self._command, role, *map(str, fds.values())]
        return _running(
            _popen(command, files.log, self.directory, environment | own, tuple(fds.values())), files
        )

    def _ranks(self, launch: Launch) -> dict[str, RunningRole]:
        """All roles as ranks of one launcher, which starts a `rank` process for each."""
        common = {"TMPDIR": str(self.temporary)} if self.temporary else dict[str, str]()
        files_of = {role: self._assign(role, ranks=len(self.probe.roles)) for role in self.probe.roles}
        preload = {"LD_PRELOAD": ":".join(launch.preload)} if launch.preload else {}
        additions = (common, launch.env, preload, self.node.env, self.node.rank_env)
        wanted = environment_with(*additions, unset=self.probe.unset)
        wanted |= self._own(wanted)
        changes = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
        plan = {
            "roles": list(files_of),
            "command": self._command,
            "environment": changes,
            "rank_variables": RANK_VARIABLES,
        }
        (self.directory / rank.PLAN).write_text(json.dumps(plan))
        command = launch.with_ranks(len(files_of))
        starter = python.script(rank.__file__, str(self.directory))
        log = self.directory / LAUNCHER_LOG
        environment = environment_with(common, launch.env, unset=self.probe.unset)
        environment |= self._own(environment)
        for name in filter(_OF_ONE_PROCESS.match, os.environ):  # this process may itself be a rank
            environment.pop(name, None)
        try:
            launcher = _popen([*command, *starter], log, self.directory, environment)
        except OSError as error:
            log.write_text(f"{command[0]}: {error.strerror}\n")
            launcher = None
        return {
            role: _running(LaunchedProcess(launcher, files), files, same_clock=self._stays)
            for role, files in files_of.items()
        }

    @property
    def _command(self) -> list[str]:
        """A worker's command line, without its role and the descriptors of its peers."""
        environment = {**os.environ, **self.node.env}
        return python.module("gpuipc_doctor.worker", str(self.directory), environment=environment)

    @property
    def _stays(self) -> bool:
        return self.probe.launch is None or self.probe.launch.nodes == 1

    def _assign(self, role: str, *, ranks: int = 0, is_later: bool = False) -> RoleFiles:
        """Write the assignments of the visits that a role's process makes."""
        stops = self._stops_of(role)
        for number, (visit, name) in enumerate(stops):
            probe, later = visit.probe, stops[number + 1 :]
            devices = probe.devices
            if not self._stays:  # on another node it is another device of the same number
                devices = tuple(replace(device, uuid="", pci="") for device in devices)
            Assignment(
                check_file=str(visit.check_file),
                function=loader.started_as(probe.roles[name]),
                place=list(probe.roles).index(name),
                devices=devices,
                params=probe.params,
                deadline_s=probe.deadline_s,
                root=self.node.root,
                ranks=ranks,
                nodes=probe.launch.nodes if probe.launch else 1,
                waits_for_turn=self.waits_for_turn,
                starter=role in probe.starters,
                then=(str(later[0][0].directory), later[0][1]) if later else (),
                keeps=_keeps(probe, [visit for visit, _ in later]),
                rendezvous=len(probe.roles) if number or is_later else 0,
                ends=name in probe.ends,
                among=visit.ranks,
                by_process=probe.by_process and not probe.exclusive,
            ).write(RoleFiles(visit.directory, name).assignment)
        return RoleFiles(self.directory, role)

    def _stops_of(self, role: str) -> list[tuple[Visit, str]]:
        """The visits that this role's process makes, and its role at each."""
        stops = [(Visit(self.probe, self.check_file, self.directory), role)]
        rank = list(self.probe.roles).index(role) if role else 0
        before = self.probe
        for visit in self.later:
            if role in before.parts_from(visit.probe):
                break
            before = visit.probe
            if not visit.ranks:
                stops.append((visit, role))
            elif rank in visit.ranks:
                stops.append((visit, list(visit.probe.roles)[visit.ranks.index(rank)]))
        return stops

    def _own(self, environment: Mapping[str, str], role: str = "") -> dict[str, str]:
        own = {MARKER: self.marker}
        if self._stays and not (self.probe.launch and self.probe.launch.shows):
            visited = devices_of(visit for visit, _ in self._stops_of(role))
            if any(device.vendor.handles_have_numbers for device in visited):
                visited = self.tour or visited
            own |= visible_devices(visited, environment) or self.node.visible
        return own


def devices_of(visits: Iterable[Visit]) -> tuple[Device, ...]:
    return tuple(dict.fromkeys(device for visit in visits for device in visit.probe.devices))


def _keeps(now: Probe, later: Sequence[Visit]) -> tuple[str, ...]:
    """The devices whose next visit may use a context of an earlier one. Where a process ends before it, that
    visit waits until the device is idle."""
    following: dict[str, Visit] = {}
    for visit in later:
        for device in visit.probe.devices:
            following.setdefault(device.label, visit)
    return tuple(
        label
        for label, visit in following.items()
        if not (visit.probe.fresh == "context" or visit.probe.ends or visit.probe.library != now.library)
    )


def _popen(
    command: list[str], log: Path, directory: Path, environment: Mapping[str, str], fds: tuple[int, ...] = ()
) -> ChildProcess:
    with log.open("ab") as output:  # appending: see `evidence.bounded_logs`
        process = subprocess.Popen(
            command,
            cwd=directory,  # private: nothing in this directory shadows a module
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
            start_new_session=True,
        )
    tree.carry_priority(process.pid)
    return ChildProcess(process)


def _running(process: WorkerProcess, files: RoleFiles, *, same_clock: bool = True) -> RunningRole:
    return RunningRole(process, files, Progress(files.journal, same_clock), time.monotonic())


# -- what its driver sees and makes ---------------------------------------------------------------------
#
# A start costs by what the driver makes: so the GPUs which the probe is about, and of the queues between host
# and GPU the one which a single stream uses. On an H200 (driver 580.159.04) a process with a context takes
# 0.09 s of a driver that serves one process at a time, and 0.21 s with the eight queues that a context has by
# default.
#
# NVIDIA GPUs are named by uuid, which stays right whatever the user's own CUDA_VISIBLE_DEVICES had
# renumbered; where a driver gives none, all are left visible. HIP numbers devices after ROCR_VISIBLE_DEVICES
# has been applied, so there an index within the user's own HIP_VISIBLE_DEVICES is passed on. What HIP's
# GPU_MAX_HW_QUEUES would save was not tried.
# Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation
# techniques".

_HIDING = frozenset().union(*(vendor.hides for vendor in SUPPORTED.values()))


def hides_gpus(environment: Mapping[str, str]) -> bool:
    """Whether the process that started this tool, such as a batch system, selected GPUs of the node."""
    return not _HIDING.isdisjoint(environment)


def visible_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a worker that needs ``devices``, all of one backend."""
    if not devices:
        return {}
    choice = devices[0].vendor.choice
    if choice.by_uuid and not all(device.uuid for device in devices):
        return {}
    chosen = environment.get(choice.variable)
    numbers = chosen.split(",") if chosen and not choice.by_uuid else None
    names = [
        device.uuid if choice.by_uuid else numbers[device.index] if numbers else str(device.index)
        for device in devices
    ]
    return {choice.variable: ",".join(names)}


def one_queue(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that give a worker one queue if its streams need not run concurrently, unless already set."""
    variables = (item for device in devices for item in device.vendor.choice.one_queue.items())
    return {name: value for name, value in variables if name not in environment}
