"""The finding of each outcome of mpi-cache-growth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuipc_doctor.api import Evidence, Finding, Json, ProbeOutcome, leak_report
from gpuipc_doctor.api.buffer_growth import Outcome, held_by
from gpuipc_doctor.api.loop_growth import interval

from ._mpi_cache_growth_buffers import FOR_LARGE, SMALL
from ._mpi_cache_growth_series import DeviceGrowth

TELLING = 180 << 20
"""Minimum bytes of all large buffers together. With fewer, some buffers have the same number of 2 MiB blocks
and reuse earlier addresses, so that a run without growth would prove nothing."""

RISES = 0.9
"""Used memory that rose until this part of the iterations, or longer, still rises."""

TELL_LEAK = "to tell a leak from a cache, run `gpuipc-doctor check mpi-cache-growth --tier soak`"

BY_BUFFER = "used memory {where} grows by {growth:mib} each iteration ({variant})"
BY_MESSAGE = "used memory {where} grows by {growth:bytes} with each message ({variant})"


def judge_unknown(device: DeviceGrowth) -> Finding:
    """The ERROR if used memory moves by itself, or if too few buffers were sent."""
    growth, variant = device.growth, device.done.probe
    if not (growth.is_hidden or growth.is_uneven):
        return Finding.error(
            "too-few-to-tell",
            "cannot tell a cache from a leak after {times} buffers: {buffers} are kept {where} ({variant})",
            *_rate_and_holders(device),
            remedy="raise `memory` in the site config to 1024 MiB of device memory",
            times=len(growth.used),
            buffers=growth.at_least,
            **_place_and_rate(device),
        )
    seen = Evidence.seen(
        "growth below {least:bytes} with each message would not have been noticed ({variant})"
        if growth.is_hidden
        else "used memory {where} rose by {rose:mib} in {times} iterations, but not evenly ({variant})",
        least=growth.rate.unsuspicious,
        rose=max(growth.since_the_first),
        times=len(growth.since_the_first),
        where=device.where,
        variant=variant,
    )
    return leak_report(device.done.roles[device.role]).moving(seen)


def judge_bounded(device: DeviceGrowth) -> Finding:
    """The WARN for what a library keeps within a bound: one that was seen, growth that stopped, or its
    own."""
    growth, bound, params = device.growth, device.bound, device.done.params
    values: dict[str, Json] = {**_place_and_rate(device), "sent": len(growth.small), "each": SMALL}
    remedy, evidence = _limit_the_cache(device.done), list[Evidence | str]()
    if bound:
        values |= {"bound": bound, "buffers": bound / SMALL}
        says = f"about {_describe_kept(growth.displacement.counts_bytes)} are kept {{where}} ({{variant}}), "
        says += "and used memory levels off"
        evicted = (
            "{sent} further buffers of {each:mib} evicted the earlier, larger buffers from MPI's cache; "
            "no address was reused"
        )
        filled = device.done.devices[device.place].total_bytes * SMALL / bound / 2**30
        reach = f"{bound / SMALL:.0f} kept buffers of {filled:.1f} GiB each would fill this device"
        counted = [] if growth.displacement.counts_bytes else [reach]
        evidence = [Evidence.seen(evicted, **values), *counted, *_holders(device)]
    elif growth.displacement.stops:
        values |= {"more": growth.since_the_first[-1], "buffers": growth.at_least}
        says, remedy = "used memory {where} grew by {more:mib}, then levelled off ({variant})", ""
        added = (
            "each of the first buffers added {growth:mib}; then {sent} buffers of {each:mib} and one of "
            "{large:mib} added nothing"
        )
        evidence = [Evidence.seen(added, large=growth.sizes[-1], **values), *_holders(device)]
    else:
        values |= {"variable": params["bounded_by"], "most": params["bounded_to"]}
        values |= {"buffers": growth.at_least}
        says = "MPI keeps {buffers:round} freed buffers or more {where} ({variant}); {variable} is {most}"
        evidence = [*_rate_and_holders(device)]
    return Finding.warn("keeps-many", says, *evidence, remedy=remedy, **values)


def judge_growing(device: DeviceGrowth) -> Finding:
    """The FAIL for growth without a bound, with what is known of it; a WARN if it is small, and the run too
    short to decide."""
    growth, decides = device.growth, device.done.params["decides"]
    values, evidence = _place_and_rate(device), [_slow_rise(device)]
    if growth.is_slow:
        small = growth.displacement.creep or growth.rises.climb
        values["growth"] = growth.loses_buffers or small
    is_certain = decides or bool(growth.loses_buffers) or (growth.rate.is_large and not growth.is_slow)
    if not is_certain:
        if not growth.is_slow:
            rate = interval(growth.rate.growth, len(growth.used))
            evidence = [rate, Evidence.control("control: no growth without messages")]
        return Finding.warn("grows-a-little", BY_MESSAGE, *evidence, remedy=TELL_LEAK, **values)
    says = BY_MESSAGE if growth.is_slow and not growth.loses_buffers else BY_BUFFER
    if not growth.is_slow:
        evidence, values["buffers"] = _unbounded(device), growth.at_least
    return Finding.fail("grows", says, *evidence, remedy=_limit_the_cache(device.done), **values)


def _unbounded(device: DeviceGrowth) -> list[Evidence]:
    growth, bound = device.growth, device.bound
    rate, *holders = _rate_and_holders(device)
    times = len(growth.used) + len(growth.small) + len(growth.late)
    says = "used memory still rose after {times} iterations: at least {buffers:round} freed buffers are kept"
    if growth.rose_until < RISES * times:
        says = "used memory rose until about iteration {rose} of {times}: at least {buffers:round} freed "
        says += "buffers are kept"
    if bound:
        kept = _describe_kept(growth.displacement.counts_bytes)
        often = "twice" if device.done.params["decides"] else "once"
        says = f"used memory may level off at {kept}; {{times}} iterations did not fill such a cache {often}"
    buffers = bound / SMALL if bound else growth.at_least
    left = device.done.records[device.role]["free"] / growth.rate.growth.estimate
    return [
        rate,
        Evidence.seen(says, times=times, rose=growth.rose_until, buffers=buffers, bound=bound),
        Evidence.seen("at this rate the device is full after {left:round} more iterations", left=left),
        *holders,
    ]


JUDGES: dict[Outcome, Callable[[DeviceGrowth], Finding]] = {
    Outcome.UNKNOWN: judge_unknown,
    Outcome.BOUNDED: judge_bounded,
    Outcome.GROWS: judge_growing,
}
"""Outcome → its finding about one device. Flat memory has one of the run: see `judge_flat`."""


def judge_flat(done: ProbeOutcome, devices: Sequence[DeviceGrowth]) -> Finding:
    """Judge a run without growth: PASS, or SKIP if its buffers were too small to be cached."""
    evidence = [each.growth.plateau(each.role, leak_report(done.roles[each.role]).block) for each in devices]
    room = sum(devices[0].growth.sizes)
    least = TELLING / FOR_LARGE[done.params["decides"]] / 2**20
    if room < TELLING:
        return Finding.skip(
            "share-too-small",
            "no buffer was kept, but {room:mib} may be too little to fill a cache ({variant})",
            *evidence,
            remedy=f"raise `memory` in the site config to {least:.0f} MiB of device memory",
            room=room,
            variant=done.probe,
        )
    if limit := next(iter(done.records.values())).get("not_reached"):
        return Finding.skip(
            "limit-not-reached",
            "the memory limit is too small for messages over {limit} B, set by {variable} ({variant})",
            *evidence,
            remedy="raise the limit of device memory: `memory` in the site config",
            variable=done.params["bounded_by"],
            limit=limit,
            variant=done.probe,
        )
    return Finding.ok("levels-off", "memory is released ({variant})", *evidence, variant=done.probe)


# -- parts of findings ------------------------------------------------------------------------------------


def _place_and_rate(device: DeviceGrowth) -> dict[str, Json]:
    growth = device.growth.rate.growth.estimate
    return {"where": device.where, "growth": growth, "variant": device.done.probe}


def _holders(device: DeviceGrowth) -> list[Evidence]:
    return held_by(device.done, device.place, device.growth.rate.growth)


def _rate_and_holders(device: DeviceGrowth) -> list[Evidence]:
    return [interval(device.growth.rate.growth, len(device.growth.used)), *_holders(device)]


def _describe_kept(counts_bytes: bool) -> str:
    return "{bound:mib} of freed buffers" if counts_bytes else "{buffers:round} freed buffers"


def _slow_rise(device: DeviceGrowth) -> Evidence:
    growth = device.growth
    creep = growth.displacement.creep
    says = "used memory permanently rose {steps} times in {times} iterations, also in the last third"
    if creep:
        says = (
            "{sent} buffers of {each:mib} were sent; each of the last buffers took {creep:bytes} permanently"
        )
    sent, steps, times = len(growth.small), growth.rises.steps, len(growth.used)
    return Evidence.seen(says, sent=sent, each=SMALL, creep=creep, steps=steps, times=times)


def _limit_the_cache(done: ProbeOutcome) -> str:
    """The remedy if a variable limits the library's cache."""
    variable = done.params["bounded_by"]
    if not variable:
        return ""
    if done.params["in_bytes"]:
        return f"to limit MPI's cache, set {variable} (bytes) above the largest message's size"
    return f"to limit MPI's cache, set {variable} to a number of buffers that fits in memory"
