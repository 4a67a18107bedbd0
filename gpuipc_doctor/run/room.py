"""GPUs without room for tests: full of other processes' memory, or of memory that the driver lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuipc_doctor import surveys
from gpuipc_doctor.api.driver_errors import TEST_CONTEXTS, room_for
from gpuipc_doctor.model import Device, Evidence, EvidenceKind, Finding, Json, Node, Tier
from gpuipc_doctor.node import survey_room
from gpuipc_doctor.node.memory_usage import Holder, Room
from gpuipc_doctor.probe_types import Probe
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.report.merged_results import NOT_BEGUN
from gpuipc_doctor.report_types import Result
from gpuipc_doctor.run.open_drivers import DAY_S
from gpuipc_doctor.run.planner import Plan
from gpuipc_doctor.supervise.blame import NO_ROOM
from gpuipc_doctor.supervise.session import Session

WAIT_S = 2.0
"""Seconds to wait for NVML before a job. Without its answer, a call that fails tells."""

MEMORY_LOST = "memory-lost"

NOISE_BYTES = 64 << 20
"""Bytes by which the figures of a device and of its processes may differ."""


@dataclass
class RoomSurvey:
    """What NVML tells of the GPUs' free memory: in the inventory's survey, or before a job in a worker beside
    the run.

    ``uuids``: of the GPUs; empty: all.
    """

    session: Session
    node: Node
    tier: Tier
    uuids: Sequence[str] = ()
    _rooms: dict[str, Room] = field(default_factory=dict)
    _told: threading.Event = field(default_factory=threading.Event)

    @property
    def params(self) -> Mapping[str, Json]:
        """See `survey_room.rooms`."""
        return {
            "uuids": self.uuids,
            "root": self.node.root,
            "names": self.tier > Tier.PROLOG,
            "sees_all": bool(self.node.simulated),
        }

    def begin(self) -> AbstractContextManager[None]:
        """Ask in a worker; NVML stays open during the ``with`` block."""
        params = {"rooms": self.params}
        probe = Probe("room", {"nvml": survey_room.look}, params=params, deadline_s=DAY_S)
        return self.session.beside(surveys.DRIVERS, Path(survey_room.__file__), probe, self.hear)

    def hear(self, records: Mapping[str, Json] | None) -> None:
        """Take what `survey_room.rooms` told; None: nothing will be told."""
        rooms = (json_documents.load(Room, room) for room in (records or {}).get("rooms", ()))
        self._rooms.update((room.pci, room) for room in rooms)
        self._told.set()

    def full(self, devices: Sequence[Device]) -> dict[Device, Finding]:
        """The GPUs that have no room, and the finding about each."""
        if self.tier is Tier.PROLOG:
            self._told.wait(WAIT_S)
        found = {}
        for device in devices:  # NVML's figures are of whole GPUs, not of MIG instances
            room = None if device.uuid.startswith("MIG-") else self._rooms.get(device.pci)
            if finding := room and judge(room, self.tier):
                found[device] = finding
        return found


def judge(room: Room, tier: Tier = Tier.ACCEPTANCE) -> Finding | None:
    """The finding about a GPU that has no room. Memory that the driver lost is a fault of the node; before a
    job it is an ERROR, since the job's GPU could not be tested."""
    need = room_for(TEST_CONTEXTS, room.total)
    if room.free >= need:
        return None
    values: dict[str, Json] = {"free": room.free, "need": need}
    lacks = "{free:mib} free, {need:mib} needed"
    holders = sorted(room.holders, key=lambda one: (not one.is_alive, -(one.held or 0)))
    evidence = [_evidence(one) for one in holders]
    may_be_lost = room.nobodys > NOISE_BYTES and room.free + room.nobodys >= need
    if may_be_lost and not room.hidden:
        conclude = Finding.error if tier is Tier.PROLOG else Finding.fail
        first = "stop the processes that use the GPU; " if any(one.is_alive for one in holders) else ""
        return conclude(
            MEMORY_LOST,
            f"memory lost: {{lost:mib}} belong to no living process; {lacks}",
            *evidence,
            remedy=f"{first}check dmesg for Xid; reset the GPU (nvidia-smi -r) or reboot, then rerun",
            lost=room.nobodys,
            **values,
        )
    if may_be_lost or not holders:
        hidden = room.hidden or "NVML lists none"
        says = f"too little free memory: {lacks}; not all processes that hold the rest are known: {{hidden}}"
        remedy = "find them with nvidia-smi on the node, as root"
        return Finding.error(NO_ROOM, says, *evidence, remedy=remedy, hidden=hidden, **values)
    most, others = holders[0], len(holders) - 1
    about = {"name": most.name, "user": most.user, "job": int(most.job or 0)}
    known = {name: value for name, value in about.items() if value}
    says = ", ".join("job {job}" if name == "job" else f"{{{name}}}" for name in known)
    says = f"process {{pid}} ({says})" if known else "process {pid}"
    says += f" and {others} more hold" if others else " holds"
    return Finding.error(
        NO_ROOM,
        f"too little free memory: {says} {{held:mib}}; {lacks}",
        *evidence,
        remedy="wait for these processes to end, or stop them; then rerun",
        pid=most.pid,
        held=sum(one.held or 0 for one in holders),
        **known,
        **values,
    )


def without_probes(plan: Plan) -> Plan:
    """The plan on a node none of whose GPUs has room, with a SKIP for each check that needs one."""
    about = {result.check for result in plan.concluded} | {planned.check.id for planned in plan.probes}
    skip = Finding.skip(NOT_BEGUN, "not begun, because no GPU has room")
    skips = (Result(check.id, skip) for check in plan.checks if check.id not in about)
    return replace(plan, concluded=(*plan.concluded, *skips))


def _evidence(holder: Holder) -> Evidence:
    about = ", ".join(holder.about)
    values: dict[str, Json] = {"pid": holder.pid, "name": holder.name, "held": holder.held, "about": about}
    share = "an unknown part" if holder.held is None else "{held:mib}"
    says = f"process {{pid}}{{name:aside}} holds {share}: {{about}}"
    return Evidence(EvidenceKind.HOLDER, says, values)
