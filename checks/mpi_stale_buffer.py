"""Send from a buffer, free it, send another from the same address, and check that the old data is not
received.

An MPI library that maps a sender's buffer keeps the mapping for the next message. When the buffer is freed
and another takes its address, the library must notice; otherwise the receiver gets the old data, without any
error (UCX before pull request 10405; MPICH's issue 7977 ends in the same way). Both ranks allocate, send,
receive and free repeatedly, so that each size follows each other one. Reused addresses are counted, because
without them nothing is tested.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Evidence,
    Finding,
    Probe,
    ProbeOutcome,
    Subject,
    Worker,
    difference,
    pattern,
    watched,
    write_pattern,
)
from gpuipc_doctor.api.data_patterns import read_unless_pattern, write_zeros
from gpuipc_doctor.api.latency import record_bandwidth

SIZES = (64 << 10, 1 << 20, 4 << 20, 6 << 20)
"""Bytes of the messages. The small ones may be sent eagerly and share a driver block; the large ones are
mapped and have their own blocks. If nothing is released, each rank keeps 176 MiB."""

ROUNDS = [size for change in product(SIZES, repeat=2) for size in change] * 2
"""The size of each round's buffer: every change from one size to another, and every size twice in a row."""

PAGE = 4096
"""Bytes of each piece that is compared with old messages: a page, since mappings cover whole pages."""

SHOWN = 7
"""Maximum messages listed in a finding."""


class MpiStaleBuffer(Check):
    id = "mpi-stale-buffer"
    title = "messages deliver the sent data, not data of a freed buffer"
    subject = Subject.MPI
    requires = frozenset({"multi-process"})
    needs_mpi = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        # The first device and the first pair of each backend: this tests the library's bookkeeping.
        alone = {device.backend: (device,) for device in reversed(ctx.devices)}
        pairs = {pair[0].backend: pair for pair in reversed(ctx.rank_pairs)}
        for devices in [*alone.values(), *pairs.values()]:
            yield Probe("", {"rank 0": exchange, "rank 1": exchange}, devices, launch=ctx.mpi.launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        ranks = done.records.values()
        reused = [rank["reused"] for rank in ranks]
        stale = [line for rank in ranks for line in rank["stale"]]
        wrong = [line for rank in ranks for line in rank["wrong"]]
        messages = 2 * len(ROUNDS)
        how_often = Evidence.measured(
            "{first} buffers on rank 0 and {second} on rank 1 reused an address",
            first=reused[0],
            second=reused[1],
        )
        if stale:
            yield Finding.fail(
                "stale",
                "{count} of {messages} messages delivered data of a freed buffer",
                *stale[:SHOWN],
                how_often,
                remedy="limit or disable MPI's cache of IPC mappings",
                count=len(stale),
                messages=messages,
            )
        if wrong:
            says = "{count} of {messages} messages arrived wrong"
            yield Finding.fail(
                "wrong-data", says, *wrong[:SHOWN], how_often, count=len(wrong), messages=messages
            )
        if not (stale or wrong):
            yield (
                Finding.ok("right", "{messages} messages correct", how_often, messages=messages)
                if all(reused)
                else Finding.skip(
                    "no-reuse",
                    "MPI's cache was not tested: no new buffer of {rounds} got the address of a freed one",
                    how_often,
                    rounds=len(ROUNDS),
                )
            )


def exchange(w: Worker) -> None:
    past: list[tuple[int, int]] = []
    reused = 0
    stale: list[str] = []
    wrong: list[str] = []
    for number, nbytes in watched(w, "new buffer, sent both ways", enumerate(ROUNDS)):
        with w.gpu.alloc(nbytes) as buffer, w.step(describe(number)):
            reused += overlaps(past, buffer.address, nbytes)
            past.append((buffer.address, nbytes))
            for sender in (0, 1):
                if w.mpi.rank == sender:
                    write_pattern(buffer, nbytes, number, sender)
                    w.mpi.send(buffer.address, nbytes, 1 - sender)
                else:
                    write_zeros(buffer, nbytes)
                    w.mpi.recv(buffer.address, nbytes, sender)
                    inspect(buffer, number, sender, stale, wrong)
    w.record(reused=reused, stale=stale, wrong=wrong)
    record_bandwidth(w, max(SIZES))
    w.mpi.finalize()


def describe(number: int) -> str:
    after = f" after {ROUNDS[number - 1]} B" if number else ""
    return f"round {number + 1}, {ROUNDS[number]} B{after}"


def overlaps(past: list[tuple[int, int]], address: int, nbytes: int) -> bool:
    """Whether a buffer overlaps an earlier buffer's address range."""
    return any(start < address + nbytes and address < start + length for start, length in past)


def inspect(buffer: Buffer, number: int, sender: int, stale: list[str], wrong: list[str]) -> None:
    """Compare a round's message with the sent data and record it as stale or wrong."""
    data = read_unless_pattern(buffer, buffer.nbytes, number, sender)
    if data is not None:
        what = f"{describe(number)}, from rank {sender}"
        if (earlier := round_shown(data, number)) is None:
            wrong.append(f"{what}: {difference(data, pattern(len(data), number, sender))}")
        else:
            stale.append(f"{what}: the message had the data of round {earlier + 1}")


def round_shown(data: bytes, number: int) -> int | None:
    """The latest earlier round whose message shares a page with ``data``; None if there is none."""

    def shows(earlier: int) -> bool:
        messages = [pattern(len(data), earlier, sender) for sender in (0, 1)]
        pages = range(0, len(data), PAGE)
        return any(data[at : at + PAGE] == old[at : at + PAGE] for old in messages for at in pages)

    return next((earlier for earlier in reversed(range(number)) if shows(earlier)), None)


CHECK = MpiStaleBuffer()
