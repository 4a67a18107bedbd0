"""Tests of check mpi-cache-growth: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace

import pytest

from gpuipc_doctor.api import Context, Device, Finding, Json, MpiStack, Probe
from gpuipc_doctor.api.driver_errors import NotAlone
from gpuipc_doctor.api.memory_counter import STILL
from gpuipc_doctor.api.meter import Reading
from gpuipc_doctor.model import MemoryShare, Status, Tier
from gpuipc_doctor.probe_types import Launch
from gpuipc_doctor.report import sentences
from tests.checks.judging import (
    JUMPING,
    MIB,
    ONE,
    TWO,
    check,
    conclude,
    drawn,
    drifting,
    each_round,
    gpu,
    metered,
    plan,
)

KIB = 1 << 10
SIZES = [(4 + 2 * number) * MIB for number in range(33)]
MEAN = 36 * MIB
SMALL = 192
"""Number of small buffers of 2 MiB that are sent last if the large ones were kept."""


def total(sizes: list[int]) -> list[int]:
    return [sum(sizes[: number + 1]) for number in range(len(sizes))]


def memory(
    used: list[int],
    *held: list[int] | list[None],
    control: int = 0,
    moves: bool = True,
    small: list[int] | None = None,
    sizes: list[int] = SIZES,
) -> dict[str, Json]:
    nobody_tells = [[None] * len(used)] * 2
    without = [600 * MIB + number * control for number in range(14)]
    recorded = {
        **{"sizes": sizes, "used": used, "control": without, "held": held or nobody_tells},
        **{"free": 100 << 30, "seconds": 0.1, "seconds_control": 0.1, **metered(moves=moves)},
    }
    if small is None:
        return recorded
    follow = [(number * 2 * MIB, 2 * MIB) for number in range(len(small))]
    return {**recorded, "then": small, "follow": follow, "freed": [(1 << 40, MIB)]}


Cache = Callable[[list[int]], list[int]]
"""Sizes sent so far, the last one just now → sizes of the buffers that the library keeps."""


def newest(buffers: int) -> Cache:
    return lambda sent: sent[-buffers:]


def of_bytes(most: int) -> Cache:
    def keep(sent: list[int]) -> list[int]:
        while sum(sent) > most:
            sent = sent[1:]
        return sent

    return keep


def emptied(buffers: int, left: int = 0) -> Cache:
    """A cache that, when it holds more than ``buffers``, drops all but the last ``left`` + 1."""
    return lambda sent: sent if len(sent) <= buffers else sent[-1 - left :]


def nothing(_: list[int]) -> list[int]:
    return []


def lost(one_in: int, of: Cache = nothing, first: int = 0) -> Cache:
    """A library that, in addition to its cache, loses one buffer in ``one_in`` after the ``first``."""
    for_ever, cached, number = list[int](), list[int](), 0

    def keep(sent: list[int]) -> list[int]:
        nonlocal cached, number
        number += 1
        if number > first and number % one_in == 0:
            for_ever.append(sent[-1])
        else:
            cached = of([*cached, sent[-1]])
        return [*for_ever, *cached]

    return keep


def in_slots(number: int) -> Cache:
    """A cache that keeps each buffer in one of ``number`` slots, chosen by a hash of its address."""
    slots, count = dict[int, int](), 0

    def keep(sent: list[int]) -> list[int]:
        nonlocal count
        count += 1
        slots[count * 7919 % number] = sent[-1]
        return list(slots.values())

    return keep


def followed(cache: Cache, sizes: list[int], small: int, leak: int = 0) -> dict[str, Json]:
    """The records of a library with this cache: large buffers were sent, then small ones, and a large one."""
    kept, used = list[int](), list[int]()
    for number, nbytes in enumerate(sizes + [2 * MIB] * small + (sizes[-1:] if small else []), 1):
        kept = cache([*kept, -(-nbytes // (2 * MIB)) * 2 * MIB])
        used.append(sum(kept) + number * leak // (2 * MIB) * 2 * MIB)
    return memory(used[: len(sizes)], small=used[len(sizes) :], sizes=sizes)


def keeps(buffers: int, small: int = SMALL) -> dict[str, Json]:
    return followed(newest(buffers), SIZES, small)


def grows_by(nbytes: int, control: int = 0) -> dict[str, Json]:
    return memory([600 * MIB + number * nbytes for number in range(len(SIZES))], control=control)


LEAK, FLAT = memory(total(SIZES)), grows_by(0)


def growth(
    sender: dict[str, Json],
    receiver: dict[str, Json] = FLAT,
    devices: tuple[Device, ...] = TWO,
    bounded_by: str = "",
    bounded_to: int | None = None,
    **params: Json,
) -> Finding:
    ranks = {"sender": sender, "receiver": receiver}
    bound = {"bounded_by": bounded_by, "bounded_to": bounded_to}
    small = max(0, len(sender.get("then", [])) - 1)
    params = {"sizes": SIZES, "small": small, "in_bytes": False, "decides": False, **bound, **params}
    (finding,) = conclude("mpi-cache-growth", ranks, devices, "growing", **params)
    return finding


def test_growth_names_the_rank_whose_device_fills_with_rate_and_time_left() -> None:
    finding = growth(LEAK, bounded_by="CACHE_SIZE")
    assert finding.status is Status.FAIL
    assert "on the sender's device" in sentences.summary(finding)
    assert "(growing)" in sentences.summary(finding)
    rate, kept, reach = sentences.evidence(finding)
    assert "95 % confidence interval" in rate
    assert kept == "used memory still rose after 33 iterations: at least 33 freed buffers are kept"
    assert "more iterations" in reach
    assert finding.remedy.startswith("to limit MPI's cache, set CACHE_SIZE")
    assert growth(LEAK).remedy == ""


@pytest.mark.parametrize(
    ("small", "bounded_to", "status"),
    [
        (0, None, Status.FAIL),
        (0, 1, Status.FAIL),
        (0, 32, Status.FAIL),
        (0, 33, Status.WARN),
        (0, 64, Status.WARN),
        (SMALL, 224, Status.FAIL),
        (SMALL, 225, Status.WARN),
        (SMALL, 1000, Status.WARN),
    ],
)
def test_cache_limited_above_the_number_sent_is_a_warning(
    small: int, bounded_to: int | None, status: Status
) -> None:
    finding = growth(keeps(10**6, small), bounded_by="MAX_REGIONS", bounded_to=bounded_to)
    assert finding.status is status
    if bounded_to == 1000:
        assert sentences.summary(finding) == (
            "MPI keeps 225 freed buffers or more on the sender's device (growing); MAX_REGIONS is 1000"
        )


def test_a_cache_that_small_buffers_fill_is_a_warning_with_its_bound() -> None:
    finding = growth(keeps(16), bounded_by="MAX_REGIONS")
    assert (finding.status, finding.key) == (Status.WARN, "keeps-many")
    assert sentences.summary(finding) == (
        "about 16 freed buffers are kept on the sender's device (growing), and used memory levels off"
    )
    replaced, reach = sentences.evidence(finding)
    assert replaced == (
        "192 further buffers of 2 MiB evicted the earlier, larger buffers from MPI's cache; "
        "no address was reused"
    )
    assert reach == "16 kept buffers of 8.7 GiB each would fill this device"
    assert "set MAX_REGIONS" in finding.remedy
    assert growth(keeps(16)).remedy == ""


def as_planned(
    probe: str,
    cache: Cache,
    tier: Tier,
    most_gib: float,
    devices: tuple[Device, ...] = TWO,
    leak: int = 0,
) -> Finding:
    """The finding of a probe for a sender with this cache, when it sends what is planned for this memory."""
    stack = MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")))
    context = Context(devices, mpi=stack, tier=tier, memory=MemoryShare(most_gib=most_gib))
    planned = (one for one in check("mpi-cache-growth").probes(context) if isinstance(one, Probe))
    params = next(one.params for one in planned if one.name == probe)
    sent = followed(cache, params["sizes"], params["small"], leak)
    received = followed(nothing, params["sizes"], params["small"]) if len(devices) > 1 else sent
    return growth(sent, received, devices, **params)


def set_up(*when: int) -> Cache:
    """A library that permanently allocates 8 MiB once after each of these numbers of buffers."""
    count = 0

    def keep(_: list[int]) -> list[int]:
        nonlocal count
        count += 1
        return [8 * MIB] * sum(count >= each for each in when)

    return keep


@dataclass
class FakeBuffer(AbstractContextManager[None]):
    nbytes: int
    address: int = 1 << 30

    def __exit__(self, *_: object) -> None:
        return


def sent_by_one(
    monkeypatch: pytest.MonkeyPatch,
    leak: int,
    most_gib: float = 4,
    *,
    lost: int = 0,
    by_process: bool = False,
) -> tuple[Probe, dict[str, Json], int]:
    """The probe of one size, its sender's records, and the messages sent. Each message costs the sender
    ``leak`` bytes, which the driver counts in blocks of 2 MiB, and leaves ``lost`` bytes to nobody."""
    stack = MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")))
    context = Context(ONE, mpi=stack, memory=MemoryShare(most_gib=most_gib))
    planned = [probe for probe in check("mpi-cache-growth").probes(context) if isinstance(probe, Probe)]
    probe = next(probe for probe in planned if probe.name == "one size")
    records: dict[str, Json] = metered()
    messages, clock = 0, count()

    def send(*_: int) -> None:
        nonlocal messages
        messages += 1

    def used() -> Reading:
        return Reading(messages * leak // (2 * MIB) * 2 * MIB, next(clock))

    mpi = SimpleNamespace(
        rank=0, size=2, send=send, barrier=lambda: None, any_says=bool, finalize=lambda: None
    )
    gpu_ = SimpleNamespace(
        alloc=FakeBuffer, memory_info=lambda: (100 << 30, 0), memory_of_this_process=lambda: None
    )
    w = SimpleNamespace(
        **{"mpi": mpi, "gpu": gpu_, "gpus": [gpu_], "params": probe.params, "role": "sender"},
        **{"clock": lambda: float(next(clock)), "step": nullcontext, "record": records.update},
        **{"by_process": by_process, "memory_of_nobody": lambda: [(messages * lost, [])]},
        keep_usage=lambda *_: None,
    )
    watch = SimpleNamespace(used=used, may_move=lambda *_: False, idle=STILL)
    iterate = probe.roles["sender"]
    monkeypatch.setitem(iterate.__globals__, "meter_in_turn", lambda _: watch)
    monkeypatch.setitem(iterate.__globals__, "record_bandwidth", lambda *_: None)
    iterate(w)  # type: ignore[arg-type]
    return probe, records, messages


@pytest.mark.parametrize(
    ("leak", "most_gib", "sent", "status"),
    [
        (0, 4, 128, Status.PASS),
        (8 * KIB, 4, 128, Status.PASS),  # half a block of the driver
        (32 * KIB, 4, 400, Status.PASS),
        (64 * KIB, 4, 400, Status.WARN),
        (64 * KIB, 0.3, 400, Status.WARN),
        (128 * KIB, 4, 400, Status.WARN),
        (512 * KIB, 4, 128, Status.WARN),
        (4 * MIB, 4, 128, Status.FAIL),
    ],
)
def test_more_buffers_are_sent_if_used_memory_rose_by_a_block(
    monkeypatch: pytest.MonkeyPatch, leak: int, most_gib: float, sent: int, status: Status
) -> None:
    probe, records, messages = sent_by_one(monkeypatch, leak, most_gib)
    assert messages == sent
    assert growth(records, records, ONE, **{**probe.params, "sizes": records["sizes"]}).status is status


@pytest.mark.parametrize(("lost", "by_process"), [(MIB, True), (MIB, False), (0, True)])
def test_memory_that_nobody_holds_beside_others_is_left_to_the_probe_alone(
    monkeypatch: pytest.MonkeyPatch, lost: int, by_process: bool
) -> None:
    """What an open descriptor keeps is in no process's figure, and may be another probe's."""
    with pytest.raises(NotAlone) if lost and by_process else nullcontext():
        sent_by_one(monkeypatch, 0, lost=lost, by_process=by_process)


def test_growth_of_nobodys_memory_is_said_to_be_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the probe alone, whose device's memory is watched."""
    probe, records, _ = sent_by_one(monkeypatch, 4 * MIB, lost=4 * MIB)
    finding = growth(records, FLAT, ONE, **{**probe.params, "sizes": records["sizes"]})
    assert "no process holds 4 MiB more after each iteration" in sentences.evidence(finding)


