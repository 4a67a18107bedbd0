"""`gpuipc-doctor replay`, and the C programs that it prints, on simulated drivers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.histories import c_program, documents
from gpuipc_doctor.simulator.node import prepare
from tests.e2e.conftest import full

REOPEN: dict[str, Any] = {
    "version": 1,
    "backend": "cuda",
    "processes": {"1": {}, "2": {"primary": False}},
    "operations": [
        {"do": "allocate", "by": 1, "makes": 1, "nbytes": 4096},
        {"do": "open", "by": 2, "on": 1, "makes": 2},
        {"do": "end-context", "by": 2},
        {"do": "open", "by": 2, "on": 1, "makes": 3},
    ],
}
WRITTEN = {
    **REOPEN,
    "operations": [
        {"do": "allocate", "by": 1, "makes": 1, "nbytes": 70000},
        {"do": "open", "by": 2, "on": 1, "makes": 2},
        {"do": "write", "by": 2, "on": 2, "stamp": 5},
        {"do": "read", "by": 1, "on": 1},
    ],
}
OTHER_CLOSED = {
    **REOPEN,
    "processes": {"1": {}, "2": {}, "3": {"primary": False}},
    "operations": [
        {"do": "allocate", "by": 1, "makes": 1, "nbytes": 256},
        {"do": "open", "by": 2, "on": 1, "makes": 2},
        {"do": "allocate", "by": 3, "makes": 3, "nbytes": 4096},
        {"do": "open", "by": 2, "on": 3, "makes": 4},
        {"do": "close", "by": 2, "on": 2},
        {"do": "read", "by": 2, "on": 4},
    ],
}
STALE = {
    **REOPEN,
    "operations": [
        {"do": "allocate", "by": 1, "makes": 1, "nbytes": 2 << 20},
        {"do": "open", "by": 2, "on": 1, "makes": 2},
        {"do": "free-open", "by": 1, "on": 1},
        {"do": "allocate", "by": 1, "makes": 3, "nbytes": 4096},
        {"do": "write", "by": 1, "on": 3, "stamp": 1},
        {"do": "open", "by": 2, "on": 3, "makes": 4},
        {"do": "read", "by": 2, "on": 4},
    ],
}
THIRD = {
    **REOPEN,
    "operations": [
        *({"do": "allocate", "by": 1, "makes": number, "nbytes": 1} for number in (1, 2, 3)),
        {"do": "write", "by": 1, "on": 3, "stamp": 1},
        {"do": "open", "by": 2, "on": 3, "makes": 4},
        {"do": "read", "by": 2, "on": 4},
    ],
}
OPENED: dict[str, Any] = {
    **REOPEN,
    "operations": [
        {"do": "allocate", "by": 1, "makes": 1, "nbytes": 4096},
        {"do": "write", "by": 1, "on": 1, "stamp": 3},
        {"do": "open", "by": 2, "on": 1, "makes": 2},
        {"do": "read", "by": 2, "on": 2},
        {"do": "close", "by": 2, "on": 2},
        {"do": "free", "by": 1, "on": 1},
    ],
}
RACE = {
    **OPENED,
    "operations": [
        *OPENED["operations"][:5],
        {"do": "open", "by": 2, "on": 1, "makes": 3},
        *(
            {"do": "allocate", "by": 1, "makes": number, "nbytes": 2 << 20, "beside": True}
            for number in range(4, 12)
        ),
        {"do": "read", "by": 2, "on": 3},
    ],
}
REPEATED = {**OPENED, "times": 24}
SNAPSHOT = {
    **OPENED,
    "operations": [
        *OPENED["operations"][:3],
        {"do": "write", "by": 1, "on": 1, "stamp": 4},
        *OPENED["operations"][3:],
    ],
}
TWICE = {
    **OPENED,
    "operations": [
        *OPENED["operations"][:3],
        {"do": "open", "by": 2, "on": 1, "makes": 3},
        {"do": "close", "by": 2, "on": 2},
        {"do": "read", "by": 2, "on": 3},
    ],
}
VMM: dict[str, Any] = {
    **REOPEN,
    "operations": [
        {"do": "create", "by": 1, "makes": 1, "nbytes": 2 << 20},
        {"do": "map", "by": 1, "on": 1, "makes": 2},
        {"do": "write", "by": 1, "on": 2, "stamp": 5},
        {"do": "import", "by": 2, "on": 1, "makes": 3},
        {"do": "map", "by": 2, "on": 3, "makes": 4},
        {"do": "read", "by": 2, "on": 4},
        {"do": "map", "by": 2, "on": 3, "makes": 5},
        {"do": "unmap", "by": 2, "on": 4},
        {"do": "read", "by": 2, "on": 5},
        {"do": "import", "by": 2, "on": 1, "makes": 6},
        {"do": "map", "by": 2, "on": 6, "makes": 7},
        {"do": "read", "by": 2, "on": 7},
    ],
}
FABRIC = {
    **VMM,
    "operations": [
        {**operation, "do": {"create": "create-fabric", "import": "import-fabric"}.get(do, do)}
        for operation in VMM["operations"]
        for do in [operation["do"]]
    ],
}

POOL = {
    **REOPEN,
    "operations": [
        {"do": "create-pool", "by": 1, "makes": 1},
        {"do": "import-pool", "by": 2, "on": 1, "makes": 2},
        {"do": "allocate-from-pool", "by": 1, "on": 1, "makes": 3, "nbytes": 4096},
        {"do": "allocate-from-pool", "by": 1, "on": 1, "makes": 4, "nbytes": 4096},
        {"do": "write", "by": 1, "on": 3, "stamp": 1},
        {"do": "import-pointer", "by": 2, "on": 3, "of": 2, "makes": 5},
        {"do": "read", "by": 2, "on": 5},
        {"do": "free-to-pool", "by": 2, "on": 5},
        {"do": "free-to-pool", "by": 1, "on": 3},
        {"do": "free-to-pool", "by": 1, "on": 4},
        {"do": "trim", "by": 1, "on": 1},
        {"do": "trim", "by": 1, "on": 1},
    ],
}
POOL_REPEATED = {
    **REOPEN,
    "times": 24,
    "operations": [
        {"do": "create-pool", "by": 1, "makes": 1},
        {"do": "import-pool", "by": 2, "on": 1, "makes": 2},
        {"do": "destroy-pool", "by": 2, "on": 2},
        {"do": "destroy-pool", "by": 1, "on": 1},
    ],
}
FAULTS = {  # kind of fault → history, profile, failing step, what the program prints
    "error": (REOPEN, "nvidia-460.32.03", 4, "returned 400"),
    "crash": (TWICE, "segv-ipc-open", 4, "signal 11"),
    "hang": (TWICE, "hang-ipc-open", 4, "hangs"),
    "no-result": (OPENED, "open-without-result", 3, "returned success without a result"),
    "wrong-byte": (TWICE, "wrong-byte", 6, "wrong data"),
    "lost-write": (WRITTEN, "mapping-loses-writes", 4, "wrong data"),
    "snapshot": (SNAPSHOT, "mapping-snapshot", 5, "wrong data"),
    "stale": (STALE, "stale-data", 7, "wrong data"),
    "third-segment": (THIRD, "third-in-block-wrong", 6, "wrong data"),
    "other-closed": (OTHER_CLOSED, "close-ends-another", 6, "cuMemcpyDtoH_v2 returned 1"),
    "memory-kept": (REPEATED, "kept-on-close", 6, "leaves more used device memory"),
    "descriptors-kept": (REPEATED, "ipc-leaks-descriptors", 6, "leaves more descriptors"),
    "threads-kept": (REPEATED, "ipc-leaks-threads", 6, "leaves more threads"),
    "addresses-kept": (REPEATED, "ipc-leaks-addresses", 6, "leaves more reserved pages"),
    "vmm-wrong": (VMM, "vmm-wrong-byte", 12, "wrong data"),
    "vmm-unmapped": (VMM, "vmm-unmap-ends-another", 9, "cuMemcpyDtoH_v2 returned 1"),
    "pool-wrong": (POOL, "pool-import-wrong", 7, "wrong data"),
    "pool-descriptors-kept": (POOL_REPEATED, "pool-leaks-descriptors", 4, "leaves more descriptors"),
}


def replayed(history: object, tmp_path: Path, *arguments: str) -> tuple[int, str]:
    file = tmp_path / "history.json"
    file.write_text(json.dumps(history))
    result = CliRunner().invoke(cli, ["replay", str(file), *arguments])
    return result.exit_code, result.output


@pytest.mark.cuda
def test_replay_fails_only_with_the_faulty_driver(tmp_path: Path) -> None:
    code, text = replayed(REOPEN, tmp_path, "--simulate", "nvidia-460.32.03")
    assert code == 12
    assert "4. process 2 opens the IPC handle of buffer 1" in text
    assert replayed(REOPEN, tmp_path, "--simulate", "healthy-cuda")[0] == 0


@pytest.mark.full
@pytest.mark.hip
def test_replay_of_another_vendors_history_cannot_tell(tmp_path: Path) -> None:
    assert replayed(REOPEN, tmp_path, "--simulate", "healthy-hip")[0] == 11


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 9}, "version 9"),
        ({"backend": "metal"}, "unknown backend 'metal'"),
        ({"operations": [{"do": "fly", "by": 1}]}, "step 1: unknown operation 'fly'"),
        ({"operations": [{"do": "read", "by": 1, "on": 7}]}, "step 1 (read) is not valid on cuda"),
        ({"operations": 3}, "no history"),
        ({"results": []}, "the report has no history"),
    ],
)
def test_bad_file_is_one_line_and_exit_code_2(change: dict[str, object], says: str, tmp_path: Path) -> None:
    code, text = replayed({**REOPEN, **change}, tmp_path)
    assert code == 2
    assert says in text


def test_steps_are_printed_without_a_replay(tmp_path: Path) -> None:
    code, text = replayed(REOPEN, tmp_path, "--format", "steps")
    assert (code, len(text.splitlines())) == (0, 4)


compiles = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


EACH_RESULT = ("error", "hang", "wrong-byte", "pool-wrong")
"""Faults of which each is found in another way; the others are marked ``full``."""


@compiles
@pytest.mark.parametrize("kind", [kind if kind in EACH_RESULT else full(kind) for kind in FAULTS])
def test_c_program_fails_at_the_same_step_and_passes_on_a_healthy_driver(kind: str, tmp_path: Path) -> None:
    history, profile, step, says = FAULTS[kind]
    program = compiled(history, tmp_path)
    for node, code, last in ((profile, 1, f"step {step} failed"), ("healthy-cuda", 0, "all steps succeeded")):
        done = ran(program, node, tmp_path)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, last), done.stdout
        assert (says in done.stdout) is bool(code)


@compiles
@pytest.mark.full
def test_race_of_two_processes_is_shown_by_a_replay_and_by_a_c_program(tmp_path: Path) -> None:
    """A busy machine may lose the race, so each has several attempts."""
    assert any(replayed(RACE, tmp_path, "--simulate", "ipc-race-wrong")[0] == 12 for _ in range(10))
    in_turn = [{**operation, "beside": False} for operation in RACE["operations"]]
    assert replayed({**RACE, "operations": in_turn}, tmp_path, "--simulate", "ipc-race-wrong")[0] == 0
    assert "7. at the same time, process 1 allocates" in replayed(RACE, tmp_path, "--format", "steps")[1]
    program = compiled(RACE, tmp_path)
    shown = (ran(program, "ipc-race-wrong", tmp_path).stdout for _ in range(20))
    assert any(
        text.splitlines()[-2:] == ["    wrong data from byte 0 on", "step 15 failed"] for text in shown
    )
    done = ran(program, "healthy-cuda", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all steps succeeded"), done.stdout


@compiles
@pytest.mark.parametrize("history", [VMM, *map(full, (OPENED, POOL, REPEATED))])
def test_c_program_for_hip_passes_on_a_healthy_driver(history: dict[str, object], tmp_path: Path) -> None:
    program = compiled({**history, "backend": "hip"}, tmp_path)
    done = ran(program, "healthy-hip", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all steps succeeded"), done.stdout


@pytest.mark.full
@compiles
def test_fabric_handles_are_used_if_available(tmp_path: Path) -> None:
    assert replayed(FABRIC, tmp_path, "--simulate", "healthy-imex")[0] == 0
    program = compiled(FABRIC, tmp_path)
    done = ran(program, "healthy-imex", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all steps succeeded"), done.stdout
    refused = ran(program, "healthy-cuda", tmp_path)
    assert (refused.returncode, refused.stdout.splitlines()[-1]) == (1, "step 1 failed"), refused.stdout


@compiles
def test_killed_process_is_killed_in_the_program(tmp_path: Path) -> None:
    killed = [*OPENED["operations"][:4], {"do": "kill", "by": 2}, {"do": "read", "by": 1, "on": 1}]
    done = ran(compiled({**OPENED, "operations": killed}, tmp_path), "healthy-cuda", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all steps succeeded"), done.stdout


REPORTED = {  # check that fails → profile, what the program prints
    "ipc-histories": ("third-in-block-wrong", "wrong data"),
    "ipc-reopen": ("nvidia-460.32.03", "cuIpcOpenMemHandle_v2 returned 400"),
    "ipc-vmm": ("vmm-unmap-ends-another", ""),
}


@pytest.mark.full
@compiles
@pytest.mark.cuda
@pytest.mark.parametrize("check", REPORTED)
def test_report_of_a_failure_becomes_a_c_program_that_fails(check: str, tmp_path: Path) -> None:
    profile, says = REPORTED[check]
    report = tmp_path / "report.json"
    asked = ["check", check, "--simulate", profile, "--backend", "cuda", "--output", str(report)]
    assert CliRunner().invoke(cli, asked).exit_code == 12
    printed = CliRunner().invoke(cli, ["report", str(report), "--format", "c"])
    assert printed.exit_code == 0, printed.output
    program = built(printed.output, tmp_path)
    done = ran(program, profile, tmp_path)
    assert (done.returncode, says in done.stdout) == (1 if says else 0, True), done.stdout
    assert ran(program, "healthy-cuda", tmp_path).returncode == 0


@pytest.mark.full
def test_report_without_a_failure_has_no_c_program(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    CliRunner().invoke(
        cli, ["check", "known-versions", "--simulate", "healthy-single", "--output", str(report)]
    )
    printed = CliRunner().invoke(cli, ["report", str(report), "--format", "c"])
    assert printed.exit_code == 2
    assert "only failures of ipc-histories" in printed.output


@compiles
def test_c_program_says_how_many_gpus_it_needs(tmp_path: Path) -> None:
    allocate = {"do": "allocate", "by": 1, "makes": 1, "nbytes": 4096}
    program = compiled({**REOPEN, "processes": {"1": {"device": 1}}, "operations": [allocate]}, tmp_path)
    done = ran(program, "healthy-single", tmp_path)
    assert (done.returncode, "needs 2 GPUs" in done.stdout) == (2, True), done.stdout
    assert ran(program, "healthy-cuda", tmp_path).returncode == 0


def compiled(history: object, tmp_path: Path) -> Path:
    return built(c_program.source(documents.parse(json.dumps(history).encode())), tmp_path)


def built(text: str, tmp_path: Path) -> Path:
    source, program = tmp_path / "history.c", tmp_path / "history"
    source.write_text(text)
    assert len(text.splitlines()) <= 150
    subprocess.run(["cc", "-Wall", "-Werror", "-o", program, source, "-ldl"], check=True)
    return program


def ran(program: Path, node: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    directory = tempfile.mkdtemp(dir=tmp_path)
    environment = {**os.environ, **prepare(node, Path(directory)).env}
    return subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
