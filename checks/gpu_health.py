"""Read what is judged without comparing GPUs: the health of each GPU, and its PCIe link during a copy.

NVML reports the state of the NVLink fabric, active NVLinks, the recovery that the driver requires, remapped
rows, uncorrectable ECC errors since the driver was loaded, clocks that are held down without load, and the
PCIe link; amdgpu counts uncorrectable errors of memory and xGMI; the kernel's log, where it may be read, has
Xids. ``gpuipc_doctor/api/health_rows.yaml`` says which are a FAIL, which a WARN, and by which source.

A GPU still registering with the fabric is asked again at the end of the run. If it still is, that is a FAIL
when the driver was loaded more than ten minutes ago, else a WARN; in the prolog always a WARN. "Not
supported" is no fault: a GPU alone, on a PCIe card or in a Grace Hopper without NVSwitch has no fabric.

Nothing is stressed, and no counter is watched over time: use DCGM for that. Multicast is not tried.
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

ROLE = "allocator"
"""As in other checks of single processes, which then run in the same one."""

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

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        imex = {fact.name: fact.value for fact in ctx.inventory if fact.name.startswith("imex-")}
        params = {"imex": imex, "quick": ctx.tier is Tier.PROLOG, "states_links": ctx.states_links}
        for device in ctx.devices:
            gpu = [device.label, device.backend, device.uuid, device.pci]
            copies = ctx.tier > Tier.PROLOG and "multi-process" in device.capabilities
            yield Probe("", {ROLE: read}, (device,), {**params, "gpus": [gpu], "copies": copies})
        if not ctx.devices and ctx.tier is Tier.PROLOG:
            yield Finding.skip("no-device", "no GPU of the job to ask about")
        elif not ctx.devices:  # a driver whose fabric is not ready lists none; NVML does
            yield Probe("", {ROLE: read}, params={**params, "gpus": [], "copies": False})

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        told = done.records[ROLE]
        bad = list(_impossible(told)) + list(findings(told, done.params))
        known = [
            name for figure, name in FIGURES.items() if any(figure in gpu for gpu in told["gpus"].values())
        ]
        if not (bad or known):
            reason = told["why"] or "this driver reports none of the figures"
            bad.append(Finding.skip("no-figures", "{reason}", reason=reason))
        says = "no fault reported: {figures}"
        yield from bad or [Finding.ok("no-fault", says, *notes(told, done.params), figures=known)]


def _impossible(told: Mapping[str, Json]) -> Iterator[Finding]:
    """Findings on what is no answer. A GPU that its driver gave up is in `findings`."""
    if told["wrong"]:
        yield Finding.fail("wrong-copy", "wrong data after a copy from the host", told["wrong"])
    for label, gpu in told["gpus"].items():
        if figures := beyond_belief(gpu):
            says = "NVML reports impossible figures of {device}: {figures}"
            yield Finding.error("impossible-figures", says, device=label, figures=figures)
    for label, reason in told["silent"].items():
        says = "NVML does not answer for {device}: {reason}"
        yield Finding.error("no-answer", says, device=label, reason=reason)


def findings(told: Mapping[str, Json], params: Mapping[str, Json]) -> Iterator[Finding]:
    """A finding for each fault: of this GPU or, without devices, of all GPUs that have it."""
    alike: dict[str, tuple[Row, list[str]]] = {}
    for label, row in _faults(told, params):
        alike.setdefault(repr(row), (row, []))[1].append(label)
    for (name, values), labels in alike.values():
        known = {"where": "" if params["gpus"] else ", ".join(labels), **values}
        xids = [text for label in labels for text in _xids(told["gpus"].get(label, {}))]
        for fault, said in FAULTS.items():
            if fault == name:
                yield Finding.fail(fault, said["says"], *xids, remedy=_do(said, values), **known)
        for oddity, said in WARNINGS.items():
            if oddity == name:
                yield Finding.warn(oddity, said["says"], *xids, remedy=_do(said, values), **known)


def _faults(told: Mapping[str, Json], params: Mapping[str, Json]) -> Iterator[tuple[str, Row]]:
    """(label, row) of each fault."""
    for label, reason in told["lost"].items():
        yield label, ("gpu-lost", {"reason": reason})
    for label, gpu in told["gpus"].items():
        if not beyond_belief(gpu):
            found = rows(gpu, told["loaded_s"], quick=params["quick"])
            by_site = {"links-down"} if params["states_links"] else ()
            yield from ((label, row) for row in found if row[0] not in by_site)
        if told["imex_nodes"] > 1 and not params["imex"].get("imex-daemon"):
            yield label, ("imex-down", {"nodes": told["imex_nodes"]})


def _do(said: Mapping[str, str], values: Mapping[str, Json]) -> str:
    return said["do"].replace("{action}", str(values.get("action", "")))


def _xids(gpu: Mapping[str, Json]) -> list[str]:
    return [text.replace("{", "(") for _, text in gpu.get("xids", ())][-3:]


def notes(told: Mapping[str, Json], params: Mapping[str, Json]) -> Iterator[Evidence | str]:
    """What else was seen, and what was not."""
    for gpu in told["gpus"].values():
        if pcie := gpu.get("pcie"):
            yield Evidence.seen("PCIe: generation {generation}, {lanes} lanes", **pcie)
        if (fabric := gpu.get("fabric", {})).get("state") == COMPLETED:
            yield Evidence.seen("NVLink fabric: clique {clique} of cluster {cluster}", **fabric)
        yield from _xids(gpu)
    for name, value in params["imex"].items():
        if value:
            yield Evidence.seen("{name}: {value}", name=name, value=value)
    if told["log"] is None:
        yield "the kernel's log cannot be read: Xids are unknown"


def read(w: Worker) -> None:
    told, wrong = w.gpu_health(w.params["gpus"]), ""
    if w.params["copies"] and (gpu := next((each for each in told["gpus"].values() if "pcie" in each), None)):
        wrong, gpu["pcie"] = copy(w)
        gpu["copied"] = True
    w.record(**told, wrong=wrong)


def copy(w: Worker) -> tuple[str, Json]:
    """Copy from the host until the PCIe link is up, and read it between copies."""
    data, end, link = pattern(NBYTES), w.clock() + RAISES_S, None
    with w.gpu.alloc(NBYTES) as buffer:
        while not link or (of_link(link) and w.clock() < end):
            buffer.write(data)
            link = w.gpu.pcie_link() or {}
        return difference(buffer.read(), data), link


CHECK = GpuHealth()
