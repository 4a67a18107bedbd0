"""Conditions hold for what is meant, however it is spelt; a workaround that is set ends an expectation."""

from __future__ import annotations

import re

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues import affected
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Verdict

ISSUES = {issue.id: issue for issue in knownissues.load()}


def env(**settings: str | None) -> tuple[Fact, ...]:
    return tuple(Fact(f"env:{name}", value, "test") for name, value in settings.items())


@pytest.mark.parametrize(
    ("value", "on"),
    [
        *((word, True) for word in ("1", "y", "Y", "yes", "YES", "on", "true", "True", "t", "enabled", "2")),
        *((word, False) for word in ("0", "n", "no", "OFF", "false", "False", "f", "disabled")),
    ],
)
def test_switch_is_read_in_every_spelling(value: str, on: bool) -> None:
    for switch, expected in (("on", on), ("off", not on), ("unset or on", on), ("unset or off", not on)):
        verdict = Need("env:X", switch=switch).judge(env(X=value))
        assert verdict is (Verdict.BAD if expected else Verdict.FINE)


@pytest.mark.parametrize(("switch", "holds"), [("on", False), ("unset or on", True), ("unset or off", True)])
def test_switch_that_is_not_set(switch: str, holds: bool) -> None:
    assert Need("env:X", switch=switch).judge(env(X=None)) is (Verdict.BAD if holds else Verdict.FINE)


def test_unknown_word_of_a_switch_cannot_be_judged() -> None:
    assert Need("env:X", switch="on").judge(env(X="maybe")) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        *((size, Verdict.BAD) for size in ("64 MiB", "32 MiB", "16 MiB", "1024 KiB", "0 B", "65536 kB")),
        *((size, Verdict.FINE) for size in ("65 MiB", "640 MiB", "1.5 GiB", "64 GiB", "2 TiB", "unlimited")),
        ("much", Verdict.UNKNOWN),
    ],
)
def test_amount(size: str, verdict: Verdict) -> None:
    assert Need("dev-shm", at_most="64 MiB").judge((Fact("dev-shm", size, ""),)) is verdict


NODE = (Fact("ucx", "1.20.0", ""), Fact("cuda-driver", "13.0", ""))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"UCX_CUDA_IPC_CACHE": "yes"}, True),
        ({"UCX_CUDA_IPC_CACHE": "n"}, False),
        ({"UCX_CUDA_IPC_CACHE": "no"}, False),
        ({"UCX_CUDA_IPC_CACHE": "off"}, False),
        ({"UCX_TLS": "^cuda_ipc"}, False),
        ({"UCX_TLS": "^rocm_ipc,cuda_ipc"}, False),
        ({"UCX_TLS": "rc,sm,cuda_copy"}, False),
        ({"UCX_TLS": "^rocm_ipc"}, True),
        ({"UCX_TLS": "rc,cuda"}, True),
        ({"UCX_TLS": "cuda_ipc"}, True),
        ({"UCX_TLS": "all"}, True),
    ],
)
def test_cache_of_ucx_is_expected_only_if_it_is_in_use(settings: dict[str, str], expected: bool) -> None:
    names = {"UCX_CUDA_IPC_CACHE": None, "UCX_TLS": None}
    joins = knownissues.match_versions(ISSUES.values(), (*NODE, *env(**(names | settings))))
    assert ("ucx-cuda-ipc-cache-growth" in {join.issue for join in joins}) is expected


def test_each_workaround_that_is_set_ends_its_expectation() -> None:
    """Every issue of the package that its own environment should end."""
    for issue in ISSUES.values():
        for workaround in issue.workarounds:
            if not workaround.env:
                continue
            verdict, _ = affected.judge(issue, (*_affected(issue.component), *env(**workaround.env)))
            assert verdict is not Verdict.BAD, (issue.id, workaround.env)


def _affected(component: str) -> tuple[Fact, ...]:
    return tuple(
        Fact(component, version, "") for version in ("0.0.1", "1.20.0", "2.27.3", "8.1.28", "580.95")
    )


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_every_name_of_pytorchs_settings_is_read(name: str) -> None:
    [need] = [need for need in ISSUES["torch-expandable-segments-pidfd"].needs if need.is_env]
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    facts = env(**(dict.fromkeys(names) | {name: "expandable_segments:True"}))
    assert need.judge(facts) is Verdict.BAD
    assert need.found(facts) == f"{name}=expandable_segments:True"


def test_condition_of_a_truth_value_is_written_as_a_switch() -> None:
    """Of the package's conditions, none compares a truth value with one of its spellings."""
    for issue in ISSUES.values():
        for need in (*issue.needs, *(need for signature in issue.signatures for need in signature.needs)):
            spelt = need.is_env and re.fullmatch(r"\^[01yYnN]\??\$", need.matches)
            counts = need.fact == "env:FI_MR_CACHE_MAX_COUNT"
            assert not spelt or counts, (issue.id, str(need))
