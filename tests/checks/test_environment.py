"""Tests of check environment: findings from the variables that are set."""

from __future__ import annotations

import sys

import pytest

from gpuipc_doctor.api import Context, Finding
from gpuipc_doctor.model import Effect, Fact, Setting, Status
from gpuipc_doctor.node.inventory import NAMES
from gpuipc_doctor.report import sentences
from tests.checks.judging import check

WORKS = Setting("UCX_TLS", "all", "environment", Effect.WORKS, "all transports")


def findings(*settings: Setting, inventory: tuple[Fact, ...] = ()) -> list[Finding]:
    found = check("environment").probes(Context(settings=settings, inventory=inventory))
    return [finding for finding in found if isinstance(finding, Finding)]


@pytest.mark.parametrize("effect", [Effect.WORKS, Effect.UNKNOWN, Effect.UNUSED])
def test_effective_variable_passes_and_is_listed(effect: Effect) -> None:
    (finding,) = findings(Setting("UCX_TLS", "all", "environment", effect, "all transports"))
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "relevant variables that are set: 1, no mistakes found"
    assert sentences.evidence(finding) == ("UCX_TLS=all: all transports",)


@pytest.mark.parametrize("effect", [Effect.INVALID, Effect.DEAD, Effect.MISSPELT])
@pytest.mark.parametrize(
    ("instead", "remedy"),
    [("UCX_TLS", "set UCX_TLS instead of UCX_TSL, or unset UCX_TSL"), ("", "unset UCX_TSL")],
)
def test_mistake_is_a_warning_with_place_and_remedy(effect: Effect, instead: str, remedy: str) -> None:
    mistake = Setting("UCX_TSL", "all", "profile.sh:3", effect, "UCX has no such variable", instead)
    (finding,) = findings(WORKS, mistake)
    assert (finding.status, finding.remedy) == (Status.WARN, remedy)
    assert (
        sentences.summary(finding)
        == f"UCX_TSL=all (profile.sh:3) is {effect.value}: UCX has no such variable"
    )


def test_missing_diagnostic_variables_are_no_warning() -> None:
    found = [*check("environment").probes(Context(lacking=("NCCL_DEBUG is not set: its warnings",)))]
    passed, lacks = (finding for finding in found if isinstance(finding, Finding))
    assert (passed.status, lacks.status) == (Status.PASS, Status.PASS)
    assert sentences.summary(lacks).startswith("variables that help to diagnose a hang are not set")
    assert sentences.evidence(lacks) == ("NCCL_DEBUG is not set: its warnings",)


def test_nothing_set_passes() -> None:
    (finding,) = findings()
    assert (finding.status, sentences.evidence(finding)) == (Status.PASS, ())


def test_node_settings_that_affect_sharing_are_listed_with_their_source() -> None:
    read = (
        Fact("kernel", "6.8", "/proc/sys/kernel/osrelease"),
        Fact("ptrace-scope", "1", "/proc/sys/kernel/yama/ptrace_scope"),
        Fact("seccomp", "filter (1)", "/proc/self/status"),
        Fact("imex-channels", None, "no /dev/nvidia-caps-imex-channels/channel*"),
    )
    (finding,) = findings(inventory=read)
    assert sentences.evidence(finding) == (
        "ptrace-scope: 1 (/proc/sys/kernel/yama/ptrace_scope)",
        "seccomp: filter (1) (/proc/self/status)",
    )
    assert set(sys.modules[type(check("environment")).__module__].DECIDE) <= set(NAMES)