NO_BOUND = newest(10**6)

Run = tuple[str, Tier, float, tuple[Device, ...]]
"""Probe, tier, GiB and devices. With 0.3 GiB, 76 buffers of one size are sent: one in 16 are 4."""
A: Run = ("growing", Tier.ACCEPTANCE, 2, TWO)
A_SMALL: Run = ("growing", Tier.ACCEPTANCE, 0.3, TWO)
S: Run = ("growing", Tier.SOAK, 2, TWO)
S_SMALL: Run = ("growing", Tier.SOAK, 0.3, TWO)
EQUAL_A: Run = ("one size", Tier.ACCEPTANCE, 0.3, ONE)
EQUAL_S: Run = ("one size", Tier.SOAK, 0.3, ONE)

RELEASED, LOST, FEW = "PASS memory is released", "FAIL grows by", "WARN grows by"

CACHES: list[tuple[Callable[[], Cache], int, dict[Run, str]]] = [
    (lambda: newest(2), 0, {A_SMALL: "WARN about 2 freed buffers"}),
    (lambda: newest(16), 0, dict.fromkeys((A, S, S_SMALL), "WARN about 16 freed buffers")),
    (lambda: newest(44), 0, {A: "WARN about 44 ", S_SMALL: "FAIL used memory may level off at 44 "}),
    (lambda: newest(60), 0, dict.fromkeys((EQUAL_A, EQUAL_S), RELEASED)),
    (lambda: newest(64), 0, {S: "WARN about 64 ", S_SMALL: "FAIL at least 64 "}),
    (lambda: newest(100), 0, {A: "WARN about 100 ", S_SMALL: "FAIL at least 88 "}),
    (lambda: NO_BOUND, 0, {A: "FAIL at least 225 ", S: "FAIL at least 407 ", S_SMALL: "FAIL at least 88 "}),
    (lambda: emptied(16), 0, {EQUAL_A: RELEASED}),
    (lambda: emptied(64, left=32), 0, {A: "WARN about 64 ", S_SMALL: "FAIL at least 64 "}),
    (lambda: emptied(100), 0, {A: "FAIL at least 100 ", S: "WARN about 100 "}),
    (
        lambda: of_bytes(50 * MIB),
        0,
        {A: RELEASED, S: "WARN about 50 MiB ", S_SMALL: "SKIP no buffer was kept"},
    ),
    (lambda: of_bytes(100 * MIB), 0, {S: RELEASED, S_SMALL: "WARN about 100 MiB "}),
    (lambda: of_bytes(650 * MIB), 0, {A: RELEASED, S: "FAIL at least 49 ", S_SMALL: "FAIL at least 88 "}),
    (lambda: in_slots(16), 0, {A: "WARN about 16 ", EQUAL_A: RELEASED}),
    (lambda: set_up(2, 30, 70), 0, dict.fromkeys((EQUAL_A, EQUAL_S), RELEASED)),
    (lambda: lambda sent: [] if len(sent) > 2 else sent, 0, {A: RELEASED}),
    (lambda: lost(3), 0, {A_SMALL: LOST}),
    (lambda: lost(16), 0, {A: LOST, S: LOST, EQUAL_A: "WARN rose 4 times in 76 iterations", EQUAL_S: LOST}),
    (lambda: lost(1, first=30), 0, {A: LOST}),
    (lambda: lost(16, emptied(16)), 0, {A: LOST, S: LOST}),
    (lambda: lost(16, emptied(8)), 0, {EQUAL_A: FEW, EQUAL_S: LOST}),
    (lambda: lost(16, newest(16)), 0, {A: LOST, S: LOST, EQUAL_A: FEW}),
    (lambda: nothing, 64 * KIB, {S: LOST}),
    (lambda: newest(16), 16 * KIB, {A: "WARN about 16 freed buffers"}),
    (lambda: newest(16), 64 * KIB, {A: "WARN grows by 72 KiB with each message", S: LOST}),
]
"""A library's cache, the bytes that it also loses with each buffer → run → status and words of the finding.

If no bound can be shown, growth is a FAIL. Without growth, no bound is reported.
"""


