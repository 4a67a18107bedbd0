"""The prolog on simulated nodes: one line, the exit code of the policy, in time, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.test_faults import left_in_shared_memory, ours_in_shared_memory

DEFAULTS = {"on_fail": "drain", "on_error": "log", "on_budget": "log", "on_unkillable": "log"}


class Site:
    """A site config for the prolog, and the command that uses it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "site.yaml"

    def write(self, simulate: str, *more: str, **policy: str) -> None:
        lines = [f"{key}: {value}" for key, value in {**DEFAULTS, **policy, "simulate": simulate}.items()]
        self.config.write_text("\n  ".join(["prolog:", *lines]) + "\n" + "\n".join(more))

    def prolog(self, *arguments: str) -> tuple[int, str, str]:
        """As slurmd runs it: no environment, no terminal, and it waits for the end of the pipes."""
        command = [
            sys.executable,
            "-I",
            "-m",
            "gpuipc_doctor.cli.main",
            "prolog",
            "--config",
            str(self.config),
        ]
        before = ours_in_shared_memory()
        ended = subprocess.run([*command, *arguments], env={}, capture_output=True, text=True, timeout=60)
        assert left_in_shared_memory(before) == set()
        assert "Traceback" not in ended.stderr
        return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_healthy_node_passes_in_one_line(site: Site) -> None:
    site.write("healthy-single")
    code, line, said = site.prolog()
    assert (code, said) == (0, "")
    assert line.startswith("gpuipc-doctor: SIMULATED (healthy-single) PASS ")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("profile", "policy", "code", "says"),
    [
        ("nvidia-460.32.03", {}, 12, "FAIL ipc-reopen on cuda:0 GPU-"),
        ("nvidia-460.32.03", {}, 12, "[nvidia-ipc-reopen]"),
        ("nvidia-460.32.03", {"on_fail": "log"}, 0, "FAIL ipc-reopen on cuda:0 GPU-"),
        ("nvidia-460.32.03", {"on_fail": "ignore"}, 0, "1 result ignored by the policy"),
        ("segv-ipc-open", {}, 12, "SIGSEGV"),
        ("hang-init", {}, 0, "ERROR driver-init: driver: cuInit #1 had not returned"),
        ("hang-init", {"on_budget": "drain"}, 11, "cuInit #1"),
        ("hang-init", {"deadline_s": "1.5"}, 12, "FAIL driver-init: driver: cuInit #1 hung (1.5 s)"),
        ("hang-ipc-open", {"deadline_s": "1.5"}, 12, "cuIpcOpenMemHandle #2 hung (1.5 s)"),
        ("ignores-sigterm", {"on_budget": "drain"}, 11, "cuIpcOpenMemHandle #2 had not returned"),
        ("no-devices", {}, 0, "ERROR driver-init: cuInit returned CUDA_ERROR_NO_DEVICE (100)"),
        ("no-devices", {"on_error": "drain"}, 11, "ERROR driver-init"),
    ],
)
@pytest.mark.cuda
def test_the_policy_decides(site: Site, profile: str, policy: dict[str, str], code: int, says: str) -> None:
    site.write(profile, **policy)
    started = time.monotonic()
    exit_code, line, said = site.prolog("--budget", "7")
    assert time.monotonic() - started < 8.0
    assert says in line
    assert len(line) <= 201
    assert (exit_code, said) == (code, "")


def test_a_mistake_in_the_config_is_said_and_the_job_starts(site: Site) -> None:
    site.config.write_text("prolog: {on_fail: drian}\n")
    code, line, said = site.prolog()
    assert code == 0
    assert line.startswith("gpuipc-doctor: ERROR the config is wrong")
    assert "site.yaml:1: prolog.on_fail: 'drian' is not known; did you mean 'drain'?" in said
    assert "site.yaml:1: prolog: key 'on_error' is missing" in said


def test_a_mistake_on_the_command_line_is_said_and_the_job_starts(site: Site) -> None:
    code, line, said = site.prolog("--bugdet", "5")
    assert code == 0
    assert "ERROR the prolog's command line is wrong: No such option" in line
    assert "--bugdet" in said
