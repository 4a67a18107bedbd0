"""What the caller of a run asks for, and what to answer when that does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.model import Device, Tier
from gpuipc_doctor.near_miss import did_you_mean

BACKENDS = ("cuda", "hip")


class UnknownName(Exception):
    """A check or a device that was asked for does not exist. The text says so and names the near miss.

    Without one it names all that are known, or, where they are many, what lists them (``listed_by``).
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], listed_by: str = "") -> None:
        meant = did_you_mean(name, known, else_list=not listed_by)
        super().__init__(f"no {kind} {name!r}{meant or f'; `{listed_by}` names them'}")


class AmbiguousName(UnknownName):
    """What was asked for exists several times. The text names all."""

    def __init__(self, kind: str, name: str, meanings: Iterable[str]) -> None:
        which = f"{kind} {name!r} may be any of {', '.join(sorted(meanings))}; name the one you mean"
        Exception.__init__(self, which)


class NothingToSend(Exception):
    """Two nodes were asked for, and no check that sends anything from one to the other."""

    def __init__(self) -> None:
        super().__init__(
            "--nodes and --partner are for checks between nodes, and none of those was asked for: "
            "mpi-small-message, fabric-small-message, ipc-fabric"
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for. No ``checks`` means all of the tier; no ``devices`` means all of them."""

    checks: tuple[str, ...] = ()
    tier: Tier = Tier.ACCEPTANCE
    backend: str = "auto"
    devices: tuple[str, ...] = ()
    deadline_s: float | None = None
    budget_s: float | None = None
    keep_logs: Path | None = None
    mpi_lib: str | None = None
    nodes: int = 1
    """Messages and memory go between processes on so many nodes, too."""
    partner: str = ""
    """Which node the other one of two is; empty leaves it to the launcher."""
    workarounds: bool = True
    repeat: int = 1
    """How often every probe is run, those that find out what is here excepted."""
    job_gpus: str | None = None
    """A job's GPUs as Slurm names them (``0,2``), empty for all; None asks the drivers for what they show."""
    accept_harm: bool = False
    """Probes that are known to harm nodes of the versions found run all the same."""

    @property
    def backends(self) -> tuple[str, ...]:
        return BACKENDS if self.backend in ("auto", "all") else (self.backend,)

    def select_devices(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """The devices asked for by label, uuid or (with one backend) index, else all.

        Raises `UnknownName`, and `AmbiguousName` for an index that several backends have.
        """
        if not self.devices:
            return tuple(devices)
        chosen: dict[str, Device] = {}
        for name in self.devices:
            matching = [d for d in devices if name in (d.label, d.uuid, str(d.index))]
            if not matching:
                raise UnknownName("device", name, (device.label for device in devices))
            if len(matching) > 1:
                raise AmbiguousName("device", name, (device.label for device in matching))
            chosen[matching[0].label] = matching[0]
        return tuple(chosen.values())