@pytest.mark.parametrize(("cache", "leak", "said"), CACHES)
def test_outcome_of_a_cache(cache: Callable[[], Cache], leak: int, said: dict[Run, str]) -> None:
    for (probe, tier, most_gib, devices), expected in said.items():
        finding = as_planned(probe, cache(), tier, most_gib, devices, leak)
        status, _, words = expected.partition(" ")
        text = " ".join((sentences.summary(finding), *sentences.evidence(finding)))
        assert (finding.status, words in text) == (Status(status), True), (probe, tier, text)


@pytest.mark.parametrize("cache", [newest(16), NO_BOUND])
def test_without_room_for_small_buffers_a_cache_looks_like_a_leak(cache: Cache) -> None:
    finding = as_planned("growing", cache, Tier.ACCEPTANCE, 0.3, ONE)
    assert (finding.status, finding.key) == (Status.ERROR, "too-few-to-tell")
    assert sentences.summary(finding) == (
        "cannot tell a cache from a leak after 12 buffers: 12 are kept on the device of both ranks (growing)"
    )
    assert finding.remedy == "raise `memory` in the site config to 1024 MiB of device memory"
    for like_it in (*map(newest, (1, 2, 3, 4, 8)), *map(lost, (3, 2))):
        assert as_planned("growing", like_it, Tier.ACCEPTANCE, 0.3, ONE).key == "too-few-to-tell"
    assert as_planned("growing", nothing, Tier.ACCEPTANCE, 0.3, ONE, leak=4 * MIB).key == "too-few-to-tell"
    assert as_planned("one size", nothing, Tier.ACCEPTANCE, 0.3, ONE, leak=4 * MIB).key == "grows"
    assert as_planned("growing", newest(16), Tier.ACCEPTANCE, 1, ONE).key == "keeps-many"
    assert as_planned("growing", NO_BOUND, Tier.ACCEPTANCE, 1, ONE).key == "grows"


