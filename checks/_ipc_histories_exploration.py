"""What an exploration of random histories shows: agreement with the model, or a history that fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuipc_doctor.api import Device, Evidence, Finding, Json
from gpuipc_doctor.api.capabilities import instead_of, lacking
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.composed_case import FLOOR
from gpuipc_doctor.histories.extent import REPLAY, is_complete
from gpuipc_doctor.histories.leaks import WORDS
from gpuipc_doctor.histories.memory_operations import DECLARED, families
from gpuipc_doctor.histories.steps import steps

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
    "the sequence frees memory that another process still has open: the vendors' manuals forbid this"
)
FIGURES = ("operations", "wanted", "compared", "seed", "elapsed_s")


def judge_exploration(
    explored: Json, left_out: Sequence[str], devices: Sequence[Device], little: Json
) -> Iterable[Finding]:
    """Findings about an exploration, which is the JSON of `results.to_json`.

    ``left_out``: the omitted harmful operations. ``devices``: the probe's. ``little``: the
    ``room`` in bytes and the operations that need more, by capability; empty if all had enough.
    """
    labels = [device.label for device in devices]
    figures = {name: explored[name] for name in FIGURES}
    first = explored["first"]
    if first is None:
        yield Finding.ok(
            "as-modelled",
            "{operations} random operations of {kinds} kinds ({families}): all {compared:mib} are as expected"
            if is_complete(explored)
            else "{operations} of {wanted} random operations of {kinds} kinds ({families}) in "
            "{elapsed_s:round} s: all {compared:mib} are as expected",
            *describe_operations(explored["done"], left_out, little),
            kinds=len(explored["done"]),
            families=[f"{times} {family}" for family, times in families(explored["done"]).items()],
            **figures,
        )
    elif first["what"] == "lacks":
        yield Finding.skip(
            "not-supported",
            "{says}",
            remedy=instead_of(devices, ["legacy-ipc"]),
            says=first["says"],
            lacking=lacking(first["call"]),
        )
    elif explored["unusable"]:
        yield Finding.error(
            "device-gone",
            "a device vanished after {operations} operations: {says}",
            Evidence.seen("error in a new process: {met}", met=explored["unusable"]),
            says=first["says"],
            **figures,
        )
    elif explored["again"] is None:
        yield Finding.warn(
            "seen-once",
            "{says}; not reproduced in fresh processes",
            remedy=REPLAY,
            says=first["says"],
            history={**explored["history"], "labels": list(labels)},
            **figures,
        )
    else:
        yield fail_again(explored["again"], explored["shortest"], labels, figures)


def describe_operations(done: Json, left_out: Sequence[str], little: Json) -> Iterable[Evidence | str]:
    """How often each operation was performed, and which were rare or left out."""
    by_name = sorted(done.items())
    yield ", ".join(f"{times} × {do}" for do, times in by_name)
    if rarer := [f"{do} {times}" for do, times in by_name if times < FLOOR]:
        yield Evidence.seen(RARER, floor=FLOOR, rarer=rarer)
    if left_out:
        yield Evidence.seen(LEFT_OUT, left_out=left_out)
    if little:
        yield Evidence.seen(NO_ROOM, **little)


def fail_again(again: Json, shortest: Json, labels: Sequence[str], figures: Json) -> Finding:
    """The FAIL for a history that fails ``again``: in fresh processes, reduced to the ``shortest``."""
    history = results.history_from_json({**shortest, "labels": labels})
    places = dict.fromkeys(plan.device for plan in history.processes.values())
    last = len(history.operations) - 1
    at = min(again["at"], last) if history.times == 1 else last
    until = history.operations[: at + 1]
    breaks_a_rule = DECLARED & {operation.do for operation in history.operations}
    return Finding.fail(
        again["what"],
        SAYS[again["what"]],
        *(Evidence.seen(step) for step in steps(history)),
        Evidence.seen("{said}", said=again["says"]),
        *([BREAKS_A_RULE] if breaks_a_rule else []),
        remedy=REPLAY,
        step=again["do"],
        steps=at + 1,
        did=[operation.do for operation in until if operation.by == until[-1].by],
        name=WORDS.get(again["name"], again["name"]),
        call=again["call"],
        history={**shortest, "labels": list(labels)},
        device=", ".join(labels[place] for place in places),
        **figures,
    )
