"""Supervision of one run: whatever a worker does, the run continues and leaves nothing behind.

The session makes this process the reaper of its orphaned descendants, gives the run a private directory and a
marker, and starts the keeper, which cleans up if this process is killed.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gpuipc_doctor.model import Node
from gpuipc_doctor.probe_types import Probe, ProbeOutcome
from gpuipc_doctor.stacks.process_list import Process, descendants
from gpuipc_doctor.supervise import leftovers, scratch, tree
from gpuipc_doctor.supervise.assignment import Listener, StartSignal
from gpuipc_doctor.supervise.fork_servers import ForkServer, ForkServers
from gpuipc_doctor.supervise.launched_tour import LaunchedTour
from gpuipc_doctor.supervise.probe import Execution, Limits
from gpuipc_doctor.supervise.start import Visit, environment_with
from gpuipc_doctor.supervise.tour import Tour

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


class Session:
    """Runs probes until closed, from several threads if necessary; one session per process.

    ``keep_logs`` is the permanent directory for the probes' files; without it, they go into a directory that
    is removed at the end.
    """

    def __init__(self, node: Node, limits: Limits, *, keep_logs: Path | None = None) -> None:
        self.node = node
        self.limits = limits
        self.unkillable = ""
        """Description of a process that even SIGKILL did not end; then no further GPU probe may start."""
        self.processes = self.initialisations = 0
        """Number of workers started, and of driver initialisations in them."""
        self._counting = threading.Lock()
        self._id = secrets.token_hex(8)
        self._keep_logs = keep_logs.absolute() if keep_logs else None  # workers are on other nodes
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._expected: dict[frozenset[str], ForkServer] = {}

    def __enter__(self) -> Session:
        self._adopted_orphans = _adopt_orphans(True)
        self._not_ours = {process.pid for process in descendants(os.getpid())}
        self._keeper = scratch.Keeper(self._id)
        self._not_ours.add(self._keeper.pid)
        try:
            self._directory = self._keep_logs or self.own_directory()
        except scratch.NoPlace:
            self._keeper.dismiss()
            _adopt_orphans(self._adopted_orphans)
            raise
        self._held = leftovers.hold(self._directory)
        self._servers = ForkServers(self._directory, self._id)
        return self

    def own_directory(self) -> Path:
        """A new private directory, which its maker removes; the keeper does if this process is killed."""
        return scratch.make(scratch.usual(), announce=self._keeper.remove)

    def __exit__(self, *_: object) -> None:
        def ours() -> list[Process]:
            return [process for process in descendants(os.getpid()) if process.pid not in self._not_ours]

        self._servers.close(self.limits.kill_s)
        tree.end(ours, grace_s=0.0, limit_s=self.limits.kill_s)
        if self._keep_logs is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._held)
        self._keeper.dismiss()
        tree.reap_orphans()
        _adopt_orphans(self._adopted_orphans)

    def expect(self, imports: Iterable[str]) -> None:
        """Start a fork server with these imports, so that it imports while probes are being planned."""
        names = frozenset(imports)
        self._expected[names] = self._servers.of(names, environment_with(self.node.env))

    def has_imported(self, imports: Iterable[str]) -> bool:
        """Whether the fork server with these imports is ready; true if there is no such fork server."""
        server = self._expected.get(frozenset(imports))
        return server is None or server.has_imported()

    def stop(self) -> None:
        """End the running probes, and end each later probe at its start. Their outcomes are "stopped"."""
        self._stop.set()

    def run(
        self,
        check: str,
        check_file: Path,
        probe: Probe,
        *,
        until: float,
        turn: StartSignal | None = None,
        listener: Listener | None = None,
        stop: threading.Event | None = None,
    ) -> ProbeOutcome:
        """Run one probe to its end. ``until``: `time.monotonic()` seconds at which the run's budget ends.

        ``turn``: the start signal for using its devices; None: use them at once. ``listener`` is called with
        each report of the first role. ``stop`` ends this probe, in place of the session's `stop`.
        """
        number, directory = self._prepare(check, probe)
        with self._temporary(probe) as temporary:
            execution = Execution(
                probe,
                check_file,
                directory,
                node=self.node,
                marker=f"{self._id}/{number}",
                limits=self.limits,
                servers=self._servers,
                turn=turn,
                listener=listener,
                temporary=temporary,
            )
            outcome = execution.run(until, stop or self._stop)
        self._note(execution)
        return outcome

    def tour(
        self,
        visits: Sequence[tuple[str, Path, Probe]],
        *,
        until: float,
        goes_on: Callable[[ProbeOutcome], bool],
        turn: StartSignal | None = None,
    ) -> ProbeOutcome:
        """Run two or more probes, each given with its check and the check's file, one after the other in one
        set of processes. The probes have the same names of roles and the same environment. With a launcher
        they have two ranks each: see `LaunchedTour`, whose `NotTogether` this may raise.

        ``goes_on`` is called with each outcome but the last, which is returned: see `Tour.visit_all`.
        ``turn``: as in `run`, with the idle level of all devices of the tour, in the order of the visits.
        """
        prepared = [(*self._prepare(check, probe), file, probe) for check, file, probe in visits]
        number, directory, file, probe = prepared[0]
        with self._temporary(probe) as temporary:
            execution = (LaunchedTour if probe.launch else Tour)(
                probe,
                file,
                directory,
                node=self.node,
                marker=f"{self._id}/{number}",
                limits=self.limits,
                servers=self._servers,
                turn=turn,
                temporary=temporary,
                later=tuple(Visit(probe, file, directory) for _, directory, file, probe in prepared[1:]),
            )
            try:
                return execution.visit_all(until, self._stop, goes_on)
            finally:
                self._note(execution)

    def _note(self, execution: Execution) -> None:
        with self._counting:
            self.processes += execution.processes
            self.initialisations += execution.initialisations
        self.unkillable = self.unkillable or execution.unkillable

    def _prepare(self, check: str, probe: Probe) -> tuple[int, Path]:
        """The number of the next probe, and the new directory for its files."""
        number = next(self._numbers)
        parts = (f"{number:03}", check, probe.subject, probe.name)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", "_".join(part for part in parts if part))
        directory = self._directory / name
        directory.mkdir(mode=0o700)
        return number, directory

    @contextmanager
    def _temporary(self, probe: Probe) -> Iterator[Path | None]:
        """A directory for the files of a launcher and its ranks, removed with the probe.

        None if there is no launcher, if the ranks are on several nodes, or if no place has room.
        """
        made = None
        if probe.launch and probe.launch.nodes == 1:
            with suppress(scratch.NoPlace):
                made = self.own_directory()
        try:
            yield made
        finally:
            if made:
                shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def beside(
        self, check: str, check_file: Path, probe: Probe, listener: Listener | None = None
    ) -> Iterator[None]:
        """Run a probe during a ``with`` block, then end it; its outcome is dropped.

        ``listener`` is as in `run`, and also called with None when the probe ends.
        """
        over, run = threading.Event(), partial(self.run, check, check_file, probe, listener=listener)
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(run, until=math.inf, stop=over)
            if listener:
                ended.add_done_callback(lambda _: listener(None))
            try:
                yield
            finally:
                over.set()


def _adopt_orphans(whether: bool) -> bool:
    """Set whether orphaned descendants become this process's children; returns the earlier setting.

    A process that adopts orphans must also reap them, or a PID namespace below it never ends.
    """
    import ctypes

    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0)
    return bool(before.value)
