"""Start two ranks and list the GPUs that the launcher shows each; begin and end tours of ranks."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import BackendUnavailable, Context, Probe, Worker


def probes(ctx: Context) -> Iterable[Probe]:
    assert ctx.mpi is not None
    params = {"gpus": [[device.label, device.uuid or device.pci] for device in ctx.devices]}
    backends = tuple(dict.fromkeys(device.backend for device in ctx.devices))
    roles = {"rank 0": start, "rank 1": start}
    yield Probe("", roles, params={**params, "backends": backends}, launch=ctx.mpi.launch)


def start(w: Worker) -> None:
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
