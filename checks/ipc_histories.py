"""Random legal histories of several processes' memory, against a model of what each must see.

Processes allocate, export, open (twice, too), close, write, read, copy and free, share physical memory and
pools by descriptor, end their contexts and are killed, in random order. Every operation must succeed, every
read must show what was written last, and nothing may be left. Where the driver disagrees with the model,
fresh processes repeat the history, and the shortest that still fails is reported as numbered steps.
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
    look_on_another,
)
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.explore import Bench, explore, replay_once
from gpuipc_doctor.histories.generator import DECLARED, Generator, Limits, harmful, unavailable
from gpuipc_doctor.histories.leaks import WORDS
from gpuipc_doctor.histories.steps import steps

SEED, OPERATIONS, OPERATIONS_PER_DEVICE = 6, 1500, 100
"""In the acceptance tier every node performs the same operations, so many more for each device beyond the
first: 3.7 s on one H100."""

TIME_S, SOAK_S = 20.0, 600.0
"""A node that takes longer has performed fewer operations, and the PASS says so."""

LIMIT = 0.5
"""Part of the deadline that an operation may take: the role that waits for it must not be late itself."""

ROOM, WIDE_ROOM = 64 << 20, 9 << 30
"""The most bytes that are allocated on a device at a time; in soak, those of two huge buffers."""

UNBOUNDED = 10**9
"""Operations of a run that ends by time."""

SAYS = {
    "error": "{call} returned {name} at step {steps} of a legal history on {device}",
    "data": "memory is wrong at step {steps} of a legal history on {device}",
    "crash": "{call} ended its process ({name}) at step {steps} of a legal history on {device}",
    "hang": "{call} hung at step {steps} of a legal history on {device}",
    "leak": "each repetition of a legal history of {steps} steps leaves more {name} on {device}",
}
LEFT_OUT = "left out, since it may harm this node: {left_out}"
BREAKS_A_RULE = Evidence.seen("the history frees memory that is open elsewhere, which no vendor promises")
REPLAY = "replay it from the JSON report: gpuipc-doctor replay FILE"


class IpcHistories(Check):
    id = "ipc-histories"
    title = "random legal histories of shared memory"
    requires = frozenset({"legacy-ipc", "multi-process"})
    options: ClassVar = {
        "seed": {"type": "integer", "minimum": 0},
        "operations": {"type": "integer", "minimum": 1},
        "seconds": {"type": "number", "exclusiveMinimum": 0},
        "history": {"type": "object"},  # of a history file: `gpuipc-doctor replay`
    }

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        soak = ctx.tier is Tier.SOAK
        history = ctx.options.get("history")
        places = (
            1 + max((plan["device"] for plan in history["processes"].values()), default=0) if history else 1
        )
        fitting = [devices for devices in groups(ctx.devices) if len(devices) >= places]
        if not fitting:
            says = "the history needs {places} devices that reach each other's memory"
            yield Finding.error("too-few-devices", says, places=places)
        if history:  # where it was found, if that is here
            fitting.sort(key=lambda group: [device.label for device in group] != history.get("labels"))
        for devices in fitting[:1] if history else fitting:
            operations = OPERATIONS + OPERATIONS_PER_DEVICE * (len(devices) - 1)
            params = {
                "seed": ctx.options.get("seed", None if soak else SEED),
                "operations": ctx.options.get("operations", UNBOUNDED if soak else operations),
                "time_s": ctx.options.get("seconds", SOAK_S if soak else TIME_S),
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
        findings = list(conclude(done.records["crew"]["explored"], done.params["left_out"], labels))
        yield from findings
        for place, label in enumerate(labels):
            entry = account(done.records[watcher(place)]).entries[-1]
            if entry.missing > NOISE_BYTES and findings[0].key != "leak":
                yield Finding.warn(
                    "not-returned",
                    "{missing:mib} on {device} did not come back after the processes ended",
                    remedy="run ipc-release, which says after which end memory is missing",
                    missing=entry.missing,
                    device=label,
                )


def conclude(explored: Json, left_out: Sequence[str], labels: Sequence[str]) -> Iterator[Finding]:
    """Findings about what `results.to_json` made of an exploration.

    ``left_out``: see `harmful`. ``labels``: of the probe's devices.
    """
    figures = {name: explored[name] for name in ("operations", "wanted", "compared", "seed", "elapsed_s")}
    again = explored["again"]
    if explored["first"] is None:
        enough = explored["operations"] >= explored["wanted"] or explored["wanted"] == UNBOUNDED
        yield Finding.ok(
            "as-modelled",
            "{operations} operations, {compared:mib} compared"
            if enough
            else "{operations} of {wanted} operations in {elapsed_s:round} s, {compared:mib} compared",
            ", ".join(f"{times} × {do}" for do, times in sorted(explored["done"].items())),
            *([Evidence.seen(LEFT_OUT, left_out=left_out)] if left_out else []),
            **figures,
        )
    elif explored["unusable"]:
        yield Finding.error(
            "device-gone",
            "a device vanished after {operations} operations: {says}",
            Evidence.seen("a new process then met: {met}", met=explored["unusable"]),
            says=explored["first"]["says"],
            **figures,
        )
    elif again is None:
        yield Finding.warn(
            "seen-once",
            "{says}; replayed in fresh processes, it did not",
            remedy=REPLAY,
            says=explored["first"]["says"],
            history={**explored["history"], "labels": list(labels)},
            **figures,
        )
    else:
        history = results.history_from_json({**explored["shortest"], "labels": labels})
        places = dict.fromkeys(plan.device for plan in history.processes.values())
        failing = history.operations[-1].by
        yield Finding.fail(
            again["what"],
            SAYS[again["what"]],
            *(Evidence.seen(step) for step in steps(history)),
            Evidence.seen(again["says"]),
            *([BREAKS_A_RULE] if DECLARED & {operation.do for operation in history.operations} else []),
            remedy=REPLAY,
            step=again["do"],
            steps=len(history.operations),
            did=[operation.do for operation in history.operations if operation.by == failing],
            name=WORDS.get(again["name"], again["name"]),
            call=again["call"],
            history={**explored["shortest"], "labels": list(labels)},
            device=", ".join(labels[place] for place in places),
            **figures,
        )


def probe(devices: tuple[Device, ...], params: Mapping[str, Json]) -> Probe:
    watchers = {watcher(place): look_on_another for place in range(len(devices))}
    roles = {**watchers, watcher(0): look_on, "crew": perform}
    return Probe("", roles, devices, params, exclusive=True, starters=frozenset({"crew"}))


def watcher(place: int) -> str:
    """The role that watches one of the probe's devices: the first role is the first device's."""
    return "watch" if place == 0 else f"watch-{place + 1}"


def groups(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Devices that reach each other's memory, together: each group is tested by one crew."""
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
    """(place of a device, place of one that reaches its memory)."""
    return [(a, b) for a, b in permutations(range(len(devices)), 2) if devices[a].label in devices[b].peers]


def perform(w: Worker) -> None:
    lag_s = w.peer.recv()  # the devices are at rest and watched

    def settle() -> None:
        if lag_s:
            w.wait_until(lambda: False, lag_s)

    def idle() -> None:
        w.wait_until(lambda: False, 1.0)

    bench = Bench(w.start, w.clock, LIMIT * w.deadline_s, w.step, settle, idle)
    params = w.params
    if params["history"]:
        history = results.history_from_json(params["history"])
        w.record(explored=results.to_json(replay_once(bench, history)))
        return
    generator = Generator(
        params["backend"],
        params["devices"],
        params["seed"] if params["seed"] is not None else results.seed_of(w.node, w.clock()),
        Limits(room=params["room"], wide=params["wide"]),
        frozenset(params["without"]),
        tuple((memory, device) for memory, device in params["peers"]),
    )
    explored = explore(bench, generator, params["operations"], params["time_s"])
    w.record(explored=results.to_json(explored))


CHECK = IpcHistories()
