"""Profiles: a simulated node's hardware and software, its faults, and a run's expected findings.

A profile is one YAML file (schema: ``profile.schema.json``). With ``extends`` it inherits another profile's
keys: ``versions``, ``files``, ``peers`` and ``options`` are merged, all others replaced.

Faults and expectations use one `vocabulary` for both vendors. In ``mentions``, ``{ipc-open}`` and
``{INVALID_HANDLE}`` stand for the names of the tested vendor.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.tables import table
from gpuipc_doctor.files.yamlfile import BadFile, Document, Mistake, read
from gpuipc_doctor.model import Json, MemoryShare, Status
from gpuipc_doctor.simulator import vocabulary
from gpuipc_doctor.vendors import SUPPORTED

PROFILES = Path(__file__).with_name("profiles")
SCHEMA = Path(__file__).with_name("profile.schema.json")
FAULTS = Path(__file__).with_name("faults.yaml")
"""Default values of the fields of each kind of fault: ``call``, ``mpi-call``, ``collective``, ``message``."""

COLLECTIVES = ("nccl", "rccl")
"""Libraries that are simulated where a profile states their version."""

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MERGED = ("versions", "files", "peers", "options")
_ARCH = {"cuda": "9.0", "hip": "gfx90a", "ze": "pvc"}


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One GPU of the simulated node.

    Sizes are in bytes. ``held``: memory that the process ``holder`` holds permanently (0: none, the driver
    lost it; -1: NVML lists no processes). ``granule``: unit of physical memory.
    ``addresses``: freed addresses are reused after this many bytes of address space; 0: never.
    """

    backend: str
    index: int
    name: str
    uuid: str
    pci: str
    memory: int
    held: int
    holder: int
    granule: int
    addresses: int
    arch: str
    imex: int
    """Whether fabric handles are permitted, as an IMEX channel permits them."""
    nvml: Mapping[str, int | str]
    """What NVML reports of it, by the keys of the node's file."""
    mode: str
    """``usual``, or a mode that withholds features: exclusive compute mode, confidential, integrated."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One expected finding. ``probe`` and ``mentions`` (words in its text) are optional.

    ``subject``: ``device``, ``pair``, ``group`` or ``node``; empty: any. ``key``: the finding's key.
    ``backend``: the only backend on which it is expected; empty: all. ``at_times``: whether a run may miss
    it, because it depends on the timing of processes.
    """

    check: str
    status: Status
    probe: str = ""
    mentions: tuple[str, ...] = ()
    subject: str = ""
    key: str = ""
    backend: str = ""
    at_times: bool = False

    def __str__(self) -> str:
        where = self.subject and f"on a {self.subject}"
        on = self.backend and f"on {self.backend}"
        return " ".join(filter(None, (self.check, self.probe, self.status.value, self.key, where, on)))


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected result on one backend: exit code and findings.

    All other results must be PASS or SKIP; a WARN, ERROR or FAIL beyond ``findings`` is invented.
    """

    exit_code: int
    findings: tuple[Expected, ...]
    faulted: frozenset[str] = frozenset()
    """Names of the calls with faults. A check without an expectation may fail in them."""

    def of(self, check: str) -> Expectation:
        """The part of the expectation for this check."""
        return replace(self, findings=tuple(finding for finding in self.findings if finding.check == check))

    @property
    def checks(self) -> tuple[str, ...]:
        """Checks that must find the fault."""
        return tuple(dict.fromkeys(expected.check for expected in self.findings))


@dataclass(frozen=True, slots=True)
class SimulatedFabric:
    """The node's programs of libfabric and UCX, and their faults."""

    provider: str = ""
    """Name of the provider that is replaced by another provider."""
    faults: tuple[Mapping[str, str | int], ...] = ()
    """Faults in the form read by ``fabric_faults.c``, with the keys of ``message`` in `FAULTS`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A complete simulated node, with inherited and default values filled in."""

    name: str
    description: str
    devices: tuple[SimulatedDevice, ...]
    peers: tuple[tuple[str, int, int], ...]
    """(backend, a, b): device ``a`` has access to the memory of device ``b``."""
    versions: Mapping[str, str]
    files: Mapping[str, str]
    """Absolute path → text of files that the profile states itself."""
    faults: tuple[Mapping[str, str | int], ...]
    """Faults in the form read by the simulated drivers, with the keys of ``call`` in `FAULTS`."""
    mpi_faults: tuple[Mapping[str, str | int], ...]
    """Faults in the form read by ``mpi_faults.c``, with the keys of ``mpi-call`` in `FAULTS`."""
    collective_faults: tuple[Mapping[str, str | int], ...]
    """Faults in the form read by ``nccl.c``, with the keys of ``collective`` in `FAULTS`."""
    fabric: SimulatedFabric | None
    """None if the node has no program of libfabric or UCX."""
    expect: Mapping[str, Expectation]
    """Expectation by backend, for the backends on which the profile runs; empty without expectations."""
    deadline_s: float | None
    """Deadline in seconds for this profile, so that a drill of a hang is quick."""
    memory: MemoryShare
    """The memory limit of drills. A fault that only large allocations show needs a limit that allows them."""

    @property
    def needs_mpi(self) -> bool:
        """Whether the faults appear only in ranks. The caller must then name an MPI library."""
        return bool(self.mpi_faults)

    @property
    def has_collectives(self) -> bool:
        """Whether the node has a simulated NCCL or RCCL."""
        return not self.versions.keys().isdisjoint(COLLECTIVES)

    @property
    def needs_fabric(self) -> bool:
        """Whether the faults appear only if this machine has libfabric's programs."""
        return self.fabric is not None


