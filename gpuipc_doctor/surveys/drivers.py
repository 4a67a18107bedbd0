"""Initialise drivers and list their devices; hold drivers open; read idle devices' used memory."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import AtRest, BackendUnavailable, Context, Probe, Worker


def probes(ctx: Context) -> Iterable[Probe]:
    """A probe for each backend. Options: ``backends``, ``required``, ``links``, and ``alone``: PCI address →
    the environment in which only this GPU is visible."""
    for backend in ctx.options["backends"]:
        links = ctx.options.get("links", False)
        params = {"backend": backend, "required": ctx.options["required"], "links": links}
        # Without persistence mode, the first initialisation loads firmware: several seconds per GPU.
        yield Probe(backend, {"driver": initialise}, params=params, deadline_s=30.0, imports=(backend,))
        for pci, env in ctx.options.get("alone", {}).items():
            roles = {"driver": initialise}
            yield Probe(f"{backend}, only {pci}", roles, (), params, 15.0, env=env, imports=(backend,))


def initialise(w: Worker) -> None:
    try:
        seen = w.discover(w.params["backend"])
        w.record(**seen)
        w.record(**w.compare_gpus(w.params["backend"], seen["devices"], few=w.params.get("links", False)))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy, broken=absent.broken)


def keep_open(w: Worker) -> None:
    """Keep the driver initialised until this process is ended."""
    w.discover(w.params["backend"])
    w.wait_until(lambda: False, float("inf"))


def look_at_rest(w: Worker) -> None:
    """Read each device's used memory once the device is idle or the waiting time is over."""
    used, outside = w.wait_for_rest([AtRest(*each) for each in w.params["at_rest"]])
    w.record(used=used, outside=outside)
