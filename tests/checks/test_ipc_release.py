"""Tests of check ipc-release: findings from recorded results; the meter's tests are in unit/api."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuipc_doctor.api import Device, Finding
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, MIB, ONE, TWO, conclude, drawn, metered, plan, statuses

ROUNDS = list(range(8, 257, 8))
LEVEL = [704 * MIB for _ in ROUNDS]
CREEPS = [704 * MIB + 2 * MIB * done for done in ROUNDS]
END = "the importer closed it"


def release(
    missing: int = 0,
    opening: Sequence[int] = LEVEL,
    importers: Sequence[int] = LEVEL,
    wrong: Sequence[str] = (),
    devices: tuple[Device, ...] = ONE,
    moves: Sequence[bool] = (True, True),
) -> list[Finding]:
    loops = [
        {"open and close": {"rounds": ROUNDS, "used": used, "control": LEVEL}}
        for used in (opening, importers)
    ]
    exporter = metered({END: missing}, loops[0], moves=moves[0])
    importer = {"wrong": wrong, **metered({}, loops[1], devices[-1].label, moves=moves[1])}
    return conclude("ipc-release", {"exporter": exporter, "importer": importer}, devices)


@pytest.mark.parametrize(
    ("missing", "status"),
    [
        (0, Status.PASS),
        (37 * MIB, Status.FAIL),
        (5 * 37 * MIB, Status.FAIL),  # the number that the loop opens
        (6 * 37 * MIB, Status.ERROR),
        (64 * MIB, Status.ERROR),
        (-37 * MIB, Status.ERROR),
    ],
)
def test_missing_memory_is_a_fail_only_in_multiples_of_the_segment(missing: int, status: Status) -> None:
    assert statuses(release(missing)) == [status]


@pytest.mark.parametrize(("each", "status"), [(0, Status.PASS), (2 * MIB, Status.FAIL)])
def test_many_exits_show_a_loss_that_is_too_small_after_one(each: int, status: Status) -> None:
    numbers = list(range(1, 25))
    used = [704 * MIB + each * number for number in numbers]
    exits = {"exit with it open": {"rounds": numbers, "used": used, "control": [704 * MIB] * 24}}
    records = {"exporter": metered({}, exits), "starter": {"wrong": []}}
    (finding,) = conclude("ipc-release", records, probe="many exits")
    assert finding.status is status
    assert "with each exit with it open" in sentences.summary(finding) + "".join(sentences.evidence(finding))


def test_importer_that_fails_before_its_exit_is_reported_with_the_call() -> None:
    failed = {"number": 3, "how": "SIGSEGV", "call": "cuIpcOpenMemHandle"}
    (finding,) = conclude("ipc-release", {"exporter": {}, "starter": {"failed": failed}}, probe="many exits")
    assert finding.status is Status.FAIL
    assert "importer 3 of 24" in sentences.summary(finding)
    assert "cuIpcOpenMemHandle SIGSEGV" in sentences.summary(finding)


def test_on_a_pair_growth_is_reported_per_device() -> None:
    (finding,) = release(importers=CREEPS, devices=TWO)
    assert finding.status is Status.FAIL
    assert "used memory of cuda:1 grows" in sentences.summary(finding)
    assert statuses(release(opening=CREEPS, importers=CREEPS, devices=TWO)) == [Status.FAIL, Status.FAIL]


def test_on_a_pair_either_unreliable_counter_is_an_error() -> None:
    assert statuses(release(moves=(True, False), devices=TWO)) == [Status.ERROR]
    assert statuses(release(moves=(False, True))) == [Status.ERROR]
    assert statuses(release(moves=(True, False))) == GOOD  # on one device, the exporter's counter decides


def test_wrong_data_fails_although_all_memory_was_released() -> None:
    (finding,) = release(wrong=[f"segment {number} of 4, opened in turn: 1 B wrong" for number in range(9)])
    assert finding.status is Status.FAIL
    assert len(finding.evidence) == 3
    assert finding.values["times"] == 9


def test_only_the_probe_that_kills_is_marked_as_harmful() -> None:
    harms = {probe.name: probe.harms for probe in plan("ipc-release", *ONE)}
    assert harms == {"close and exit": frozenset(), "kill": frozenset({"kills an importer"})}


def test_the_loop_of_each_device_is_drawn_once() -> None:
    loops = {"open and close": {"rounds": ROUNDS, "used": LEVEL, "control": LEVEL}}
    records = {"exporter": metered({}, loops), "importer": metered({}, loops, "cuda:1")}
    for devices, labels in ((ONE, ["cuda:0"]), (TWO, ["cuda:0", "cuda:1"])):
        titles = [series.title for series in drawn("ipc-release", records, devices)]
        assert titles == [f"change of used memory of {label} since the first sample" for label in labels]
