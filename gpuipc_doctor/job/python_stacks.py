"""Python frames of a process by ``py-spy dump --nonblocking``, which reads memory and stops nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuipc_doctor.job.document import Process, Stack
from gpuipc_doctor.supervise.evidence import find_program

LIMIT_S = 5.0
MAX_FRAMES = 60


class NotRead(Exception):
    """Why there are no Python frames, in one line."""


def dump(process: Process) -> Stack:
    """The frames of the main thread, innermost first; empty for a program that is not Python.

    A frame is ``function (file.py:line)``. Raises `NotRead`.
    """
    if not is_python(process):
        return ()
    program = find_program("py-spy")
    if program is None:
        raise NotRead("py-spy is not installed; PyPI's package py-spy brings it")
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(process.pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=LIMIT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise NotRead(f"py-spy did not answer within {LIMIT_S:g} s") from None
    except OSError as error:
        raise NotRead(f"py-spy cannot be started: {error.strerror}") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NotRead(f"py-spy: {words[0][:200]}")
    try:
        threads = json.loads(done.stdout)
        main = next((one for one in threads if one["os_thread_id"] in (process.pid, None)), threads[0])
        frames = [label(frame) for frame in main["frames"]]
    except (ValueError, LookupError, TypeError) as error:
        raise NotRead(f"py-spy printed no stack that can be read: {error!r}") from None
    return tuple(frames[:MAX_FRAMES])


def label(frame: Mapping[str, Any]) -> str:
    """``function (file.py:line)`` of py-spy's frame; of PyTorch's module ``torch.cuda`` with its name."""
    path = Path(frame["filename"])
    module = "torch.cuda." if path.parts[-3:-1] == ("torch", "cuda") else ""
    return f"{module}{frame['name']} ({path.name}:{frame['line']})"


def is_python(process: Process) -> bool:
    """Whether the interpreter is the program or loaded by it."""
    names = (process.program, *(Path(library).name for library in process.libraries))
    return any(name.startswith(("python", "libpython")) for name in names)
