"""What the prolog remembers of a node from job to job, and looking it up: the way that takes milliseconds.

Which GPUs have passed, when; and of which a test was begun that has not come to its end. Times are seconds
since boot (CLOCK_BOOTTIME), which no one can set, and what was learned in another boot counts for nothing. To
look a pass up neither loads the engine nor checks the config against its schema: a config whose bytes are
those of the last pass was checked then, and any other does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.prolog import node_identity
from gpuipc_doctor.site import private
from gpuipc_doctor.site.policy import SITE_DIRECTORIES, PrologConfig
from gpuipc_doctor.site.private import NotOurs

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json
    from gpuipc_doctor.site.layers import Layers
    from gpuipc_doctor.site.yamlfile import Document

FILE, DRAFT = Path("state.json"), Path("state.json.draft")

MAX_BYTES = 1 << 17

MAX_GPUS = 1024
"""Ids of GPUs that are remembered; the latest."""

ALL = "all"
"""Stands for the GPUs of a job that names none."""


class Unusable(Exception):
    """What is remembered cannot be read or written; the text is one line that says why."""


class State(NamedTuple):
    """What was learned of one node, with one config. GPUs are named as ``SLURM_JOB_GPUS`` names them."""

    identity: Mapping[str, str]
    """What the node was, word by word."""
    passed_at: Mapping[str, float]
    """By GPU, when it last passed."""
    unfinished: tuple[str, ...] = ()
    """The GPUs the last test of which has begun and not come to its end."""

    def age(self, identity: Mapping[str, str], gpus: str, now: float, fresh_for_s: float) -> float | str:
        """How many seconds ago these GPUs passed, or why that counts no more."""
        if not self.identity:
            return "no pass is remembered"
        if changed := [name for name in identity if self.identity.get(name) != identity[name]]:
            return f"changed since the last pass: {', '.join(changed)}"
        ages = [now - self.passed_at.get(gpu, -float("inf")) for gpu in named(gpus)]
        if not all(0 <= age < fresh_for_s for age in ages):
            return f"no pass of these GPUs in the last {fresh_for_s:g} s"
        return max(ages)

    def of(self, identity: Mapping[str, str]) -> State:
        """This, of that node; if it is another one, nothing is known of it."""
        return self if self.identity == identity else State(identity, {})

    def is_unfinished(self, gpus: str) -> bool:
        """Whether the last test of any of these GPUs has not come to its end."""
        return bool(set(self.unfinished) & set(named(gpus)))

    def begun(self, gpus: Iterable[str]) -> State:
        return self._replace(unfinished=tuple(sorted({*self.unfinished, *gpus})[:MAX_GPUS]))

    def finished(self, gpus: Iterable[str]) -> State:
        return self._replace(unfinished=tuple(sorted(set(self.unfinished) - set(gpus))))

    def passed(self, gpus: Iterable[str], now: float) -> State:
        latest = sorted({**self.passed_at, **dict.fromkeys(gpus, now)}.items(), key=lambda one: -one[1])
        return self._replace(passed_at=dict(latest[:MAX_GPUS]))


NOTHING = State({}, {})


def named(gpus: str) -> list[str]:
    """The ids in ``2,0``, or `ALL`."""
    return sorted({gpu.strip() for gpu in gpus.split(",")} - {""}) or [ALL]


# -- looking it up --------------------------------------------------------------------------------------


class Lookup(NamedTuple):
    """What is remembered that bears on a job's GPUs."""

    why_not: str
    """Why it is no answer; empty where it is one."""
    age_s: float = 0.0
    policy: PrologConfig = PrologConfig()
    """As the config has it, which nobody may have checked; but if this is an answer, somebody has."""
    identity: Mapping[str, str] = NOTHING.identity
    state: State = NOTHING
    complaint: str = ""
    """Why what is there cannot be used."""
    documents: tuple[Document, ...] = ()
    """The files of the config, as they were read."""


