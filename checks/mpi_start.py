"""Start two ranks, initialise MPI and list the GPUs that the launcher shows each rank.

It runs before all checks that send messages, so that an MPI which cannot be initialised is reported once. On
real systems the launcher binds GPUs to ranks, for example one to each rank on Frontier (``srun
--gpus-per-task=1 --gpu-bind=closest``). The other MPI checks are then planned with each rank's own GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuipc_doctor.api import BackendUnavailable, Check, Context, Finding, Json, Probe, ProbeOutcome, Worker


class MpiStart(Check):
    id = "mpi-start"
    title = "two ranks start, and each rank sees GPUs"
    subject = None
    needs_mpi = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        params = {"gpus": [[device.label, device.uuid or device.pci] for device in ctx.devices]}
        backends = tuple(dict.fromkeys(device.backend for device in ctx.devices))
        roles = {"rank 0": start, "rank 1": start}
        yield Probe("", roles, params={**params, "backends": backends}, launch=ctx.mpi.launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        all_labels = [label for label, _ in done.params["gpus"]]
        shown = {rank: record["shown"] for rank, record in done.records.items()}
        evidence = [f"{rank}: {', '.join(labels) or 'no GPU'}" for rank, labels in shown.items()]
        if blind := [rank for rank, labels in shown.items() if not labels]:
            yield Finding.error(
                "shows-no-gpu",
                "the launcher gives {ranks} none of the GPUs to be tested",
                *evidence,
                *(f"{rank}: {why}" for rank in blind for why in done.records[rank]["unavailable"]),
                remedy="set an mpi.launcher in the site config that gives each rank a GPU "
                "(srun --gpus-per-task=1), or all GPUs (srun --gpu-bind=none)",
                ranks=" and ".join(blind),
            )
        elif any(labels != all_labels for labels in shown.values()):
            yield Finding.ok("bound", "two ranks started; the launcher binds GPUs to them", *evidence)
        else:
            yield Finding.ok("started", "two ranks started, each sees {labels}", labels=all_labels)


def start(w: Worker) -> None:
    seen, unavailable = set[str](), list[str]()
    for backend in w.params["backends"]:
        try:
            seen |= set(identities(w.discover(backend)["devices"]))
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


def identities(devices: Iterable[Json]) -> Iterator[str]:
    for device in devices:
        yield device["uuid"] or device["pci"]


CHECK = MpiStart()
