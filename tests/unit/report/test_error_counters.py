"""Which error counters rose between two looks."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.report.error_counters import Look, counted, rises, totals

PCI = "0000:11:00.0"


def look(log: int = 7, **counts: list[int | None]) -> Look:
    return Look(0.0, log, {PCI: {name.replace("_", "-"): values for name, values in counts.items()}})


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (look(nvlink_replay=[0, 5]), look(nvlink_replay=[0, 125]), [("nvlink-replay", 120, 1)]),
        (look(nvlink_replay=[0, 500]), look(nvlink_replay=[0, 3]), []),  # a reset
        (look(nvlink_replay=[0, None]), look(nvlink_replay=[0, 3]), []),
        (look(nvlink_replay=[0, 3]), look(nvlink_replay=[0, None]), []),
        (look(nvlink_replay=[0]), look(nvlink_replay=[0, 3]), []),
        (look(ecc=[0]), look(pcie_replay=[4]), []),
        (look(pcie_replay=[1]), look(pcie_replay=[4]), [("pcie-replay", 3, -1)]),
        (Look(0.0, 7, {}), look(pcie_replay=[4]), []),
    ],
)
def test_what_rose(before: Look, now: Look, found: list[tuple[str, int, int]]) -> None:
    assert [(rise.counter, rise.by, rise.link) for rise in rises(before, now, {})] == found


@pytest.mark.parametrize(("log", "found"), [(7, [("xid", 2, "79, 31")]), (-1, [])])
def test_xids_count_if_the_log_was_read_before(log: int, found: list[Any]) -> None:
    told = {"gpus": {"cuda:0": {"pci": PCI, "xids": [[79, "off the bus"], [31, "fault"]]}}}
    seen = rises(look(log, ecc=[0]), look(ecc=[0]), told)
    assert [(rise.counter, rise.by, rise.detail) for rise in seen] == found


def test_peer_of_a_link_is_named() -> None:
    told = {"gpus": {"cuda:0": {"pci": PCI, "peers": {"1": "0000:0f:00.0"}}}}
    (rise,) = rises(look(nvlink_crc=[0, 0]), look(nvlink_crc=[0, 2]), told)
    assert rise.peer == "0000:0f:00.0"


def test_looks_of_several_probes_are_one() -> None:
    told = [
        {"log": 5, "gpus": {"cuda:0": {"counters": {"nvlink-replay": [0, 2]}, "uncorrected": 1}}},
        {"log": None, "gpus": {"cuda:1": {"pci": "0000:19:00.0", "xgmi": 0}, "cuda:2": {}}},
    ]
    seen = counted(told, {"cuda:0": PCI}, 3.0)
    assert seen == Look(3.0, 5, {PCI: {"nvlink-replay": [0, 2], "ecc": [1]}, "0000:19:00.0": {"xgmi": [0]}})
    assert totals(told) == {"cuda:0, NVLink 1: NVLink replays": 2, "cuda:0: uncorrectable ECC errors": 1}
    assert totals([{"gpus": {"cuda:2": {}}}]) is None
