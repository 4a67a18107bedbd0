"""What the prolog remembers: which GPUs passed, when, of what node that was true, and what its config said.

Times are seconds since boot (CLOCK_BOOTTIME), which no one can set, and a pass of another boot counts for
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.prolog import private
from gpuipc_doctor.prolog.private import NotOurs

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

FILE, DRAFT = Path("passes.json"), Path("passes.json.draft")

MAX_BYTES = 1 << 17

MAX_SETTINGS_BYTES = 1 << 16
"""A config that says more is read anew each time."""

MAX_PASSES = 256
"""Selections of GPUs that are remembered; the latest."""

ALL = ""
"""The selection of a job that names no GPUs."""


class Forgotten(Exception):
    """There is a file, and it cannot be used; the text is one line that says why."""


class Memory(NamedTuple):
    """What was learned of one node, with one config."""

    identity: Mapping[str, str]
    """What the node was, word by word."""
    passes: Mapping[str, float]
    """When each selection of GPUs passed."""
    settings: Mapping[str, Json]
    """What the config said, as far as it takes part in looking up a pass; empty where that is not known."""

    def changed(self, identity: Mapping[str, str]) -> list[str]:
        """The words of ``identity`` that were others."""
        return [name for name in identity if self.identity.get(name) != identity[name]]

    def fresh(self, identity: Mapping[str, str], gpus: str, now: float, fresh_for_s: float) -> float | str:
        """How many seconds ago these GPUs passed, or why that counts no more."""
        if not self.identity:
            return "no pass is remembered"
        if changed := self.changed(identity):
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

    def with_pass(
        self, identity: Mapping[str, str], gpus: str, now: float, settings: Mapping[str, Json]
    ) -> Memory:
        """This memory after another pass; what was learned of another node is dropped."""
        before = self.passes if self.identity == identity else {}
        latest = sorted({**before, normal(gpus): now}.items(), key=lambda one: -one[1])
        fits = len(json.dumps(settings)) <= MAX_SETTINGS_BYTES
        return Memory(identity, dict(latest[:MAX_PASSES]), settings if fits else {})


NOTHING = Memory({}, {}, {})


def normal(gpus: str) -> str:
    """``2,0`` and ``0,2`` are the same selection."""
    return ",".join(sorted({gpu.strip() for gpu in gpus.split(",")} - {""}))


def dumps(memory: Memory) -> bytes:
    return json.dumps({"format": 2, **memory._asdict()}).encode()


def loads(data: bytes) -> Memory:
    """Raises `ValueError` for anything that `dumps` has not written."""
    try:
        document: Json = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict) or document.keys() != {"format", *Memory._fields}:
        raise ValueError("not a memory of the prolog")
    identity, passes, settings = (document[name] for name in Memory._fields)
    if document["format"] != 2 or not all(isinstance(one, dict) for one in (identity, passes, settings)):
        raise ValueError("not a memory of this version")
    if not all(isinstance(value, str) for value in identity.values()):
        raise ValueError("an identity that is no text")
    if not all(isinstance(at, float | int) and not isinstance(at, bool) for at in passes.values()):
        raise ValueError("a time that is no number")
    return Memory(identity, passes, settings)


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
