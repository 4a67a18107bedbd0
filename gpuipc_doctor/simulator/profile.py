"""Profiles: what a simulated node is made of, what is wrong with it, and what a run on it must find.

A profile is one YAML file (``profile.schema.json`` says what may stand in it). One that ``extends``
another takes over what it does not say itself: ``versions``, ``files``, ``peers`` and ``options`` key by
key, everything else whole.

Faults and expectations use one `vocabulary` for both vendors. In ``mentions``, ``{ipc-open}`` and
``{INVALID_HANDLE}`` stand for the names that a user of the vendor at hand must read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from gpuipc_doctor.model import Json, MemoryShare, Status
from gpuipc_doctor.near_miss import did_you_mean
from gpuipc_doctor.simulator import vocabulary
from gpuipc_doctor.site.yamlfile import BadFile, Document, Mistake, read

PROFILES = Path(__file__).with_name("profiles")
SCHEMA = Path(__file__).with_name("profile.schema.json")

ANY_CALL: Mapping[str, str | int] = {
    "backend": "any",
    "nth": 0,
    "from": 0,
    "every": 0,
    "device": -1,
    "when": "always",
    "peer": 0,
    "code": 0,
    "bytes": 0,
    "ms": 0,
}
"""Where a fault strikes unless it says otherwise: at every call, on any device, always, whichever device's
memory is meant. ``nth``, ``from``
and ``every`` count the call within one process, from 1."""

ANY_MPI_CALL: Mapping[str, str | int] = {
    "memory": "any",
    "rank": -1,
    "min": 0,
    "max": 2**63 - 1,
    "bytes": 0,
    "keeps": 0,
    "nth": 0,
    "from": 0,
    "every": 0,
    "until": 0,
    "log": "warn",
    "variable": "-",
    "value": "-",
    "overlapped": 0,
}
"""Where an MPI fault strikes unless it says otherwise: in each rank, at messages of any size, in any memory,
whatever the environment. ``nth``, ``from``, ``every`` and ``until`` count the calls that fit the rest, in one
process, from 1. A leak that ``keeps`` so many buffers is a cache: it gives up the one not used for longest,
and with ``overlapped`` also those that a later buffer overlaps. A ``variable`` with this ``value`` cures it;
at level ``log`` of libfabric's log it says why."""

ANY_MESSAGE: Mapping[str, str | int] = {"min": 0, "max": 2**63 - 1}
"""Where a fault of the fabric strikes unless it says otherwise: at messages of any size."""

