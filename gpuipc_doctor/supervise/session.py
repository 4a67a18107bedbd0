"""One run's supervision: whatever a worker does, the run goes on and nothing of it is left behind.

The session makes this process the reaper of all orphans below it, gives the run a private directory and a
marker, and starts the keeper that cleans up should this process be killed.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuipc_doctor.model import Node, Probe, ProbeOutcome
from gpuipc_doctor.supervise import scratch, tree
from gpuipc_doctor.supervise.assignment import Listener, StartSignal
from gpuipc_doctor.supervise.probe import Execution, Limits
from gpuipc_doctor.supervise.start import environment_with
from gpuipc_doctor.supervise.stems import Stem, Stems

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


class Session:
    """Runs probes, from several threads if asked to, until it is closed; one at a time in a process.

    ``keep_logs`` is where the probes' files go, to stay; without it they go into a directory that is
    removed at the end.
    """

    def __init__(self, node: Node, limits: Limits, *, keep_logs: Path | None = None) -> None:
        self.node = node
        self.limits = limits
        self.unkillable = ""
        """Names the process that even SIGKILL did not end; no GPU probe may start after it."""
        self._id = secrets.token_hex(8)
        self._keep_logs = keep_logs.absolute() if keep_logs else None  # workers are elsewhere
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._expected: dict[frozenset[str], Stem] = {}

    def __enter__(self) -> Session:
        self._adopted_orphans = _adopt_orphans(True)
        self._not_ours = {process.pid for process in tree.descendants(os.getpid())}
        self._keeper = scratch.Keeper(self._id)
        self._not_ours.add(self._keeper.pid)
        try:
            self._directory = self._keep_logs or self._own_directory()
        except scratch.NoPlace:
            self._keeper.dismiss()
            _adopt_orphans(self._adopted_orphans)
            raise
        self._stems = Stems(self._directory, self._id)
        return self

    def _own_directory(self) -> Path:
        directory = scratch.make(scratch.usual())
        self._keeper.remove(directory)
        return directory

    def __exit__(self, *_: object) -> None:
        def ours() -> list[tree.Process]:
            return [process for process in tree.descendants(os.getpid()) if process.pid not in self._not_ours]

        self._stems.close(self.limits.kill_s)
        tree.end(ours, grace_s=0.0, limit_s=self.limits.kill_s)
        if self._keep_logs is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._keeper.dismiss()
        tree.reap_orphans()
        _adopt_orphans(self._adopted_orphans)

    def expect(self, imports: Iterable[str]) -> None:
        """Start the stem of probes to come, which may import while they are planned."""
        names = frozenset(imports)
        self._expected[names] = self._stems.of(names, environment_with(self.node.env))

    def has_imported(self, imports: Iterable[str]) -> bool:
        """Whether no stem with these need be waited for any longer, as far as one is expected."""
        stem = self._expected.get(frozenset(imports))
        return stem is None or stem.has_imported()

    def stop(self) -> None:
        """End the probes that run now; they come back as stopped, and so does every later one."""
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

        ``turn``: when it may use its devices, if not at once. ``listener`` is called with what the first
        role tells, when it tells it. ``stop`` ends this probe in place of what `stop` sets for all.
        """
        number = next(self._numbers)
        parts = (f"{number:03}", check, probe.subject, probe.name)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", "_".join(part for part in parts if part))
        directory = self._directory / name
        directory.mkdir(mode=0o700)
        with self._temporary(probe) as temporary:
            execution = Execution(
                probe,
                check_file,
                directory,
                node=self.node,
                marker=f"{self._id}/{number}",
                limits=self.limits,
                stems=self._stems,
                turn=turn,
                listener=listener,
                temporary=temporary,
            )
            outcome = execution.run(until, stop or self._stop)
        if execution.unkillable and not self.unkillable:
            self.unkillable = execution.unkillable
        return outcome

    @contextmanager
    def _temporary(self, probe: Probe) -> Iterator[Path | None]:
        """A directory for what a launcher and its ranks make for themselves, which goes with the probe.

        None where there is no launcher, or it starts ranks on other nodes, too; and where there is no place.
        """
        made = None
        if probe.launch and probe.launch.nodes == 1:
            with suppress(scratch.NoPlace):
                made = self._own_directory()
        try:
            yield made
        finally:
            if made:
                shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def beside(self, check: str, check_file: Path, probe: Probe) -> Iterator[None]:
        """Run a probe beside the others until the block is left, and end it then; its outcome is nobody's."""
        over = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.run, check, check_file, probe, until=math.inf, stop=over)
            try:
                yield
            finally:
                over.set()


def _adopt_orphans(whether: bool) -> bool:
    """Say whether orphans below this process become its children; returns whether they did.

    Who adopts them must reap them, too, or a PID namespace below never ends.
    """
    import ctypes

    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0)
    return bool(before.value)
