"""Tests of check mpi-start: planned probes, and findings from the facts of two ranks."""

from __future__ import annotations

import pytest

from gpuipc_doctor.report import sentences
from tests.checks.judging import TWO, conclude, plan

LABELS = [[device.label, device.uuid] for device in TWO]
BOTH = [label for label, _ in LABELS]


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        (BOTH, BOTH, "started"),
        (["cuda:0"], ["cuda:1"], "bound"),
        (["cuda:1"], ["cuda:1"], "bound"),
        (["cuda:0"], BOTH, "bound"),
        (["cuda:0"], [], "shows-no-gpu"),
        ([], [], "shows-no-gpu"),
    ],
)
def test_devices_visible_to_each_rank_are_reported(first: list[str], second: list[str], key: str) -> None:
    records = {
        rank: {"shown": shown, "unavailable": [] if shown else ["hipInit returned hipErrorNoDevice"]}
        for rank, shown in (("rank 0", first), ("rank 1", second))
    }
    (finding,) = conclude("mpi-start", records, (), gpus=LABELS)
    assert finding.key == key
    blind = [rank for rank, record in records.items() if not record["shown"]]
    lines = [line for line in sentences.evidence(finding) if line.endswith("hipErrorNoDevice")]
    assert [line.partition(":")[0] for line in lines] == blind
    if key != "started":
        assert f"rank 1: {', '.join(second) or 'no GPU'}" in sentences.evidence(finding)


def test_two_ranks_see_all_devices_and_are_bound_to_none() -> None:
    (probe,) = plan("mpi-start", *TWO)
    assert probe.devices == ()
    assert probe.params == {"gpus": LABELS, "backends": ("cuda",)}
