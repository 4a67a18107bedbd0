"""Helpers of the checks' unit tests: a check by its id, devices, findings and planned probes.

The tests beside this file, one module per check, test the findings for given records of a completed probe.
Tests of the whole command, on simulated faults, show that workers record the right things.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuipc_doctor import surveys
from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    Finding,
    Json,
    MpiStack,
    Probe,
    ProbeOutcome,
    Series,
    Tier,
    loader,
)
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import Ending, Launch, RoleOutcome
from gpuipc_doctor.report.sentences import evidence, summary
from gpuipc_doctor.run.conclusions import found_by

MIB = 1 << 20
GOOD = [Status.PASS]

Records = Mapping[str, Mapping[str, Json]]


def check(id_: str) -> Check:
    loaded = loader.load_file(loader.built_in_dir() / f"{id_.replace('-', '_')}.py")
    assert isinstance(loaded, loader.LoadedCheck), loaded.reason
    return loaded.check


def gpu(index: int, backend: str = "cuda", total_bytes: int = 139 << 30) -> Device:
    return Device(backend, index, f"GPU-{backend}-{index}", f"0000:0{index}:00.0", "GPU", total_bytes)


ONE, TWO = (gpu(0),), (gpu(0), gpu(1))


def conclude(
    id_: str, records: Records, devices: tuple[Device, ...] = ONE, probe: str = "", **params: Json
) -> list[Finding]:
    findings = found_by(check(id_), outcome(records, devices, probe, **params))
    for finding in findings:
        left_open = [
            line for line in (summary(finding), *evidence(finding)) if re.search(r"\{[a-z_]+\b[^{}]*\}", line)
        ]
        assert not left_open, f"a sentence has a value that it cannot fill in: {left_open}"
    return findings


def drawn(
    id_: str, records: Records, devices: tuple[Device, ...] = ONE, probe: str = "", **params: Json
) -> list[Series]:
    return list(check(id_).series(outcome(records, devices, probe, **params)))


def outcome(records: Records, devices: tuple[Device, ...], probe: str, **params: Json) -> ProbeOutcome:
    roles = {role: completed(role, facts) for role, facts in records.items()}
    return ProbeOutcome(probe, devices, params, roles, None, 1.0)


class Kept(str):
    """Among the records of a role, the name of a field of `RoleOutcome`."""


def completed(role: str, facts: Mapping[str, Json]) -> RoleOutcome:
    kept: dict[str, Json] = {name: value for name, value in facts.items() if isinstance(name, Kept)}
    records = {name: value for name, value in facts.items() if name not in kept}
    return RoleOutcome(role, Ending.COMPLETED, records=records, **kept)


def statuses(findings: list[Finding]) -> list[Status]:
    return [finding.status for finding in findings]


def plan(
    id_: str,
    *devices: Device,
    options: Mapping[str, Json] | None = None,
    tier: Tier = Tier.ACCEPTANCE,
    **mpi: Any,
) -> list[Probe]:
    family = mpi.pop("family", "mpich")
    stack = MpiStack(family, "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")), **mpi)
    planned = list(
        surveys.PROBES.get(id_, check(id_).probes)(
            Context(devices, mpi=stack, options=options or {}, tier=tier)
        )
    )
    return [probe for probe in planned if isinstance(probe, Probe)]


def metered(
    entries: Mapping[str, int | Json] = {},
    loops: Mapping[str, Json] = {},
    device: str = "cuda:0",
    moves: bool = True,
    idle: Sequence[Json] = (),
) -> dict[str, Json]:
    """The records of a role with a meter. ``entries``: end → missing bytes, or the whole entry; ``idle``:
    the windows in which used memory was watched while idle."""
    told = {end: {"missing": one} if isinstance(one, int) else one for end, one in entries.items()}
    rises = [[0, 38 * MIB if moves else 0]]
    made = {"device": device, "rises": rises, "entries": told, "loops": loops, "sizes": [0, 0]}
    return {Kept("meters"): {"": {**made, "idle": idle}}}


def drifting(mib_per_s: float) -> list[Json]:
    """An idle time of 2 s in which used memory drifts."""
    return [[[at / 8, mib_per_s * MIB * at / 8] for at in range(17)]]


JUMPING: list[Json] = [[[at / 4, (at % 3) * 30 * MIB] for at in range(9)]]
"""An idle time of 2 s in which used memory jumps between 0, 30 and 60 MiB."""


def each_round(
    what: str, rounds: int = 64, times: int = 1, **figures: Callable[[int], float]
) -> dict[str, Json]:
    """The records of a `watched` role. ``figures``: name → its value after round number n."""
    flat = dict.fromkeys(("descriptors", "threads", "addresses", "host"), lambda _: 0)
    last = range(2 * rounds // 3, rounds)
    samples = {name: [of(number) for number in last] for name, of in {**flat, **figures}.items()}
    return {Kept("usage"): {what: {"times": times, **samples}}}
