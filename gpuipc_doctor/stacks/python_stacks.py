"""Python frames of a process by ``py-spy dump --nonblocking``, which reads its memory without stopping it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuipc_doctor.files import foreign
from gpuipc_doctor.stacks.debuggers import find_program
from gpuipc_doctor.stacks.thread import Program, Stack

LIMIT_S = 5.0
MAX_FRAMES = 60

_OF_LIBRARY = re.compile(r"/lib(64)?/python3[\d.]*/|(^|/)(site|dist)-packages/|^<frozen ")
"""Pattern for files of Python's own library and of installed packages."""

_MODULES = ("torch.cuda", "torch.distributed")
"""Packages whose functions are labelled with the package's name: what waits for a GPU or for other ranks."""


class NotRead(Exception):
    """Python frames could not be read; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class PythonStack:
    """Python frames of a main thread, innermost first: ``function (file.py:line)``."""

    frames: Stack = ()
    own: int = 0
    """Index of the first frame in one of the program's own files."""
    variables: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """(number of the frame from the outermost, name of a local variable) → value. Never put into a document.
    Empty if other Python threads of the process may change the variables."""

    @property
    def digest(self) -> str:
        """A hash of the variables; empty if there are no variables."""
        text = repr(sorted(self.variables.items())).encode(errors="replace")
        return hashlib.blake2b(text, digest_size=8).hexdigest() if self.variables else ""


def dump(process: Program) -> PythonStack:
    """The stack of the main thread; it has no frames if the program is not Python. Raises `NotRead`."""
    if not is_python(process):
        return PythonStack()
    program = find_program("py-spy")
    if program is None:
        raise NotRead("py-spy is not installed; run pip install py-spy")
    try:
        command = [program, "dump", "--nonblocking", "--locals", "--json", "--pid", str(process.pid)]
        done = foreign.run(command, limit_s=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotRead(f"py-spy did not answer within {LIMIT_S:g} s") from None
    except OSError as error:
        raise NotRead(f"cannot run py-spy: {error.strerror}") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NotRead(f"py-spy: {words[0][:200]}")
    try:
        return foreign.parsed(lambda text: _main_thread(json.loads(text), process.pid), done.stdout)
    except foreign.Refused as reason:
        raise NotRead(f"py-spy printed no stack that can be read: {reason}") from None


def _main_thread(threads: Sequence[Mapping[str, Any]], pid: int) -> PythonStack:
    main = next((thread for thread in threads if thread["os_thread_id"] in (pid, None)), threads[0])
    if not main["frames"]:
        main = max(threads, key=lambda thread: len(thread["frames"]))
    return parsed(main["frames"], is_alone=len(threads) == 1)


def parsed(frames: Sequence[Mapping[str, Any]], *, is_alone: bool = True) -> PythonStack:
    """The stack of one thread from py-spy's frames, innermost first.

    ``is_alone``: whether the process has no other Python thread, which may change the variables.
    """
    libraries = [_OF_LIBRARY.search(frame["filename"]) is not None for frame in frames]
    variables = {
        (depth, variable["name"]): str(variable["repr"])
        for depth, frame in enumerate(reversed(frames))
        for variable in frame.get("locals") or ()
    }
    own = libraries.index(False) if False in libraries else 0
    return PythonStack(tuple(map(label, frames[:MAX_FRAMES])), own, variables if is_alone else {})


def label(frame: Mapping[str, Any]) -> str:
    """A py-spy frame as ``function (file.py:line)``, with the prefix ``torch.cuda.`` or
    ``torch.distributed.`` for functions of these packages."""
    path = Path(frame["filename"])
    package = ".".join(path.parts[-3:-1])
    return f"{f'{package}.' if package in _MODULES else ''}{frame['name']} ({path.name}:{frame['line']})"


def is_python(process: Program) -> bool:
    """Whether the process is a Python interpreter or has loaded one, also under a name of its own, such as
    ``pt_data_worker`` or ``VLLM::Worker``."""
    names = (process.program, *(Path(library).name for library in process.libraries))
    return any(name.startswith(("python", "libpython")) or ".cpython-" in name for name in names)
