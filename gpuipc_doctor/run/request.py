"""The request of a run, who is told of its progress, and the errors for unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.model import Device, Subject, Tier
from gpuipc_doctor.report_types import Result
from gpuipc_doctor.vendors import SUPPORTED


class UnknownName(Exception):
    """A requested check or device does not exist. The message suggests a similar name.

    Without a similar name it lists all known ones, or, if there are many, the command that lists them
    (``listed_by``).
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], listed_by: str = "") -> None:
        meant = did_you_mean(name, known, else_list=not listed_by)
        super().__init__(f"no {kind} {name!r}{meant or f'; `{listed_by}` names them'}")


class AmbiguousName(UnknownName):
    """A requested name is ambiguous. The message lists all matches."""

    def __init__(self, kind: str, name: str, meanings: Iterable[str]) -> None:
        which = f"{kind} {name!r} may be any of {', '.join(sorted(meanings))}; name the one you mean"
        Exception.__init__(self, which)


class NothingToSend(Exception):
    """Two nodes were requested, but no requested check runs between nodes. ``able``: the checks that do."""

    def __init__(self, able: Iterable[str]) -> None:
        super().__init__(f"--nodes and --partner need a check that runs between nodes: {', '.join(able)}")


@dataclass(frozen=True, slots=True)
class Request:
    """What to run. Empty ``checks``: all of the tier; empty ``devices``: all."""

    checks: tuple[str, ...] = ()
    tier: Tier = Tier.ACCEPTANCE
    backend: str = "auto"
    devices: tuple[str, ...] = ()
    deadline_s: float | None = None
    budget_s: float | None = None
    keep_logs: Path | None = None
    mpi_lib: str | None = None
    nccl_lib: str | None = None
    nodes: int = 1
    """Number of nodes. With two nodes, messages and memory are also tested between them."""
    partner: str = ""
    """The second node; empty: the launcher chooses it."""
    workarounds: bool = True
    repeat: int = 1
    """Repetitions of every probe except discovery."""
    job_gpus: str | None = None
    """GPUs of the job that follows, as Slurm lists them (``0,2``), empty for all; None without a job."""
    isolate: bool = False
    """Whether every probe has processes of its own, instead of sharing them in tours."""
    by_gpu: bool = False
    """Whether tours are of probes on the same GPUs only, so that a GPU that hangs delays no other's test."""
    seed: int | None = None
    """Chooses the first device of each tour; None: at random."""
    required: frozenset[Subject] = frozenset()
    """What must have been tested."""
    accept_harm: bool = False
    """Whether to run probes that are known to harm nodes with these versions."""
    also: tuple[str, ...] = ()
    """Checks that run only on request, beside the others."""
    asks_ways: bool = False
    """Whether to find out how each GPU reaches the others, also of few GPUs."""

    absent: frozenset[str] = frozenset()
    """Experimental backends that are not asked, since the node has no such GPU."""

    @property
    def backends(self) -> tuple[str, ...]:
        if self.backend == "auto":
            return tuple(backend for backend in SUPPORTED if backend not in self.absent)
        return tuple(SUPPORTED) if self.backend == "all" else (self.backend,)

    def select_devices(
        self, devices: Sequence[Device], left_out: Sequence[Device] = ()
    ) -> tuple[Device, ...]:
        """The devices requested by label, uuid or (with one backend) index, else all; without those
        ``left_out``, which may be requested too.

        Raises `UnknownName`, and `AmbiguousName` for an index that exists in several backends.
        """
        if not self.devices:
            return tuple(devices)
        devices = (*devices, *left_out)
        chosen: dict[str, Device] = {}
        unknown = [name for name in self.devices if not any(name in _names(device) for device in devices)]
        if len(unknown) > 1:
            raise UnknownName("device", ", ".join(unknown), (device.label for device in devices))
        for name in self.devices:
            matching = [device for device in devices if name in _names(device)]
            if not matching:
                raise UnknownName("device", name, (device.label for device in devices))
            if len(matching) > 1:
                raise AmbiguousName("device", name, (device.label for device in matching))
            chosen[matching[0].label] = matching[0]
        return tuple(device for device in chosen.values() if device not in left_out)


def _names(device: Device) -> tuple[str, ...]:
    return device.label, device.uuid, str(device.index)


class Watcher(Protocol):
    """Called for each start and end of a probe. ``key`` identifies the probe; it is not shown."""

    def planned(self, checks: Sequence[str]) -> None:
        """The check of each probe that will run from now on."""

    def started(self, key: str, text: str, deadline_s: float) -> None:
        """A probe starts; each of its operations may take ``deadline_s`` seconds."""

    def finished(self, key: str) -> None: ...
    def concluded(self, result: Result) -> None:
        """The results of a probe."""
