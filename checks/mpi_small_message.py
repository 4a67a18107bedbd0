"""Send small messages between two ranks in every way that hung or crashed on a cxi node.

Every size is sent device to device, host to device and device to host, in both directions, blocking and non-
blocking, and each message and the guard bytes behind it are verified. After a hang or crash, the remaining
messages are tried in fresh ranks, so the result lists all failures, not only the first. Large messages are
sent in the same ways. Finally, device-to-device latency and bandwidth are measured.

If MPI moves device memory through UCX, it is also reported what carries memory of an allocation, a
pool and VMM between two GPUs, as in `fabric-small-message`, with the same WARN. Open MPI without UCX names
what connects its ranks; other libraries name nothing that carries device memory within a node.

Messages are exchanged on each device, between any two devices of the node, and with `--nodes 2` between the
first devices of two nodes.

Options: ``sizes`` (a list of bytes), instead of the default ones; larger messages are then not timed.

The report of December 2023 (Slingshot, Cray MPICH): device-to-device messages of 16 bytes hang and of 256
bytes crash, blocking and non-blocking.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    Memory,
    Probe,
    ProbeOutcome,
    Subject,
    Worker,
    difference,
    misplaced,
    pattern,
    unlike_pattern,
    write_pattern,
)
from gpuipc_doctor.api.carriers import carriers, may_tell_carriers, telling, through_host
from gpuipc_doctor.api.data_patterns import write_zeros
from gpuipc_doctor.api.fabrics import UCX_DEFAULTS
from gpuipc_doctor.api.latency import Latency, figures, measurements, out_of_line, time_there_and_back
from gpuipc_doctor.api.message_sizes import LARGE_MESSAGES, SIZES_OPTION, SMALL_MESSAGES

from ._mpi_small_message_carriers import NBYTES, kinds_to_send, send_one_kind
from ._mpi_small_message_kinds import MODES, MOST_FAILED, PLACES, Message, given_up, mapped, messages

TIMED = (0, 1, 8, 16, 64, 256, 1024, 4096, 16384, 65536, *LARGE_MESSAGES)

GUARD, PAGE = 64, 4096
"""Minimum bytes behind each message that must not change, and bytes of a page: the guarded bytes end with a
page."""

ACROSS, REST = "between nodes", "the rest"

SHOWN = 8
"""Maximum wrong messages listed in a finding."""


class MpiSmallMessage(Check):
    id = "mpi-small-message"
    title = "small messages between ranks arrive, complete and in time"
    subject = Subject.MPI
    requires = frozenset({"multi-process"})
    needs_mpi = True
    disturbed = frozenset({"out-of-line"})
    curable_warnings = frozenset({"through-host"})
    workarounds = UCX_DEFAULTS
    across = True
    options: ClassVar = {"sizes": SIZES_OPTION}

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        around_edges = {
            edge + step for edge in ctx.mpi.edges if edge < LARGE_MESSAGES[-1] for step in (-1, 0, 1)
        }
        usual = {*SMALL_MESSAGES, *LARGE_MESSAGES, *around_edges}
        params = {"sizes": sorted(ctx.options.get("sizes") or usual), "failed": []}
        for devices in [*((device,) for device in ctx.devices), *ctx.rank_pairs]:
            yield Probe("", ROLES, devices, params, launch=ctx.mpi.launch)
        yield from carriers_of(ctx)
        if ctx.mpi.across:
            for devices in ctx.devices_of_each_backend:
                yield Probe(ACROSS, ROLES, devices[:1], params, launch=ctx.mpi.across)

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        if failed.blamed and (message := failed.records[failed.blamed].get("message")):
            role = failed.roles[failed.blamed]
            ending = f"{' or '.join(failed.suspects)} {role.ending.value} in {role.operation or 'no call'}"
            if len(failed.params["failed"]) >= MOST_FAILED:
                return
            name = f"{ACROSS}, {REST}" if failed.probe.startswith(ACROSS) else REST
            yield failed.follow_up(name, ROLES, failed=[*failed.params["failed"], [message, ending]])

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        ranks, first = done.records.values(), done.records["rank 0"]
        nodes = sorted({rank["node"] for rank in ranks})
        across = done.probe.startswith(ACROSS)
        if astray := misplaced(nodes, across=across):
            yield astray
            return
        if kind := done.params.get("kind"):
            yield carried(done, kind)
            return
        kinds, bad = first["messages"], []
        if failed := done.params["failed"]:
            bad.append(
                Finding.fail(
                    "map",
                    "some kinds of message failed; {kinds} kinds are correct",
                    *mapped([(Message(*message), ending) for message, ending in failed]),
                    kinds=kinds,
                )
            )
        if wrong := [line for rank in ranks for line in rank["wrong"]]:
            says = "{count} of {kinds} kinds of message arrived wrong"
            bad.append(Finding.fail("wrong-data", says, *wrong[:SHOWN], count=len(wrong), kinds=kinds))
        elif wrong := [line for rank in ranks for line in rank["wrong_repeated"]]:
            says = "messages arrived wrong when they were sent repeatedly"
            bad.append(Finding.fail("wrong-when-repeated", says, *wrong[:SHOWN]))
        latencies = [Latency(*each) for each in first["latencies"]]
        if odd := list(out_of_line(latencies)):
            bad.append(
                Finding.warn("out-of-line", "one size is far slower than smaller and larger ones", *odd)
            )
        yield from bad or [
            Finding.ok(
                "right",
                "{kinds} kinds of message correct from {nodes}"
                if across
                else "{kinds} kinds of message correct",
                *figures(latencies),
                measured=measurements(latencies),
                kinds=kinds,
                nodes=" to ".join(nodes),
            )
        ]


def carriers_of(ctx: Context) -> Iterable[Probe]:
    """Probes of what carries each kind of memory between two GPUs, if MPI uses UCX for device memory."""
    assert ctx.mpi is not None
    launch, roles = telling(ctx.mpi.launch), {"rank 0": send_one_kind, "rank 1": send_one_kind}
    for devices in ctx.a_pair_or_device_of_each_backend:
        for kind in kinds_to_send(devices[0]) if may_tell_carriers(ctx, devices) else ():
            yield Probe(kind, roles, devices, {"kind": kind}, launch=launch, ends=frozenset(roles))


def carried(done: ProbeOutcome, kind: str) -> Finding:
    """What carried one kind of memory. Nothing if ranks disagree; Open MPI's first one speaks for all."""
    if wrong := [rank["wrong"] for rank in done.records.values() if rank["wrong"]]:
        return Finding.fail(
            "wrong-data", "{kind}: a message of {size:bytes} arrived wrong", *wrong, kind=kind, size=NBYTES
        )
    first, second = (rank["carried"] for rank in done.records.values())
    agreed = first == second or ("mover" in first and not second)
    if agreed and (slow := through_host(done, "rank 0", kind)):
        return slow
    told = list(carriers(done.records["rank 0"]) if agreed else ())
    if not told:
        says = "what carried it is unknown: UCX says so from 1.14 on, and not with UCX_PROTO_ENABLE=n"
        told = [Evidence.seen(says)]
    return Finding.ok(
        "carried", "{kind}: {speed} GB/s", *told, kind=kind, speed=round(done.records["rank 0"]["speed"], 3)
    )


