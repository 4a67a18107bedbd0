"""Tests of check ipc-pool: findings from recorded results; the meter's tests are in unit/api."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuipc_doctor.api import Finding, Json
from gpuipc_doctor.model import Status
from tests.checks.judging import GOOD, MIB, conclude, each_round, gpu, metered, plan, statuses

NBYTES = 37 * MIB
SOME = ["pointer 1, turn 2 of 5: 1 B wrong"]


def data(missing: int = 0, exporter: Json = (), importer: Json = (), wrong: Json = ()) -> list[Finding]:
    told = {"exchanged": exporter, **metered({"exporter and importer destroyed the pool": missing})}
    records = {"exporter": told, "importer": {"wrong": wrong, "exchanged": importer}}
    return conclude("ipc-pool", records, probe="data")


@pytest.mark.parametrize(
    ("seen", "status", "key"),
    [
        ({}, Status.PASS, "right"),
        ({"wrong": ["pointer 1: 1 B wrong"]}, Status.FAIL, "wrong-data"),
        ({"importer": SOME}, Status.FAIL, "later-writes-unseen"),
        ({"exporter": SOME}, Status.FAIL, "writes-lost"),
        ({"missing": 2 * NBYTES}, Status.FAIL, "not-returned"),
        ({"missing": 3 * NBYTES}, Status.ERROR, "unexplained-change"),
    ],
)
def test_data_and_memory(seen: dict[str, Json], status: Status, key: str) -> None:
    (finding,) = data(**seen)
    assert (finding.status, finding.key) == (status, key)


def test_pointer_must_show_data_after_its_exporter_ended() -> None:
    def gone(*wrong: str) -> list[Finding]:
        return conclude(
            "ipc-pool", {"exporter": {}, "importer": {"wrong": list(wrong)}}, probe="exporter gone"
        )

    assert statuses(gone()) == GOOD
    assert [finding.key for finding in gone("1 B wrong")] == ["wrong-data"]


def test_memory_is_measured_without_concurrent_probes() -> None:
    exclusive = {probe.name: probe.exclusive for probe in plan("ipc-pool", gpu(0))}
    assert exclusive == {"data": True, "many pools": True, "exporter gone": False}


def many(each: int = 0, alone: int = 0, descriptors: int = 0, wrong: Sequence[str] = ()) -> list[Finding]:
    """Findings for bytes that each shared (``each``) and unshared (``alone``) pool leaves in use."""
    rounds, idle = range(1, 65), [600 * MIB] * 64
    shared, own = ([600 * MIB + lost * number for number in rounds] for lost in (each + alone, alone))
    loops = {
        "shared pool": {"rounds": [*rounds], "used": shared, "control": own},
        "pool": {"rounds": [*rounds], "used": own, "control": idle},
    }
    importer = {**each_round("imported pool", descriptors=descriptors.__mul__), "wrong": wrong}
    records = {"exporter": {**metered(loops=loops), "wrong": []}, "importer": importer}
    return conclude("ipc-pool", records, probe="many pools")


@pytest.mark.parametrize(
    ("lost", "status", "key", "what"),
    [
        ({}, Status.PASS, "returned", None),
        ({"each": 2 * MIB}, Status.FAIL, "grows", "shared pool"),
        ({"alone": 2 * MIB}, Status.FAIL, "grows", "pool"),
        ({"descriptors": 1}, Status.FAIL, "descriptors-left", "imported pool"),
        ({"wrong": ["at the importer, at 0: 1 B wrong"]}, Status.FAIL, "wrong-data", None),
    ],
)
def test_leaks_of_many_pools_are_found(
    lost: dict[str, Json], status: Status, key: str, what: str | None
) -> None:
    (finding,) = many(**lost)
    assert (finding.status, finding.key, finding.values.get("what")) == (status, key, what)
