"""Fleet reports in other formats: JSON with its schema, JUnit XML, Prometheus' text format, Markdown."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuipc_doctor.fleet import fleet_content, fleet_exports, fold
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.model import Status
from gpuipc_doctor.report_types import Relation
from tests import golden, schemas
from tests.sample_fleets import a_fleet, fleets, timed
from tests.sample_reports import PROPERTY

SCHEMA = schemas.beside(fleet_exports, "fleet")


def test_golden_files() -> None:
    fleet = fold.fold(timed(a_fleet(), nid0009=9.5))
    golden.check("fleet/forty.json", fleet_exports.dumps(fleet))
    golden.check("fleet/forty.md", fleet_content.ticket(fleet))
    golden.check("fleet/forty.prom", fleet_exports.prometheus(fleet))
    golden.check("fleet/forty.xml", fleet_exports.junit(fleet))


def test_schema_is_valid_and_has_every_value() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schemas.check(fleet_exports, "fleet")
    assert SCHEMA["$defs"]["State"]["enum"] == sorted(state.value for state in State)
    assert SCHEMA["$defs"]["Status"]["enum"] == sorted(status.value for status in Status)
    assert SCHEMA["properties"]["schema"]["enum"] == [fleet_exports.KIND.name]
    objects = [SCHEMA, *SCHEMA["$defs"].values(), *SCHEMA["properties"].values()]
    closed = [object_ for object_ in objects if "properties" in object_]
    assert SCHEMA["$defs"]["Relation"]["enum"] == sorted(r.value for r in Relation)
    assert len(closed) == 10
    assert all(set(object_["required"]) == set(object_["properties"]) for object_ in closed)
    assert not any(object_["additionalProperties"] for object_ in closed)


@PROPERTY
@given(fleets)
def test_any_fleet_fits_the_schema_and_every_format(reports: list[NodeReport]) -> None:
    fleet = fold.fold(reports)
    document = json.loads(fleet_exports.dumps(fleet))
    Draft202012Validator(SCHEMA).validate(document)
    assert sum(group["count"] for group in document["groups"]) == document["count"] == len(reports)
    assert sum(document["totals"].values()) == len(reports)
    [suite] = ElementTree.fromstring(fleet_exports.junit(fleet))
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase")) == len(reports)
    assert int(suite.attrib["failures"]) == document["totals"]["FAIL"]
    assert int(suite.attrib["errors"]) == document["totals"]["ERROR"]
    assert sum(sample.value for sample in metrics(fleet)["fleet_nodes"].samples) == len(reports)
    for text in (fleet_content.screen(fleet), fleet_content.ticket(fleet), fleet_exports.html(fleet)):
        assert "\x1b" not in text


def metrics(fleet: fold.Fleet) -> dict[str, Metric]:
    """Metrics by name without the prefix, as parsed by Prometheus' own parser."""
    found = list(text_string_to_metric_families(fleet_exports.prometheus(fleet)))
    samples = [(s.name, *sorted(s.labels.items())) for metric in found for s in metric.samples]
    assert len(samples) == len(set(samples))
    return {metric.name.removeprefix("gpuipc_doctor_"): metric for metric in found}


@pytest.mark.parametrize(("labels", "value"), [({"status": "FAIL"}, 2), ({"status": "ERROR"}, 3)])
def test_prometheus_parses_the_metrics(labels: dict[str, str], value: int) -> None:
    found = metrics(fold.fold(a_fleet()))
    assert [s.value for s in found["fleet_nodes"].samples if s.labels == labels] == [value]
    nodes = {s.labels["node"]: s.value for s in found["fleet_node_severity"].samples}
    assert (len(nodes), nodes["nid0035"]) == (40, Status.FAIL.severity)


def test_node_without_a_report_is_an_error_with_the_reason() -> None:
    cases = ElementTree.fromstring(fleet_exports.junit(fold.fold(a_fleet())))[0].findall("testcase")
    [silent] = [case for case in cases if case.attrib["name"] == "nid0039"]
    [error] = silent
    assert (error.attrib["message"], error.text) == (
        "deadline",
        "no answer within 600 s\nDo: check console and dmesg of nid0039; or raise --deadline",
    )