@cache
def names() -> tuple[str, ...]:
    """Names of the shipped profiles."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load(profile: str) -> Profile:
    """The profile with this name or in this YAML file (a path has a ``/`` or ends in ``.yaml``).

    Raises `BadFile` with all mistakes, also if there is no such profile.
    """
    path = _find(profile, Path.cwd())
    if path is None:
        text = "no such simulator profile" + (
            did_you_mean(profile, names()) or "; `gpuipc-doctor list --profiles` names them"
        )
        raise BadFile([Mistake(Path(profile or '""'), 0, text)])
    return _shipped(path) if path.parent == PROFILES else _Reader(path).profile()


@cache
def _shipped(path: Path) -> Profile:
    return _Reader(path).profile()


def _find(profile: str, here: Path) -> Path | None:
    """File of the profile with this name or path (relative to ``here``); None for an unknown name."""
    if "/" in profile or profile.endswith(".yaml"):
        return here / profile
    return PROFILES / f"{profile}.yaml" if profile in names() else None


def file_of(profile: str) -> Path:
    """File of a profile read by `load`."""
    path = _find(profile, Path.cwd())
    assert path is not None, profile
    return path


def parse_size(text: str) -> int:
    """Bytes of a size in the schema's format: ``16 GiB``. Raises `ValueError`."""
    number, _, unit = str(text).partition(" ")
    if unit not in _UNITS:
        raise ValueError(f"{text!r} is no size: it needs a unit, such as '4098 B' or '16 GiB'")
    return int(float(number) * _UNITS[unit])


