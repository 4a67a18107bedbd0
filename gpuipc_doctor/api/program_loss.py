"""A program's loss of device memory, which a second run must confirm before it is reported.

The program is one role; another role watches device memory until the program has ended (`look_on`). Memory
that another process takes looks like a loss, but is unlikely in both runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gpuipc_doctor.api.allocator import probe as allocator_probe
from gpuipc_doctor.api.ledger import NOISE_BYTES, RERUN_IDLE, Entry, account, blind
from gpuipc_doctor.model import Evidence, Finding, Json, Probe, ProbeOutcome, Role

LOST = "lost"
"""Parameter of the second run: the bytes that the first run lost."""

Judge = Callable[[ProbeOutcome], Finding | None]
"""Returns the FAIL of a completed run whose program lost memory while running."""


def repeat_if_lost(ended: ProbeOutcome, roles: Mapping[str, Role], judge: Judge) -> Iterator[Probe]:
    """Plan the second run if memory was lost in the first one."""
    if not ended.completed or LOST in ended.params or blind(ended):
        return
    found, missing = judge(ended), _after(ended).missing
    if found or missing > NOISE_BYTES + _after(ended).doubt:
        told = found and {"key": found.key, "says": found.says, "values": dict(found.values)}
        params: Json = {**ended.params, LOST: {"found": told, "missing": missing}}
        again = allocator_probe(ended.probe, ended.devices[0], roles, **params)
        yield replace(again, deadline_s=ended.deadline_s)


def judge_loss(done: ProbeOutcome, judge: Judge) -> Finding | None:
    """The FAIL for a loss in both runs, the ERROR for a loss in one of them, else None."""
    if done.completed and LOST not in done.params:
        return _after(done).trust(judge(done))
    first = done.params.get(LOST, {"found": None})
    if not done.completed:
        says = "device memory was missing after one run, which was not repeated ({why})"
        return _seen_once(first["found"], says, why=done.stopped) if done.stopped else None
    found, after = judge(done), replace(_after(done), repeated=first["missing"])
    if after.repeats:
        return after.not_returned()
    if found and first["found"] and found.key == first["found"]["key"]:
        return after.trust(
            replace(found, evidence=(*found.evidence, Evidence.seen("seen in both of two runs")))
        )
    told = found and {"says": found.says, "values": found.values}
    return _seen_once(told or first["found"], "device memory was missing after only one of two runs")


def _after(done: ProbeOutcome) -> Entry:
    watcher = next(role for name, role in done.roles.items() if name != "program")
    return account(watcher).entries[0]


def _seen_once(found: Mapping[str, Json] | None, says: str, **values: Json) -> Finding | None:
    if not found:
        return None
    seen = Evidence.seen(found["says"], **found["values"])
    return Finding.error(
        "unexplained-change", f"{says}: cannot tell which process holds it", seen, remedy=RERUN_IDLE, **values
    )
