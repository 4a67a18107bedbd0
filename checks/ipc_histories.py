"""Random valid histories of several processes' memory, checked against a model.

In random order, processes allocate, export, open (also twice), close, write, read, copy and free memory,
share physical memory and pools by descriptor, end their contexts and are killed. Every operation must
succeed, every read must return the last write, and nothing may leak. If the driver disagrees with the model,
fresh processes repeat the history, and the shortest failing one is reported as numbered steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    account,
    look_on,
)
from gpuipc_doctor.api.gpu import WITHOUT_GPU_IPC, lacking
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.explore import Bench, explore, replay_once, without_permission
from gpuipc_doctor.histories.extent import OPTIONS, REPLAY, extent, is_complete, own_seed
from gpuipc_doctor.histories.generator import (
    DECLARED,
    Generator,
    Limits,
    families,
    harmful,
    unavailable,
    without_families,
    without_room,
)
from gpuipc_doctor.histories.leaks import WORDS
from gpuipc_doctor.histories.scenes import FLOOR, sizes_without_room
from gpuipc_doctor.histories.steps import steps

OPERATIONS, OPERATIONS_PER_DEVICE = 2600, 130
"""Operations in the acceptance tier on one device, and additional operations for each further device.
The first 2,400 (8 devices: 3,300) are the scenes of `histories.scenes`."""

SEED = 167
"""Seed of the acceptance tier: it starts few processes and contexts, which take longest on a GPU."""

LIMIT = 0.5
"""Fraction of the deadline after which an operation counts as hung. A role that waits for another role has
the whole deadline."""

ROOM, WIDE_ROOM = 512 << 20, 9 << 30
"""Maximum bytes allocated on a device at a time; `WIDE_ROOM`, with room for two huge buffers, is for the soak
tier."""

SAYS = {
    "error": "{call} returned {name} at step {steps} of a sequence of valid calls on {device}",
    "answer": "{call} described memory wrongly at step {steps} of a sequence of valid calls on {device}",
    "data": "memory is wrong at step {steps} of a sequence of valid calls on {device}",
    "crash": "{call} crashed its process ({name}) at step {steps} of a sequence of valid calls on {device}",
    "hang": "{call} hung at step {steps} of a sequence of valid calls on {device}",
    "leak": "each repetition of a sequence of {steps} valid calls increases {name} on {device}",
}
LEFT_OUT = "operations omitted because they may harm this node: {left_out}"
NO_ROOM = "omitted because the limit of device memory is only {room:mib}: {no_room}"
RARER = "fewer than {floor} times: {rarer}"
BREAKS_A_RULE = Evidence.seen(
    "the sequence frees memory that another process has open, which no vendor allows"
)


class IpcHistories(Check):
    id = "ipc-histories"
    title = "random valid sequences of operations on shared memory"
    requires = frozenset({"legacy-ipc", "multi-process"})
    options: ClassVar = OPTIONS

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        soak = ctx.tier is Tier.SOAK
        history = ctx.options.get("history")
        places = (
            1 + max((plan["device"] for plan in history["processes"].values()), default=0) if history else 1
        )
        fitting = [devices for devices in groups(ctx.devices) if len(devices) >= places]
        if not fitting:
            says = "the sequence needs {places} devices with peer access to each other"
            yield Finding.error("too-few-devices", says, places=places)
        if history:  # the device where it was found, if present
            fitting.sort(key=lambda group: [device.label for device in group] != history.get("labels"))
        for devices in fitting[:1] if history else fitting:
            operations = OPERATIONS + OPERATIONS_PER_DEVICE * (len(devices) - 1)
            params = {
                **extent(ctx, operations, seed=SEED),
                "room": min(ctx.room(devices), WIDE_ROOM if soak else ROOM),
                "wide": soak,
                "backend": devices[0].backend,
                "devices": len(devices),
                "peers": reachable(devices),
                "history": history,
                "left_out": sorted(harmful(ctx.harmful)),
                "without": sorted(harmful(ctx.harmful) | unavailable(devices[0].capabilities)),
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
        crew, left_out = done.records["crew"], done.params["left_out"]
        findings = list(conclude(crew["explored"], left_out, labels, crew.get("little", {})))
        watched = [
            account(done.records["watch"], label if place else "") for place, label in enumerate(labels)
        ]
        first = crew["explored"]["first"]
        moving = next((each for each in watched if each.idle.moves), None)
        if moving and first and (first["what"], first["name"]) == ("leak", "device"):
            yield moving.moving(Evidence.seen("{says}", says=first["says"]))
            return
        yield from findings
        for label, each in zip(labels, watched, strict=True):
            entry = each.entries[-1]
            if each.idle.moves:  # a run is longer than the counter was watched, and it may turn
                continue
            if entry.missing > NOISE_BYTES + entry.doubt and findings[0].key != "leak":
                yield Finding.warn(
                    "not-returned",
                    "{missing:mib} on {device} was not released after the processes ended",
                    remedy="run ipc-release, which shows after which step memory is missing",
                    missing=entry.missing,
                    device=label,
                )


def conclude(
    explored: Json, left_out: Sequence[str], labels: Sequence[str], little: Json
) -> Iterator[Finding]:
    """Findings about an exploration, which is the JSON of `results.to_json`.

    ``left_out``: the operations from `harmful`. ``labels``: names of the probe's devices. ``little``: the
    ``room`` in bytes and the operations that need more, by capability; empty if all had enough.
    """
    figures = {name: explored[name] for name in ("operations", "wanted", "compared", "seed", "elapsed_s")}
    again = explored["again"]
    if explored["first"] is None:
        yield Finding.ok(
            "as-modelled",
            "{operations} operations of {kinds} kinds ({families}), {compared:mib} compared"
            if is_complete(explored)
            else "{operations} of {wanted} operations of {kinds} kinds ({families}) in {elapsed_s:round} s, "
            "{compared:mib} compared",
            ", ".join(f"{times} × {do}" for do, times in sorted(explored["done"].items())),
            *([Evidence.seen(RARER, floor=FLOOR, rarer=rarer)] if (rarer := below_floor(explored)) else []),
            *([Evidence.seen(LEFT_OUT, left_out=left_out)] if left_out else []),
            *([Evidence.seen(NO_ROOM, **little)] if little else []),
            kinds=len(explored["done"]),
            families=[f"{times} {family}" for family, times in families(explored["done"]).items()],
            **figures,
        )
    elif explored["first"]["what"] == "lacks":
        yield Finding.skip(
            "not-supported",
            "{says}, which has no such feature",
            remedy=WITHOUT_GPU_IPC,
            says=explored["first"]["says"],
            lacking=lacking(explored["first"]["call"]),
        )
    elif explored["unusable"]:
        yield Finding.error(
            "device-gone",
            "a device vanished after {operations} operations: {says}",
            Evidence.seen("error in a new process: {met}", met=explored["unusable"]),
            says=explored["first"]["says"],
            **figures,
        )
    elif again is None:
        yield Finding.warn(
            "seen-once",
            "{says}; not reproduced in fresh processes",
            remedy=REPLAY,
            says=explored["first"]["says"],
            history={**explored["history"], "labels": list(labels)},
            **figures,
        )
    else:
        history = results.history_from_json({**explored["shortest"], "labels": labels})
        places = dict.fromkeys(plan.device for plan in history.processes.values())
        last = len(history.operations) - 1
        at = min(again["at"], last) if history.times == 1 else last
        failing = history.operations[at].by
        yield Finding.fail(
            again["what"],
            SAYS[again["what"]],
            *(Evidence.seen(step) for step in steps(history)),
            Evidence.seen("{said}", said=again["says"]),
            *([BREAKS_A_RULE] if DECLARED & {operation.do for operation in history.operations} else []),
            remedy=REPLAY,
            step=again["do"],
            steps=at + 1,
            did=[operation.do for operation in history.operations[: at + 1] if operation.by == failing],
            name=WORDS.get(again["name"], again["name"]),
            call=again["call"],
            history={**explored["shortest"], "labels": list(labels)},
            device=", ".join(labels[place] for place in places),
            **figures,
        )


def below_floor(explored: Json) -> list[str]:
    """Kinds of operations that were performed less often than each should be, with how often."""
    return [f"{do} {times}" for do, times in sorted(explored["done"].items()) if times < FLOOR]


def probe(devices: tuple[Device, ...], params: Mapping[str, Json]) -> Probe:
    roles = {"watch": look_on, "crew": perform}
    return Probe("", roles, devices, params, exclusive=True, starters=frozenset({"crew"}))


def groups(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Groups of devices with peer access to each other: each group is tested by one crew."""
    found = list[list[Device]]()
    for device in devices:
        for group in found:
            if all(len(reachable((device, other))) == 2 for other in group):
                group.append(device)
                break
        else:
            found.append([device])
    return [tuple(group) for group in found]