def test_growth_with_time_also_occurs_without_messages() -> None:
    """An iteration with a message takes ten times as long as one without, so it grows ten times as much."""
    grows = grows_by(4 * MIB, control=420 * KIB)
    assert growth(grows).status is Status.FAIL
    assert growth({**grows, "seconds": 1.0}).status is Status.PASS


def test_in_soak_a_bound_must_be_exceeded_twice() -> None:
    assert growth(keeps(96), decides=True).status is Status.WARN
    assert growth(keeps(128)).status is Status.WARN
    finding = growth(keeps(97), decides=True)
    assert finding.status is Status.FAIL
    assert sentences.evidence(finding)[1] == (
        "used memory may level off at 97 freed buffers; 226 iterations did not fill such a cache twice"
    )


def test_bound_is_not_reported_if_addresses_were_reused() -> None:
    released = keeps(32)
    assert growth(released).status is Status.WARN
    reused = {**released, "freed": [(0, MIB)]}
    assert growth(reused).status is Status.FAIL
    assert growth(reused, {**FLAT, "follow": [(0, 1)], "freed": [(2, 1)]}).status is Status.FAIL


def test_growth_that_stops_is_a_warning_with_its_sum() -> None:
    """Each of the first 40 messages uses 24 MiB; a large one at the end uses none."""
    used = [24 * MIB * number for number in range(33)]
    then = [24 * MIB * min(number, 40) for number in range(33, 33 + SMALL + 1)]
    for decides in (False, True):
        finding = growth(memory(used, small=then), decides=decides)
        assert (finding.status, finding.key) == (Status.WARN, "keeps-many")
        assert sentences.summary(finding) == (
            "used memory on the sender's device grew by 960 MiB, then levelled off (growing)"
        )
        assert sentences.evidence(finding) == (
            "each of the first buffers added 24 MiB; then 192 buffers of 2 MiB and one of 68 MiB "
            "added nothing",
        )
    assert growth(memory(used, small=[*then[:-1], then[-2] + 24 * MIB])).status is Status.FAIL


