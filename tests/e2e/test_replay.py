"""`gpuipc-doctor replay`, and the C programs that it prints, on simulated drivers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.histories import c_program, documents
from gpuipc_doctor.simulator.node import prepare

REOPEN = {
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
FAULTS = [  # history, profile, failing step, what the program prints
    (REOPEN, "nvidia-460.32.03", 4, "returned 400"),
    (WRITTEN, "mapping-loses-writes", 4, "wrong data"),
    (OTHER_CLOSED, "close-ends-another", 6, "cuMemcpyDtoH_v2 returned 1"),
    (STALE, "stale-data", 7, "wrong data"),
    (THIRD, "third-in-block-wrong", 6, "wrong data"),
]


def replayed(history: object, tmp_path: Path, *arguments: str) -> tuple[int, str]:
    file = tmp_path / "history.json"
    file.write_text(json.dumps(history))
    result = CliRunner().invoke(cli, ["replay", str(file), *arguments])
    return result.exit_code, result.output


@pytest.mark.cuda
def test_replay_fails_where_the_driver_has_the_fault_and_passes_elsewhere(tmp_path: Path) -> None:
    code, text = replayed(REOPEN, tmp_path, "--simulate", "nvidia-460.32.03")
    assert code == 12
    assert "4. process 2 opens the IPC handle of buffer 1" in text
    assert replayed(REOPEN, tmp_path, "--simulate", "healthy-cuda")[0] == 0


@pytest.mark.hip
def test_replay_of_another_vendors_history_cannot_tell(tmp_path: Path) -> None:
    assert replayed(REOPEN, tmp_path, "--simulate", "healthy-hip")[0] == 11


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 9}, "version 9"),
        ({"backend": "metal"}, "no backend 'metal'"),
        ({"operations": [{"do": "fly", "by": 1}]}, "step 1: no operation 'fly'"),
        ({"operations": [{"do": "read", "by": 1, "on": 7}]}, "step 1 (read) is not legal on cuda"),
        ({"operations": 3}, "no history"),
        ({"results": []}, "a report without a history"),
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


@compiles
@pytest.mark.parametrize(
    ("history", "profile", "step", "says"), FAULTS, ids=lambda it: it if isinstance(it, str) else ""
)
def test_c_program_fails_at_the_same_step_and_passes_on_a_healthy_driver(
    history: object, profile: str, step: int, says: str, tmp_path: Path
) -> None:
    program = compiled(history, tmp_path)
    for node, code, last in ((profile, 1, f"step {step} failed"), ("healthy-cuda", 0, "all steps succeeded")):
        done = ran(program, node, tmp_path)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, last), done.stdout
        assert (says in done.stdout) is bool(code)


@compiles
def test_c_program_says_how_many_gpus_it_needs(tmp_path: Path) -> None:
    allocate = {"do": "allocate", "by": 1, "makes": 1, "nbytes": 4096}
    program = compiled({**REOPEN, "processes": {"1": {"device": 1}}, "operations": [allocate]}, tmp_path)
    done = ran(program, "healthy-single", tmp_path)
    assert (done.returncode, "needs 2 GPUs" in done.stdout) == (2, True), done.stdout
    assert ran(program, "healthy-cuda", tmp_path).returncode == 0


def compiled(history: object, tmp_path: Path) -> Path:
    source, program = tmp_path / "history.c", tmp_path / "history"
    source.write_text(c_program.source(documents.parse(json.dumps(history).encode())))
    assert len(source.read_text().splitlines()) <= 150
    subprocess.run(["cc", "-Wall", "-Werror", "-o", program, source, "-ldl"], check=True)
    return program


def ran(program: Path, node: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    directory = tmp_path / node
    directory.mkdir()
    environment = {**os.environ, **prepare(node, directory).env}
    return subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