def exchange(w: Worker) -> None:
    sizes, failed = w.params["sizes"], [(Message(*message), ending) for message, ending in w.params["failed"]]
    safe = [message for message in messages(sizes) if not given_up(message, failed)]
    timed = [size for size in TIMED if size <= sizes[-1]]
    wrong: list[str] = []
    room = sizes[-1] + guarded(sizes[-1])
    with w.gpu.alloc(room) as device:
        places = {"device": device, "host": w.host_memory(room)}
        w.record(node=w.mpi.node)  # MPI is initialised; earlier failures belong to no message
        for message in safe:
            w.record(message=message)
            with w.step(str(message)):
                wrong += deliver(w, message, places)
        w.record(message=None)

        there_and_back = [Message(size, *PLACES[0], MODES[0], sender) for size in timed for sender in (0, 1)]
        lost = {message.size for message in there_and_back if given_up(message, failed)}
        latencies, repeated = time_there_and_back(w, device, [size for size in timed if size not in lost])
    w.record(messages=len(safe), wrong=wrong, wrong_repeated=repeated, latencies=latencies)
    if small := [latency for latency in latencies if latency.size not in LARGE_MESSAGES]:
        w.price(small[-1].median * 1e6, f"µs at {small[-1].size} B")
    w.mpi.finalize()


def guarded(size: int) -> int:
    """Bytes guarded behind a message of this size."""
    return GUARD + -(size + GUARD) % PAGE


def deliver(w: Worker, message: Message, places: dict[str, Memory]) -> list[str]:
    """Perform this rank's part of one message; returns the wrong data that the receiver found."""
    size, source, target, mode, sender = message
    is_sender = w.mpi.rank == sender
    memory = places[source if is_sender else target]
    key, guard = (size, sender, MODES.index(mode)), pattern(guarded(size), 0)
    if is_sender:
        write_pattern(memory, size, *key)
    else:
        write_zeros(memory, size)
    memory.write(guard, size)
    transfer(w, memory.address, size, mode, is_sender)
    if is_sender:
        return []
    wrong = unlike_pattern(memory, size, *key)
    if not wrong and (behind := memory.read(len(guard), size)) != guard:
        sent = pattern(size, *key)
        wrong = difference(sent + behind, sent + guard)
    return [f"{message}: {wrong}"] if wrong else []


def transfer(w: Worker, address: int, nbytes: int, mode: str, is_sender: bool) -> None:
    partner = 1 - w.mpi.rank
    if mode == "blocking":
        (w.mpi.send if is_sender else w.mpi.recv)(address, nbytes, partner)
    else:
        w.mpi.wait([(w.mpi.isend if is_sender else w.mpi.irecv)(address, nbytes, partner)])


ROLES = {"rank 0": exchange, "rank 1": exchange}

CHECK = MpiSmallMessage()
