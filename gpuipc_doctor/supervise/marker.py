"""The marker of a run, in the environment of every worker and of all that it starts: whose a process is."""

from __future__ import annotations

MARKER = "GPUIPC_DOCTOR_PROBE"
"""The variable; its value is ``<run>/<probe>``."""

_ROOM = 40
"""Bytes that a process which is to `carry` other markers later needs for them from its start."""


def carried(environ: bytes) -> str:
    """The marker in what ``/proc/PID/environ`` holds; empty where there is none."""
    name = f"{MARKER}=".encode()
    found = (variable for variable in environ.split(b"\0") if variable.startswith(name))
    return next(found, name).removeprefix(name).decode(errors="replace")


def with_room(marker: str) -> str:
    """The marker to start a process with that will `carry` others."""
    return marker.ljust(_ROOM, ".")


def carry(marker: str) -> None:
    """Have ``/proc/PID/environ`` show this marker for this process, and for those that it forks.

    The kernel shows the memory in which the environment was when the process started, whatever `os.environ`
    has become; so it is overwritten there, in the room that `with_room` made. Before `os.environ` is changed.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    value = marker.encode().ljust(_ROOM, b"\0")
    assert len(value) == _ROOM
    ctypes.memmove(libc.getenv(MARKER.encode()), value, _ROOM)
