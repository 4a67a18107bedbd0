"""Read the health of each GPU that needs no other GPU to compare with, and its PCIe link under a copy.

NVML reports the state of the NVLink fabric, active NVLinks, the recovery that the driver requires, remapped
rows, uncorrectable ECC errors since the driver was loaded, clocks that are held down without load, and the
PCIe link; amdgpu counts uncorrectable errors of memory and xGMI; the kernel's log, where it may be read, has
Xids. A table says which of these are a FAIL, which a WARN, and by which source.

A GPU still registering with the fabric is asked again at the end of the run; ten minutes after the
driver was loaded that is a FAIL, before a job a WARN. "Not supported" is no fault: a GPU alone, on a PCIe
card or in a Grace Hopper without NVSwitch has no fabric.

Nothing is stressed, and no counter is watched over time: that is DCGM's. Multicast is not tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    difference,
    pattern,
)
from gpuipc_doctor.api.health_rows import FAULTS, WARNINGS

from ._gpu_health_rows import COMPLETED, Row, beyond_belief, of_link, rows

COPY = "copy"
NBYTES = 4 << 20

RAISES_S = 0.5
"""Seconds of copies after which an idle GPU has raised its PCIe link."""

FIGURES = {
    "recovery": "required recovery",
    "remapped": "remapped rows",
    "uncorrected": "ECC errors",
    "slowdown": "clocks",
    "links": "NVLinks",
    "pcie": "PCIe link",
    "fabric": "NVLink fabric",
    "xgmi": "xGMI errors",
}


class GpuHealth(Check):
    id = "gpu-health"
    title = "GPUs, their memory and links report no fault"
    subject = None
    tier = Tier.PROLOG
    disturbed = frozenset({"fabric-in-progress", "fabric-stuck", "clocks-held"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        gpus = [[device.label, device.backend, device.uuid, device.pci] for device in ctx.devices]
        imex = {fact.name: fact.value for fact in ctx.inventory if fact.name.startswith("imex-")}
        params = {"gpus": gpus, "imex": imex, "quick": ctx.tier is Tier.PROLOG}
        yield Probe("", {"reader": read}, params=params)
        if ctx.tier > Tier.PROLOG:
            for device in ctx.devices:
                yield Probe(COPY, {"copier": copy}, (device,))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if done.probe == COPY:
            yield from self._of_copy(done.records["copier"])
            return
        told = done.records["reader"]
        gpus: dict[str, Json] = told["gpus"]
        strange = {label: lines for label, gpu in gpus.items() if (lines := beyond_belief(gpu))}
        found = list(_of_all(told, done.params))
        bad = [*findings(found, gpus)]
        if strange:
            says = "impossible figures of {devices}: {figures}"
            figures = next(iter(strange.values()))
            bad.append(Finding.error("impossible-figures", says, devices=list(strange), figures=figures))
        if told["silent"]:
            says = "NVML does not answer for {devices}: {reason}"
            reason = next(iter(told["silent"].values()))
            bad.append(Finding.error("no-answer", says, devices=list(told["silent"]), reason=reason))
        known = [name for figure, name in FIGURES.items() if any(figure in gpu for gpu in gpus.values())]
        if not (bad or known):
            reason = told["why"] or "this driver reports none of the figures"
            bad.append(Finding.skip("no-figures", "{reason}", reason=reason))
        says = "{count} GPUs report no fault: {figures}" if len(gpus) > 1 else "no fault reported: {figures}"
        yield from bad or [
            Finding.ok("no-fault", says, *notes(told, done.params), count=len(gpus), figures=known)
        ]

    def _of_copy(self, told: Mapping[str, Json]) -> Iterator[Finding]:
        if told["wrong"]:
            yield Finding.fail("wrong-copy", "wrong data after copies from the host", told["wrong"])
        link = told["link"]
        bad = of_link(link) if link and not beyond_belief({"pcie": link}) else []
        yield from findings([("", row) for row in bad], {})
        if not (told["wrong"] or bad):
            seen = "generation {generation}, {lanes} lanes" if link else "the driver does not report the link"
            says = "{nbytes:mib} copied from the host; PCIe link: " + seen
            yield Finding.ok("link-right", says, nbytes=NBYTES, **(link or {}))


def findings(found: Iterable[tuple[str, Row]], gpus: Mapping[str, Json]) -> Iterator[Finding]:
    """A finding for each key and values, about all GPUs that have them."""
    alike: dict[str, tuple[Row, list[str]]] = {}
    for label, row in found:
        alike.setdefault(repr(row), (row, []))[1].append(label)
    for (name, values), labels in alike.values():
        known = {"devices": labels, **values} if any(labels) else {"devices": "this GPU", **values}
        seen = [Evidence.seen("{text}", text=text) for label in labels for text in _xids(gpus, label)]
        for key, said in FAULTS.items():
            if key == name:
                yield Finding.fail(key, said["says"], *seen, remedy=_do(said, values), **known)
        for key, said in WARNINGS.items():
            if key == name:
                yield Finding.warn(key, said["says"], *seen, remedy=_do(said, values), **known)


def _do(said: Mapping[str, str], values: Mapping[str, Json]) -> str:
    return said["do"].replace("{action}", str(values.get("action", "")))


def _xids(gpus: Mapping[str, Json], label: str) -> list[str]:
    return [text for _, text in gpus.get(label, {}).get("xids", ())][-3:]


def _of_all(told: Mapping[str, Json], params: Mapping[str, Json]) -> Iterator[tuple[str, Row]]:
    """(label, row) of each fault."""
    for label, reason in told["lost"].items():
        yield label, ("gpu-lost", {"reason": reason})
    cliques: dict[tuple[str, int], list[str]] = {}
    for label, gpu in told["gpus"].items():
        if not beyond_belief(gpu):
            yield from ((label, row) for row in rows(gpu, told["loaded_s"], quick=params["quick"]))
        fabric = gpu.get("fabric", {})
        if fabric.get("state") == COMPLETED and not fabric["status"]:
            cliques.setdefault((fabric["cluster"], fabric["clique"]), []).append(label)
    if len(cliques) > 1:
        members = "; ".join(", ".join(labels) for labels in cliques.values())
        yield "", ("fabric-split", {"cliques": len(cliques), "members": members})
    nodes = told["imex_nodes"]
    if nodes > 1 and not params["imex"].get("imex-daemon"):
        yield "", ("imex-down", {"nodes": nodes})


def notes(told: Mapping[str, Json], params: Mapping[str, Json]) -> Iterator[Evidence]:
    """What else was seen, and what was not."""
    for label, gpu in told["gpus"].items():
        fabric = gpu.get("fabric", {})
        if fabric.get("state") == COMPLETED:
            says = "{device}: clique {clique} of cluster {cluster}"
            yield Evidence.seen(says, device=label, clique=fabric["clique"], cluster=fabric["cluster"])
        yield from (Evidence.seen("{text}", text=text) for text in _xids(told["gpus"], label))
    for name, value in params["imex"].items():
        if value:
            yield Evidence.seen("{name}: {value}", name=name, value=value)
    if not told["has_log"]:
        yield Evidence.seen("the kernel's log cannot be read: Xids are unknown")


def read(w: Worker) -> None:
    w.record(**w.gpu_health(w.params["gpus"]))


def copy(w: Worker) -> None:
    """Copy from the host until the PCIe link is up, and read it between copies."""
    data, end, link, copies = pattern(NBYTES), w.clock() + RAISES_S, None, 0
    with w.gpu.alloc(NBYTES) as buffer:
        while not copies or (link and of_link(link) and w.clock() < end):
            buffer.write(data)
            link, copies = w.gpu.pcie_link(), copies + 1
        w.record(wrong=difference(buffer.read(), data), link=link)


CHECK = GpuHealth()
