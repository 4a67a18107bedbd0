"""What is here to test? Probes that the run makes before it plans its checks; three checks judge them.

Their roles run in workers. Two more hold drivers open and read idle devices; two begin and end ranks' tours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpuipc_doctor.api import BackendUnavailable, Baseline, Context, Probe, Worker

FILE = Path(__file__)

DRIVERS, MPI_LIBRARY, RANKS = "driver-init", "mpi-gpu-aware", "mpi-start"
"""The check that judges each survey."""

HEALTH = "gpu-health"
"""The check that reads GPUs without requiring one."""


def of_drivers(ctx: Context) -> Iterable[Probe]:
    """A probe for each backend. Options: ``backends``, ``required``, ``links``, ``environment``, and
    ``alone``: PCI address → the environment in which only this GPU is visible."""
    for backend in ctx.options["backends"]:
        links = ctx.options.get("links", False)
        params = {"backend": backend, "required": ctx.options["required"], "links": links}
        # Without persistence mode, the first initialisation loads firmware: several seconds per GPU.
        env = ctx.options.get("environment", {})
        yield Probe(
            backend, {"driver": initialise}, params=params, deadline_s=30.0, env=env, imports=(backend,)
        )
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
        w.record(off_bus=list(absent.off_bus))


def keep_open(w: Worker) -> None:
    """Keep the driver initialised until this process is ended."""
    w.discover(w.params["backend"])
    w.wait_until(lambda: False, float("inf"))


def read_baselines(w: Worker) -> None:
    """Read each device's used memory once the device is idle or the waiting time is over."""
    used, outside = w.wait_for_baseline([Baseline(*each) for each in w.params["baselines"]])
    w.record(used=used, outside=outside, nobodys=w.memory_of_nobody())


def of_mpi_library(ctx: Context) -> Iterable[Probe]:
    """Options: ``library`` (path; default: the one that mpi4py finds), ``chosen_by`` (origin of the choice),
    ``named`` (whether a user named it), ``environment`` (additional variables of the ranks) and ``simulated``
    (backends whose device memory is host memory, which every MPI accepts)."""
    backends = list(dict.fromkeys(device.backend for device in ctx.devices))
    if not backends:
        return
    params = {
        "backends": backends,
        "library": ctx.options.get("library"),
        "chosen_by": ctx.options.get("chosen_by", "mpi4py's own search"),
        "named": ctx.options.get("named", False),
        "simulated": ctx.options.get("simulated", []),
    }
    # Loading a library and its dependencies from a slow network file system can take long.
    yield Probe("", {"mpi": load_mpi}, params=params, deadline_s=30.0, env=ctx.options.get("environment", {}))


def load_mpi(w: Worker) -> None:
    try:
        w.record(**w.mpi_facts(w.params["library"], w.params["backends"]))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy)


def of_ranks(ctx: Context) -> Iterable[Probe]:
    assert ctx.mpi is not None
    params = {"gpus": [[device.label, device.uuid or device.pci] for device in ctx.devices]}
    backends = tuple(dict.fromkeys(device.backend for device in ctx.devices))
    roles = {"rank 0": start_rank, "rank 1": start_rank}
    yield Probe("", roles, params={**params, "backends": backends}, launch=ctx.mpi.launch)


def start_rank(w: Worker) -> None:
    seen, unavailable = set[str](), list[str]()
    for backend in w.params["backends"]:
        try:
            seen |= {device["uuid"] or device["pci"] for device in w.discover(backend)["devices"]}
        except BackendUnavailable as absent:
            unavailable.append(absent.reason)
    shown = [label for label, identity in w.params["gpus"] if identity in seen]
    w.record(shown=shown, unavailable=unavailable)
    w.peer.send(bool(shown))
    if w.peer.recv() and shown:  # an MPI library may end a process that has no GPU
        w.record(mpi=w.mpi.library_version())
        w.mpi.finalize()


def come_together(w: Worker) -> None:
    """Initialise MPI with a context on this rank's device, before the visits of a tour."""
    with w.gpu.alloc(1):
        w.record(node=w.mpi.node)


def part(w: Worker) -> None:
    """Finalise MPI after the visits of a tour."""
    w.mpi.finalize()


PROBES: Mapping[str, Callable[[Context], Iterable[Probe]]] = {
    DRIVERS: of_drivers,
    MPI_LIBRARY: of_mpi_library,
    RANKS: of_ranks,
}