def reachable(devices: Sequence[Device]) -> list[tuple[int, int]]:
    """Pairs (index of a device, index of a device with peer access to it)."""
    return [(a, b) for a, b in permutations(range(len(devices)), 2) if devices[a].label in devices[b].peers]


def perform(w: Worker) -> None:
    lag_s, free = w.peer.recv()  # the devices are idle and watched

    def wait(seconds: float) -> None:
        if seconds:
            w.wait_until(lambda: False, seconds)

    bench = Bench(w.start, w.clock, LIMIT * w.deadline_s, w.step, wait, lag_s)
    params = w.params
    if params["history"]:
        history = results.history_from_json(params["history"])
        w.record(explored=results.to_json(replay_once(bench, history)))
        return
    room = min(params["room"], free // 2)
    too_large = without_room(room, frozenset(params["without"]))
    if not_held := [*too_large, *sizes_without_room(room)]:
        w.record(little={"room": room, "no_room": not_held})
    not_given = [] if "create-fabric" in params["without"] else without_permission(bench, params["backend"])
    generator = Generator(
        params["backend"],
        params["devices"],
        params["seed"] if params["seed"] is not None else own_seed(w),
        Limits(room=room, wide=params["wide"], scenes=True),
        frozenset(params["without"]) | without_families([*too_large, *not_given]),
        tuple((memory, device) for memory, device in params["peers"]),
    )
    explored = explore(bench, generator, params["operations"], params["time_s"])
    w.record(explored=results.to_json(explored))


CHECK = IpcHistories()
