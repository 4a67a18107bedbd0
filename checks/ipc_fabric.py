"""Share memory by fabric handle, which also reaches other nodes if an IMEX channel permits it.

Only an attempt shows whether exports succeed: the device's attribute and the state of the IMEX daemon were
both seen to be wrong. The handle is imported by the exporting process, by another process, and with ``--nodes
2`` by a process on another node, which must be in the same IMEX domain.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    DriverError,
    Finding,
    PhysicalMemory,
    Probe,
    ProbeOutcome,
    Worker,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    misplaced,
    write_pattern,
    wrong_pattern,
)
from gpuipc_doctor.api.offered_memory import round_up

NBYTES = 20 << 20
"""Bytes of the memory, before rounding up to the device's granularity."""


class IpcFabric(Check):
    id = "ipc-fabric"
    title = "memory shared by fabric handle has correct data"
    requires = frozenset({"fabric-handles", "multi-process"})
    across = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("", ROLES, devices, {"across": False})
        if ctx.across:
            yield Probe("between nodes", ROLES, ctx.devices[:1], {"across": True}, launch=ctx.across)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = done.records["exporter"], done.records["importer"]
        if refused := exporter["refused"]:
            yield judge_refusal(refused, exporter["channels"])
            return
        if done.params["across"] and (astray := misplaced([exporter["node"], importer["node"]], across=True)):
            yield astray
            return
        wrong = exporter["wrong"] + importer["wrong"]
        bad = list(judge_exchange(done))
        if wrong:
            bad.append(Finding.fail("wrong-data", "an imported fabric handle shows wrong data", *wrong))
        yield from bad
        if refused := importer["refused"]:
            yield not_in_domain(refused)
        elif not bad:
            yield Finding.ok("right", "{nbytes:mib} verified in both directions", nbytes=exporter["nbytes"])


def judge_refusal(refused: str, channels: list[str]) -> Finding:
    """The SKIP or FAIL that names the missing condition, for devices that support fabric handles."""
    if not channels:
        return Finding.skip(
            "no-imex-channel",
            "fabric handles are refused ({refused}): /dev/nvidia-caps-imex-channels has no IMEX channel",
            remedy="create a channel: nvidia-modprobe -c 0; in a container, also pass it in",
            refused=refused,
            lacking=["fabric-handles"],
        )
    return Finding.skip(
        "not-permitted",
        "fabric handles are refused ({refused}) although {channels} exists",
        remedy="check that nvidia-imex runs and is READY, and that this process can open its channel",
        refused=refused,
        channels=channels,
        lacking=["fabric-handles"],
    )


def not_in_domain(refused: str) -> Finding:
    """The SKIP if the nodes are not in a common IMEX domain, which is the fault of neither node."""
    return Finding.skip(
        "not-in-domain",
        "the other node cannot import this node's fabric handle ({refused})",
        remedy="put both nodes into one IMEX domain: list both in nvidia-imex's nodes_config.cfg, "
        "and give both the same channel",
        refused=refused,
    )


def create(w: Worker) -> PhysicalMemory | str:
    """Memory that can be exported by fabric handle, or the driver's refusal."""
    try:
        return w.gpu.create_fabric(round_up(NBYTES, w.gpu.fabric_granule))
    except DriverError as error:
        if error.is_not_permitted:
            return str(error)
        raise


def export(w: Worker) -> None:
    w.record(node=w.node)
    memory = create(w)
    if isinstance(memory, str):
        w.record(refused=memory, channels=w.gpu.fabric_channels, exchanged=[])
        w.peer.send(None)
        return
    nbytes = memory.nbytes
    with memory, memory.map() as mapping:
        write_pattern(mapping, nbytes)
        handle = memory.export_fabric()
        step = w.step("import the handle in the exporting process")
        with step, w.gpu.import_fabric(handle, nbytes) as own, own.map() as again:
            wrong = wrong_pattern("in the exporting process", again, nbytes)
        w.record(refused="", wrong=wrong, exchanged=[], nbytes=nbytes)
        w.peer.send([handle, nbytes])
        if w.peer.recv() == "mapped":
            w.record(exchanged=exchange_as_exporter(w, mapping, nbytes))
            w.peer.recv()  # the importer has unmapped


def attach(w: Worker) -> None:
    w.record(node=w.node)
    shared = w.peer.recv()
    if not shared:
        w.record(refused="", wrong=[], exchanged=[])
        return
    handle, nbytes = shared
    try:
        memory = w.gpu.import_fabric(handle, nbytes)
    except DriverError as error:
        if not (w.params["across"] and error.is_not_permitted):
            raise
        w.record(refused=str(error), wrong=[], exchanged=[])
        w.peer.send("refused")
        return
    with memory, memory.map() as mapping:
        w.peer.send("mapped")
        wrong = wrong_pattern("in another process", mapping, nbytes)
        w.record(refused="", wrong=wrong, exchanged=exchange_as_importer(w, mapping, nbytes))
    w.peer.send("unmapped")


ROLES = {"exporter": export, "importer": attach}

CHECK = IpcFabric()
