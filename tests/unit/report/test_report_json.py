"""The JSON report survives a round trip, and the shipped schema matches it exactly."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from gpuipc_doctor import model, probe_types, report_types
from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Status, Tier
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import report_json, sentences
from gpuipc_doctor.report.json_documents import BadDocument, encode
from gpuipc_doctor.report_types import Relation, Report, Result
from tests import schemas
from tests.sample_reports import PROPERTY, gpus, healthy, replaced, reports, seed_002

SCHEMA = schemas.beside(report_json, "report")


def test_schema_is_valid_and_equals_that_of_the_types() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schemas.check(report_json, "report")


@PROPERTY
@given(reports)
def test_any_report_matches_the_schema_and_survives_a_round_trip(any_report: Report) -> None:
    text = report_json.dumps(any_report)
    Draft202012Validator(SCHEMA).validate(json.loads(text))
    again = report_json.loads(text)
    assert report_json.dumps(again) == text
    if "\\ud" not in text and "?" not in text:  # undecodable bytes become question marks
        assert again == any_report


def test_real_report_survives_a_round_trip() -> None:
    assert report_json.loads(report_json.dumps(seed_002())) == seed_002()


KINDS = (
    model.Device,
    model.Fact,
    report_types.CheckInfo,
    report_types.Result,
    model.Finding,
    model.Evidence,
    model.Measurement,
    report_types.Series,
    report_types.Line,
    report_types.Mark,
    probe_types.RoleOutcome,
    probe_types.Calls,
    model.DriverFault,
    report_types.Join,
    report_types.FindingRef,
)


@pytest.mark.parametrize("kind", KINDS)
def test_schema_has_every_field(kind: Any) -> None:
    described = SCHEMA["$defs"][kind.__name__]
    fields = {field.name for field in dataclasses.fields(kind) if field.metadata.get("reported", True)}
    sentence = {model.Finding: {"summary"}, model.Evidence: {"line"}}.get(kind, set())
    assert set(described["properties"]) == set(described["required"]) == fields | sentence
    assert described["additionalProperties"] is False


def test_schema_defines_only_fields_of_a_report() -> None:
    objects = {name for name, about in SCHEMA["$defs"].items() if about.get("additionalProperties") is False}
    assert objects == {kind.__name__ for kind in KINDS}


def test_schema_has_every_value() -> None:
    definitions = SCHEMA["$defs"]
    for words in (Status, Tier, Ending, Relation):
        assert definitions[words.__name__]["enum"] == sorted(word.value for word in words)
    top = {field.name for field in dataclasses.fields(Report)} | {"schema", *report_json.HEAD}
    assert set(SCHEMA["properties"]) == set(SCHEMA["required"]) == top


def test_main_results_are_at_the_top_level() -> None:
    read = json.loads(report_json.dumps(seed_002()))
    assert read["schema"] == "gpuipc-doctor/report/2"
    assert read["exit_code"] == 12
    assert read["totals"] == {"PASS": 3, "SKIP": 1, "WARN": 1, "ERROR": 0, "FAIL": 1}
    ring = {f"cuda:{i} > cuda:{(i + 1) % 4}": "FAIL" for i in range(4)}
    assert read["matrix"]["ipc-reopen"] == {f"cuda:{i}": "FAIL" for i in range(4)} | ring
    assert read["matrix"]["ipc-peer"]["cuda:0 > cuda:1"] == "PASS"
    assert read["matrix"]["known-versions"] == {"node": "WARN"}


def test_records_of_workers_are_valid_for_strict_parsers() -> None:
    role = RoleOutcome("a", Ending.CRASHED, records={"slope": float("nan")}, log_tail=("bad \udcff byte",))
    report = replaced(
        healthy(gpus(1)), Result("ipc-stale", Finding.fail("x", "x"), ("cuda:0",), roles=(role,))
    )
    text = report_json.dumps(report)
    assert text.isascii()
    assert "NaN" not in text
    assert "\\udcff" not in text
    (left,) = (role for result in report_json.loads(text).results for role in result.roles)
    assert (left.records, left.log_tail) == ({"slope": None}, ("bad ? byte",))


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(report_json.dumps(seed_002())) | changes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", '"schema" is null'),
        (
            changed(schema="gpuipc-doctor/report/3"),
            "this report was written by another version of gpuipc-doctor: ",
        ),
        (changed(schema="gpuipc-doctor/report/3"), '"schema" is "gpuipc-doctor/report/3", not'),
        (changed(elapsed_s=1e308).replace("1e+308", "1e999"), "not JSON: Number out of range - at `$[...]`"),
        (changed(elapsed_s=float("nan")), "not JSON: JSON is malformed: invalid character (byte "),
        (changed(tier="weekly"), "$.tier: Invalid enum value 'weekly'"),
        (changed(surprise=1), "$: unknown key 'surprise'"),
        (changed(devices=[{"backend": "cuda"}]), "$.devices[0]: Object missing required field `index`"),
        (
            changed(devices=[{**json.loads(report_json.dumps(seed_002()))["devices"][0], "index": -1}]),
            "'cuda:-1' is no",
        ),
        (report_json.dumps(seed_002())[:5000], "not JSON: Input data was truncated"),
    ],
)
def test_other_text_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(BadDocument) as caught:
        report_json.loads(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_summary_begins_with_the_cause_as_on_the_screen() -> None:
    seen = Evidence.seen("it was {what}", what="seen")
    cause = Evidence(EvidenceKind.CAUSE, "{place} is full", {"place": "/dev/shm"})
    finding = Finding.fail("failed", "{call} failed", seen, cause, call="MPI_Init")
    assert encode(finding)["summary"] == "/dev/shm is full; MPI_Init failed" == sentences.summary(finding)
