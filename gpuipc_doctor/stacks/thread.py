"""One thread of a process at one time, and its stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Stack = tuple[str, ...]
"""Frames, innermost first: ``function (file)``, or ``[file]`` if the function has no name."""


UNREAD = "?"
"""Stands for the state of a thread that could not be read."""

MPI_LIBRARY = re.compile(r"/libmpi(ch)?(_\w+)?[\w.-]*\.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread during one snapshot."""

    tid: int
    name: str
    state: str
    """State letter of the kernel: R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie; or
    `UNREAD`."""
    busy: float = 0.0
    """Processor share since the previous snapshot, 0 to 1."""
    wchan: str = ""
    """Kernel function in which the thread sleeps; empty if it runs or the function cannot be read."""
    syscall: str = ""
    """Number of the system call, or ``running``; empty if unreadable."""
    kernel: Stack = ()
    native: tuple[Stack, ...] = ()
    """Sampled stacks of a running thread."""
    approximate: tuple[Stack, ...] = ()
    """Stacks that may contain frames of earlier calls; only their first frames are exact."""


class Program(Protocol):
    """A process of which stacks are read."""

    @property
    def pid(self) -> int: ...
    @property
    def program(self) -> str: ...
    @property
    def libraries(self) -> Sequence[str]:
        """Paths of mapped shared libraries."""
