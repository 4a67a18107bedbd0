"""Composed and random valid histories of several processes' memory, checked against a model.

Of the acceptance tier's 2,800 operations on one GPU, about 2,400 are composed: short histories that are the
same with every seed but for offsets and a few sizes. The rest, and in the soak tier nearly all, are drawn at
random: processes allocate, export, open (also twice), close, write, read, copy and free memory, share
physical memory and pools by descriptor, end their contexts and are killed, in any order. Every operation must
succeed, every read must return the last write, and nothing may leak. If the driver disagrees with the model,
fresh processes repeat the history, and the shortest failing one is reported as numbered steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations
from typing import ClassVar

from gpuipc_doctor.api import (
    NOISE_BYTES,
    Check,
    Context,
    Device,
    Evidence,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    leak_report,
    look_on,
)
from gpuipc_doctor.api.leak_report import LeakReport
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.composed_cases import sizes_without_room
from gpuipc_doctor.histories.explore import Bench, explore, replay_once, without_permission
from gpuipc_doctor.histories.extent import OPTIONS, extent, own_seed
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.memory_draft import Limits
from gpuipc_doctor.histories.memory_operations import harmful, unavailable, without_families, without_room

from ._ipc_histories_exploration import judge_exploration

OPERATIONS, OPERATIONS_PER_DEVICE = 2800, 130
"""Operations in the acceptance tier on one device, and additional operations for each further device.
The first 2,400 (8 devices: 3,300) are those of `histories.composed_cases`."""

SEED = 99
"""Seed of the acceptance tier: it starts few processes and contexts, which take longest on a GPU."""

LIMIT = 0.5
"""Fraction of the deadline after which an operation counts as hung. A role that waits for another role has
the whole deadline."""

ROOM, WIDE_ROOM = 512 << 20, 9 << 30
"""Maximum bytes allocated on a device at a time; `WIDE_ROOM`, with room for two huge buffers, is for the soak
tier."""


class IpcHistories(Check):
    id = "ipc-histories"
    title = "random valid sequences of operations on shared memory"
    requires = frozenset({"legacy-ipc", "multi-process"})
    options: ClassVar = OPTIONS

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        history = ctx.options.get("history")
        plans = history["processes"].values() if history else ()
        places = 1 + max((plan["device"] for plan in plans), default=0)
        fitting = [devices for devices in group_by_peers(ctx.devices) if len(devices) >= places]
        if not fitting:
            says = "the sequence needs {places} devices with peer access to each other"
            yield Finding.error("too-few-devices", says, places=places)
        if history:  # the device where it was found, if present
            fitting.sort(key=lambda group: [device.label for device in group] != history.get("labels"))
            fitting = fitting[:1]
        soak = ctx.tier is Tier.SOAK
        left_out = harmful(ctx.harmful)
        for devices in fitting:
            operations = OPERATIONS + OPERATIONS_PER_DEVICE * (len(devices) - 1)
            params = {
                **extent(ctx, operations, seed=SEED),
                "room": min(ctx.room(devices), WIDE_ROOM if soak else ROOM),
                "wide": soak,
                "backend": devices[0].backend,
                "devices": len(devices),
                "peers": list_peers(devices),
                "history": history,
                "left_out": sorted(left_out),
                "without": sorted(left_out | unavailable(devices[0].capabilities, devices[0].vendor.lacks)),
            }
            yield probe(devices, params)

    def replay(self, failed: ProbeOutcome, without: Collection[str] = ()) -> Probe | None:
        shortest = failed.records["crew"]["explored"]["shortest"]
        if shortest is None or shortest["operations"][-1]["do"] in without:
            return None
        kept = [operation for operation in shortest["operations"] if operation["do"] not in without]
        return probe(failed.devices, {**failed.params, "history": {**shortest, "operations": kept}})

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        labels = [device.label for device in done.devices]
        record, watch = done.records["crew"], done.roles["watch"]
        watched = [leak_report(watch, label if place else "") for place, label in enumerate(labels)]
        first = record["explored"]["first"]
        grew = first and (first["what"], first["name"]) == ("leak", "device")
        moving = next((each for each in watched if each.idle.moves), None)
        if moving and grew:
            yield moving.moving(Evidence.seen("{says}", says=first["says"]))
            return
        little = record.get("little", {})
        findings = list(judge_exploration(record["explored"], done.params["left_out"], done.devices, little))
        yield from findings
        if findings[0].key != "leak":
            for label, each in zip(labels, watched, strict=True):
                yield from judge_end(label, each)


def judge_end(label: str, watched: LeakReport) -> Iterable[Finding]:
    """Warn if memory of a device is missing after all processes ended."""
    entry = watched.entries[-1]
    if watched.idle.moves:
        yield watched.moving()
    elif entry.missing > NOISE_BYTES:
        yield Finding.warn(
            "not-returned",
            "{missing:mib} on {device} was not released after the processes ended",
            remedy="run gpuipc-doctor check ipc-release, which shows after which step memory is missing",
            missing=entry.missing,
            device=label,
        )


def probe(devices: tuple[Device, ...], params: Mapping[str, Json]) -> Probe:
    roles = {"watch": look_on, "crew": perform}
    return Probe("", roles, devices, params, exclusive=True, by_process=True, starters=frozenset({"crew"}))


def group_by_peers(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Groups of devices with peer access to each other: each group is tested together."""
    found = list[list[Device]]()
    for device in devices:
        for group in found:
            if all(len(list_peers((device, other))) == 2 for other in group):
                group.append(device)
                break
        else:
            found.append([device])
    return [tuple(group) for group in found]


def list_peers(devices: Sequence[Device]) -> list[tuple[int, int]]:
    """Pairs (index of a device, index of a device with peer access to it)."""
    return [(a, b) for a, b in permutations(range(len(devices)), 2) if devices[a].label in devices[b].peers]


def perform(w: Worker) -> None:
    lag_s, free = w.peer.recv()  # the devices are idle and watched

    def wait(seconds: float) -> None:
        if seconds:
            w.wait_until(lambda: False, seconds)

    bench = Bench(w.start, w.clock, LIMIT * w.deadline_s, w.step, wait, alone=not w.by_process, lag_s=lag_s)
    params = w.params
    if params["history"]:
        history = results.history_from_json(params["history"])
        w.record(explored=results.to_json(replay_once(bench, history)))
        return
    backend, without = params["backend"], frozenset(params["without"])
    room = min(params["room"], free // 2)
    too_large = without_room(room, without)
    if not_held := [*too_large, *sizes_without_room(room)]:
        w.record(little={"room": room, "no_room": not_held})
    not_given = [] if "create-fabric" in without else without_permission(bench, backend)
    seed = params["seed"] if params["seed"] is not None else own_seed(w)
    generator = Generator(
        backend,
        params["devices"],
        seed,
        Limits(room=room, wide=params["wide"], composed=True),
        without | without_families([*too_large, *not_given]),
        tuple((memory, device) for memory, device in params["peers"]),
    )
    explored = explore(bench, generator, params["operations"], params["time_s"])
    w.record(explored=results.to_json(explored))


CHECK = IpcHistories()
