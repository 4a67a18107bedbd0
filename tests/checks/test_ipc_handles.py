"""Tests of check ipc-handles: planned probes, and findings from recorded results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from gpuipc_doctor.api import DriverError, Finding, Json, loader, pattern
from gpuipc_doctor.model import DriverFault, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, conclude, gpu, plan, statuses

HANDLES = loader.module(loader.built_in_dir() / "ipc_handles.py")
STRAYS = loader.module(loader.built_in_dir() / "_ipc_handles_strays.py")


def handles(
    answers: dict[str, Json] | None = None,
    collisions: Sequence[str] = (),
    wrong: Sequence[str] = (),
    exporters: Json = None,
    importers: Json = None,
) -> list[Finding]:
    exporter: dict[str, Json] = {"answers": answers or {}, "collisions": collisions}
    importer: dict[str, Json] = {"answers": {}, "wrong": wrong}
    nothing: dict[str, Json] = {"exchanged": [], "useless": []}
    records = {
        "exporter": exporter | nothing | (exporters or {}),
        "importer": importer | nothing | (importers or {}),
    }
    return conclude("ipc-handles", records)


@pytest.mark.parametrize("documented", ["refused", "unspecified"])
def test_documented_or_undocumented_behaviour_passes(documented: str) -> None:
    assert statuses(handles({"export-managed": ("refused", documented)})) == GOOD


def test_contradiction_of_the_documentation_is_a_warning_with_both() -> None:
    (finding,) = handles({"export-managed": ("succeeds", "refused")})
    assert finding.status is Status.WARN
    assert sentences.evidence(finding) == ("export-managed: succeeds; documented: refused",)


@pytest.mark.parametrize(("seen", "evidence"), [("same", ()), ("differs", (HANDLES.NEW_HANDLES,))])
def test_second_handle_of_a_segment_passes_and_a_new_one_is_reported(seen: str, evidence: Json) -> None:
    (finding,) = handles({"export-twice": (seen, "same")})
    assert finding.status is Status.PASS
    assert sentences.evidence(finding) == evidence


def test_colliding_and_wrong_handles_are_separate_failures() -> None:
    found = handles(collisions=["segments 1 and 2"], wrong=["segment 2: 5 B wrong"])
    assert statuses(found) == [Status.FAIL, Status.FAIL]
    assert [sentences.evidence(finding) for finding in found] == [
        ("segments 1 and 2",),
        ("segment 2: 5 B wrong",),
    ]


SOME = ["managed memory: it went wrong"]


@pytest.mark.parametrize(
    ("seen", "key"),
    [
        ({"exporters": {"exchanged": SOME}}, "writes-lost"),
        ({"importers": {"exchanged": SOME}}, "later-writes-unseen"),
        ({"exporters": {"useless": SOME}}, "useless-handle"),
        ({"importers": {"useless": SOME}}, "useless-handle"),
    ],
)
def test_handles_that_break_an_application_fail(seen: dict[str, Json], key: str) -> None:
    (finding,) = handles(**seen)
    assert (finding.status, finding.key) == (Status.FAIL, key)
    assert sentences.evidence(finding) == tuple(SOME)


def test_open_refused_while_open_in_another_context_is_recorded() -> None:
    w = MagicMock()
    w.gpu.open_ipc.side_effect = DriverError(DriverFault("call", 1, "hipErrorInvalidContext"))
    assert HANDLES.open_again(w, b"handle", 0x1000) == "refused"


def test_second_open_is_counted_at_the_same_address_and_separate_at_another() -> None:
    w = MagicMock()
    w.gpu.open_ipc.return_value.address = 0x1000
    assert HANDLES.open_again(w, b"handle", 0x1000) == "counted"
    assert HANDLES.open_again(w, b"handle", 0x2000) == "separate"


def test_unexpected_handle_is_used_as_an_application_would() -> None:
    w = MagicMock()
    w.gpu.open_ipc.side_effect = DriverError(DriverFault("cuIpcOpenMemHandle", 1, "CUDA_ERROR_INVALID_VALUE"))
    (suffered,) = STRAYS.use_stray(w, "managed memory", b"handle", 0)
    assert suffered == "managed memory: cuIpcOpenMemHandle returned CUDA_ERROR_INVALID_VALUE (1)"
    w.peer.send.assert_called_once_with("refused")


def test_data_shows_where_a_handle_points() -> None:
    segment = pattern(HANDLES.SIZES[-1], len(HANDLES.SIZES) - 1)
    assert HANDLES.locate_data(segment[:4096]) == "base"
    assert HANDLES.locate_data(segment[HANDLES.INTERIOR :][:4096]) == "interior"
    assert HANDLES.locate_data(bytes(4096)) == "nowhere"
    assert HANDLES.locate_data(b"") == "nowhere"


def test_vmm_memory_has_its_own_probe_marked_as_harmful() -> None:
    able = replace(gpu(0), capabilities=frozenset({"legacy-ipc", "multi-process", "vmm-ipc"}))
    harms = {probe.name: probe.harms for probe in plan("ipc-handles", able)}
    assert harms == {"segments": frozenset(), "VMM memory": frozenset({"exports VMM memory"})}
    assert [probe.name for probe in plan("ipc-handles", gpu(0))] == ["segments"]


@pytest.mark.parametrize(
    ("seen", "useless", "expected"),
    [
        ("refused", [], [Status.PASS]),
        ("succeeds", [], [Status.WARN]),
        ("succeeds", ["vmm memory: it went wrong"], [Status.FAIL, Status.WARN]),
    ],
)
def test_vmm_memory_must_be_refused(seen: str, useless: list[str], expected: list[Status]) -> None:
    exporter: dict[str, Json] = {"answers": {"export-vmm": (seen, "refused")}, "useless": []}
    records = {"exporter": exporter, "importer": {"answers": {}, "useless": useless}}
    found = conclude("ipc-handles", records, probe="VMM memory")
    assert statuses(found) == expected
    if expected == GOOD:
        assert [finding.key for finding in found] == ["vmm-refused"]