_IMPORTS = ("ipc-open", "vmm-import", "pool-import-pointer")
_DELIVER = ("copy", "copy-from-device", *_IMPORTS)
_TELL = ("device-name", "device-pci", "nvml-driver-version", "nvml-device-name", "nvml-device-uuid")
_END = ("ipc-close", "vmm-unmap", "pool-free", "mem-free")
_WORKS_AT = {
    "accept": ("ipc-get",),
    "blank": ("ipc-get",),
    "coarse": ("mem-info",),
    "lag": ("mem-info",),
    "late": ("exit",),
    "misstate": ("device-memory",),
    "renumber": ("ipc-get",),
    "corrupt-byte": (*_DELIVER, *_TELL),
    "corrupt-page": (*_DELIVER, "pool-reuse"),
    "corrupt-from": (*_IMPORTS, "pool-trim"),
    "lose-writes": _IMPORTS,
    "stale-part": ("ipc-open",),
    "end-another": _END,
    "end-block": ("ipc-close", "mem-free"),
    "end-count": ("ipc-close",),
    "wipe": _END,
}
"""Effect → the calls at which it does something; those that are not here do it at any, or look for it."""

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MERGED = ("versions", "files", "peers", "options")
_ARCH = {"cuda": "9.0", "hip": "gfx90a"}


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One GPU of the simulated node.

    ``memory``, ``held`` (by another process, all along) and ``granule`` (of physical memory) are bytes.
    Allocations take ``addresses`` bytes of addresses before they take freed ones; 0: as many as there are.
    """

    backend: str
    index: int
    name: str
    uuid: str
    pci: str
    memory: int
    held: int
    granule: int
    addresses: int
    arch: str
    imex: int
    """Whether fabric handles are permitted, as where the node has an IMEX channel."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One finding that must be there: its check and status, its probe when given, words in its text.

    ``subject``: what it must speak of, where that matters: ``device``, ``pair``, ``group``, ``node``.
    ``key``: that of the finding. ``backend``: the only one on which it is expected; empty: all.
    """

    check: str
    status: Status
    probe: str = ""
    mentions: tuple[str, ...] = ()
    subject: str = ""
    key: str = ""
    backend: str = ""

    def __str__(self) -> str:
        where = self.subject and f"on a {self.subject}"
        on = self.backend and f"on {self.backend}"
        return " ".join(filter(None, (self.check, self.probe, self.status.value, self.key, where, on)))


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run on one backend must end in: the exit code, these findings, and no other complaint.

    Whatever is not expected must be PASS or SKIP; a WARN, ERROR or FAIL beyond ``findings`` is invented.
    """

    exit_code: int
    findings: tuple[Expected, ...]
    faulted: frozenset[str] = frozenset()
    """The names of the calls that have faults. A check of which nothing is stated may name one as failing."""

    def of(self, check: str) -> Expectation:
        """What is expected of this check alone."""
        return replace(self, findings=tuple(one for one in self.findings if one.check == check))

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that must find something."""
        return tuple(dict.fromkeys(expected.check for expected in self.findings))


@dataclass(frozen=True, slots=True)
class SimulatedFabric:
    """Programs of libfabric and UCX that are there, and what goes wrong in them."""

    provider: str = ""
    """One that is asked for and is another one in truth."""
    faults: tuple[Mapping[str, str | int], ...] = ()
    """Each as ``fabric_faults.c`` reads it, with the keys of `ANY_MESSAGE`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A simulated node, complete: nothing is left to inherit or to guess."""

    name: str
    description: str
    devices: tuple[SimulatedDevice, ...]
    peers: tuple[tuple[str, int, int], ...]
    """(backend, a, b): device ``a`` can reach the memory of device ``b``."""
    versions: Mapping[str, str]
    files: Mapping[str, str]
    """Files of the node by absolute path that the profile states itself."""
    faults: tuple[Mapping[str, str | int], ...]
    """Each fault as the simulated drivers read it, with the keys of `ANY_CALL`."""
    mpi_faults: tuple[Mapping[str, str | int], ...]
    """Each fault of an MPI library as ``mpi_faults.c`` reads it, with the keys of `ANY_MPI_CALL`."""
    fabric: SimulatedFabric | None
    """None where the node has no program of libfabric or UCX."""
    expect: Mapping[str, Expectation]
    """By backend, for those that the profile must be run on; empty when it states no expectation."""
    deadline_s: float | None
    """Deadline in seconds that suits this profile, so that a drill of a hang is quick."""
    memory: MemoryShare
    """What checks are drilled with: a fault of large memory shows only where there is a share for that."""

    @property
    def needs_mpi(self) -> bool:
        """Whether its faults show only where ranks run, with an MPI library that the caller names."""
        return bool(self.mpi_faults)

    @property
    def needs_fabric(self) -> bool:
        """Whether its faults show only where this machine has libfabric's programs to lend."""
        return self.fabric is not None