def look_up(config: Path | None, gpus: str) -> Lookup:
    """Whether these GPUs have passed so recently that they need not be tested."""
    try:
        layers, contents = _read_config(config)
        said = layers.data
        policy = PrologConfig.read(said.get("prolog", {}))
        fresh_for_s = float(policy.fresh_for_s)
        node = node_identity.identity(contents) | node_identity.of_site(_files(said, policy))
    except _NO_CONFIG:
        return Lookup("not used: the config has no section `prolog` that is in order")
    found = Lookup("", 0.0, policy, node, documents=layers.documents)
    try:
        state = read(Path(policy.state_dir))
    except Unusable as reason:
        return found._replace(why_not=f"not used: {reason}", complaint=str(reason))
    found = found._replace(state=state.of(node))
    age_s = state.age(node, gpus, node_identity.now(), fresh_for_s)
    if not fresh_for_s:
        return found._replace(why_not="not used: fresh_for_s is 0")
    if isinstance(age_s, str):
        return found._replace(why_not=f"not used: {age_s}")
    return found._replace(age_s=age_s)


_NO_CONFIG = (OSError, KeyError, TypeError, ValueError, AttributeError)
"""What comes of reading a config that nobody has checked."""


def _read_config(config: Path | None) -> tuple[Layers, dict[str, bytes]]:
    """The config and the files beneath it, and each one's content by its path.

    No config says nothing. No shipped site is looked for: what drains nodes, a file of the site's own names.
    Raises some of `_NO_CONFIG`.
    """
    from gpuipc_doctor.site.layers import Layers, lineage
    from gpuipc_doctor.site.yamlfile import BadFile, parse

    contents: dict[str, bytes] = {}

    def unchecked(file: Path) -> Document:
        content = contents[str(file.absolute())] = file.read_bytes()
        return parse(file, content, None)

    try:
        return Layers(tuple(lineage(config, unchecked))), contents
    except BadFile as bad:
        raise ValueError(str(bad)) from None


def _files(said: Mapping[str, Json], policy: PrologConfig) -> Iterator[Path]:
    """The site's own checks and known issues, and the simulated node's file."""
    for key in SITE_DIRECTORIES:
        yield from map(Path, said.get(key, ()))
    if policy.simulate:
        yield Path(policy.simulate)


# -- the file -------------------------------------------------------------------------------------------


def dumps(state: State) -> bytes:
    return json.dumps({"format": 1, **state._asdict()}).encode()


def loads(data: bytes) -> State:
    """Raises `ValueError` for anything that `dumps` has not written."""
    try:
        document: Json = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict) or document.keys() != {"format", *State._fields}:
        raise ValueError("not a state of the prolog")
    node, passed_at, unfinished = (document[name] for name in State._fields)
    if document["format"] != 1 or not isinstance(node, dict) or not isinstance(passed_at, dict):
        raise ValueError("not a state of this version")
    if not all(isinstance(value, str) for value in node.values()):
        raise ValueError("an identity that is no text")
    if not all(isinstance(at, float | int) and not isinstance(at, bool) for at in passed_at.values()):
        raise ValueError("a time that is no number")
    if not isinstance(unfinished, list) or not all(isinstance(gpu, str) for gpu in unfinished):
        raise ValueError("a GPU that is no text")
    return State(node, passed_at, tuple(unfinished))


def read(directory: Path) -> State:
    """What is remembered there. Raises `Unusable`."""
    try:
        if not directory.exists():
            return NOTHING
        with private.directory(directory) as within:
            return _read(within)
    except NotOurs as reason:
        raise Unusable(f"state ignored: {reason}") from None
    except OSError as error:
        raise Unusable(f"state ignored: {directory / FILE}: {error.strerror}") from None
    except ValueError as error:
        raise Unusable(f"state ignored: {directory / FILE} is corrupt: {error}") from None


def update(directory: Path, change: Callable[[State], State]) -> None:
    """Change what is remembered there, whole or not at all; what cannot be used is replaced.

    Raises `Unusable`.
    """
    try:
        with private.directory(directory) as within, private.locked(within) as is_locked:
            if not is_locked:
                raise Unusable("not remembered: another prolog is writing")
            before = NOTHING
            with contextlib.suppress(NotOurs, ValueError):
                before = _read(within)
            _replace(within, dumps(change(before)))
    except NotOurs as reason:
        raise Unusable(f"not remembered: {reason}") from None
    except OSError as error:
        raise Unusable(f"not remembered: {directory}: {error.strerror}") from None


def _read(within: int) -> State:
    try:
        with private.file(FILE, os.O_RDONLY, within=within) as fd:
            return loads(os.read(fd, MAX_BYTES))
    except FileNotFoundError:
        return NOTHING


def _replace(within: int, data: bytes) -> None:
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
