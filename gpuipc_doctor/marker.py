"""The marker of a run, in the environment of every worker and of all that it starts: whose a process is."""

from __future__ import annotations

MARKER = "GPUIPC_DOCTOR_PROBE"
"""The variable; its value is ``<run>/<probe>``."""


def carried(environ: bytes) -> str:
    """The marker in what ``/proc/PID/environ`` holds; empty where there is none."""
    name = f"{MARKER}=".encode()
    found = (variable for variable in environ.split(b"\0") if variable.startswith(name))
    return next(found, name).removeprefix(name).decode(errors="replace")