def test_loss_that_stopped_is_not_said_to_go_on() -> None:
    """Each of the first 40 messages costs 24 MiB; addresses were reused, so that no cache is excluded."""
    used = [24 * MIB * number for number in range(33)]
    then = [24 * MIB * min(number, 40) for number in range(33, 33 + SMALL + 1)]
    finding = growth({**memory(used, small=then), "follow": [(0, 1)] * 2})
    assert finding.status is Status.FAIL
    assert "used memory rose until about iteration 41 of 226" in sentences.evidence(finding)[1]


@pytest.mark.parametrize(
    ("buffers", "least", "rose"),
    [
        (160, 160, "rose until about iteration 158 of 226"),
        (210, 210, "still rose after 226 iterations"),
        (256, 225, "still rose after 226 iterations"),
    ],
)
def test_cache_that_small_buffers_do_not_fill_is_reported_with_its_least_size(
    buffers: int, least: int, rose: str
) -> None:
    finding = growth(keeps(buffers))
    assert finding.status is Status.FAIL
    assert sentences.evidence(finding)[1] == f"used memory {rose}: at least {least} freed buffers are kept"


def test_leak_that_fills_the_memory_limit_is_not_a_cache() -> None:
    """The ranks stop at the memory limit, although more small buffers were planned."""
    lost = total(SIZES)
    leak = memory(lost, small=[lost[-1] + 27 * number * MIB for number in range(1, 20)])
    for bounded_to in (None, 64):
        finding = growth(leak, bounded_by="MAX_REGIONS", bounded_to=bounded_to, small=SMALL)
        assert finding.status is Status.FAIL
    full = [*leak["then"][:15], *[0] * 4]  # as if a cache had been emptied, but not all were sent
    assert growth(memory(lost, small=full), small=SMALL).status is Status.FAIL


