"""Start the workers of a probe: each role by ourselves, or all ranks by an MPI launcher."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.handover import Assignment, Desk
from gpuipc_doctor.journal import Progress
from gpuipc_doctor.marker import MARKER
from gpuipc_doctor.model import Launch, Node, Probe
from gpuipc_doctor.supervise import rank
from gpuipc_doctor.supervise.role import ChildProcess, LaunchedProcess, RunningRole
from gpuipc_doctor.visibility import visible_devices

LAUNCHER_LOG = "launcher.log"
"""What the launcher printed, in the probe's directory."""

_LISTS = ("LD_LIBRARY_PATH", "LD_PRELOAD")
"""Variables to which several may add; any other is replaced by the last to set it."""

_OF_A_RANK = re.compile(r"PMI_|PMIX_(?!MCA_)|OMPI_COMM_WORLD_")
"""Variables by which a launcher tells a process which rank of which job it is."""


def start(probe: Probe, check_file: Path, directory: Path, node: Node, marker: str) -> dict[str, RunningRole]:
    """Start every role of the probe. All that it starts carries ``marker`` in its environment."""
    starter = _Starter(probe, check_file, directory, node, marker)
    return starter.children() if probe.launch is None else starter.ranks(probe.launch)


class _Starter:
    def __init__(self, probe: Probe, check_file: Path, directory: Path, node: Node, marker: str) -> None:
        self._probe = probe
        self._check_file = check_file
        self._directory = directory
        self._node = node
        self._marker = marker
        isolated = ["-I"] if sys.flags.isolated else []
        self._command = [sys.executable, *isolated, "-m", "gpuipc_doctor.worker", str(directory)]

    def children(self) -> dict[str, RunningRole]:
        """Each role as a child of ours; two of them are connected by a socket pair."""
        names = list(self._probe.roles)
        ends: list[socket.socket | None] = [None] * len(names)
        if len(names) == 2:
            ends = list(socket.socketpair())
        try:
            return {name: self._child(name, end) for name, end in zip(names, ends, strict=True)}
        finally:
            for end in ends:
                if end:
                    end.close()

    def _child(self, role: str, peer: socket.socket | None) -> RunningRole:
        fds = (peer.fileno(),) if peer else ()
        desk = self._desk(role, peer_fd=fds[0] if fds else None)
        environment = self._environment(self._node.env)
        return _running(_popen([*self._command, role], desk.log, self._directory, environment, fds), desk)

    def ranks(self, launch: Launch) -> dict[str, RunningRole]:
        """All roles as ranks of one launcher, which starts one `rank` starter for each."""
        desks = {role: self._desk(role, ranks=len(self._probe.roles)) for role in self._probe.roles}
        own = {**self._environment(launch.env, self._node.env, self._node.rank_env)}
        changes = {name: value for name, value in own.items() if os.environ.get(name) != value}
        plan = {"roles": list(desks), "command": self._command, "environment": changes}
        (self._directory / rank.PLAN).write_text(json.dumps(plan))
        command = [part.format(ranks=len(desks)) for part in launch.command]
        starter = [sys.executable, "-I", "-S", rank.__file__, str(self._directory)]
        log = self._directory / LAUNCHER_LOG
        environment = self._environment(launch.env)
        for name in filter(_OF_A_RANK.match, os.environ):  # of a job in which we may be a rank ourselves
            environment.pop(name, None)
        try:
            launcher = _popen([*command, *starter], log, self._directory, environment)
        except OSError as error:
            log.write_text(f"{command[0]}: {error.strerror}\n")
            launcher = None
        return {
            role: _running(LaunchedProcess(launcher, desk), desk, same_clock=self._stays)
            for role, desk in desks.items()
        }

    @property
    def _stays(self) -> bool:
        """Whether all roles run on this node."""
        return self._probe.launch is None or self._probe.launch.nodes == 1

    def _desk(self, role: str, *, peer_fd: int | None = None, ranks: int = 0) -> Desk:
        desk = Desk(self._directory, role)
        devices = self._probe.devices
        if not self._stays:  # elsewhere, it is another device of the same number
            devices = tuple(replace(device, uuid="", pci="") for device in devices)
        Assignment(
            check_file=str(self._check_file),
            function=self._probe.roles[role].__name__,
            place=list(self._probe.roles).index(role),
            devices=devices,
            params=self._probe.params,
            deadline_s=self._probe.deadline_s,
            root=self._node.root,
            peer_fd=peer_fd,
            ranks=ranks,
        ).write(desk.assignment)
        return desk

    def _environment(self, *additions: Mapping[str, str]) -> dict[str, str]:
        environment = dict(os.environ)
        for addition in additions:
            for name, value in addition.items():
                present = environment.get(name) if name in _LISTS else None
                environment[name] = f"{value}:{present}" if present else value
        environment[MARKER] = self._marker
        if self._stays:
            environment.update(visible_devices(self._probe.devices, environment) or self._node.visible)
        if paths := environment.get("PYTHONPATH"):  # the worker has another working directory
            environment["PYTHONPATH"] = os.pathsep.join(
                str(Path(path).absolute()) for path in paths.split(os.pathsep)
            )
        return environment


def _popen(
    command: list[str], log: Path, directory: Path, environment: Mapping[str, str], fds: tuple[int, ...] = ()
) -> ChildProcess:
    with log.open("ab") as output:  # appending: see `logs`
        return ChildProcess(
            subprocess.Popen(
                command,
                cwd=directory,  # private: nothing in it shadows a module
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                start_new_session=True,
            )
        )


def _running(process: ChildProcess | LaunchedProcess, desk: Desk, *, same_clock: bool = True) -> RunningRole:
    return RunningRole(process, desk, Progress(desk.journal, same_clock), time.monotonic())
