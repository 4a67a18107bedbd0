"""Error counters of GPUs and links, as check gpu-health records them: their names, and which rose.

What steps back was set to 0, and what was unknown before may be old: neither has risen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpuipc_doctor.model import Json

COUNTERS = {
    "nvlink-replay": "NVLink replays",
    "nvlink-recovery": "NVLink recoveries",
    "nvlink-crc": "NVLink CRC errors",
    "pcie-replay": "PCIe replays",
    "rows-correctable": "rows remapped for correctable errors",
    "rows-uncorrectable": "rows remapped for uncorrectable errors",
    "ecc": "uncorrectable ECC errors",
    "xgmi": "uncorrectable xGMI errors",
    "xid": "Xids",
}
"""Counter → what it counts; the keys of the site config's ``epilog_fail``."""

NVLINK = "nvlink"
"""Prefix of the counters that each link has."""

Counts = Mapping[str, Sequence["int | None"]]
"""Counter → its value, or that of each NVLink; None: not reported."""


class Look(NamedTuple):
    """``at``: seconds since boot. ``log``: number of the last record of the kernel's log; -1 if unknown.
    ``gpus``: PCI address → counters."""

    at: float
    log: int
    gpus: Mapping[str, Counts]


class Rise(NamedTuple):
    """``link``: -1 if it is not of a link. ``peer``: PCI address of the link's other end; empty if unknown.
    ``detail``: numbers of the Xids."""

    pci: str
    counter: str
    by: int
    link: int = -1
    peer: str = ""
    detail: str = ""


def counted(told: Iterable[Mapping[str, Json]], addresses: Mapping[str, str], at: float) -> Look:
    """The look of records of `health_figures.read`. ``addresses``: label of a GPU → PCI address."""
    gpus: dict[str, Counts] = {}
    log = -1
    for records in told:
        log = max(log, -1 if records.get("log") is None else records["log"])
        for label, gpu in records.get("gpus", {}).items():
            sums = {name: [gpu[figure]] for figure, name in _FIGURES.items() if figure in gpu}
            if counts := {**gpu.get("counters", {}), **sums}:
                gpus[addresses.get(label) or gpu.get("pci", label)] = counts
    return Look(at, log, gpus)


_FIGURES = {"uncorrected": "ecc", "xgmi": "xgmi"}


def rises(before: Look, now: Look, told: Mapping[str, Json]) -> Iterator[Rise]:
    """What rose on the GPUs that both looks have, and their Xids. ``told``: the records of ``now``, which has
    only newer Xids than ``before``."""
    of_pci = {gpu.get("pci", label): gpu for label, gpu in told.get("gpus", {}).items()}
    for pci, counts in now.gpus.items():
        gpu = of_pci.get(pci, {})
        numbers = [number for number, _ in gpu.get("xids", ())]
        if numbers and pci in before.gpus and before.log >= 0:
            yield Rise(pci, "xid", len(numbers), detail=", ".join(map(str, dict.fromkeys(numbers))))
        for counter, values in counts.items():
            earlier = before.gpus.get(pci, {}).get(counter, ())
            for index, (old, new) in enumerate(zip(earlier, values, strict=False)):
                if old is not None and new is not None and new > old:
                    link = index if counter.startswith(NVLINK) else -1
                    yield Rise(pci, counter, new - old, link, gpu.get("peers", {}).get(str(link), ""))


def place(gpu: str, link: int) -> str:
    return f"{gpu}, NVLink {link}" if link >= 0 else gpu


def totals(told: Sequence[Mapping[str, Json]]) -> dict[str, int] | None:
    """``cuda:0, NVLink 3: NVLink replays`` → the count, without zeros; None if no counter is reported."""
    labels = {label: label for records in told for label in records.get("gpus", {})}
    look = counted(told, labels, 0.0)
    found = {
        f"{place(label, number if counter.startswith(NVLINK) else -1)}: {COUNTERS[counter]}": count
        for label, counts in look.gpus.items()
        for counter, values in counts.items()
        for number, count in enumerate(values)
        if count
    }
    return found if look.gpus else None