class _Reader:
    """Reads a profile and those that it extends. It also finds mistakes that a schema cannot describe."""

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
            collective_faults=tuple(map(_collective_fault, self._data.get("collective-faults", []))),
            fabric=_fabric(self._data.get("fabric")),
            expect=self._expect({device.backend for device in devices}),
            deadline_s=options.get("deadline"),
            memory=MemoryShare(most_gib=options.get("most_gib", MemoryShare().most_gib)),
        )
        if self._mistakes:
            raise BadFile(set(self._mistakes))  # a wrong expectation is wrong on both backends
        return profile

    def _complain(self, text: str, *keys: str | int) -> None:
        document = self._origin.get(str(keys[0]), self._documents[0])
        self._mistakes.append(document.mistake(text, *keys))

    def _devices(self, profile: str) -> Iterator[SimulatedDevice]:
        indices = dict.fromkeys(SUPPORTED, 0)
        position = 0
        for number, entry in enumerate(self._data.get("devices", [])):
            backend = entry["backend"]
            memory, held = parse_size(entry["memory"]), parse_size(entry.get("held", "0 B"))
            if held > memory:
                self._complain("held memory exceeds the device's memory", "devices", number, "held")
            if entry.get("count", 1) > 1 and ("uuid" in entry or "pci" in entry):
                self._complain("with 'count' above 1, remove 'uuid' and 'pci'", "devices", number, "count")
            for _ in range(entry.get("count", 1)):
                index = indices[backend]
                kind = "MIG" if " MIG " in entry["name"] else "GPU"
                yield SimulatedDevice(
                    backend=backend,
                    index=index,
                    name=entry["name"],
                    uuid=entry.get("uuid", f"{kind}-{uuid5(NAMESPACE_URL, f'{profile}/{backend}/{index}')}"),
                    pci=entry.get("pci", f"0000:{0x11 + 8 * position:02x}:00.0"),
                    memory=memory,
                    held=held,
                    holder=entry.get("holder", 0),
                    granule=parse_size(entry.get("granule", "2 MiB")),
                    addresses=parse_size(entry.get("addresses", "0 B")),
                    arch=entry.get("arch", _ARCH[backend]),
                    imex=int(entry.get("imex", False)),
                    nvml=entry.get("nvml", {}),
                    mode=entry.get("mode", "usual"),
                )
                indices[backend] += 1
                position += 1

    def _peers(self, devices: tuple[SimulatedDevice, ...]) -> Iterator[tuple[str, int, int]]:
        """(backend, device, its peer): all pairs of a backend's devices, unless the profile states them."""
        for backend in SUPPORTED:
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
        needed = {
            "cuda": ("nvidia-driver", "cuda-driver"),
            "hip": ("hip-runtime",),
            "ze": ("intel-compute-runtime",),
        }
        for backend in sorted(backends):
            for key in needed[backend]:
                if key not in versions:
                    self._complain(f"a {backend} device needs the key {key!r}", "versions")
        return versions

    def _faults(self) -> Iterator[Mapping[str, str | int]]:
        known = table(FAULTS)
        for number, stated in enumerate(self._data.get("faults", [])):
            fault = {**known["call"], **stated, "peer": int(stated.get("peer", False))}
            self._known("call", fault["call"], vocabulary.calls(), number)
            calls = known["works-at"].get(fault["do"], (fault["call"],))
            if fault["call"] not in calls and fault["call"] in vocabulary.calls():
                text = f"{fault['do']!r} has no effect on {fault['call']!r}, only on {', '.join(calls)}"
                self._complain(text, "faults", number, "do")
            backends = vocabulary.calls().get(fault["call"])
            if backends and fault["backend"] not in ("any", *backends):
                text = f"call {fault['call']!r} exists for {', '.join(backends)}, not for {fault['backend']}"
                self._complain(text, "faults", number, "call")
            if "error" in stated:
                error = fault.pop("error")
                self._known("error", error, vocabulary.errors(), number)
                fault["code"], _ = vocabulary.errors().get(error, (0, {}))
            fault |= {key: parse_size(stated[key]) for key in ("bytes", "min", "max") if key in stated}
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
                says = f"the profile is not for {entry['backend']} but for {', '.join(backends)}"
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
            parts = {"status": Status(entry["status"]), "mentions": tuple(mentions)}
            yield Expected(**{**entry, **parts})


def _mpi_fault(stated: Json) -> Mapping[str, str | int]:
    fault = {
        **table(FAULTS)["mpi-call"],
        **_with_sizes(stated),
        **{name: int(stated.get(name, False)) for name in ("overlapped", "elsewhere", "thread")},
    }
    for name in ("in-place", "zero-count", "negative-bound"):
        fault[name.replace("-", "_")] = int(fault.pop(name, False))
    if "cured-by" in stated:
        fault["variable"], _, fault["value"] = stated["cured-by"].partition("=")
        del fault["cured-by"]
    return fault


def _collective_fault(stated: Json) -> Mapping[str, str | int]:
    switches = {"in_place": int(stated.get("in-place", False)), "split": int(stated.get("split", False))}
    fault = {**table(FAULTS)["collective"], **_with_sizes(stated), **switches}
    fault.pop("in-place", None)
    return fault


def _fabric(stated: Json) -> SimulatedFabric | None:
    if stated is None:
        return None
    faults = [{**table(FAULTS)["message"], **_with_sizes(fault)} for fault in stated.get("faults", [])]
    return SimulatedFabric(stated.get("provider", ""), tuple(faults))


def _with_sizes(stated: Json) -> dict[str, str | int]:
    """A fault's fields with sizes in bytes; ``size`` sets both the minimum and the maximum."""
    sizes = {key: parse_size(stated[key]) for key in ("min", "max", "bytes") if key in stated}
    if "size" in stated:
        sizes["min"] = sizes["max"] = parse_size(stated["size"])
    return {key: value for key, value in {**stated, **sizes}.items() if key != "size"}


def _lineage(path: Path) -> Iterator[Document]:
    """The profile in ``path``, then the profile that it extends, and so on.

    Shipped profiles are validated by a test, not here, since validating would take most of the time.
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
            raise BadFile([document.mistake(f"extends: {base!r} is a cycle", "extends")])
        path = found