@cache
def names() -> tuple[str, ...]:
    """The profiles that come with the package."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load(profile: str) -> Profile:
    """The profile of this name, or the one in this YAML file (a path has a ``/`` or ends in ``.yaml``).

    Raises `BadFile` naming each mistake, also when there is no such profile.
    """
    path = _find(profile, Path.cwd())
    if path is None:
        text = f"no such simulator profile{did_you_mean(profile, names())}"
        raise BadFile([Mistake(Path(profile or '""'), 0, text)])
    return _shipped(path) if path.parent == PROFILES else _Reader(path).profile()


@cache
def _shipped(path: Path) -> Profile:
    """One that comes with the package, which is read once."""
    return _Reader(path).profile()


def _find(profile: str, here: Path) -> Path | None:
    """Where the profile of this name or path is, a path being relative to ``here``; None: no such name."""
    if "/" in profile or profile.endswith(".yaml"):
        return here / profile
    return PROFILES / f"{profile}.yaml" if profile in names() else None


def file_of(profile: str) -> Path:
    """The file of a profile that `load` has read."""
    path = _find(profile, Path.cwd())
    assert path is not None, profile
    return path


def parse_size(text: str) -> int:
    """Bytes of a size as the schema admits it: ``16 GiB``."""
    number, unit = text.split()
    return int(float(number) * _UNITS[unit])


class _Reader:
    """Reads a profile and what it extends, and finds the mistakes that a schema cannot see."""

    def __init__(self, path: Path) -> None:
        self._documents = list(_lineage(path))
        self._mistakes: list[Mistake] = []
        self._data: dict[str, Any] = {}
        self._origin: dict[str, Document] = {}
        for document in reversed(self._documents):
            for key, value in document.data.items():
                self._data[key] = {**self._data.get(key, {}), **value} if key in _MERGED else value
                self._origin[key] = document

    def profile(self) -> Profile:
        own, options = self._documents[0], self._data.get("options", {})
        devices = tuple(self._devices(own.path.stem))
        profile = Profile(
            name=own.path.stem,
            description=own.data["description"],
            devices=devices,
            peers=tuple(self._peers(devices)),
            versions=self._versions({device.backend for device in devices}),
            files=self._data.get("files", {}),
            faults=tuple(self._faults()),
            mpi_faults=tuple(map(_mpi_fault, self._data.get("mpi-faults", []))),
            fabric=_fabric(self._data.get("fabric")),
            expect=self._expect({device.backend for device in devices}),
            deadline_s=options.get("deadline"),
            memory=MemoryShare(most_gib=options.get("most_gib", MemoryShare().most_gib)),
        )
        if self._mistakes:
            raise BadFile(set(self._mistakes))  # a wrong expectation is wrong on both backends
        return profile

    def _complain(self, text: str, *keys: str | int) -> None:
        """A mistake in the file that the value came from, at its line there."""
        document = self._origin.get(str(keys[0]), self._documents[0])
        self._mistakes.append(document.mistake(text, *keys))

    def _devices(self, profile: str) -> Iterator[SimulatedDevice]:
        indices = {"cuda": 0, "hip": 0}
        position = 0
        for number, entry in enumerate(self._data.get("devices", [])):
            backend = entry["backend"]
            memory, held = parse_size(entry["memory"]), parse_size(entry.get("held", "0 B"))
            if held > memory:
                self._complain("more is held than the device has", "devices", number, "held")
            if entry.get("count", 1) > 1 and ("uuid" in entry or "pci" in entry):
                self._complain("a device with its own uuid or pci has no count", "devices", number, "count")
            for _ in range(entry.get("count", 1)):
                index = indices[backend]
                yield SimulatedDevice(
                    backend=backend,
                    index=index,
                    name=entry["name"],
                    uuid=entry.get("uuid", f"GPU-{uuid5(NAMESPACE_URL, f'{profile}/{backend}/{index}')}"),
                    pci=entry.get("pci", f"0000:{0x11 + 8 * position:02x}:00.0"),
                    memory=memory,
                    held=held,
                    granule=parse_size(entry.get("granule", "2 MiB")),
                    addresses=parse_size(entry.get("addresses", "0 B")),
                    arch=entry.get("arch", _ARCH[backend]),
                    imex=int(entry.get("imex", False)),
                )
                indices[backend] += 1
                position += 1

    def _peers(self, devices: tuple[SimulatedDevice, ...]) -> Iterator[tuple[str, int, int]]:
        """All devices of a backend reach each other unless the profile says otherwise."""
        for backend in ("cuda", "hip"):
            count = sum(device.backend == backend for device in devices)
            stated = self._data.get("peers", {}).get(backend, "all")
            every = [[a, b] for a in range(count) for b in range(count) if a != b]
            pairs = {"all": every, "none": []}[stated] if isinstance(stated, str) else stated
            for number, (a, b) in enumerate(pairs):
                if max(a, b) >= count or a == b:
                    self._complain(f"{a} to {b} is not a pair of {count} devices", "peers", backend, number)
                yield backend, a, b

    def _versions(self, backends: set[str]) -> Mapping[str, str]:
        versions: Mapping[str, str] = self._data.get("versions", {})
        needed = {"cuda": ("nvidia-driver", "cuda-driver"), "hip": ("hip-runtime",)}
        for backend in sorted(backends):
            for key in needed[backend]:
                if key not in versions:
                    self._complain(f"a {backend} device needs key {key!r} here", "versions")
        return versions

    def _faults(self) -> Iterator[Mapping[str, str | int]]:
        for number, stated in enumerate(self._data.get("faults", [])):
            fault = {**ANY_CALL, **stated, "peer": int(stated.get("peer", False))}
            self._known("call", fault["call"], vocabulary.calls(), number)
            calls = _WORKS_AT.get(fault["do"], (fault["call"],))
            if fault["call"] not in calls and fault["call"] in vocabulary.calls():
                text = f"{fault['do']!r} does nothing at {fault['call']!r}, only at {', '.join(calls)}"
                self._complain(text, "faults", number, "do")
            backends = vocabulary.calls().get(fault["call"])
            if backends and fault["backend"] not in ("any", *backends):
                text = f"{fault['backend']} has no call {fault['call']!r}, only {', '.join(backends)} has"
                self._complain(text, "faults", number, "call")
            if "error" in stated:
                error = fault.pop("error")
                self._known("error", error, vocabulary.errors(), number)
                fault["code"], _ = vocabulary.errors().get(error, (0, {}))
            if "bytes" in stated:
                fault["bytes"] = parse_size(stated["bytes"])
            yield fault

    def _known(self, kind: str, word: str, words: Collection[str], number: int) -> None:
        if word not in words:
            self._complain(f"unknown {kind} {word!r}{did_you_mean(word, words)}", "faults", number, kind)

    def _expect(self, present: set[str]) -> Mapping[str, Expectation]:
        stated = self._data.get("expect")
        if stated is None:
            return {}
        calls = [vocabulary.calls().get(fault["call"], {}) for fault in self._data.get("faults", [])]
        backends = stated.get("backends", sorted(present))
        for number, entry in enumerate(stated.get("findings", [])):
            if "backend" in entry and entry["backend"] not in backends:
                says = f"it is not run on {entry['backend']}, only on {', '.join(backends)}"
                self._complain(says, "expect", "findings", number, "backend")
        return {
            backend: Expectation(
                stated["exit"],
                tuple(self._expected(stated, backend)),
                frozenset(names[backend] for names in calls if backend in names),
            )
            for backend in backends
        }

    def _expected(self, stated: Json, backend: str) -> Iterator[Expected]:
        words = vocabulary.of_vendor(backend)
        for number, entry in enumerate(stated.get("findings", [])):
            if entry.get("backend", backend) != backend:
                continue
            mentions = []
            for place, text in enumerate(entry.get("mentions", [])):
                try:
                    mentions.append(text.format_map(words))
                except (KeyError, ValueError, IndexError):
                    keys = ("expect", "findings", number, "mentions", place)
                    self._complain(f"unknown word in {text!r}", *keys)
            yield Expected(
                entry["check"],
                Status(entry["status"]),
                entry.get("probe", ""),
                tuple(mentions),
                entry.get("subject", ""),
                entry.get("key", ""),
                entry.get("backend", ""),
            )


def _mpi_fault(stated: Json) -> Mapping[str, str | int]:
    fault = {**ANY_MPI_CALL, **_with_sizes(stated), "overlapped": int(stated.get("overlapped", False))}
    if "cured-by" in stated:
        fault["variable"], _, fault["value"] = stated["cured-by"].partition("=")
        del fault["cured-by"]
    return fault


def _fabric(stated: Json) -> SimulatedFabric | None:
    if stated is None:
        return None
    faults = [{**ANY_MESSAGE, **_with_sizes(fault)} for fault in stated.get("faults", [])]
    return SimulatedFabric(stated.get("provider", ""), tuple(faults))


def _with_sizes(stated: Json) -> dict[str, str | int]:
    """What is stated of a fault, its sizes in bytes; ``size`` is both the least and the most."""
    sizes = {key: parse_size(stated[key]) for key in ("min", "max", "bytes") if key in stated}
    if "size" in stated:
        sizes["min"] = sizes["max"] = parse_size(stated["size"])
    return {key: value for key, value in {**stated, **sizes}.items() if key != "size"}


def _lineage(path: Path) -> Iterator[Document]:
    """The profile in ``path``, then the one it extends, and so on.

    The shipped ones are trusted to follow the schema, which takes most of the time; a test sees to that.
    """
    seen: list[Path] = []
    while True:
        document = read(path, None if path.parent == PROFILES else json.loads(SCHEMA.read_text()))
        seen.append(path.resolve())
        yield document
        base = document.data.get("extends")
        if base is None:
            return
        found = _find(base, path.parent)
        if found is None:
            text = f"extends: no profile {base!r}{did_you_mean(base, names())}"
            raise BadFile([document.mistake(text, "extends")])
        if found.resolve() in seen:
            raise BadFile([document.mistake(f"extends: {base!r} leads back here", "extends")])
        path = found
