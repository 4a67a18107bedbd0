"""What the prolog remembers: which GPUs passed, when, and of what node that was true.

Times are seconds since boot (CLOCK_BOOTTIME), which no one can set, and a pass of another boot counts for
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.prolog import private
from gpuipc_doctor.prolog.private import NotOurs

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

FILE, DRAFT = Path("passes.json"), Path("passes.json.draft")

MAX_BYTES = 1 << 16

MAX_PASSES = 256
"""Selections of GPUs that are remembered; the latest."""

ALL = ""
"""The selection of a job that names no GPUs."""


class Forgotten(Exception):
    """There is a file, and it cannot be used; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Memory:
    """``identity``: what the node was, word by word; ``passes``: when each selection of GPUs passed."""

    identity: Mapping[str, str]
    passes: Mapping[str, float]

    def fresh(self, identity: Mapping[str, str], gpus: str, now: float, fresh_for_s: float) -> float | str:
        """How many seconds ago these GPUs passed, or why that counts no more."""
        if not self.identity:
            return "no pass is remembered"
        changed = [name for name in identity if self.identity.get(name) != identity[name]]
        if changed:
            return f"since the last pass another {', '.join(changed)}"
        recent = {selection: now - at for selection, at in self.passes.items() if 0 <= now - at < fresh_for_s}
        if ALL in recent:
            return recent[ALL]
        ages: dict[str, float] = {}
        for selection, age in recent.items():
            for gpu in selection.split(","):
                ages[gpu] = min(age, ages.get(gpu, age))
        wanted = normal(gpus).split(",")
        if wanted == [ALL] or not all(gpu in ages for gpu in wanted):
            return f"no pass of these GPUs in the last {fresh_for_s:g} s"
        return max(ages[gpu] for gpu in wanted)

    def with_pass(self, identity: Mapping[str, str], gpus: str, now: float) -> Memory:
        """This memory after another pass; what was learned of another node is dropped."""
        before = self.passes if self.identity == identity else {}
        latest = sorted({**before, normal(gpus): now}.items(), key=lambda one: -one[1])
        return Memory(identity, dict(latest[:MAX_PASSES]))


NOTHING = Memory({}, {})


def normal(gpus: str) -> str:
    """``2,0`` and ``0,2`` are the same selection."""
    return ",".join(sorted({gpu.strip() for gpu in gpus.split(",")} - {""}))


def dumps(memory: Memory) -> bytes:
    return json.dumps({"format": 1, "identity": memory.identity, "passes": memory.passes}).encode()


def loads(data: bytes) -> Memory:
    """Raises `ValueError` for anything that `dumps` has not written."""
    try:
        document: Json = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict) or document.keys() != {"format", "identity", "passes"}:
        raise ValueError("not a memory of the prolog")
    identity, passes = document["identity"], document["passes"]
    if document["format"] != 1 or not isinstance(identity, dict) or not isinstance(passes, dict):
        raise ValueError("not a memory of this version")
    if not all(isinstance(value, str) for value in identity.values()):
        raise ValueError("an identity that is no text")
    if not all(isinstance(at, float | int) and not isinstance(at, bool) for at in passes.values()):
        raise ValueError("a time that is no number")
    return Memory(identity, passes)


def recall(directory: Path) -> Memory:
    """What is remembered there. Raises `Forgotten`."""
    try:
        if not directory.exists():
            return NOTHING
        with private.directory(directory) as within, private.file(FILE, os.O_RDONLY, within=within) as fd:
            return loads(os.read(fd, MAX_BYTES))
    except FileNotFoundError:
        return NOTHING
    except NotOurs as reason:
        raise Forgotten(f"state ignored: {reason}") from None
    except OSError as error:
        raise Forgotten(f"state ignored: {directory / FILE}: {error.strerror}") from None
    except ValueError as error:
        raise Forgotten(f"state ignored: {directory / FILE} is corrupt: {error}") from None


def remember(directory: Path, memory: Memory) -> None:
    """Write it, whole or not at all. Raises `Forgotten`."""
    try:
        with private.directory(directory) as within, private.locked(within) as is_locked:
            if not is_locked:
                raise Forgotten("pass not remembered: another prolog is writing")
            _write(within, dumps(memory))
    except NotOurs as reason:
        raise Forgotten(f"pass not remembered: {reason}") from None
    except OSError as error:
        raise Forgotten(f"pass not remembered: {directory}: {error.strerror}") from None


def _write(within: int, data: bytes) -> None:
    """Within the locked directory, so that a draft that is there is that of somebody who was killed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(DRAFT, dir_fd=within)
    try:
        with private.file(DRAFT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, within=within) as fd:
            if os.write(fd, data) != len(data):
                raise OSError(28, "No space left on device")
        os.replace(DRAFT, FILE, src_dir_fd=within, dst_dir_fd=within)
    except OSError:
        os.unlink(DRAFT, dir_fd=within)
        raise
