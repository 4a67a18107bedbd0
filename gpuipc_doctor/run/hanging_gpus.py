"""Find the GPUs with which initialising CUDA hangs, and let all later workers see only the others.

A GPU hangs if it does so alone, and does not answer just after another GPU did: a process that hangs, or was
killed then, may keep the next one waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

from gpuipc_doctor import surveys
from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Device, Finding, Json
from gpuipc_doctor.node.gpus import entries_in_force, of_node
from gpuipc_doctor.probe_types import ProbeOutcome
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run import tours
from gpuipc_doctor.run.conclusions import Ended, NotRun
from gpuipc_doctor.run.open_drivers import OpenDrivers
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.survey_runner import SurveyRunner
from gpuipc_doctor.supervise.assignment import device_from_json
from gpuipc_doctor.vendors import NVIDIA

HIDING = NVIDIA.choice.variable

BUDGET_FRACTION = 0.5
"""Fraction of the remaining budget for initialising each GPU alone, and then for repetitions."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU that processes see by default: ``entry`` selects it, ``name`` is for people. Unknown properties
    of ``device`` are empty."""

    name: str
    entry: str
    device: Device


@dataclass
class HangingGpus:
    """GPUs with which initialising CUDA hangs. ``left_out``: those that no later worker sees."""

    planner: Planner
    surveys: SurveyRunner
    open_drivers: OpenDrivers
    left_out: list[Device] = field(default_factory=list, init=False)

    def ask_others(self, planned: PlannedProbe) -> ProbeOutcome | None:
        """After ``planned`` hung: its outcome without the GPUs that hang; None if they cannot be found, or
        if the run ended before the others answered."""
        session = self.surveys.schedule.session
        gpus = _visible(session.node.root, {**os.environ, **session.node.env})
        if len(gpus) < 2 or planned.probe.name != NVIDIA.backend:  # no hang of HIP was seen
            return None
        with self.open_drivers.paused():
            order = {} if HIDING in {**os.environ, **session.node.env} else NVIDIA.choice.order
            options: dict[str, Json] = {**planned.probe.params, "backends": (NVIDIA.backend,)}
            options["alone"] = {gpu.name: {**order, HIDING: gpu.entry} for gpu in gpus}
            info, (_, *probes) = self.planner.survey(loader.built_in_file(surveys.DRIVERS), options)
            alone = dict(zip(gpus, probes, strict=True))
            seen = self._ask_each(alone, info)
            if not (self.left_out and seen):
                return None
            others = ",".join(gpu.entry for gpu in gpus if gpu in seen)
            session.node = replace(session.node, env={**session.node.env, **order, HIDING: others})
            numbers = {device.identity: gpu.device.index for gpu, device in seen.items()}
            ended = self.surveys.run((planned,))[planned.number]
            if isinstance(ended, NotRun) or ended.stopped:
                return None
            return _numbered(ended, numbers)

    def _ask_each(
        self, alone: Mapping[VisibleGpu, PlannedProbe], info: CheckInfo
    ) -> dict[VisibleGpu, Device]:
        """Initialise each GPU alone; returns what those that answered are, if one of the others may be the
        cause of the hang."""
        ended = self._run(*alone.values())
        seen = {gpu: device for gpu, one in alone.items() if (device := _shown(gpu, ended[one.number]))}
        suspects = [one for gpu, one in alone.items() if gpu not in seen]
        if not seen:
            self.surveys.keep(info, [one for one in suspects if _is_stuck(ended[one.number])], ended)
            return {}
        witness = alone[next(iter(seen))]
        for gpu, one in alone.items():
            # The process that was killed before may still keep the first of these waiting.
            if gpu in seen or not any(_has_answered(self._run(witness)[witness.number]) for _ in range(2)):
                continue
            again = self._run(one)[one.number]
            if device := _shown(gpu, again):
                seen[gpu] = device
            elif _is_stuck(again):
                ended[one.number] = again
        bad = {gpu: alone[gpu] for gpu in alone if gpu not in seen}
        self.surveys.keep(info, bad.values(), ended)
        self.left_out = [gpu.device for gpu in bad]
        if bad:
            says = "not tested: CUDA did not initialise with {gpus} alone; other GPUs keep their numbers"
            names = [f"{gpu.device.label} ({gpu.name})" for gpu in bad]
            self.surveys.tell(info, Finding.skip("left-out", says, gpus=names))
        return {} if all(_has_answered(ended[one.number]) for one in bad.values()) else seen

    def _run(self, *probes: PlannedProbe) -> dict[int, Ended]:
        left_s = max(self.surveys.schedule.until - time.monotonic(), 0.0)
        return self.surveys.run(probes, 1, spare_s=left_s * (1 - BUDGET_FRACTION))


def has_hung(ended: Ended) -> bool:
    return isinstance(ended, ProbeOutcome) and tours.has_hung(ended)


def _visible(root: str, environ: Mapping[str, str]) -> list[VisibleGpu]:
    """The GPUs of the environment's choice, else of the kernel's list, numbered in that order.

    The kernel knows no uuid of a GPU that was not initialised since boot. Numbers and uuids are not mixed.
    """
    if (chosen := environ.get(HIDING)) is not None:
        entries, _ = entries_in_force(Path(root), NVIDIA, chosen)
        return [
            VisibleGpu(
                f"{HIDING}={entry}",
                entry,
                Device(NVIDIA.backend, number, entry if entry.startswith("GPU-") else "", "", "", 0),
            )
            for number, entry in enumerate(entries)
        ]
    gpus = [gpu for gpu in of_node(root) if gpu.backend == NVIDIA.backend]
    have_uuids = all(gpu.uuid for gpu in gpus)
    return [
        VisibleGpu(
            gpu.pci,
            gpu.uuid if have_uuids else str(gpu.index),
            Device(NVIDIA.backend, gpu.index, gpu.uuid, gpu.pci, gpu.name, 0),
        )
        for gpu in gpus
    ]


def _is_stuck(ended: Ended) -> bool:
    return isinstance(ended, ProbeOutcome) and tours.is_unkillable(ended)


def _has_answered(ended: Ended) -> TypeGuard[ProbeOutcome]:
    return isinstance(ended, ProbeOutcome) and ended.completed


def _shown(gpu: VisibleGpu, ended: Ended) -> Device | None:
    """The device that a process saw to which only this GPU was shown, if it is this GPU."""
    if not _has_answered(ended):
        return None
    found = [device_from_json(data) for data in ended.records["driver"].get("devices", ())]
    is_it = len(found) == 1 and gpu.device.pci in ("", found[0].pci)
    return found[0] if is_it else None


def _numbered(ended: ProbeOutcome, numbers: Mapping[str, int]) -> ProbeOutcome:
    """The outcome with each device numbered as by ``numbers``: identity → index."""
    if not ended.completed:
        return ended
    role = ended.roles["driver"]
    records = dict(role.records)
    index = {
        device.label: numbers.get(device.identity, device.index)
        for device in map(device_from_json, records.get("devices", ()))
    }

    def label(of: str) -> str:
        return f"{NVIDIA.backend}:{index[of]}"

    records["devices"] = [
        {
            **device,
            "index": index[device_from_json(device).label],
            "peers": [*map(label, device["peers"])],
        }
        for device in records.get("devices", ())
    ]
    for name in ("traits", "ways"):
        records[name] = {label(of): found for of, found in records.get(name, {}).items()}
    records["ways"] = {
        of: {label(to): way for to, way in ways.items()} for of, ways in records["ways"].items()
    }
    return replace(ended, roles={**ended.roles, "driver": replace(role, records=records)})
