"""The JSON report: it comes back as it went, and the schema in the package describes exactly it."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from gpuipc_doctor.model import Ending, Finding, Relation, Report, Result, RoleOutcome, Status, Tier
from gpuipc_doctor.report import document
from tests.sample_reports import PROPERTY, gpus, healthy, replaced, reports, seed_002

SCHEMA = document.schema()


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@PROPERTY
@given(reports)
def test_any_report_fits_the_schema_and_comes_back(any_report: Report) -> None:
    text = document.dumps(any_report)
    Draft202012Validator(SCHEMA).validate(json.loads(text))
    again = document.loads(text)
    assert document.dumps(again) == text
    if "\\ud" not in text and "?" not in text:  # undecodable bytes come back as question marks
        assert again == any_report


def test_a_real_report_comes_back_equal() -> None:
    assert document.loads(document.dumps(seed_002())) == seed_002()


@pytest.mark.parametrize(("definition", "kind"), document.KINDS.items())
def test_the_schema_knows_every_field(definition: str, kind: Any) -> None:
    described = SCHEMA["$defs"][definition]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert set(described["properties"]) == set(described["required"]) == fields
    assert described["additionalProperties"] is False


def test_a_report_from_before_a_field_was_added_is_read_with_its_default() -> None:
    earlier = json.loads(document.dumps(seed_002()))
    for result in earlier["results"]:
        del result["repetition"], result["finding"]["measured"]
        for role in result["roles"]:
            del role["start_up_s"], role["calls"]
    assert document.loads(json.dumps(earlier)) == seed_002()


def test_the_schema_defines_what_a_report_holds_and_no_more() -> None:
    assert {name for name, about in SCHEMA["$defs"].items() if about.get("type") == "object"} == set(
        document.KINDS
    )


def test_the_schema_knows_every_word() -> None:
    definitions = SCHEMA["$defs"]
    assert definitions["status"]["enum"] == [status.value for status in Status]
    assert definitions["tier"]["enum"] == [tier.label for tier in Tier]
    assert definitions["role"]["properties"]["ending"]["enum"] == [ending.value for ending in Ending]
    assert definitions["join"]["properties"]["relation"]["enum"] == [relation.value for relation in Relation]
    top = {field.name for field in dataclasses.fields(Report)} | {"schema", "exit_code", "totals", "matrix"}
    assert set(SCHEMA["properties"]) == set(SCHEMA["required"]) == top


def test_what_a_script_asks_first_is_at_hand() -> None:
    read = json.loads(document.dumps(seed_002()))
    assert read["schema"] == "gpuipc-doctor/report/1"
    assert read["exit_code"] == 12
    assert read["totals"] == {"PASS": 3, "SKIP": 1, "WARN": 1, "ERROR": 0, "FAIL": 1}
    ring = {f"cuda:{i} > cuda:{(i + 1) % 4}": "FAIL" for i in range(4)}
    assert read["matrix"]["ipc-reopen"] == {f"cuda:{i}": "FAIL" for i in range(4)} | ring
    assert read["matrix"]["ipc-peer"]["cuda:0 > cuda:1"] == "PASS"
    assert read["matrix"]["known-versions"] == {"node": "WARN"}


def test_the_exit_code_is_the_one_of_the_run() -> None:
    assert json.loads(document.dumps(seed_002(), exit_code=2))["exit_code"] == 2


def test_strict_parsers_can_read_what_workers_left() -> None:
    role = RoleOutcome("a", Ending.CRASHED, records={"slope": float("nan")}, log_tail=("bad \udcff byte",))
    report = replaced(healthy(gpus(1)), Result("ipc-stale", Finding.fail("x"), ("cuda:0",), roles=(role,)))
    text = document.dumps(report)
    assert text.isascii()
    assert "NaN" not in text
    assert "\\udcff" not in text
    (left,) = (role for result in document.loads(text).results for role in result.roles)
    assert (left.records, left.log_tail) == ({"slope": None}, ("bad ? byte",))


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(document.dumps(seed_002())) | changes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", '"schema" is null'),
        (changed(schema="gpuipc-doctor/report/2"), "this report is of another version of gpuipc-doctor: "),
        (changed(schema="gpuipc-doctor/report/2"), '"schema" is "gpuipc-doctor/report/2", not'),
        (changed(elapsed_s=1e308).replace("1e+308", "1e999"), "not JSON: 1e999 is no number"),
        (changed(elapsed_s=float("nan")), "not JSON: NaN is no number"),
        (changed(tier="weekly"), "$.tier: 'weekly' is not one of"),
        (changed(surprise=1), "'surprise' was unexpected"),
        (changed(devices=[{"backend": "cuda"}]), "$.devices[0]: "),
    ],
)
def test_a_text_that_is_no_report_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(document.BadDocument) as caught:
        document.loads(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
