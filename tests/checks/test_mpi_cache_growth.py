"""What the check mpi-cache-growth plans, and concludes from what its ranks recorded."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Context, Device, Finding, Json, MpiStack, Probe
from gpuipc_doctor.model import Launch, Status, Tier
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, TWO, check, conclude, drawn, gpu, ledger, plan

SIZES = [(4 + 2 * number) * MIB for number in range(43)]
MEAN = 46 * MIB


def total(sizes: list[int]) -> list[int]:
    return [sum(sizes[: number + 1]) for number in range(len(sizes))]


def memory(
    used: list[int], *held: list[int] | list[None], control: int = 0, moves: bool = True
) -> dict[str, Json]:
    nobody_tells = [[None] * len(used)] * 2
    without = [600 * MIB + number * control for number in range(14)]
    told = {"used": used, "control": without, "held": held or nobody_tells, "free": 100 << 30}
    return {**told, **ledger(moves=moves)}


def keeps(buffers: int) -> dict[str, Json]:
    """A cache that is full with so many buffers."""
    return memory(total(SIZES[:buffers] + [0] * (len(SIZES) - buffers)))


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
    params = {"sizes": SIZES, "bounded_by": bounded_by, "bounded_to": bounded_to, **params}
    (finding,) = conclude("mpi-cache-growth", ranks, devices, "growing", **params)
    return finding


def test_growth_is_blamed_on_the_rank_whose_device_fills_with_rate_and_reach() -> None:
    finding = growth(LEAK, bounded_by="CACHE_SIZE")
    assert finding.status is Status.FAIL
    assert "on the sender's device" in sentences.summary(finding)
    assert "(growing)" in sentences.summary(finding)
    rate, kept, reach = sentences.evidence(finding)
    assert "95 % interval" in rate
    assert kept.startswith("it did not level off: at least 43 buffers of 46 MiB")
    assert "more iterations" in reach
    assert finding.remedy.startswith("if that is a cache, CACHE_SIZE bounds it")
    assert growth(LEAK).remedy == ""


@pytest.mark.parametrize(
    ("bounded_to", "status"),
    [(None, Status.FAIL), (1, Status.FAIL), (28, Status.FAIL), (29, Status.WARN), (64, Status.WARN)],
)
def test_what_somebody_has_bound_to_more_buffers_than_were_sent_is_a_warning(
    bounded_to: int | None, status: Status
) -> None:
    finding = growth(LEAK, bounded_by="MAX_REGIONS", bounded_to=bounded_to)
    assert finding.status is status
    if bounded_to == 64:
        assert sentences.summary(finding) == (
            "at least 43 freed buffers are kept on the sender's device (growing): MAX_REGIONS is 64"
        )


def test_who_holds_it_is_told_where_the_driver_tells() -> None:
    """As on two H200s: what the sender has freed is held by the receiver, which still maps it."""
    few = [2 * MIB * number for number in range(43)]
    sender, receiver = memory(total(SIZES), few, [0] * 43), memory([600 * MIB] * 43, total(SIZES), few)
    assert sentences.evidence(growth(sender, receiver))[3:] == (
        "the receiver's process holds it: 75 MiB more each iteration",
    )
    assert len(growth(LEAK).evidence) == 3


def test_ranks_that_share_a_device_see_one_growth() -> None:
    assert "on the device of both ranks" in sentences.summary(growth(LEAK, LEAK, ONE))


def test_a_receiver_that_keeps_is_blamed_too() -> None:
    assert "on the receiver's device" in sentences.summary(growth(FLAT, LEAK))


@pytest.mark.parametrize("buffers", [0, 12, 24, 32])
def test_a_cache_that_levels_off_is_no_leak_however_many_buffers_it_holds(buffers: int) -> None:
    finding = growth(keeps(buffers))
    assert finding.status is Status.PASS
    more = sum(SIZES[1:buffers]) // MIB
    assert sentences.evidence(finding)[0].startswith(f"sender: {more} MiB more in use than at the start")


@pytest.mark.parametrize(
    ("each", "status"),
    [
        (64 << 10, Status.PASS),  # a block of the driver's own over what is looked at
        (MIB // 4, Status.PASS),
        (MIB // 2, Status.WARN),
        (MEAN // 4, Status.WARN),
        (MEAN // 4 + 1, Status.FAIL),
    ],
)
def test_a_share_of_each_message_that_is_kept_is_a_warning_or_worse(each: int, status: Status) -> None:
    finding = growth(grows_by(each))
    assert finding.status is status
    if status is Status.WARN:
        assert f"by {each} B with each message" in sentences.summary(finding)


def test_in_soak_buffers_of_one_size_are_sent_until_that_decides() -> None:
    stack = MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")))
    for tier, number, decides in ((Tier.ACCEPTANCE, 43, False), (Tier.SOAK, 400, True)):
        planned = check("mpi-cache-growth").probes(Context(TWO, mpi=stack, tier=tier))
        named = {probe.name: probe.params for probe in planned if isinstance(probe, Probe)}
        assert (len(named["one size"]["sizes"]), named["one size"]["decides"]) == (number, decides)
        assert (len(named["growing"]["sizes"]), "decides" in named["growing"]) == (43, False)


def test_the_mpis_own_switch_is_a_control_where_it_has_one() -> None:
    def names(**mpi: object) -> list[str]:
        return [probe.name for probe in plan("mpi-cache-growth", *TWO, **mpi)]

    assert names() == ["growing", "one size"]
    assert names(ipc_off={"IPC": "0"}) == ["growing", "one size", "IPC off"]


def test_the_picture_tells_the_devices_of_the_ranks_apart_where_they_have_two() -> None:
    ranks = {"sender": LEAK, "receiver": FLAT}
    (of_two,) = drawn("mpi-cache-growth", ranks, TWO, "growing", sizes=SIZES)
    (of_one,) = drawn("mpi-cache-growth", ranks, ONE, "growing", sizes=SIZES)
    freed = "large buffer, freed each time"
    assert [line.name for line in of_two.lines] == ["sender's device", "receiver's device", freed]
    assert [line.name for line in of_one.lines] == ["device of both ranks", freed]


def test_buffers_that_nobody_would_keep_prove_nothing() -> None:
    small = [size // 8 for size in SIZES]
    finding = growth(FLAT, sizes=small)
    assert (finding.status, finding.key) == (Status.SKIP, "share-too-small")
    assert growth(LEAK, sizes=small).status is Status.FAIL


def test_a_long_run_decides_over_what_grows_a_little() -> None:
    assert growth(grows_by(MIB // 2), decides=True).status is Status.FAIL


def test_what_grows_as_fast_without_messages_is_not_theirs() -> None:
    assert growth(grows_by(MIB, control=MIB)).status is Status.PASS
    assert growth(grows_by(2 * MIB, control=MIB)).status is Status.WARN


def test_nobody_can_tell_by_a_counter_that_does_not_move() -> None:
    assert growth(memory([0] * 43, moves=False)).status is Status.ERROR
    assert growth(FLAT, memory([0] * 43, moves=False)).status is Status.ERROR


def test_as_many_buffers_grow_as_the_share_has_room_for() -> None:
    for total_gib, number in ((139, 43), (24, 33), (4, 24)):
        growing, *_ = plan("mpi-cache-growth", gpu(0, total_bytes=total_gib << 30))
        assert len(growing.params["sizes"]) == number


@pytest.mark.parametrize("total_gib", [139, 16, 4])
def test_all_buffers_together_stay_within_the_share(total_gib: int) -> None:
    for probe in plan("mpi-cache-growth", gpu(0, total_bytes=total_gib << 30)):
        sizes = probe.params["sizes"]
        assert len(sizes) >= 24
        assert sum(sizes) <= min(0.05 * (total_gib << 30), 2 << 30)
