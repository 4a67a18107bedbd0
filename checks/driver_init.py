"""Initialise each driver and list its devices: the first call of every GPU program, and it can hang."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpuipc_doctor.api import (
    NOISE_BYTES,
    BackendUnavailable,
    Check,
    Context,
    Finding,
    Gpu,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
)


class DriverInit(Check):
    id = "driver-init"
    title = "driver initialises and lists its devices"
    tier = Tier.PROLOG

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for backend in ctx.options["backends"]:
            params = {"backend": backend, "required": ctx.options["required"]}
            # Without persistence mode the first initialisation loads firmware, for several seconds a GPU.
            yield Probe(backend, {"driver": initialise}, params=params, deadline_s=30.0, imports=(backend,))

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records["driver"]
        if "unavailable" not in seen:
            names = [device["name"] for device in seen["devices"]]
            counts = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
            yield Finding.ok("initialised", "{devices}", devices=counts)
            yield from missing(len(names), seen["on_bus"], seen["hiding"])
        else:
            conclude = Finding.error if seen["broken"] or done.params["required"] else Finding.skip
            yield conclude("unavailable", "{reason}", remedy=seen["remedy"], reason=seen["unavailable"])


def missing(here: int, on_bus: int, hiding: list[str]) -> Iterable[Finding]:
    """What to say of GPUs that the node has and this process does not see."""
    if here >= on_bus:
        return
    counts = {"missing": on_bus - here, "on_bus": on_bus}
    if hiding:
        yield Finding.skip(
            "hidden",
            "{missing} of {on_bus} GPUs on the PCI bus not tested: {hiding} hides them",
            remedy="unset it to test all of them",
            hiding=" ".join(hiding),
            **counts,
        )
    else:
        yield Finding.warn(
            "not-listed",
            "{missing} of {on_bus} GPUs on the PCI bus not tested: the driver does not list them",
            remedy="see the kernel's log (dmesg) for lost GPUs; in a container, see which it was given",
            **counts,
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


def wait_for_quiet(w: Worker) -> None:
    """Wait, for so long, until no more memory is in use than that, where that is known; note how much is."""
    for gpu, used, patience_s in zip(w.gpus, w.params["used"], w.params["patience"], strict=True):
        if used is not None:
            w.wait_until(partial(is_quiet, gpu, used), patience_s)
    w.record(used=[gpu.memory_used_from_outside() for gpu in w.gpus])


def is_quiet(gpu: Gpu, used: int) -> bool:
    return gpu.memory_used_from_outside() <= used + NOISE_BYTES


CHECK = DriverInit()
