"""The devices, and pairs of devices, that a check probes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.api import Context
from gpuipc_doctor.api.check import SEARCH_FRACTION
from gpuipc_doctor.model import MemoryShare, Tier
from gpuipc_doctor.probe_types import Launch, MpiStack, Probe
from tests.checks.judging import gpu

DEVICES = tuple(gpu(index, backend) for backend in ("cuda", "hip") for index in range(2))


def shown(*ranks: str) -> Context:
    """Four devices, and the numbers of the devices that a launcher shows to each rank."""
    by_rank = tuple(frozenset(f"cuda:{number}" for number in numbers) for numbers in ranks)
    launch = Launch(("mpiexec",), shows=by_rank)
    return Context(tuple(map(gpu, range(4))), mpi=MpiStack("mpich", "5.0.2", "/libmpi.so", launch))


@pytest.mark.parametrize(
    ("ranks", "pairs", "alone"),
    [
        ((), ["01", "02", "03", "12", "13", "23"], "0123"),
        (("0", "1"), ["01"], ""),
        (("3", "1"), ["31"], ""),
        (("2", "2"), [], "2"),
        (("01", "23"), ["02", "03", "12", "13"], ""),
        (("0", ""), [], ""),
    ],
)
def test_ranks_use_devices_that_the_launcher_shows_them(
    ranks: tuple[str, ...], pairs: list[str], alone: str
) -> None:
    context = shown(*ranks)
    assert [f"{a.index}{b.index}" for a, b in context.rank_pairs] == pairs
    assert context.mpi is not None
    fit = [device for device in context.devices if context.mpi.launch.can_use([device])]
    assert "".join(str(device.index) for device in fit) == alone


def pairs_of(count: int, tier: Tier = Tier.ACCEPTANCE) -> list[str]:
    """The pairs that a check probes on ``count`` devices, in addition to each device."""
    devices = tuple(replace(DEVICES[0], index=index) for index in range(count))
    subjects = Context(devices, tier=tier).subjects
    assert subjects[:count] == tuple((device,) for device in devices)
    return [Probe("", {}, subject).subject for subject in subjects[count:]]


@pytest.mark.parametrize(
    ("count", "pairs"),
    [
        (0, []),
        (1, []),
        (2, ["cuda:0 > cuda:1"]),
        (3, ["cuda:0 > cuda:1", "cuda:1 > cuda:2", "cuda:2 > cuda:0"]),
    ],
)
def test_each_device_and_pairs_of_neighbours_are_probed(count: int, pairs: list[str]) -> None:
    assert pairs_of(count) == pairs


def test_eight_of_eight_devices_pairs_are_probed_and_all_in_soak() -> None:
    assert len(pairs_of(8)) == 8
    assert len(pairs_of(8, Tier.SOAK)) == 56
    assert pairs_of(8, Tier.PROLOG) == []


def test_neighbours_are_of_one_backend() -> None:
    labels = [Probe("", {}, pair).subject for pair in Context(DEVICES).neighbours]
    assert labels == ["cuda:0 > cuda:1", "hip:0 > hip:1"]


def test_room_is_that_of_the_smallest_device() -> None:
    context = Context((), memory=MemoryShare(fraction=0.5, most_gib=1000))
    assert context.room([gpu(0, total_bytes=80 << 30), gpu(1, total_bytes=40 << 30)]) == 20 << 30


def test_each_device_exports_to_the_next_that_has_access_to_it() -> None:
    first, second, third = (gpu(index) for index in range(3))
    first = replace(first, peers=frozenset({"cuda:2"}))
    third = replace(third, peers=frozenset({"cuda:0"}))
    context = Context((first, second, third))
    assert context.exporters == ((first, third), (second,), (third, first))
    assert replace(context, tier=Tier.SOAK).exporters == replace(context, tier=Tier.SOAK).subjects
    assert len(replace(context, tier=Tier.SOAK).exporters) == 9


@pytest.mark.parametrize(("left_s", "seconds"), [(1000.0, 30.0), (20.0, 20.0 * SEARCH_FRACTION)])
def test_search_leaves_time_to_replay_its_result(left_s: float, seconds: float) -> None:
    assert Context((), time_left_s=left_s).within_budget(30.0) == seconds
