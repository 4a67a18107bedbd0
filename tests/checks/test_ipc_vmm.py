"""Tests of check ipc-vmm: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Finding, Json
from gpuipc_doctor.model import Status
from tests.checks.judging import GOOD, MIB, conclude, gpu, metered, plan, statuses

WRONG = ["SCM_RIGHTS: 1 B wrong"]
SOME = ["turn 2 of 5: 1 B wrong"]


def data(exporter: Json = (), importer: Json = (), wrong: Json = (), refused: str = "") -> list[Finding]:
    told = {"wrong": wrong, "exchanged": importer, "refused": refused, "verified": 60 * MIB}
    return conclude("ipc-vmm", {"exporter": {"exchanged": exporter}, "importer": told}, probe="data")


@pytest.mark.parametrize(
    ("seen", "status", "key"),
    [
        ({}, Status.PASS, "right"),
        ({"wrong": WRONG}, Status.FAIL, "wrong-data"),
        ({"importer": SOME}, Status.FAIL, "later-writes-unseen"),
        ({"exporter": SOME}, Status.FAIL, "writes-lost"),
        ({"refused": "Operation not permitted"}, Status.WARN, "pidfd-refused"),
    ],
)
def test_data_by_each_route(seen: dict[str, Json], status: Status, key: str) -> None:
    (finding,) = data(**seen)
    assert (finding.status, finding.key) == (status, key)


def test_refused_route_does_not_hide_wrong_data_of_the_other() -> None:
    assert [finding.key for finding in data(wrong=WRONG, refused="EPERM")] == ["wrong-data", "pidfd-refused"]


@pytest.mark.parametrize("probe", ["contexts", "exporter gone"])
def test_later_import_must_show_correct_data(probe: str) -> None:
    def after(*wrong: str) -> list[Finding]:
        return conclude("ipc-vmm", {"exporter": {}, "importer": {"wrong": list(wrong)}}, probe=probe)

    assert statuses(after()) == GOOD
    assert [finding.key for finding in after("1 B wrong")] == ["wrong-data"]


@pytest.mark.parametrize(
    ("missing", "wrong", "keys"),
    [(0, [], ["returned"]), (38 * MIB, [], ["not-returned"]), (0, WRONG, ["wrong-data"])],
)
def test_killed_importer_must_leave_its_data_but_no_memory(
    missing: int, wrong: Json, keys: list[str]
) -> None:
    told = metered({"the importer was killed with it mapped": missing})
    exporter = {**told, "wrong": wrong, "nbytes": 38 * MIB}
    found = conclude("ipc-vmm", {"exporter": exporter, "importer": {}}, probe="importer gone")
    assert [finding.key for finding in found] == keys


@pytest.mark.parametrize(("wrong", "key"), [([], "remaps"), (WRONG, "wrong-after-unmap")])
def test_memory_whose_addresses_were_just_unmapped_shows_its_own_data(wrong: Json, key: str) -> None:
    found = conclude("ipc-vmm", {"allocator": {"wrong": wrong}}, probe="mapped many times")
    assert [finding.key for finding in found] == [key]


@pytest.mark.parametrize(
    ("exporter", "importer", "keys"),
    [([], [], ["many"]), (WRONG, [], ["wrong-data"]), ([], WRONG, ["wrong-data"])],
)
def test_each_of_many_imports_shows_its_own_data(exporter: Json, importer: Json, keys: list[str]) -> None:
    found = conclude(
        "ipc-vmm",
        {"exporter": {"wrong": exporter}, "importer": {"wrong": importer, "count": 65}},
        probe="many",
    )
    assert [finding.key for finding in found] == keys


def test_each_device_and_pair_is_probed_and_probes_that_kill_are_marked_as_harmful() -> None:
    planned = plan("ipc-vmm", gpu(0), gpu(1))
    assert {probe.subject for probe in planned} == {"cuda:0", "cuda:1", "cuda:0 > cuda:1"}
    names = {"data", "many", "mapped many times", "contexts", "exporter gone", "importer gone"}
    assert {probe.name for probe in planned} == names
    harmful = {probe.name for probe in planned if probe.harms}
    assert harmful == {"exporter gone", "importer gone"}


@pytest.mark.parametrize(
    ("name", "subjects", "marks"),
    [
        ("data", ["cuda:0", "cuda:1", "cuda:0 > cuda:1"], (False, "")),
        ("many", ["cuda:0", "cuda:1", "cuda:0 > cuda:1"], (False, "")),
        ("mapped many times", ["cuda:0", "cuda:1"], (False, "")),
        ("contexts", ["cuda:0", "cuda:1", "cuda:0 > cuda:1"], (False, "context")),
        ("exporter gone", ["cuda:0", "cuda:1"], (False, "")),
        ("importer gone", ["cuda:0", "cuda:1"], (True, "")),
    ],
)
def test_each_procedure_has_its_subjects(name: str, subjects: list[str], marks: tuple[bool, str]) -> None:
    probes = [probe for probe in plan("ipc-vmm", gpu(0), gpu(1)) if probe.name == name]
    assert [probe.subject for probe in probes] == subjects
    assert {(probe.exclusive, probe.fresh) for probe in probes} == {marks}
