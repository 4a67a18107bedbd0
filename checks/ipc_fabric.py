"""Share memory by fabric handle: what reaches GPUs of other nodes where an IMEX channel permits it.

Neither the device's attribute nor the daemon's state says whether handles are given (both were seen to be
wrong, either way): only the attempt tells. The handle is imported by the process that made it, by another
one, and with ``--nodes 2`` by one on another node, which has to be in the same IMEX domain for that.
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
    differences,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    misplaced,
    pattern,
)

NBYTES = 4 << 20


class IpcFabric(Check):
    id = "ipc-fabric"
    title = "memory shared by fabric handle has right data"
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
            yield Finding.ok("right", "{nbytes:mib} right both ways, and again", nbytes=NBYTES)


def judge_refusal(refused: str, channels: list[str]) -> Finding:
    """Say which condition is missing; the device itself knows fabric handles, or the check would not run."""
    if not channels:
        return Finding.skip(
            "no-imex-channel",
            "fabric handles are refused ({refused}): /dev/nvidia-caps-imex-channels has no IMEX channel",
            remedy="create one (nvidia-modprobe -c 0), and give it to the container",
            refused=refused,
        )
    return Finding.skip(
        "not-permitted",
        "fabric handles are refused ({refused}) although there is {channels}",
        remedy="see that this process may open it, and that the nvidia-imex daemon runs and says READY",
        refused=refused,
        channels=channels,
    )


def not_in_domain(refused: str) -> Finding:
    """It is no fault of either node that the other one is in another IMEX domain, or in none."""
    return Finding.skip(
        "not-in-domain",
        "the other node may not import the fabric handle of this one ({refused})",
        remedy="to share memory both must be in one IMEX domain: nvidia-imex's nodes_config.cfg names both, "
        "and they have the same channel",
        refused=refused,
    )


def create(w: Worker) -> PhysicalMemory | str:
    """Memory that a fabric handle can be made of, or the driver's refusal."""
    try:
        return w.gpu.create_fabric(NBYTES)
    except DriverError as error:
        if error.is_not_permitted:
            return str(error)
        raise


def export(w: Worker) -> None:
    w.record(node=w.node)
    memory = create(w)
    if isinstance(memory, str):
        w.record(refused=memory, channels=w.gpu.fabric_channels, exchanged=[])
        w.peer.send(b"")
        return
    with memory, memory.map() as mapping:
        mapping.write(pattern(NBYTES))
        handle = memory.export_fabric()
        step = w.step("import it in the process that made it")
        with step, w.gpu.import_fabric(handle, NBYTES) as own, own.map() as again:
            wrong = differences("in the process that made it", again.read(), pattern(NBYTES))
        w.record(refused="", wrong=wrong, exchanged=[])
        w.peer.send(handle)
        if w.peer.recv() == "mapped":
            w.record(exchanged=exchange_as_exporter(w, mapping, NBYTES))
            w.peer.recv()  # the importer has unmapped


def attach(w: Worker) -> None:
    w.record(node=w.node)
    handle = w.peer.recv()
    if not handle:
        w.record(refused="", wrong=[], exchanged=[])
        return
    try:
        memory = w.gpu.import_fabric(handle, NBYTES)
    except DriverError as error:
        if not (w.params["across"] and error.is_not_permitted):
            raise
        w.record(refused=str(error), wrong=[], exchanged=[])
        w.peer.send("refused")
        return
    with memory, memory.map() as mapping:
        w.peer.send("mapped")
        wrong = differences("in another process", mapping.read(), pattern(NBYTES))
        w.record(refused="", wrong=wrong, exchanged=exchange_as_importer(w, mapping, NBYTES))
    w.peer.send("unmapped")


ROLES = {"exporter": export, "importer": attach}

CHECK = IpcFabric()