def test_holder_of_the_memory_is_reported_if_the_driver_reports_it() -> None:
    """Seen on two H200s: the receiver holds memory that the sender has freed, because it still maps it."""
    few = [2 * MIB * number for number in range(33)]
    sender, receiver = memory(total(SIZES), few, [0] * 33), memory([600 * MIB] * 33, total(SIZES), few)
    assert sentences.evidence(growth(sender, receiver))[3:] == (
        "the receiver's process holds 59 MiB more after each iteration",
    )
    assert len(growth(LEAK).evidence) == 3


def test_ranks_that_share_a_device_see_one_growth() -> None:
    assert "on the device of both ranks" in sentences.summary(growth(LEAK, LEAK, ONE))


def test_growth_of_the_receiver_is_reported() -> None:
    assert "on the receiver's device" in sentences.summary(growth(FLAT, LEAK))


@pytest.mark.parametrize("buffers", [0, 22])
def test_cache_that_levels_off_is_no_leak(buffers: int) -> None:
    finding = growth(memory(total(SIZES[:buffers] + [0] * (len(SIZES) - buffers))))
    assert finding.status is Status.PASS
    more = sum(SIZES[1:buffers]) // MIB
    assert sentences.evidence(finding)[0].startswith(f"sender: {more} MiB more in use than at the start")


