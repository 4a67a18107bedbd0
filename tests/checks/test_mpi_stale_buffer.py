"""What the check mpi-stale-buffer concludes from what its roles recorded, and what it plans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuipc_doctor.api import Finding, Json, loader, pattern
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import conclude, each_round, gpu, plan


def stale_buffer(
    reused: int = 63, stale: Sequence[str] = (), wrong: Sequence[str] = (), to: int = 1, **left: Json
) -> list[Finding]:
    records: dict[str, dict[str, Json]] = {
        "rank 0": {
            "reused": reused,
            "stale": stale if to == 0 else [],
            "wrong": wrong if to == 0 else [],
            **left,
        },
        "rank 1": {"reused": 60, "stale": stale if to == 1 else [], "wrong": wrong if to == 1 else []},
    }
    return conclude("mpi-stale-buffer", records)


def test_right_messages_from_addresses_that_came_again_pass_and_say_how_many() -> None:
    (finding,) = stale_buffer()
    assert finding.status is Status.PASS
    assert sentences.evidence(finding) == ("buffers at a reused address: 63 on rank 0, 60 on rank 1",)


def test_right_messages_fail_if_a_rank_loses_a_descriptor_with_each() -> None:
    (finding,) = stale_buffer(**each_round("buffer", descriptors=lambda number: number))
    assert (finding.status, finding.key) == (Status.FAIL, "descriptors-left")


def test_right_messages_prove_nothing_when_no_address_came_again() -> None:
    (finding,) = stale_buffer(reused=0)
    assert finding.status is Status.SKIP
    assert "no address was reused" in sentences.summary(finding)


@pytest.mark.parametrize("to", [0, 1])
def test_a_message_of_an_earlier_round_is_called_stale_with_its_rounds_and_sizes(to: int) -> None:
    shown = [
        f"round {number}, 65536 B after 4194304 B: delivered the data of round 3" for number in range(4, 24)
    ]
    (finding,) = stale_buffer(stale=shown, to=to)
    assert finding.status is Status.FAIL
    assert sentences.summary(finding).startswith("20 of 128 messages delivered")
    assert sentences.evidence(finding)[0] == shown[0]
    assert "63 on rank 0" in sentences.evidence(finding)[-1]
    assert "cache of IPC mappings" in finding.remedy


@pytest.mark.parametrize("to", [0, 1])
def test_other_wrong_data_fails_as_what_it_is_even_from_new_addresses(to: int) -> None:
    (finding,) = stale_buffer(reused=0, wrong=["round 1, 65536 B: 1 of 65536 B wrong"], to=to)
    assert finding.status is Status.FAIL
    assert sentences.summary(finding) == "1 of 128 messages arrived wrong"


def test_stale_buffers_are_looked_for_on_one_device_and_one_pair_of_each_backend() -> None:
    probes = plan("mpi-stale-buffer", *(gpu(n, backend) for backend in ("cuda", "hip") for n in range(3)))
    assert {probe.subject for probe in probes} == {"cuda:0", "hip:0", "cuda:0 > cuda:1", "hip:0 > hip:1"}
    assert len(probes) == 4


def test_buffers_shrink_and_grow_between_any_two_sizes_and_follow_their_own() -> None:
    module = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py")
    followed = set(zip(module.ROUNDS, module.ROUNDS[1:], strict=False))
    assert followed >= {(size, other) for size in module.SIZES for other in module.SIZES}


def test_an_address_is_used_before_when_any_part_of_it_was() -> None:
    overlaps = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py").overlaps
    past = [(1000, 100)]
    assert overlaps(past, 1000, 1)
    assert overlaps(past, 900, 101)
    assert overlaps(past, 1099, 500)
    assert not overlaps(past, 900, 100)
    assert not overlaps(past, 1100, 500)


def test_the_round_that_a_stale_page_is_from_is_told_and_zeroes_are_from_none() -> None:
    round_shown = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py").round_shown
    new, old = pattern(65536, 9, 0), pattern(65536, 4, 1)
    assert round_shown(new[:8192] + old[8192:12288] + new[12288:], 9) == 4
    assert round_shown(bytes(65536), 9) is None
