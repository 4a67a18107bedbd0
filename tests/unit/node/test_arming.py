"""Settings that a job should have before it hangs."""

from __future__ import annotations

import subprocess

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import arming


def names(*facts: tuple[str, str]) -> set[str]:
    found = (Fact(name, version, "a test") for name, version in facts)
    return {variable.name for variable in arming.variables(found)}


def test_variables_depend_on_the_versions() -> None:
    assert names() == {"PYTHONFAULTHANDLER"}
    assert "MPIR_CVAR_DEBUG_PROGRESS_TIMEOUT" in names(("mpich", "5.0.0"))
    assert "MPIR_CVAR_DEBUG_PROGRESS_TIMEOUT" not in names(("mpich", "4.1.2"))
    assert "NCCL_RAS_ENABLE" in names(("nccl", "2.29.2"))
    old = names(("nccl", "2.20.5"), ("libcuda", "580.159.04"))
    assert "NCCL_RAS_ENABLE" not in old
    assert {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "CUDA_COREDUMP_PIPE"} <= old


@pytest.mark.parametrize("scope", [0, 1])
def test_lines_are_a_shell_script(scope: int) -> None:
    versions = {"nccl": "2.29.2", "libcuda": "580.1", "mpich": "5.0.0", "ptrace-scope": str(scope)}
    facts = [Fact(name, value, "a test") for name, value in versions.items()]
    lines = list(arming.script(facts))
    shell = "\n".join([*lines, 'printf %s "$TORCH_NCCL_DEBUG_INFO_PIPE_FILE"'])
    ran = subprocess.run(
        ["sh", "-eu"], input=shell, text=True, capture_output=True, env={"TMPDIR": "/scratch"}
    )
    assert (ran.stdout, ran.stderr) == ("/scratch/flight-recorder-", "")
    assert any("ptrace_scope is 1" in line for line in lines) == bool(scope)

    prolog = "\n".join(arming.task_prolog(facts))
    printed = subprocess.run(["sh", "-eu"], input=prolog, text=True, capture_output=True, env={}).stdout
    assert "export CUDA_COREDUMP_PIPE=/tmp/cuda-core.%h.%p" in printed.splitlines()
    assert all(line.startswith("export ") for line in printed.splitlines())


def test_unset_variables_and_kernel_restrictions_are_listed_as_missing() -> None:
    facts = [Fact("perf-event-paranoid", "4", ""), Fact("ptrace-scope", "1", ""), Fact("nccl", None, "")]
    lacks = list(arming.lacking(facts, []))
    assert [line.partition(" is ")[0] for line in lacks] == [
        "PYTHONFAULTHANDLER", "kernel.perf_event_paranoid", "kernel.yama.ptrace_scope"
    ]  # fmt: skip
    assert not list(arming.lacking([Fact("perf-event-paranoid", "2", "")], ["PYTHONFAULTHANDLER"]))


def test_command_prints_the_lines_and_examines_no_job() -> None:
    for options in (["--arm"], ["--arm", "taskprolog"]):
        ended = CliRunner().invoke(cli, ["job", *options])
        assert ended.exit_code == 0
        assert "PYTHONFAULTHANDLER" in ended.output
