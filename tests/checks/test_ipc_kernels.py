"""Tests of check ipc-kernels: findings from recorded results, and what a side says of wrong data."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import Context, Probe, loader
from gpuipc_doctor.api.capabilities import CAPABILITIES
from gpuipc_doctor.model import Device, Status
from tests.checks.judging import check, conclude, gpu, outcome

KINDS = ["handle", "descriptor"]


def record(**facts: Any) -> dict[str, Any]:
    return {"unavailable": "", "wrong": [], "alone": [], "flags": [2, 0], "atomics": True, **facts}


@pytest.fixture
def module() -> ModuleType:
    return loader.module(loader.built_in_dir() / "ipc_kernels.py")


@pytest.fixture
def a_side() -> ModuleType:
    return loader.module(loader.built_in_dir() / "_ipc_kernels_side.py")


@pytest.mark.parametrize(
    ("exporter", "importer", "found"),
    [
        ({}, {}, {"right": Status.PASS}),
        ({"unavailable": "cuModuleLoadDataEx returned X"}, {}, {"no-kernels": Status.SKIP}),
        ({}, {"unavailable": "no hiprtc"}, {"no-kernels": Status.SKIP}),
        ({}, {"atomics": False}, {"no-native-atomics": Status.SKIP, "right": Status.PASS}),
        ({"wrong": [["adds-lost", "a"]]}, {}, {"adds-lost": Status.FAIL}),
        (
            {"wrong": [["wrong-write", "a"]]},
            {"wrong": [["flag-late", "b"]], "atomics": False},
            {"wrong-write": Status.FAIL, "flag-late": Status.FAIL},
        ),
    ],
)
def test_findings_by_record(exporter: Any, importer: Any, found: dict[str, Status]) -> None:
    records = {"exporter": record(**exporter), "importer": record(**importer)}
    findings = conclude("ipc-kernels", records, kinds=KINDS)
    assert {finding.key: finding.status for finding in findings} == found


@pytest.mark.parametrize(
    ("gpus", "exporter", "importer", "status", "blamed"),
    [
        (1, ["exporter"], ["importer"], Status.ERROR, None),
        (1, [], ["importer"], Status.ERROR, None),
        (2, ["exporter"], ["importer"], Status.ERROR, None),
        (2, ["exporter"], ["exporter", "importer"], Status.ERROR, None),
        (2, ["exporter"], [], Status.FAIL, "cuda:0"),
        (2, [], ["importer"], Status.FAIL, "cuda:1"),
        (2, [], ["exporter"], Status.FAIL, "cuda:0"),  # the importer's process uses both GPUs
    ],
)
def test_kernels_that_are_wrong_alone_blame_a_gpu_only_beside_a_right_one(
    gpus: int, exporter: list[str], importer: list[str], status: Status, blamed: str | None
) -> None:
    records = {
        role: record(alone=sides, wrong=[["wrong-alone", side] for side in sides])
        for role, sides in (("exporter", exporter), ("importer", importer))
    }
    devices = tuple(gpu(number) for number in range(gpus))
    (finding,) = check("ipc-kernels").judge(outcome(records, devices, "", kinds=KINDS))
    assert (finding.key, finding.status) == ("wrong-alone", status)
    assert finding.values.get("device") == blamed


def test_every_device_and_ordered_pair_is_probed_by_all_its_kinds() -> None:
    without_pools = CAPABILITIES - {"pool-ipc"}
    devices = tuple(
        Device("cuda", index, "", "", "", 1 << 30, capabilities, frozenset())
        for index, capabilities in enumerate((CAPABILITIES, CAPABILITIES, without_pools))
    )
    planned = {
        tuple(device.index for device in probe.devices): probe.params["kinds"]
        for probe in check("ipc-kernels").probes(Context(devices))
        if isinstance(probe, Probe)
    }
    full, short = ["handle", "descriptor", "pointer"], ["handle", "descriptor"]
    assert planned == {
        (0,): full,
        (1,): full,
        (2,): short,
        (0, 1): [*full, "peer"],
        (1, 0): [*full, "peer"],
        (0, 2): [*short, "peer"],
        (2, 0): [*short, "peer"],
        (1, 2): [*short, "peer"],
        (2, 1): [*short, "peer"],
    }


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (1, "; lost: 1 of the exporter's 64 additions, 0 of the importer's 64 additions"),
        (3 << 16, "; lost: 0 of the exporter's 64 additions, 3 of the importer's 64 additions"),
        (64 << 16 | 64, "; lost: 64 of the exporter's 64 additions, 64 of the importer's 64 additions"),
        (65, ""),
        (0xFFFFFFFF, ""),
    ],
)
def test_missing_additions_are_attributed(a_side: ModuleType, missing: int, words: str) -> None:
    assert a_side.attribute_additions(missing) == words


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([0, 0, 2**64 - 1, 0], None),
        (
            [0, 1, 7 << 32 | 5, 0],
            "1 of 131075 elements wrong, first element 7: 0x00000005 instead of 0x00000016",
        ),
        (
            [0, 9, 0, 9],
            "9 of 131075 elements wrong, first element 0: 0x00000000 instead of 0x00000001; all of them",
        ),
    ],
)
def test_wrong_data_is_described(a_side: ModuleType, numbers: list[int], says: str | None) -> None:
    side = a_side.Side.__new__(a_side.Side)
    side.name, side.through, side.found = "importer", "an IPC handle", a_side.Found()
    side.results = SimpleNamespace(read=lambda _: b"".join(n.to_bytes(8, "little") for n in numbers))
    side.data = SimpleNamespace(read=lambda nbytes, offset: (3 * offset // 4 + 1).to_bytes(nbytes, "little"))
    side.report("wrong-read", (3, 1))
    assert len(side.found.wrong) == (says is not None)
    for key, line in side.found.wrong:
        assert key == "wrong-read"
        assert line.startswith(f"an IPC handle, the importer's kernel: {says}")
        assert line.endswith(f"a copy shows {'0x00000016' if numbers[2] else '0x00000001'} there")


class Waits:
    """A side whose waits end as told, one after the other."""

    def __init__(self, at_once: bool, runs_on: bool, seen: list[bool]) -> None:
        self.at_once, self.name, self.answers, self.waits = at_once, "importer", iter(seen), 0
        self.runs_on = lambda: runs_on
        self.faults: list[str] = []

    def has_seen(self, *, was_waiting: bool) -> bool:
        return next(self.answers)

    def wait(self, *_: object) -> None:
        self.waits += 1

    def read_copy(self, _: int) -> int:
        return 4

    def fault(self, key: str, _: str) -> None:
        self.faults.append(key)

    def report(self, key: str, _: object) -> None:
        self.faults.append(f"looked: {key}")


LOOKED = "looked: data-after-flag"


@pytest.mark.parametrize(
    ("at_once", "runs_on", "seen", "faults", "waits"),
    [
        (True, False, [True], [LOOKED], 0),
        (True, True, [True], [LOOKED], 0),  # seen late, but seen
        (True, False, [False, True], [LOOKED], 1),  # it gave up before the flag was stored: no fault
        (True, True, [False, True], ["flag-late", LOOKED], 1),
        (True, True, [False, False], ["flag-unseen"], 1),
        (True, False, [False, False], ["flag-unseen"], 1),
        (False, False, [True], [LOOKED], 1),
        (False, False, [False], ["flag-unseen"], 1),
    ],
)
def test_a_wait_that_gave_up_is_no_fault_unless_it_ran_on(
    module: ModuleType, at_once: bool, runs_on: bool, seen: list[bool], faults: list[str], waits: int
) -> None:
    side = Waits(at_once, runs_on, seen)
    module.look_for_flag(side, "exporter", 4, (1, 1))
    assert (side.faults, side.waits) == (faults, waits)
