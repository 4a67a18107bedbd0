"""What carried large messages of device memory through UCX, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.api.check import Context
from gpuipc_doctor.api.fabrics import UCX_DEFAULTS
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Device, Evidence, Finding, Json
from gpuipc_doctor.probe_types import Launch, ProbeOutcome

COPIES = 2


def may_tell_carriers(ctx: Context, devices: Sequence[Device]) -> bool:
    """Whether UCX or Open MPI can say what carries device memory between these two GPUs (`telling`)."""
    assert ctx.mpi is not None
    labels = {device.label for device in devices}
    is_pair = len(devices) > 1 and all(labels <= shown for shown in ctx.mpi.launch.shows)
    may_say = ctx.mpi.ucx or ctx.mpi.family == "openmpi"
    return bool(may_say and ctx.mpi.has_gpu_path and is_pair)


def telling(launch: Launch) -> Launch:
    """A launch in whose processes UCX prints each protocol at its first use, and Open MPI what connects the
    ranks: they must be the probe's own."""
    tells = {"UCX_PROTO_INFO": "y", "OMPI_MCA_ompi_display_comm": "mpi_init"}
    return replace(launch, env={**launch.env, **tells})


def record_carriers(w: Worker, carried: Mapping[str, Json], nbytes: int, seconds: float) -> None:
    """Record what carried messages of ``nbytes``, their speed, and the driver's if the host carried them."""
    names = [name for each in UCX_DEFAULTS for name in each.env]
    if "mover" in carried:
        names = ["OMPI_MCA_btl", "OMPI_MCA_pml"]
    chosen = {name: os.environ[name] for name in names if name in os.environ}
    speed = nbytes / seconds / 1e9
    w.record(carried=dict(carried), chosen=chosen, speed=speed)
    w.price(speed, "GB/s")
    if carried.get("message", [""])[0] == "host":
        w.record(copied=copy_speed(w, nbytes))


def copy_speed(w: Worker, nbytes: int) -> float:
    """GB/s of the driver's own copy between the two GPUs."""
    stream = w.gpus[0].create_stream()
    with w.gpus[0].alloc(nbytes) as source, w.gpus[1].alloc(nbytes) as to, w.step("copy between the GPUs"):
        times = []
        for _ in range(1 + COPIES):
            began = w.clock()
            stream.copy(to, source)
            stream.synchronize()
            times.append(w.clock() - began)
    return nbytes / min(times) / 1e9


def through_host(done: ProbeOutcome, role: str, kind: str = "device memory") -> Finding | None:
    """The WARN that messages between GPUs with peer access go through the host; None if not shown."""
    told = done.records[role]
    how, by = told.get("carried", {}).get("message", ("", ""))
    if how != "host" or "copied" not in told or len(done.devices) != 2:
        return None
    [mover] = told["carried"].get("mover", ["UCX"])
    first, second = done.devices
    if second.label not in first.peers or first.label not in second.peers:
        return None
    set_here = [f"{name}={value}" for name, value in told["chosen"].items()]
    remedy = f"unset {', '.join(told['chosen'])}"
    if mover != "UCX" and not set_here:
        remedy = "let Open MPI use UCX or smcuda: see `btl` and `pml` in openmpi-mca-params.conf"
    elif kind != "device memory" and not set_here:
        remedy = (
            "if UCX moves other device memory by peer access, send from plain allocations (PyTorch: "
            "expandable_segments:False), or try a newer UCX"
        )
    elif not set_here:
        remedy = (
            "use a UCX that has cuda_ipc (AMD: rocm_ipc) in `ucx_info -d`; ranks in containers need one PID "
            "namespace"
        )
    return Finding.warn(
        "through-host",
        "{mover} moves {kind} between peers by {by}: {speed} GB/s; the driver's copy: {copied} GB/s",
        *carriers(told),
        *([Evidence.seen("set here: {settings}", settings=set_here)] if set_here else []),
        remedy=remedy,
        mover=mover,
        kind=kind,
        by=by,
        speed=_rounded(told["speed"]),
        copied=_rounded(told["copied"]),
    )


def carriers(told: Json) -> Iterable[Evidence]:
    """What carried the largest message, and puts and gets of its size, between two GPUs."""
    for operation in ("message", "put", "get"):
        if operation in told.get("carried", {}):
            by = told["carried"][operation][1]
            yield Evidence.seen("large {operation}s between the GPUs: {by}", operation=operation, by=by)


def _rounded(speed: float) -> float:
    return float(f"{speed:.3g}")