@pytest.mark.parametrize(
    ("each", "status"),
    [
        (64 << 10, Status.PASS),  # one block of the driver over the whole loop
        (MIB // 4, Status.PASS),
        (MIB // 2, Status.WARN),
        (2 * MIB - 1, Status.WARN),
        (2 * MIB, Status.FAIL),  # certain growth by a driver's block with every message
    ],
)
def test_partly_kept_messages_are_a_warning_or_fail(each: int, status: Status) -> None:
    finding = growth(grows_by(each))
    assert finding.status is status
    if status is Status.WARN:
        assert finding.values["growth"] == pytest.approx(each)
        assert " with each message" in sentences.summary(finding)


def test_every_probe_decides_in_soak() -> None:
    stack = MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")))
    planned = ((Tier.ACCEPTANCE, 128, 33, 192, False), (Tier.SOAK, 400, 23, 384, True))
    for tier, equal, large, small, decides in planned:
        probes = check("mpi-cache-growth").probes(Context(TWO, mpi=stack, tier=tier))
        named = {probe.name: probe.params for probe in probes if isinstance(probe, Probe)}
        assert all(params["decides"] is decides for params in named.values())
        assert len(named["one size"]["sizes"]) == equal
        assert (len(named["growing"]["sizes"]), named["growing"]["small"]) == (large, small)


def test_mpis_own_switch_is_a_control_if_there_is_one() -> None:
    def names(**mpi: object) -> list[str]:
        return [probe.name for probe in plan("mpi-cache-growth", *TWO, **mpi)]

    assert names() == ["growing", "one size"]
    assert names(ipc_off={"IPC": "0"}) == ["growing", "one size", "IPC off"]


def test_drawing_distinguishes_two_devices() -> None:
    ranks = {"sender": LEAK, "receiver": FLAT}
    (of_two,) = drawn("mpi-cache-growth", ranks, TWO, "growing", small=0)
    (of_one,) = drawn("mpi-cache-growth", ranks, ONE, "growing", small=0)
    freed = "size of the freed buffer"
    assert [line.name for line in of_two.lines] == ["sender's device", "receiver's device", freed]
    assert [line.name for line in of_one.lines] == ["device of both ranks", freed]


def test_drawing_includes_the_small_buffers() -> None:
    (drawing,) = drawn(
        "mpi-cache-growth", {"sender": keeps(32), "receiver": FLAT}, ONE, "growing", small=SMALL
    )
    used, sizes = drawing.lines
    assert len(used.values) == len(sizes.values) == len(drawing.at) == 33 + SMALL + 1
    assert (sizes.values[32], sizes.values[33], used.values[-2]) == (68 * MIB, 2 * MIB, 60 * MIB)


def test_buffers_too_small_for_a_cache_prove_nothing() -> None:
    small = {"sizes": [size // 8 for size in SIZES]}
    finding = growth({**FLAT, **small})
    assert (finding.status, finding.key) == (Status.SKIP, "share-too-small")
    assert growth({**LEAK, **small}).status is Status.FAIL


def test_small_growth_is_a_fail_in_a_long_run() -> None:
    assert growth(grows_by(MIB // 2), decides=True).status is Status.FAIL


def test_level_memory_fails_if_a_rank_loses_a_descriptor_with_each_buffer() -> None:
    left = each_round("buffer", 128, descriptors=lambda number: number)
    assert growth({**FLAT, **left}).key == "descriptors-left"
    assert growth({**LEAK, **left}).key == "grows"


@pytest.mark.parametrize(
    ("lost", "status"), [(0, Status.ERROR), (4 * MIB, Status.ERROR), (64 * MIB, Status.FAIL)]
)
def test_loss_that_a_count_hides_which_moves_by_itself_is_an_error(lost: int, status: Status) -> None:
    """The count jumps by 60 MiB. Where the driver tells memory by process, it is not read: see `Schedule`."""
    used = [600 * MIB + number * lost + number % 3 * 30 * MIB for number in range(len(SIZES))]
    record = {**memory(used), **metered(idle=JUMPING), "seconds": 0.1}
    found = growth(record, record, ONE)
    assert (found.status, found.key == "counter-moves") == (status, status is Status.ERROR)


def rising(*when: int, by: int = 32 * MIB, times: int = len(SIZES)) -> list[int]:
    """Used memory that rises after each of these numbers of buffers."""
    return [600 * MIB + by * sum(number >= each for each in when) for number in range(times)]


def bursts(times: int, mib: dict[int, int]) -> list[int]:
    """Used memory that rises by so many MiB after each of these numbers of buffers."""
    return [
        600 * MIB + MIB * sum(more for at, more in mib.items() if number >= at) for number in range(times)
    ]


LATE = {22: 40, 24: 10, 25: 90, 27: 15, 28: 60, 30: 20, 32: 70}
EQUAL = [4 * MIB] * 120


@pytest.mark.parametrize(
    ("records", "decides", "status"),
    [
        (LEAK, False, Status.FAIL),  # each buffer
        (keeps(10**6), False, Status.FAIL),
        (grows_by(2 * MIB), False, Status.FAIL),
        (grows_by(64 * MIB), False, Status.FAIL),
        (memory(rising(*range(8, 33))), False, Status.FAIL),  # from a later buffer on
        (memory(rising(*range(0, 33, 2))), False, Status.FAIL),
        (memory(rising(*range(0, 400, 32), by=2 * MIB, times=400), sizes=EQUAL[:1] * 400), True, Status.FAIL),
        (memory(rising(*range(0, 120, 8), times=120), sizes=EQUAL), True, Status.FAIL),
        (keeps(16), False, Status.WARN),
        (keeps(64), False, Status.WARN),
        (memory(bursts(33, LATE)), False, Status.ERROR),
        (memory(bursts(33, {5: 30, **LATE})), False, Status.ERROR),
        (memory(bursts(33, {5: 30, 12: 8, 13: 50, **LATE})), False, Status.ERROR),
        (memory(bursts(120, {5: 6, 60: 6, 110: 32, 112: 32, 114: 32}), sizes=EQUAL), True, Status.ERROR),
        (memory(rising(9), small=bursts(193, {122: 4, 124: 64, 126: 64, 132: 64})), True, Status.ERROR),
        (memory(rising(9), small=rising(*range(0, 193, 8), by=2 * MIB, times=193)), True, Status.FAIL),
        (memory(rising(9), small=[700 * MIB] * 193), True, Status.PASS),
        (FLAT, False, Status.PASS),
    ],
)
def test_only_even_growth_is_a_loss_on_a_counter_that_moves_by_itself(
    records: dict[str, Json], decides: bool, status: Status
) -> None:
    """Bursts are what other processes take: on a still counter, they are growth like any other."""
    drifts = metered(idle=drifting(0.01))
    sizes = records["sizes"]
    found = growth({**records, **drifts}, {**FLAT, **drifts}, sizes=sizes, decides=decides)
    assert (found.status, found.key == "counter-moves") == (status, status is Status.ERROR)
    still = growth(records, sizes=sizes, decides=decides)
    assert still.status is (Status.FAIL if status is Status.ERROR else status)


def test_uneven_growth_is_told_with_its_sum() -> None:
    found = growth({**memory(bursts(33, LATE)), **metered(idle=drifting(0.01))})
    assert "rose by 305 MiB in 33 iterations, but not evenly" in sentences.evidence(found)[0]


def test_growth_without_messages_is_subtracted() -> None:
    assert growth(grows_by(MIB, control=MIB)).status is Status.PASS
    assert growth(grows_by(2 * MIB, control=MIB)).status is Status.WARN
    assert growth(grows_by(3 * MIB, control=MIB)).status is Status.FAIL


def test_remedy_for_a_limit_in_bytes_is_above_the_largest_message() -> None:
    finding = growth(LEAK, bounded_by="LIMIT", in_bytes=True)
    assert finding.remedy == "to limit MPI's cache, set LIMIT (bytes) above the largest message's size"


def test_no_growth_proves_nothing_if_no_message_exceeded_the_limit() -> None:
    finding = growth({**FLAT, "not_reached": 4 << 30}, bounded_by="LIMIT", in_bytes=True)
    assert (finding.status, finding.key) == (Status.SKIP, "limit-not-reached")
    assert "messages over 4294967296 B, set by LIMIT" in sentences.summary(finding)


def test_counter_that_does_not_move_is_an_error() -> None:
    assert growth(memory([0] * 33, moves=False)).status is Status.ERROR
    assert growth(FLAT, memory([0] * 33, moves=False)).status is Status.ERROR


def test_each_of_two_devices_has_room_for_one_ranks_small_buffers() -> None:
    growing, *_ = plan("mpi-cache-growth", *(gpu(index, total_bytes=16 << 30) for index in range(2)))
    assert growing.params["small"] == 132
    growing, *_ = plan("mpi-cache-growth", *TWO)
    assert growing.params["small"] == SMALL


@pytest.mark.parametrize("total_gib", [139, 16, 4])
@pytest.mark.parametrize("ranks_on_one", [1, 2])
def test_all_buffers_stay_within_the_memory_limit(total_gib: int, ranks_on_one: int) -> None:
    devices = [gpu(index, total_bytes=total_gib << 30) for index in range(2 // ranks_on_one)]
    for probe in plan("mpi-cache-growth", *devices):
        sizes, small = probe.params["sizes"], probe.params["small"]
        assert len(sizes) >= 12
        stay = small + len(sizes) + len(sizes) // 3 if small else 0
        late = sizes[-1] if small else 0
        room = min(0.05 * (total_gib << 30), 2 << 30)
        assert sum(sizes) + (stay * 2 * MIB + late) * ranks_on_one <= room
