"""Inputs of other monitors: node-problem-detector's JSON, and drain reasons in Slurm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuipc_doctor.prolog.decision import MAX_LINE, Concern, Kind, decide
from gpuipc_doctor.prolog.hooks import HOOKS
from gpuipc_doctor.site.policy import Action, PrologConfig

REPOSITORY = Path(__file__).parents[2]
MONITORING = (REPOSITORY / "docs/monitoring.md").read_text()


def test_node_problem_detector_configuration_is_complete() -> None:
    """The keys: github.com/kubernetes/node-problem-detector, docs/custom_plugin_monitor.md."""
    (text,) = re.findall(r"```json\n(.*?)```", MONITORING, re.DOTALL)
    document = json.loads(text)
    settings = document["pluginConfig"]
    assert document["plugin"] == "custom"
    assert settings["max_output_length"] >= MAX_LINE
    permanent = [rule for rule in document["rules"] if rule["type"] == "permanent"]
    assert {rule["condition"] for rule in permanent} == {item["type"] for item in document["conditions"]}
    assert all(item["reason"] and item["message"] for item in document["conditions"])
    for rule in document["rules"]:
        assert Path(rule["path"]).name == HOOKS["monitor"].name
        assert seconds(rule["timeout"]) <= seconds(settings["timeout"]) < seconds(settings["invoke_interval"])


def seconds(duration: str) -> int:
    """Seconds of a duration in Go's notation, with one number and unit."""
    number, unit = re.fullmatch(r"(\d+)(s|m|h)", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def drain_reason() -> re.Pattern[str]:
    """The pattern in docs/slurm.md."""
    (pattern,) = re.findall(
        r"^    (\^gpuipc-doctor: .*)$", (REPOSITORY / "docs/slurm.md").read_text(), re.MULTILINE
    )
    return re.compile(pattern)


@pytest.mark.parametrize("simulate", ["", "nvidia-460.32.03"])
@pytest.mark.parametrize("kind", Kind)
def test_every_drain_reason_matches_the_documented_pattern(kind: Kind, simulate: str) -> None:
    policy = PrologConfig(**{f"on_{kind.value}": Action.DRAIN for kind in Kind}, simulate=simulate)  # type: ignore[arg-type]
    concern = (
        f"{kind.word} ipc-reopen on cuda:0 GPU-2da63d83 and 1 more [nvidia-ipc-reopen]: importer: failed"
    )
    found = drain_reason().match(decide([Concern(kind, concern)], policy).line)
    assert found
    assert (found["status"], found["check"], found["issues"]) == (
        kind.word,
        "ipc-reopen",
        "nvidia-ipc-reopen",
    )


@pytest.mark.parametrize(
    "line", ["gpuipc-doctor: PASS 3 checks on cuda:0, 1.0 s", "gpuipc-doctor: would drain: FAIL"]
)
def test_no_other_line_matches_the_pattern_of_a_drain_reason(line: str) -> None:
    assert not drain_reason().match(line)
