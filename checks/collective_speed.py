"""Measure NCCL's or RCCL's latency and bandwidth on all GPUs, and its bandwidth between each two.

`compare` and the fleet's reports find changes and outliers. Within the node, a pair of GPUs is reported if it
is far slower than the usual pair and was so twice. If many pairs are slow, the node has links of several
kinds, and none is reported.

The bus bandwidth of the largest all-reduce is a WARN below half of what the GPUs' NVLinks carry in one
direction by their data sheets, if NVML reports that all links of each GPU are active and lead to NVSwitches.
A site's own limit holds instead. Of other GPUs and links nothing is said: between directly linked GPUs and
over PCIe, a healthy node may have any fraction.

If variables keep NCCL from peer access that the driver grants between all GPUs, so that data go through the
host, this is a WARN, and each variable is tried at a value that allows it.

All collective checks share one launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from gpuipc_doctor.api import (
    Evidence,
    Finding,
    Json,
    Measurement,
    ProbeOutcome,
    Subject,
)
from gpuipc_doctor.api.health_rows import LINK_RATES, LINKS
from gpuipc_doctor.collective import channels
from gpuipc_doctor.collective.bandwidth import SIZES, SMALL, Pair, bus, slow
from gpuipc_doctor.collective.launch import CollectiveCheck, take_part
from gpuipc_doctor.collective.transport_switches import PEER_DEFAULTS

__all__ = ["take_part"]


class CollectiveSpeed(CollectiveCheck):
    id = "collective-speed"
    title = "latency and bandwidth of NCCL or RCCL, together and by pair"
    subject = Subject.COLLECTIVES
    workarounds = PEER_DEFAULTS
    curable_warnings = frozenset({"through-host"})
    disturbed = frozenset({"slow-pair", "below-site-limit", "below-reference"})

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        figures = done.records["rank 0"]["speed"]
        pairs = [Pair(*pair) for pair in figures.get("pairs", ())]
        measured = list(_measured(figures, pairs, len(done.roles)))
        values: dict[str, Json] = {"latency": figures["latency"], "small": SMALL}
        evidence = [Evidence.measured("{figure}", figure=line) for line in _by_pair(pairs, done)]
        if found_channels := channels.in_words(_channels(done)):
            evidence.append(Evidence.seen("carried by {channels}", channels=found_channels))
        if below := list(_below(done, figures, pairs)):
            says = "{below}; {where} demands at least {least} GB/s"
            remedy = "compare with an earlier report (`compare`) and with other nodes (`fleet report`)"
            yield Finding.fail(
                "below-site-limit",
                says,
                *evidence,
                remedy=remedy,
                measured=measured,
                below=[what for what, _ in below],
                least=[least for _, least in below],
                where=done.params["least_where"],
                **values,
            )
        elif found := slow(pairs):
            usual = median(pair.rate for pair in pairs)
            yield Finding.warn(
                "slow-pair",
                "{slow}: {rate} GB/s, the usual pair has {usual} GB/s",
                *evidence,
                remedy="compare the links (nvidia-smi nvlink -s, nvidia-smi topo -m; rocm-smi --showtopo, "
                "lspci -vv: LnkSta) and reseat or replace what is degraded",
                measured=measured,
                slow=[f"{done.devices[pair.a].label} and {done.devices[pair.b].label}" for pair in found],
                rate=_gb(min(pair.rate for pair in found)),
                usual=_gb(usual),
                **values,
            )
        elif past := _past_peers(done):
            by, settings = past
            yield Finding.warn(
                "through-host",
                "{library} moves device memory between peers by {by}, with {settings} set: {bus} GB/s bus "
                "bandwidth",
                *evidence,
                remedy=f"unset {', '.join(setting.partition('=')[0] for setting in settings)}",
                measured=measured,
                library=done.params["name"],
                by=by,
                settings=settings,
                bus=_gb(bus(len(done.roles), figures["nbytes"], figures["seconds"])),
                **values,
            )
        elif reference := _half_missed(done, figures):
            model, links, rate = reference
            yield Finding.warn(
                "below-reference",
                "all-reduce of {nbytes:bytes}: {bus} GB/s bus bandwidth, less than half of the {reference} "
                "GB/s that {links} NVLinks of {model} carry in one direction",
                *evidence,
                remedy="see which transport NCCL chose (collective-start), whether a variable switches peer "
                "access off (environment), and the links' errors (nvidia-smi nvlink -e); if this is right "
                "here, state the site's own limit: collectives.least_gb_per_s",
                measured=measured,
                nbytes=figures["nbytes"],
                bus=_gb(bus(len(done.roles), figures["nbytes"], figures["seconds"])),
                reference=rate,
                links=links,
                model=model,
                **values,
            )
        elif "seconds" in figures:
            yield Finding.ok(
                "measured",
                "all-reduce of {nbytes:bytes}: {bus} GB/s bus bandwidth; of {small} B: {latency:us}",
                *evidence,
                measured=measured,
                nbytes=figures["nbytes"],
                bus=_gb(bus(len(done.roles), figures["nbytes"], figures["seconds"])),
                **values,
            )
        else:
            says = "all-reduce of {small} B on one GPU: {latency:us}; bandwidth needs two GPUs"
            if len(done.roles) > 1:
                says = "all-reduce of {small} B: {latency:us}; too little device memory may be used for more"
            yield Finding.ok("measured", says, measured=measured, **values)


def _below(done: ProbeOutcome, figures: Json, pairs: list[Pair]) -> Iterator[tuple[str, float]]:
    """What is below the site's own limits, and the limit in GB/s."""
    least = done.params["least"]
    if "bus" in least and "seconds" in figures:
        rate = bus(len(done.roles), figures["nbytes"], figures["seconds"])
        if rate < least["bus"] * 1e9:
            yield f"{_gb(rate):g} GB/s bus bandwidth", least["bus"]
    slowest = min(pairs, key=lambda pair: pair.rate, default=None)
    if slowest and "pair" in least and slowest.rate < least["pair"] * 1e9:
        a, b = (done.devices[rank].label for rank in (slowest.a, slowest.b))
        yield f"{_gb(slowest.rate):g} GB/s between {a} and {b}", least["pair"]


