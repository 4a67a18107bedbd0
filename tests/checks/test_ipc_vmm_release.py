"""Tests of check ipc-vmm-release: findings from recorded results; the meter's tests are in unit/api."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.checks import ipc_vmm_release
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, TWO, conclude, drawn, each_round, metered, statuses

ROUNDS, NBYTES = 160, 38 * MIB
SAMPLED = range(4, ROUNDS + 1, 4)


def loop(each: int = 0) -> dict[str, object]:
    """A loop in which used memory grows by ``each`` per import, as shown by a counter of 2 MiB blocks."""
    used = [600 * MIB + each * number // (2 * MIB) * 2 * MIB for number in SAMPLED]
    return {"import": {"rounds": list(SAMPLED), "used": used, "control": [600 * MIB] * len(used)}}


def release(
    missing: int = 0,
    each: int = 0,
    at_importer: int = 0,
    wrong: Sequence[str] = (),
    at_exporter: Sequence[str] = (),
    descriptors: int = 0,
    addresses: int = 0,
    open_descriptors: int = 1,
    open_addresses: int = NBYTES,
    pair: bool = False,
) -> list[Finding]:
    lost = each_round("import", ROUNDS, descriptors=descriptors.__mul__, addresses=addresses.__mul__)
    opened = {"descriptors": open_descriptors, "addresses": open_addresses}
    exporter = {"nbytes": NBYTES, "wrong": at_exporter, **metered({"many imports": missing}, loop(each))}
    importer = {"open": opened, "wrong": wrong, **lost, **metered(loops=loop(at_importer), device="cuda:1")}
    devices = TWO if pair else ONE
    return conclude("ipc-vmm-release", {"exporter": exporter, "importer": importer}, devices)


@pytest.mark.parametrize(
    ("left", "status", "key"),
    [
        ({}, Status.PASS, "returned"),
        ({"missing": NBYTES}, Status.FAIL, "not-returned"),
        ({"missing": ROUNDS * NBYTES}, Status.FAIL, "not-returned"),
        ({"missing": 17 * MIB}, Status.ERROR, "unexplained-change"),
        ({"each": 64 << 10}, Status.FAIL, "grows"),
        ({"each": 64 << 10, "missing": ROUNDS << 16}, Status.FAIL, "grows"),
        ({"each": NBYTES // 3}, Status.FAIL, "grows"),
        ({"at_importer": MIB}, Status.PASS, "returned"),  # on one device, the exporter's counter decides
        ({"at_importer": MIB, "pair": True}, Status.FAIL, "grows"),
        ({"wrong": ["import 33: 1 B wrong"]}, Status.FAIL, "wrong-data"),
        ({"at_exporter": ["memory of round 90: 1 B wrong"]}, Status.FAIL, "wrong-at-exporter"),
        ({"descriptors": 1}, Status.FAIL, "descriptors-left"),
        ({"addresses": NBYTES}, Status.FAIL, "addresses-left"),
        ({"open_descriptors": 0}, Status.ERROR, "process-does-not-follow"),
        ({"open_addresses": 0}, Status.ERROR, "process-does-not-follow"),
    ],
)
def test_leftovers_of_a_loop_are_found(left: dict[str, int], status: Status, key: str) -> None:
    (finding,) = release(**left)
    assert (finding.status, finding.key) == (status, key)


def test_pass_reports_the_detectable_growth() -> None:
    (finding,) = release()
    smallest = finding.evidence[-1].values["smallest"]
    assert "would have been detected" in sentences.evidence(finding)[-1]
    assert smallest <= 64 << 10
    assert statuses(release(each=int(smallest))) == [Status.FAIL]


def test_the_loops_are_drawn_for_each_device() -> None:
    of_one = {"nbytes": NBYTES, **metered(loops=loop())}
    records = {"exporter": of_one, "importer": of_one}
    assert [len(drawn("ipc-vmm-release", records, devices)) for devices in (ONE, TWO)] == [1, 2]


@pytest.mark.parametrize(
    ("rises_at", "mapped", "rises"),
    [
        (1, 1, True),
        (2, 2, True),
        (ipc_vmm_release.MAPPINGS, ipc_vmm_release.MAPPINGS, True),
        (999, ipc_vmm_release.MAPPINGS, False),
    ],
)
def test_every_mapping_of_the_first_import_is_measured(
    rises_at: int, mapped: int, rises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one was made in vain. ``mapped`` counts that of the caller."""
    made = [1]

    @contextmanager
    def map_again() -> Iterator[None]:
        made[0] += 1
        yield

    def figures() -> dict[str, int]:
        return {"descriptors": 1, "addresses": NBYTES * (made[0] >= rises_at)}

    monkeypatch.setattr(ipc_vmm_release, "figures_of_process", figures)
    memory: Any = SimpleNamespace(map=map_again)
    rise = ipc_vmm_release.rise_while_open({"descriptors": 0, "addresses": 0}, memory, NBYTES)
    assert (made, rise["addresses"]) == ([mapped], NBYTES * rises)
