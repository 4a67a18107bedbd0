"""A node's report as objects that Kubernetes clusters act on: NVSentinel's HealthEvents, a DeviceTaintRule.

Only a shown fault asks for anything, and only a run of all checks takes it back: a node that could not be
tested is neither healthy nor broken. A simulated node's objects act on nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone

import yaml

from gpuipc_doctor.model import Device, Status
from gpuipc_doctor.present.metrics import moment
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.report import acceptance
from gpuipc_doctor.report.acceptance import Verdict
from gpuipc_doctor.report_types import Report

CHECK = "GpuInterProcessMemory"
"""Name of the event, and of the node condition that NVSentinel makes of it. A later event of this name with
``isHealthy`` ends it."""

MAX_MESSAGE = 1024
"""Characters of a message: NVSentinel's ``maxNodeConditionMessageLength``."""

TAINT = "gpuipc-doctor/rejected"


def health_events(report: Report) -> str:
    """HealthEvents in protobuf's JSON form: one event, none if the node is neither rejected nor accepted.

    Of a fault it recommends CONTACT_SUPPORT, as NVSentinel's own preflight checks do: that a reset or a
    reboot repairs the node was not shown.
    """
    return json.dumps({"version": 1, "events": list(_events(report))}, indent=2) + "\n"


def _events(report: Report) -> Iterator[dict[str, object]]:
    verdict = _verdict(report)
    if verdict is Verdict.CANNOT_TELL:
        return
    bad = verdict is Verdict.REJECT
    began = next((int(seconds) for _, seconds in moment(report.started)), 0)
    # An event without entities is about all GPUs of the node, also one that ends an earlier event.
    devices = _failed(report) if bad else []
    yield {
        "version": 1,
        "agent": "gpuipc-doctor",
        "componentClass": "GPU",
        "checkName": CHECK,
        "isFatal": bad,
        "isHealthy": not bad,
        "message": _headline(report, verdict)[:MAX_MESSAGE],
        "recommendedAction": "CONTACT_SUPPORT" if bad else "NONE",
        "errorCode": _keys(report),
        "entitiesImpacted": [
            {"entityType": kind, "entityValue": value}
            for device in devices
            for kind, value in (("PCI", device.pci), ("GPU_UUID", device.uuid))
        ],
        "metadata": {"toolVersion": report.tool_version, "tier": report.tier.label},
        "generatedTimestamp": datetime.fromtimestamp(began, timezone.utc).isoformat(timespec="seconds"),
        "nodeName": report.host,
        "processingStrategy": "STORE_ONLY" if report.simulated else "EXECUTE_REMEDIATION",
    }


def device_taint(report: Report) -> str:
    """YAML of a DeviceTaintRule that keeps new pods off all GPUs of a rejected node; of another, a comment.

    Names of single devices are each DRA driver's own, so the rule is about the node's pool of devices.
    """
    verdict = _verdict(report)
    name = "gpuipc-doctor-" + re.sub(r"[^a-z0-9.-]", "-", report.host.lower()).strip(".-")
    said = f"# {_headline(report, verdict)}\n"
    if verdict is Verdict.CANNOT_TELL:
        return f"{said}# Nothing to apply, nothing to take back: `check --all` accepts a node.\n"
    if verdict is Verdict.ACCEPT:
        return f"{said}# Nothing to apply. An earlier rule: kubectl delete devicetaintrule {name}\n"
    drivers = dict.fromkeys(device.vendor.dra_driver for device in _failed(report) or report.devices)
    rules = [
        {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name if not number else f"{name}-{number}"},
            "spec": {
                "deviceSelector": {"driver": driver, "pool": report.host},
                # Running pods stay (NoExecute would evict them); None has no effect at all.
                "taint": {"key": TAINT, "effect": "None" if report.simulated else "NoSchedule"},
            },
        }
        for number, driver in enumerate(drivers)
    ]
    return said + yaml.safe_dump_all(rules, sort_keys=False)


def _verdict(report: Report) -> Verdict:
    """The verdict on the node; some checks that passed do not accept it."""
    verdict = acceptance.verdict(report)
    is_part = verdict is Verdict.ACCEPT and not acceptance.applies(report)
    return Verdict.CANNOT_TELL if is_part else verdict


def _headline(report: Report, verdict: Verdict) -> str:
    simulated = f"SIMULATED ({report.simulated}): " if report.simulated else ""
    untested = f"{report.untried}: " * bool(report.untried)
    return sanitise(f"{simulated}{untested}{verdict.value}: {acceptance.reason(report)}")


def _keys(report: Report) -> list[str]:
    found = (result for result in report.results if result.finding.status is Status.FAIL)
    return list(dict.fromkeys(result.key for result in found))


def _failed(report: Report) -> list[Device]:
    """The GPUs of failed results."""
    labels = {
        label for result in report.results if result.finding.status is Status.FAIL for label in result.devices
    }
    return [device for device in report.devices if device.label in labels]
