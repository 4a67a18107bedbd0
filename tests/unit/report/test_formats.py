"""Reports for other programs, parsed by their readers: JUnit XML and Prometheus' text format."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuipc_doctor.model import Status
from gpuipc_doctor.report import exits, merged_results, node_exports
from gpuipc_doctor.report_types import Report
from tests import golden
from tests.sample_reports import PROPERTY, gpus, healthy, replaced, reports, seed_002

SAMPLES = {
    "seed-002": seed_002(),
    "healthy-1": healthy(gpus(1)),
    "simulated": replaced(seed_002(), simulated="nvidia-460.32.03"),
}


@pytest.mark.parametrize("name", ["seed-002", "simulated"])
def test_junit_golden_files(name: str) -> None:
    golden.check(f"junit/{name}.xml", node_exports.junit(SAMPLES[name]))


@pytest.mark.parametrize("name", ["seed-002", "simulated"])
def test_prometheus_golden_files(name: str) -> None:
    golden.check(f"prometheus/{name}.prom", node_exports.prometheus(SAMPLES[name]))


# -- junit ------------------------------------------------------------------------------------------------

SUITE = {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"}
CASE = {"classname", "name", "time"}
IN_CASE = {
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
"""Element of a case → its attributes, as known to readers of JUnit XML."""


def cases(report: Report) -> list[ElementTree.Element]:
    """The cases, after checking the rest against readers' expectations."""
    root = ElementTree.fromstring(node_exports.junit(report))
    [suite] = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert set(suite.attrib) == SUITE
    assert set(root.attrib) == SUITE - {"timestamp", "hostname"}
    properties, *found = suite
    assert properties.tag == "properties"
    assert all(
        (element.tag, set(element.attrib)) == ("property", {"name", "value"}) for element in properties
    )
    for case in found:
        assert (case.tag, set(case.attrib)) == ("testcase", CASE)
        assert len(case) <= 1
        assert all(set(outcome.attrib) == IN_CASE[outcome.tag] for outcome in case)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in found)
    assert int(suite.attrib["tests"]) == len(found)
    return found


@PROPERTY
@given(reports)
def test_any_report_is_junit_with_a_case_per_probe(report: Report) -> None:
    found = cases(report)
    probes = {(r.check, r.devices, r.probe, r.repetition) for r in report.results}
    assert len(found) == len(probes) + len(merged_results.not_reached(report))
    worst = report.worst()
    assert any(case.find("failure") is not None for case in found) is (worst is Status.FAIL)


def test_check_that_was_not_reached_is_skipped() -> None:
    base = healthy(gpus(1))
    cut = replaced(base, results=tuple(r for r in base.results if r.check != "ipc-stale"), interrupted=True)
    [skipped] = [case for case in cases(cut) if "ipc-stale" in case.attrib["classname"]]
    assert skipped[0].attrib == {"message": "the run ended before this check"}


# -- prometheus -------------------------------------------------------------------------------------------


def metrics(report: Report) -> dict[str, Metric]:
    """Metrics by name without the prefix, as parsed by Prometheus' parser, with additional checks."""
    found = list(text_string_to_metric_families(node_exports.prometheus(report)))
    samples = [(s.name, *sorted(s.labels.items())) for metric in found for s in metric.samples]
    assert len(samples) == len(set(samples))
    assert all(metric.type == "gauge" and metric.documentation for metric in found)
    assert all(s.timestamp is None for metric in found for s in metric.samples)
    return {metric.name.removeprefix("gpuipc_doctor_"): metric for metric in found}


@PROPERTY
@given(reports)
def test_any_report_is_read_by_prometheus(report: Report) -> None:
    found = metrics(report)
    assert found["run_exit_code"].samples[0].value == exits.code(report)
    assert found["run_info"].samples[0].labels["simulated"] == report.simulated
    assert sum(s.value for s in found["checks"].samples) == sum(merged_results.totals(report).values())
    severities = [s.value for s in found["check_severity"].samples] if report.results else [1]
    assert max(severities) == report.worst().severity


def test_prometheus_parses_the_metrics() -> None:
    found = metrics(seed_002())
    severity = {(s.labels["check"], s.labels["subject"]): s.value for s in found["check_severity"].samples}
    assert severity["ipc-reopen", "cuda:0"] == Status.FAIL.severity
    assert severity["ipc-peer", "cuda:0 > cuda:1"] == Status.PASS.severity
    assert [s.labels for s in found["known_issue"].samples] == [
        {"issue": "nvidia-ipc-reopen", "relation": "confirmed"}
    ]
    assert found["run_start_timestamp_seconds"].samples[0].value == 1795168953
    [devices] = found["devices"].samples
    assert (devices.labels, devices.value) == ({"backend": "cuda", "model": "GH200 120GB"}, 4)


def test_quotes_and_backslashes_in_a_label_survive() -> None:
    odd = replaced(healthy(gpus(1)), tool_version='a"b\\c')
    assert metrics(odd)["run_info"].samples[0].labels["version"] == 'a"b\\c'


def test_invalid_start_time_is_left_out() -> None:
    assert "run_start_timestamp_seconds" not in metrics(replaced(healthy(gpus(1)), started="soon"))
