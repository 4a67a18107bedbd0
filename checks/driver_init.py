"""Initialise each driver and list its devices: the first call of every GPU program, and it can hang."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import BackendUnavailable, Check, Context, Finding, Probe, ProbeOutcome, Tier, Worker


class DriverInit(Check):
    id = "driver-init"
    title = "driver initialises and lists its devices"
    tier = Tier.PROLOG

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for backend in ctx.options["backends"]:
            params = {"backend": backend, "required": ctx.options["required"]}
            # Without persistence mode the first initialisation loads firmware, for several seconds a GPU.
            yield Probe(backend, {"driver": initialise}, params=params, deadline_s=30.0)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records["driver"]
        if "unavailable" not in seen:
            names = [device["name"] for device in seen["devices"]]
            counts = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
            yield Finding.ok(counts)
        elif seen["broken"] or done.params["required"]:
            yield Finding.error(seen["unavailable"], remedy=seen["remedy"])
        else:
            yield Finding.skip(seen["unavailable"], remedy=seen["remedy"])


def initialise(w: Worker) -> None:
    try:
        w.record(**w.discover(w.params["backend"]))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy, broken=absent.broken)


CHECK = DriverInit()