def _channels(done: ProbeOutcome) -> dict[str, int]:
    return channels.most(rank.get("channels", {}) for rank in done.records.values())


def _past_peers(done: ProbeOutcome) -> tuple[str, list[str]] | None:
    """What carries data between GPUs that all have peer access, if it is the host and variables are set.

    Without these variables the library knows why: by default NCCL uses no peer access across sockets.
    """
    labels = {device.label for device in done.devices}
    granted = all(labels - {device.label} <= device.peers for device in done.devices)
    found, rank = _channels(done), done.records["rank 0"]
    past = [name for name in found if name.startswith(("SHM", "NET"))]
    if not (past and granted and rank.get("chosen") and "seconds" in rank["speed"]):
        return None
    return " and ".join(past), [f"{name}={value}" for name, value in rank["chosen"].items()]


def _half_missed(done: ProbeOutcome, figures: Json) -> tuple[str, int, float] | None:
    """Model, number and GB/s of the NVLinks that carry less than half of this. A smaller all-reduce than the
    largest tells something only if the largest would have taken too long."""
    linked = {tuple(gpu) for gpu in done.records["rank 0"].get("linked", ())}
    if len(linked) != 1 or "bus" in done.params["least"] or "seconds" not in figures:
        return None
    (model, links, is_switched), *_ = linked
    is_whole = is_switched and links == str(LINKS.get(model)) and done.params["room"] >= SIZES[-1]
    rate = LINK_RATES.get(model)
    measured = bus(len(done.roles), figures["nbytes"], figures["seconds"])
    return (model, int(links), rate) if is_whole and rate and measured < rate * 1e9 / 2 else None


def _gb(rate: float) -> float:
    return float(f"{rate / 1e9:.3g}")


def _by_pair(pairs: list[Pair], done: ProbeOutcome) -> Iterator[str]:
    if len(pairs) == 1:
        yield f"between the two: {_gb(pairs[0].rate):g} GB/s in the slower direction"
    elif pairs:
        ordered = sorted(pairs, key=lambda pair: pair.rate)
        for name, pair in (("slowest", ordered[0]), ("fastest", ordered[-1])):
            a, b = (done.devices[rank].label for rank in (pair.a, pair.b))
            yield f"{name} of {len(pairs)} pairs: {a} and {b}, {_gb(pair.rate):g} GB/s"


def _measured(figures: Json, pairs: list[Pair], ranks: int) -> Iterator[Measurement]:
    yield Measurement(f"latency, {SMALL} B", figures["latency"] * 1e6, "µs")
    if "seconds" in figures:
        rate = bus(ranks, figures["nbytes"], figures["seconds"])
        name = f"bus bandwidth, {figures['nbytes'] >> 20} MiB"
        yield Measurement(name, rate / 1e9, "GB/s", more_is_better=True)
    if pairs:
        rate = min(pair.rate for pair in pairs)
        yield Measurement("bandwidth of the slowest pair", rate / 1e9, "GB/s", more_is_better=True)


CHECK = CollectiveSpeed()
