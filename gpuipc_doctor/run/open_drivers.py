"""Workers that hold the drivers open during a run, as a persistence daemon does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from gpuipc_doctor import surveys
from gpuipc_doctor.probe_types import Probe
from gpuipc_doctor.supervise.session import Session

DAY_S = 86_400.0
"""Deadline in seconds of operations that only wait: longer than any run."""


@dataclass
class OpenDrivers:
    """Holds each driver open during a ``with`` block.

    If no process holds a driver open, each process that ends shuts the GPUs down, and the next one has to
    initialise them: on two H200s, this took 2 of 14 seconds.
    """

    session: Session
    backends: Iterable[str]
    _held: ExitStack | None = field(default=None, init=False)

    def __enter__(self) -> None:
        self._held = ExitStack()
        for backend in self.backends:
            params = {"backend": backend}
            probe = Probe("kept open", {backend: surveys.keep_open}, (), params, DAY_S, imports=(backend,))
            self._held.enter_context(self.session.beside(surveys.DRIVERS, surveys.FILE, probe))

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._held.close()
            self._held = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold no driver open during a ``with`` block: a worker that sees a GPU with which initialising hangs
        may keep others waiting. Afterwards, workers see the GPUs that the session's node then shows."""
        were_held = self._held is not None
        self.__exit__()
        try:
            yield
        finally:
            if were_held:
                self.__enter__()
