"""Tests of check mpi-first-touch: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuipc_doctor.api import Device, Finding
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, TWO, conclude, gpu, plan


def first_touch(
    odd: list[float], whole: list[float], wrong: Sequence[str] = (), longest_later: float = 0.02
) -> Finding:
    """The finding for these times in ms: of first messages, and of the slowest later message."""
    times = {
        kind: {"first": [ms / 1e3 for ms in first], "later": [20e-6] * 7 + [longest_later / 1e3]}
        for kind, first in (("whole pages", whole), ("one byte more", odd))
    }
    (finding,) = conclude(
        "mpi-first-touch", {"sender": {"times": times}, "receiver": {"wrong": wrong}}, nbytes=128 * MIB
    )
    return finding


def test_a_slow_first_message_from_an_odd_size_is_a_warning_with_the_ratios() -> None:
    finding = first_touch(odd=[454, 456, 454, 458, 462], whole=[3.4, 3.6, 3.4, 3.4, 3.5])
    assert finding.status is Status.WARN
    assert "134217729 B takes 134 times as long" in sentences.summary(finding)
    assert sentences.evidence(finding) == (
        "whole pages: the first message took 3.4 ms (fastest: 3.4 ms), 170.0 times as long as later ones "
        "(0.02 ms)",
        "one byte more: the first message took 456 ms (fastest: 454 ms), 22800.0 times as long as later ones "
        "(0.02 ms)",
    )
    assert "2097152 B" in finding.remedy


@pytest.mark.parametrize(
    ("odd", "whole"),
    [
        ([5.6, 6.0, 7.6, 6.1, 6.2], [8.8, 9.0, 11.0, 9.9, 9.1]),  # two H200, Intel MPI 2021.17
        ([0.2, 9.0, 45.0, 30.0, 12.0], [0.2, 0.2, 0.3, 0.2, 0.2]),  # four of five waited for a processor
        ([4.2, 4.3, 4.2, 4.2, 4.2], [0.2, 0.2, 0.2, 0.2, 0.2]),  # all were slow, but too short to matter
        ([90.0, 91.0, 95.0, 90.0, 92.0], [9.1, 9.2, 9.9, 9.4, 9.1]),  # not out of proportion
    ],
)
def test_proportionate_or_randomly_slow_first_messages_pass_with_figures(
    odd: list[float], whole: list[float]
) -> None:
    finding = first_touch(odd, whole)
    assert finding.status is Status.PASS
    assert len(sentences.evidence(finding)) == 2


def test_busy_node_on_which_later_messages_wait_as_long_passes() -> None:
    """Seen once in 15 runs with 20 processes on 2 processors: all five waited, 80 times as long."""
    assert first_touch([16.0] * 5, [0.2] * 5, longest_later=15.0).status is Status.WARN
    assert first_touch([16.0] * 5, [0.2] * 5, longest_later=24.0).status is Status.PASS


def test_wrong_data_outweighs_the_time() -> None:
    assert first_touch([500.0] * 5, [1.0] * 5, wrong=["from buffer 1: 1 B wrong"]).status is Status.FAIL


@pytest.mark.parametrize("total_gib", [10, 24, 80, 139])
def test_buffers_stay_within_the_limit_even_if_none_is_released(total_gib: int) -> None:
    (probe,) = plan("mpi-first-touch", gpu(0, total_bytes=total_gib << 30))
    page, buffers, message = 2 * MIB, 12, 2 * MIB
    taken = buffers * (probe.params["nbytes"] + page) + message
    assert probe.params["nbytes"] % page == 0
    assert probe.params["nbytes"] > 0
    assert taken <= min(0.05 * (total_gib << 30), 2 << 30) + message


@pytest.mark.parametrize(("total_mib", "taken_mib"), [(139 << 10, 128), (10 << 10, 40), (200, 2)])
def test_buffer_size_fits_the_room_between_a_page_and_a_limit(total_mib: int, taken_mib: int) -> None:
    (probe,) = plan("mpi-first-touch", gpu(0, total_bytes=total_mib * MIB))
    assert probe.params["nbytes"] == taken_mib * MIB


@pytest.mark.parametrize(
    ("mpi", "devices", "tells"),
    [
        ({"ucx": "1.22.0", "has_gpu_path": True}, TWO, True),
        ({"ucx": "1.22.0", "has_gpu_path": True}, ONE, False),
        ({"ucx": "1.22.0"}, TWO, False),
        ({"has_gpu_path": True}, TWO, False),
        ({"has_gpu_path": True, "family": "openmpi"}, TWO, True),
    ],
)
def test_launch_is_the_checks_own_if_ucx_or_open_mpi_can_tell(
    mpi: dict[str, Any], devices: tuple[Device, ...], tells: bool
) -> None:
    (probe,) = plan("mpi-first-touch", *devices, **mpi)
    assert probe.launch is not None
    assert ("UCX_PROTO_INFO" in probe.launch.env, bool(probe.ends)) == (tells, tells)
