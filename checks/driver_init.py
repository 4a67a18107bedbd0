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
            yield from missing(len(names), seen["on_bus"], seen["hiding"])
        elif seen["broken"] or done.params["required"]:
            yield Finding.error(seen["unavailable"], remedy=seen["remedy"])
        else:
            yield Finding.skip(seen["unavailable"], remedy=seen["remedy"])


def missing(here: int, on_bus: int, hiding: list[str]) -> Iterable[Finding]:
    """What to say of GPUs that the node has and this process does not see."""
    if here >= on_bus:
        return
    text = f"{on_bus - here} of {on_bus} GPUs on the PCI bus not tested"
    if hiding:
        yield Finding.skip(f"{text}: {' '.join(hiding)} hides them", remedy="unset it to test all of them")
    else:
        yield Finding.warn(
            f"{text}: the driver does not list them",
            remedy="see the kernel's log (dmesg) for lost GPUs; in a container, see which it was given",
        )


def initialise(w: Worker) -> None:
    try:
        w.record(**w.discover(w.params["backend"]))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy, broken=absent.broken)


def keep_open(w: Worker) -> None:
    """Hold the driver until this process is ended."""
    w.discover(w.params["backend"])
    w.wait_until(lambda: False, float("inf"))


CHECK = DriverInit()
