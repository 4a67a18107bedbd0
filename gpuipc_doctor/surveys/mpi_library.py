"""Load the MPI library without initialising it, and ask whether it accepts device pointers."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import BackendUnavailable, Context, Probe, Worker


def probes(ctx: Context) -> Iterable[Probe]:
    """Options: ``library`` (path; default: the one that mpi4py finds), ``chosen_by`` (origin of the choice),
    ``named`` (whether a user named it), ``environment`` (additional variables of the ranks) and ``simulated``
    (whether device memory is host memory, which every MPI accepts)."""
    backends = list(dict.fromkeys(device.backend for device in ctx.devices))
    if not backends:
        return
    params = {
        "backends": backends,
        "library": ctx.options.get("library"),
        "chosen_by": ctx.options.get("chosen_by", "mpi4py's own search"),
        "named": ctx.options.get("named", False),
        "simulated": ctx.options.get("simulated", False),
    }
    # Loading a library and its dependencies from a slow network file system can take long.
    yield Probe("", {"mpi": look}, params=params, deadline_s=30.0, env=ctx.options.get("environment", {}))


def look(w: Worker) -> None:
    try:
        w.record(**w.mpi_facts(w.params["library"], w.params["backends"]))
    except BackendUnavailable as absent:
        w.record(unavailable=absent.reason, remedy=absent.remedy)
