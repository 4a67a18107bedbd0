"""Tests of check mpi-stale-buffer: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuipc_doctor.api import Finding, Json, loader, pattern
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import conclude, gpu, plan


def stale_buffer(
    reused: int = 63, stale: Sequence[str] = (), wrong: Sequence[str] = (), to: int = 1
) -> list[Finding]:
    records: dict[str, dict[str, Json]] = {
        "rank 0": {
            "reused": reused,
            "stale": stale if to == 0 else [],
            "wrong": wrong if to == 0 else [],
        },
        "rank 1": {"reused": 60, "stale": stale if to == 1 else [], "wrong": wrong if to == 1 else []},
    }
    return conclude("mpi-stale-buffer", records)


def test_correct_messages_from_reused_addresses_pass_with_their_number() -> None:
    (finding,) = stale_buffer()
    assert finding.status is Status.PASS
    assert sentences.evidence(finding) == ("63 buffers on rank 0 and 60 on rank 1 reused an address",)


def test_correct_messages_prove_nothing_without_a_reused_address() -> None:
    (finding,) = stale_buffer(reused=0)
    assert finding.status is Status.SKIP
    assert "got the address of a freed one" in sentences.summary(finding)


@pytest.mark.parametrize("to", [0, 1])
def test_data_of_an_earlier_round_is_stale_with_rounds_and_sizes(to: int) -> None:
    shown = [
        f"round {number}, 65536 B after 4194304 B: the message had the data of round 3"
        for number in range(4, 24)
    ]
    (finding,) = stale_buffer(stale=shown, to=to)
    assert finding.status is Status.FAIL
    assert sentences.summary(finding).startswith("20 of 128 messages delivered")
    assert sentences.evidence(finding)[0] == shown[0]
    assert "63 buffers on rank 0" in sentences.evidence(finding)[-1]
    assert "cache of IPC mappings" in finding.remedy


@pytest.mark.parametrize("to", [0, 1])
def test_other_wrong_data_fails_also_from_new_addresses(to: int) -> None:
    (finding,) = stale_buffer(reused=0, wrong=["round 1, 65536 B: 1 of 65536 B wrong"], to=to)
    assert finding.status is Status.FAIL
    assert sentences.summary(finding) == "1 of 128 messages arrived wrong"


def test_one_device_and_one_pair_of_each_backend_are_probed() -> None:
    probes = plan("mpi-stale-buffer", *(gpu(n, backend) for backend in ("cuda", "hip") for n in range(3)))
    assert {probe.subject for probe in probes} == {"cuda:0", "hip:0", "cuda:0 > cuda:1", "hip:0 > hip:1"}
    assert len(probes) == 4


def test_address_is_reused_if_any_part_of_it_is() -> None:
    overlaps = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py").overlaps
    past = [(1000, 100)]
    assert overlaps(past, 1000, 1)
    assert overlaps(past, 900, 101)
    assert overlaps(past, 1099, 500)
    assert not overlaps(past, 900, 100)
    assert not overlaps(past, 1100, 500)


def test_round_of_a_stale_page_is_reported_and_zeroes_have_none() -> None:
    round_shown = loader.module(loader.built_in_dir() / "mpi_stale_buffer.py").round_shown
    new, old = pattern(65536, 9, 0), pattern(65536, 4, 1)
    assert round_shown(new[:8192] + old[8192:12288] + new[12288:], 9) == 4
    assert round_shown(bytes(65536), 9) is None
