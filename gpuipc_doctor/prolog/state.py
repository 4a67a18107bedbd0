"""The prolog's stored results of a node, looked up in milliseconds.

The stored results are the time of each GPU's last pass, and the GPUs with an unfinished test. Times are
seconds since boot (CLOCK_BOOTTIME), which no user can set, and results of another boot do not count. A
look-up neither loads the engine nor validates the config: a config identical to that of the last pass was
validated at that time, and results with any other config do not count.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.files import private
from gpuipc_doctor.files.private import NotOurs
from gpuipc_doctor.prolog import node_identity
from gpuipc_doctor.site.policy import SITE_DIRECTORIES, PrologConfig

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.files.yamlfile import Document
    from gpuipc_doctor.model import Json
    from gpuipc_doctor.site.layers import Layers

FILE = "state.json"

MAX_BYTES = 1 << 17

MAX_GPUS = 1024
"""Maximum number of GPU ids stored; the latest are kept."""

ALL = "all"
"""Stands for the GPUs of a job that does not name any."""


class Unusable(Exception):
    """The stored state cannot be read or written; the message is one line with the reason."""


class State(NamedTuple):
    """Stored results of one node with one config. GPUs are named as in ``SLURM_JOB_GPUS``."""

    identity: Mapping[str, str]
    """Name → stamp of the node's identity."""
    passed_at: Mapping[str, float]
    """GPU → time of its last pass."""
    unfinished: tuple[str, ...] = ()
    """GPUs whose last test did not finish."""

    def age(self, identity: Mapping[str, str], gpus: str, now: float, fresh_for_s: float) -> float | str:
        """Seconds since these GPUs passed, or the reason why this pass no longer counts."""
        if not self.identity:
            return "no earlier pass is stored"
        if not identity.get("boot", "unknown"):
            return "the kernel has no boot_id, so reboots would go unnoticed"
        if changed := [name for name in identity if self.identity.get(name) != identity[name]]:
            return f"changed since the last pass: {', '.join(changed)}"
        ages = [now - self.passed_at.get(gpu, -float("inf")) for gpu in named(gpus)]
        if not all(0 <= age < fresh_for_s for age in ages):
            return f"no pass of these GPUs in the last {fresh_for_s:g} s"
        return max(ages)

    def of(self, identity: Mapping[str, str]) -> State:
        """This state if it has the given node identity, else an empty state."""
        return self if self.identity == identity else State(identity, {})

    def is_unfinished(self, gpus: str) -> bool:
        """Whether the last test of any of these GPUs did not finish."""
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
    """The ids in a list such as ``2,0``; `ALL` if the list is empty."""
    return sorted({gpu.strip() for gpu in gpus.split(",")} - {""}) or [ALL]


# -- looking it up --------------------------------------------------------------------------------------


class Lookup(NamedTuple):
    """The stored state relevant to a job's GPUs."""

    why_not: str
    """Why the stored pass cannot be used; empty if it can."""
    age_s: float = 0.0
    policy: PrologConfig = PrologConfig()
    """The config's policy. It has been validated only if a run with this config has stored a pass."""
    identity: Mapping[str, str] = NOTHING.identity
    state: State = NOTHING
    complaint: str = ""
    """Why the stored state cannot be read."""
    documents: tuple[Document, ...] = ()
    """The config's files, as read."""


def look_up(config: Path | None, gpus: str) -> Lookup:
    """Look up whether these GPUs passed recently enough to skip the test."""
    try:
        layers, contents = _read_config(config)
        said = layers.data
        policy = PrologConfig.read(said.get("prolog", {}))
        fresh_for_s = float(policy.fresh_for_s)
        node = node_identity.identity(contents) | node_identity.of_site(_files(said, policy))
    except _NO_CONFIG:
        return Lookup("not used: the config has no valid section `prolog`")
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


def _read_config(config: Path | None) -> tuple[Layers, dict[str, bytes]]:
    """The config and the files that it extends, with their contents by path. Empty without a config.

    No shipped config is searched: only a site's own file may drain nodes. Raises exceptions of `_NO_CONFIG`.
    """
    from gpuipc_doctor.files.yamlfile import BadFile, content, parse
    from gpuipc_doctor.site.layers import Layers, lineage

    contents: dict[str, bytes] = {}

    def unchecked(file: Path) -> Document:
        contents[str(file.absolute())] = found = content(file)
        return parse(file, found, None)

    try:
        return Layers(tuple(lineage(config, unchecked))), contents
    except BadFile as bad:
        raise ValueError(str(bad)) from None


def _files(said: Mapping[str, Json], policy: PrologConfig) -> Iterator[Path]:
    """Paths of the site's own checks and known issues, and of the simulated node's profile."""
    for key in SITE_DIRECTORIES:
        yield from map(Path, said.get(key, ()))
    if policy.simulate:
        yield Path(policy.simulate)


# -- the file -------------------------------------------------------------------------------------------


def dumps(state: State) -> bytes:
    return json.dumps({"format": 1, **state._asdict()}).encode()


def loads(data: bytes) -> State:
    """Parse a stored state. Raises `ValueError` for anything not written by `dumps`."""
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
        raise ValueError("an identity that is not text")
    if not all(isinstance(at, float | int) and not isinstance(at, bool) for at in passed_at.values()):
        raise ValueError("a time that is not a number")
    if not isinstance(unfinished, list) or not all(isinstance(gpu, str) for gpu in unfinished):
        raise ValueError("a GPU must be a string")
    return State(node, passed_at, tuple(unfinished))


def read(directory: Path) -> State:
    """The stored state. Raises `Unusable`."""
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
    """Change the stored state atomically; an unusable one is replaced.

    Raises `Unusable`.
    """
    try:
        with private.directory(directory) as within, private.locked(within) as is_locked:
            if not is_locked:
                raise Unusable("not stored: another prolog is writing")
            before = NOTHING
            with contextlib.suppress(NotOurs, ValueError):
                before = _read(within)
            private.replace(FILE, dumps(change(before)), within=within)
    except NotOurs as reason:
        raise Unusable(f"not stored: {reason}") from None
    except OSError as error:
        raise Unusable(f"not stored: {directory}: {error.strerror}") from None


def _read(within: int) -> State:
    try:
        return loads(private.read(FILE, MAX_BYTES, within=within))
    except FileNotFoundError:
        return NOTHING
