"""What Kubernetes clusters act on, against the schemas of the programs that read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator

from gpuipc_doctor.model import Finding
from gpuipc_doctor.report import kubernetes_exports as exports
from gpuipc_doctor.report_types import Report, Result
from tests.sample_reports import PROPERTY, gpus, healthy, replaced, reports, seed_002

REPOSITORY = Path(__file__).parents[3]
SCHEMAS = REPOSITORY / "tests/fixtures/schemas"
EVENTS = Draft202012Validator(json.loads((SCHEMAS / "nvsentinel-health-events.json").read_text()))
KUBERNETES = json.loads((SCHEMAS / "kubernetes.json").read_text())
UNKNOWN = replaced(healthy(gpus(2)), Result("ipc-peer", Finding.error("unclear", "cannot tell")))
ACCEPTED = healthy(gpus(2), whole=True)
HIP = replaced(seed_002(), devices=gpus(2, "hip"))


def mistakes(document: Any) -> list[str]:
    """What the API server would refuse in a document of Kubernetes."""
    one = {"$ref": KUBERNETES["kinds"][document["kind"]], "$defs": KUBERNETES["$defs"]}
    return [error.message for error in Draft202012Validator(one).iter_errors(document)]


def events(report: Report) -> list[dict[str, Any]]:
    document = json.loads(exports.health_events(report))
    EVENTS.validate(document)
    return document["events"]  # type: ignore[no-any-return]


def rules(report: Report) -> list[dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(exports.device_taint(report)) if each]
    assert not [mistake for each in found for mistake in mistakes(each)]
    return found


@PROPERTY
@given(reports)
def test_any_report_is_valid(report: Report) -> None:
    assert len(events(report)) <= 1
    rules(report)


def test_a_shown_fault_is_fatal_and_names_its_gpus_only() -> None:
    [event] = events(seed_002())
    assert (event["isFatal"], event["isHealthy"], event["recommendedAction"]) == (
        True,
        False,
        "CONTACT_SUPPORT",
    )
    assert event["errorCode"][0].startswith("ipc-reopen.")
    assert event["message"].startswith("REJECT: ipc-reopen")
    failed = {label for r in seed_002().results if r.finding.status.value == "FAIL" for label in r.devices}
    uuids = {each.uuid for each in seed_002().devices if each.label in failed}
    found = {each["entityValue"] for each in event["entitiesImpacted"] if each["entityType"] == "GPU_UUID"}
    assert found == uuids
    assert event["processingStrategy"] == "EXECUTE_REMEDIATION"
    [rule] = rules(seed_002())
    assert rule["spec"]["taint"] == {"key": "gpuipc-doctor/rejected", "effect": "NoSchedule"}
    assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": seed_002().host}


def test_an_accepted_node_ends_the_event_and_needs_no_rule() -> None:
    [event] = events(ACCEPTED)
    assert (event["checkName"], event["isHealthy"], event["isFatal"]) == (exports.CHECK, True, False)
    assert event["entitiesImpacted"] == []
    assert rules(ACCEPTED) == []
    assert "kubectl delete devicetaintrule gpuipc-doctor-" in exports.device_taint(ACCEPTED)


def test_a_node_that_cannot_be_told_is_neither_healthy_nor_broken() -> None:
    assert events(UNKNOWN) == []
    assert rules(UNKNOWN) == []
    assert "nothing to take back" in exports.device_taint(UNKNOWN)


def test_some_checks_that_passed_take_no_fault_back() -> None:
    part = replaced(ACCEPTED, whole=False)
    assert events(part) == []
    assert "kubectl delete" not in exports.device_taint(part)


def test_a_simulated_node_changes_nothing_in_a_cluster() -> None:
    simulated = replaced(seed_002(), simulated="nvidia-460.32.03")
    [event] = events(simulated)
    assert event["processingStrategy"] == "STORE_ONLY"
    assert event["message"].startswith("SIMULATED (nvidia-460.32.03): ")
    assert rules(simulated)[0]["spec"]["taint"]["effect"] == "None"


def test_each_vendor_has_its_dra_driver() -> None:
    assert {rule["spec"]["deviceSelector"]["driver"] for rule in rules(HIP)} == {"gpu.amd.com"}


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "ship/kubernetes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_manifest_has_no_field_that_the_api_lacks(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    assert [mistake for each in documents for mistake in mistakes(each)] == []


WRONG = {
    "a field of an older version": ("deviceSelector", {"deviceClassName": "gpu.nvidia.com"}),
    "a taint without effect": ("taint", {"key": "a/b"}),
    "a list for a text": ("deviceSelector", {"pool": ["gpu1"]}),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_schema_of_kubernetes_finds(name: str) -> None:
    [rule] = rules(seed_002())
    field, value = WRONG[name]
    rule["spec"][field] = value
    assert mistakes(rule)


@pytest.mark.parametrize(
    "change",
    [{"isFatal": "yes"}, {"recommendedAction": "DRAIN"}, {"severity": "high"}, {"metadata": {"n": 1}}],
)
def test_the_schema_of_nvsentinel_finds(change: dict[str, Any]) -> None:
    [event] = events(seed_002())
    assert not EVENTS.is_valid({"version": 1, "events": [event | change]})
