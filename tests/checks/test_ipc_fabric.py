"""Tests of check ipc-fabric: findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Context, Finding, Json, Probe
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import Launch
from tests.checks.judging import TWO, check, conclude

REFUSAL = "cuMemCreate returned CUDA_ERROR_NOT_PERMITTED (800)"
SOME = ["turn 2 of 5: 1 B wrong"]


def fabric(
    refused: str = "",
    channels: tuple[str, ...] = (),
    own: Json = (),
    other: Json = (),
    exporter: Json = (),
    importer: Json = (),
    elsewhere: str = "",
    nodes: tuple[str, ...] = (),
) -> list[Finding]:
    exporting = {"refused": refused, "channels": channels, "wrong": list(own), "exchanged": exporter}
    exporting["nbytes"] = 20 << 20
    records = {
        "exporter": exporting,
        "importer": {"refused": elsewhere, "wrong": list(other), "exchanged": importer},
    }
    for role, node in zip(records, nodes, strict=False):
        records[role]["node"] = node
    return conclude("ipc-fabric", records, across=bool(nodes))


@pytest.mark.parametrize(
    ("seen", "status", "key"),
    [
        ({}, Status.PASS, "right"),
        ({"own": ["1 B wrong"]}, Status.FAIL, "wrong-data"),
        ({"other": ["1 B wrong"]}, Status.FAIL, "wrong-data"),
        ({"importer": SOME}, Status.FAIL, "later-writes-unseen"),
        ({"exporter": SOME}, Status.FAIL, "writes-lost"),
        ({"refused": REFUSAL}, Status.SKIP, "no-imex-channel"),
        ({"elsewhere": REFUSAL, "nodes": ("n1", "n2")}, Status.SKIP, "not-in-domain"),
        ({"nodes": ("n1", "n2")}, Status.PASS, "right"),
        ({"nodes": ("n1", "n1")}, Status.ERROR, "misplaced"),
        (
            {"refused": REFUSAL, "channels": ("/dev/nvidia-caps-imex-channels/channel0",)},
            Status.SKIP,
            "not-permitted",
        ),
    ],
)
def test_refusal_names_the_missing_part_and_wrong_data_fails(
    seen: dict[str, Json], status: Status, key: str
) -> None:
    (finding,) = fabric(**seen)
    assert (finding.status, finding.key) == (status, key)


def test_probe_between_nodes_is_planned_on_request() -> None:
    across = Launch(("srun", "-N2", "-n{ranks}"), nodes=2)
    probes = [
        probe for probe in check("ipc-fabric").probes(Context(TWO, across=across)) if isinstance(probe, Probe)
    ]
    assert [probe.subject for probe in probes if probe.launch == across] == ["cuda:0"]
    assert all(probe.params["across"] == (probe.launch == across) for probe in probes)


def test_refusal_of_the_other_node_does_not_hide_wrong_data() -> None:
    found = fabric(own=["1 B wrong"], elsewhere=REFUSAL, nodes=("n1", "n2"))
    assert [finding.key for finding in found] == ["wrong-data", "not-in-domain"]
