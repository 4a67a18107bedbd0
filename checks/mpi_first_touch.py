"""Compare the times of first messages from buffers of odd size and of whole pages.

The receiver keeps one buffer, and the sender uses a new buffer each time, of either size in turn.

On every node a first message takes longer than later ones, since the memory must be mapped: the ratio is
reported but not judged. On two H200 (driver 580.159.04, Intel MPI 2021.17, the whole of 1 GiB sent) the first
took 5.6 to 7.6 ms with one byte more and 8.8 to 11 ms without.

The report is eth-cscs/alps-gh200-reproducers (gpudirect-p2p-overalloc; GH200, Cray MPICH): the first message
from a buffer of one byte more than 1 GiB takes 0.46 s instead of 3.4 ms, even if the message is short. Later
messages are as fast as from any buffer, and only the sender's buffer matters.

If MPI moves device memory through UCX between two GPUs, it is also reported what carried these messages;
through the host's memory is the WARN of `mpi-small-message`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    Evidence,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Subject,
    Worker,
    differences,
    pattern,
)
from gpuipc_doctor.api.carriers import carriers, may_tell_carriers, telling

LARGE, PAGE = 128 << 20, 2 << 20
"""Bytes of the sender's buffer (fewer on a small device), and bytes of a GPU's large page."""

MESSAGE = 2 << 20
"""Bytes sent: enough that the library maps the buffer, and short compared with a slow first message."""

SIZES = {"whole pages": 0, "one byte more": 1}
"""Kind of buffer → bytes beyond whole pages."""

REPETITIONS, LATER = 5, 8
"""Number of measured buffers of each kind, and number of messages that follow a buffer's first one."""

OUT_OF_PROPORTION, SLOW_S = 10.0, 0.010
"""First messages from buffers of odd size are slow if they take more than this many times as long as from
whole pages, and more than this many seconds. They are no finding if later messages are as slow.

The fastest messages are compared, because on a busy node even the median waits for a processor (4 ms were
seen). In the report of eth-cscs the factor is 130.
"""


class MpiFirstTouch(Check):
    id = "mpi-first-touch"
    title = "the first message from an odd-sized buffer is not slow"
    subject = Subject.MPI
    requires = frozenset({"multi-process"})
    needs_mpi = True
    disturbed = frozenset({"slow-first-message"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        for devices in ctx.a_pair_or_device_of_each_backend:
            params = {"nbytes": whole_pages(ctx, devices)}
            roles = {"sender": send, "receiver": receive}
            if may_tell_carriers(ctx, devices):  # in a launch of its own: UCX prints a protocol once
                launch, ends = telling(ctx.mpi.launch), frozenset(roles)
            else:
                launch, ends = ctx.mpi.launch, frozenset[str]()
            yield Probe("", roles, devices, params, exclusive=True, launch=launch, ends=ends)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong, times = done.records["receiver"]["wrong"], done.records["sender"]["times"]
        odd, whole = min(times["one byte more"]["first"]), min(times["whole pages"]["first"])
        waited = max(later for each in times.values() for later in each["later"])
        figures = [in_words(kind, each) for kind, each in times.items()]
        figures += carriers(done.records["sender"])
        if wrong:
            yield Finding.fail("wrong-data", "{count} messages arrived wrong", *wrong, count=len(wrong))
        elif odd > OUT_OF_PROPORTION * whole and odd > max(SLOW_S, waited):
            nbytes = done.params["nbytes"]
            yield Finding.warn(
                "slow-first-message",
                "the first message from a buffer of {odd} B takes {ratio:round} times as long as from one of "
                "{whole} B",
                *figures,
                remedy=f"round the sizes of buffers up to whole pages ({PAGE} B)",
                odd=nbytes + 1,
                whole=nbytes,
                ratio=odd / whole,
            )
        else:
            says = "first message: odd sizes take {ratio:times} times as long as whole pages"
            yield Finding.ok("in-proportion", says, *figures, ratio=odd / whole)


def whole_pages(ctx: Context, devices: tuple[Device, ...]) -> int:
    """Bytes of the sender's smaller buffer, such that all buffers fit the memory limit even if none is
    released."""
    pages = ctx.room(devices) // PAGE // ((1 + REPETITIONS) * len(SIZES)) - 1  # one for the odd byte
    return min(LARGE, max(pages, 1) * PAGE)


def in_words(kind: str, times: Mapping[str, list[float]]) -> Evidence:
    """Times of messages from one kind of buffer, in words."""
    first, later = median(times["first"]), median(times["later"])
    return Evidence.measured(
        "{kind}: the first message took {first:ms} (fastest: {fastest:ms}), {ratio:times} times as long as "
        "later ones ({later:ms})",
        kind=kind,
        fastest=min(times["first"]),
        first=first,
        later=later,
        ratio=first / later,
    )


def rounds() -> Iterator[tuple[int, str]]:
    """(number, kind) of each repetition's buffer; number 0 is the warm-up."""
    for number in range(1 + REPETITIONS):
        for kind in SIZES:
            yield number, kind


def send(w: Worker) -> None:
    times: dict[str, dict[str, list[Json]]] = {kind: {"first": [], "later": []} for kind in SIZES}
    for number, kind in rounds():
        nbytes = w.params["nbytes"] + SIZES[kind]
        with w.gpus[0].alloc(nbytes) as buffer, w.step(f"buffer {number} of {nbytes} B"):
            buffer.write(contents(number, kind))
            w.mpi.barrier()
            first, *later = w.mpi.ping_pong(buffer.address, MESSAGE, 1, 1 + LATER)
            if number:
                times[kind]["first"].append(first)
                times[kind]["later"] += later
    w.record(times=times, carried=w.fabric.carried(MESSAGE, w.gpu.device.backend))
    w.mpi.finalize()


def receive(w: Worker) -> None:
    wrong = []
    with w.gpus[-1].alloc(MESSAGE) as buffer:
        for number, kind in rounds():
            buffer.write(bytes(MESSAGE))
            with w.step(f"message from buffer {number}, {kind}"):
                w.mpi.barrier()
                w.mpi.ping_pong(buffer.address, MESSAGE, 0, 1 + LATER)
            wrong += differences(f"from buffer {number}, {kind}", buffer.read(), contents(number, kind))
    w.record(wrong=wrong)
    w.mpi.finalize()


def contents(number: int, kind: str) -> bytes:
    return pattern(MESSAGE, number, SIZES[kind])


CHECK = MpiFirstTouch()
