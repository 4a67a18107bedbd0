"""Verify the kernels of each side in memory of its own process, before two processes share any."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Evidence, Finding, Gpu, Memory, ProbeOutcome, Worker
from gpuipc_doctor.api.driver_errors import KernelsUnavailable
from gpuipc_doctor.api.gpu import StreamKind

from ._ipc_kernels_side import (
    ALONE,
    NBYTES,
    RESULTS_NBYTES,
    UNITS,
    Found,
    Side,
    add_units,
    make_data,
)


def load_side(w: Worker, gpu: Gpu, name: str, found: Found) -> Side | None:
    """Load the kernels on a GPU and verify them; None if they cannot run there."""
    results = gpu.alloc(RESULTS_NBYTES)
    try:
        with w.step("kernels in memory of the process itself"):
            streams = gpu.create_stream(), gpu.create_stream(StreamKind.DEFAULT)
            side = Side(w, gpu, name, found, gpu.load_kernels(), *streams, results, results, results)
            with gpu.alloc(NBYTES) as memory, gpu.alloc(4 * w.params["large"]) as large:
                verify_alone(side.move_to(memory, ""), large)
    except KernelsUnavailable as unavailable:
        found.unavailable = str(unavailable)
        results.free()
        return None
    return side


def verify_alone(side: Side, large: Memory) -> None:
    """Run each kernel once, so that none is loaded while another one waits."""
    written, added = make_data(1), add_units(make_data(1), UNITS[side.name])
    side.clear()
    side.fill(written)
    side.check(ALONE, written, make_data(0))
    side.add()
    side.check(ALONE, added, written)
    side.check_counter(ALONE, side.name)
    side.store(side.name, 1)
    side.wait(side.name, 1, added, written)
    side.finish()
    if side.read_results()[0] != 1:
        side.fault(ALONE, "a flag that it stored itself was not seen")
    side.move_data_to(large).fill(written)
    side.check(ALONE, written, make_data(0))


def judge_alone(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge kernels that were wrong; a GPU is blamed only if the same kernels were right on another one."""
    records = [done.records[role] for role in ("exporter", "importer")]
    alone = {name for record in records for name in record["alone"]}
    if not alone:
        return
    lines = [text for record in records for _, text in record["wrong"]]
    gpus = dict(zip(("exporter", "importer"), done.devices * 2, strict=False))
    wrong = {gpus[name].label for name in alone}
    if right := [device.label for device in done.devices if device.label not in wrong]:
        says = "kernels on {device} read wrong data in memory of their own process, without IPC"
        control = Evidence.seen("control: the same kernels are right on {right}", right=right)
        yield Finding.fail("wrong-alone", says, *lines, control, device=wrong.pop())
    else:
        yield Finding.error(
            "wrong-alone",
            "the check's kernels are wrong on {devices} also without IPC: a fault of theirs, of the compiler "
            "or of the GPU",
            *lines,
            remedy="run the check on another GPU of this kind; if it is right there, this GPU is faulty",
            devices=sorted(wrong),
        )
