"""Every format says of nodes with Intel's GPUs that the tool was never run on one; of others, none does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuipc_doctor.fleet import fleet_exports, fold, summary
from gpuipc_doctor.prolog import concerns
from gpuipc_doctor.report import kubernetes_exports, node_content, node_exports, p2p
from gpuipc_doctor.report_types import Report
from tests.sample_reports import gpus, healthy, seed_002

WORDS = "EXPERIMENTAL: never run on an Intel GPU"


def _fleet(report: Report) -> fold.Fleet:
    return fold.fold([summary.of(report, "node01", 0)])


FORMATS: dict[str, Callable[[Report], str]] = {
    "screen": node_content.screen,
    "html": node_exports.html,
    "junit": node_exports.junit,
    "metrics": node_exports.prometheus,
    "taint": kubernetes_exports.device_taint,
    "event": kubernetes_exports.health_events,
    "nagios": node_content.nagios,
    "p2p": lambda report: p2p.KIND.dumps(p2p.content(report)),
    "p2p screen": lambda report: node_content.screen(report, pairs=True),
    "prolog, node-problem-detector": concerns.passed,
    "fleet html": lambda report: fleet_exports.html(_fleet(report)),
    "fleet junit": lambda report: fleet_exports.junit(_fleet(report)),
    "fleet metrics": lambda report: fleet_exports.prometheus(_fleet(report)),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("accepted", [True, False])
def test_each_format_says_which_gpus_were_never_tried(form: str, accepted: bool) -> None:
    whole = healthy(gpus(2), whole=True) if accepted else seed_002()
    intel = replace(whole, devices=gpus(2, "ze", "Intel(R) Data Center GPU Max 1550"))
    assert WORDS in FORMATS[form](intel)
    assert FORMATS[form](intel).count(WORDS) <= 2
    assert "EXPERIMENTAL" not in FORMATS[form](whole)
    mixed = replace(whole, devices=(*whole.devices, *intel.devices))
    assert WORDS in FORMATS[form](mixed)


def test_the_words_leave_json_and_comments_whole() -> None:
    intel = replace(seed_002(), devices=gpus(2, "ze"))
    [event] = json.loads(kubernetes_exports.health_events(intel))["events"]
    assert event["message"].startswith(f"{WORDS}: REJECT: ")
    assert kubernetes_exports.device_taint(intel).startswith(f"# {WORDS}: REJECT: ")
    assert node_exports.prometheus(intel).startswith(f"# {WORDS}\n# HELP ")
