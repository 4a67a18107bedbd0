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


def judge_hidden(device: DeviceGrowth) -> Finding:
    """The ERROR if used memory moves by itself, and no growth is large enough to be seen."""
    says = "growth below {least:bytes} with each message would not have been noticed ({variant})"
    least, variant = device.growth.rate.unsuspicious, device.done.probe
    return leak_report(device.done.roles[device.role]).moving(
        Evidence.seen(says, least=least, variant=variant)
    )


def judge_uneven(device: DeviceGrowth) -> Finding:
    """The ERROR if used memory moves by itself, and grew in bursts: messages lose memory evenly."""
    growth = device.growth
    says = "used memory {where} rose by {rose:mib} in {times} iterations, but not evenly ({variant})"
    rose, times = max(growth.since_the_first), len(growth.since_the_first)
    uneven = Evidence.seen(says, where=device.where, rose=rose, times=times, variant=device.done.probe)
    return leak_report(device.done.roles[device.role]).moving(uneven)


def judge_too_few(device: DeviceGrowth) -> Finding:
    return Finding.error(
        "too-few-to-tell",
        "cannot tell a cache from a leak after {times} buffers: {buffers} are kept {where} ({variant})",
        *_rate_and_holders(device),
        remedy="raise `memory` in the site config to 1024 MiB of device memory",
        times=len(device.growth.used),
        buffers=device.growth.at_least,
        **_place_and_rate(device),
    )


def judge_bounded(device: DeviceGrowth) -> Finding:
    """The WARN for a cache with a bound, and what the device can hold of it."""
    growth, bound = device.growth, device.bound or 0.0
    kept = _describe_kept(growth.displacement.counts_bytes)
    filled = device.done.devices[device.place].total_bytes * SMALL / bound / 2**30
    reach = f"{bound / SMALL:.0f} kept buffers of {filled:.1f} GiB each would fill this device"
    values = {
        **_place_and_rate(device),
        **{"bound": bound, "buffers": bound / SMALL, "sent": len(growth.small), "each": SMALL},
    }
    evicted = (
        "{sent} further buffers of {each:mib} evicted the earlier, larger buffers from MPI's cache; "
        "no address was reused"
    )
    return Finding.warn(
        "keeps-many",
        f"about {kept} are kept {{where}} ({{variant}}), and used memory levels off",
        Evidence.seen(evicted, **values),
        *([] if growth.displacement.counts_bytes else [reach]),
        *_holders(device),
        remedy=_limit_the_cache(device.done),
        **values,
    )


def judge_stopped(device: DeviceGrowth) -> Finding:
    growth, values = device.growth, _place_and_rate(device)
    added = (
        "each of the first buffers added {growth:mib}; then {sent} buffers of {each:mib} and one of "
        "{large:mib} added nothing"
    )
    sent, large = len(growth.small), growth.sizes[-1]
    return Finding.warn(
        "stops",
        "used memory {where} grew by {more:mib}, then levelled off ({variant})",
        Evidence.seen(added, sent=sent, each=SMALL, large=large, **values),
        *_holders(device),
        more=growth.since_the_first[-1],
        **values,
    )


def judge_little(device: DeviceGrowth) -> Finding:
    return Finding.warn(
        "grows-a-little",
        BY_MESSAGE,
        interval(device.growth.rate.growth, len(device.growth.used)),
        Evidence.control("control: no growth without messages"),
        remedy=TELL_LEAK,
        **_place_and_rate(device),
    )


def judge_allowed(device: DeviceGrowth) -> Finding:
    """The WARN if the library's own bound explains the growth."""
    params = device.done.params
    return Finding.warn(
        "keeps-many",
        "at least {buffers:round} freed buffers are kept {where} ({variant}); {variable} allows {most}",
        *_rate_and_holders(device),
        remedy=_limit_the_cache(device.done),
        variable=params["bounded_by"],
        most=params["bounded_to"],
        **_place_and_rate(device),
        buffers=device.growth.at_least,
    )


def judge_unbounded(device: DeviceGrowth) -> Finding:
    """The FAIL for growth without a bound, with what is known of it."""
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
    return Finding.fail(
        "grows",
        BY_BUFFER,
        rate,
        Evidence.seen(says, times=times, rose=growth.rose_until, buffers=buffers, bound=bound),
        Evidence.seen("at this rate the device is full after {left:round} more iterations", left=left),
        *holders,
        remedy=_limit_the_cache(device.done),
        **_place_and_rate(device),
        buffers=growth.at_least,
    )


def judge_lost_buffers(device: DeviceGrowth) -> Finding:
    """The FAIL if a library loses a few buffers, so many that each message costs a small buffer or more."""
    growth = device.growth.beyond_the_first / (len(device.growth.used) - 1)
    values = {"where": device.where, "growth": growth, "variant": device.done.probe}
    return Finding.fail(
        "grows", BY_BUFFER, _slow_rise(device), remedy=_limit_the_cache(device.done), **values
    )


def judge_creep(device: DeviceGrowth) -> Finding:
    """Judge slow growth: a library loses a few buffers, or a part of each."""
    growth = device.growth.displacement.creep or device.growth.rises.climb
    values = {"where": device.where, "growth": growth, "variant": device.done.probe}
    if device.done.params["decides"]:
        remedy = _limit_the_cache(device.done)
        return Finding.fail("grows", BY_MESSAGE, _slow_rise(device), remedy=remedy, **values)
    return Finding.warn("grows-a-little", BY_MESSAGE, _slow_rise(device), remedy=TELL_LEAK, **values)


JUDGES: dict[Outcome, Callable[[DeviceGrowth], Finding]] = {
    Outcome.HIDDEN: judge_hidden,
    Outcome.UNEVEN: judge_uneven,
    Outcome.TOO_FEW: judge_too_few,
    Outcome.LOSES_BUFFERS: judge_lost_buffers,
    Outcome.CREEPS: judge_creep,
    Outcome.BOUNDED: judge_bounded,
    Outcome.STOPS: judge_stopped,
    Outcome.GROWS_A_LITTLE: judge_little,
    Outcome.ALLOWED: judge_allowed,
    Outcome.GROWS: judge_unbounded,
}
"""Outcome → its finding about one device. A level device has none: see `judge_level`."""


def judge_level(done: ProbeOutcome, devices: Sequence[DeviceGrowth]) -> Finding:
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
