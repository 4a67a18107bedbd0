"""`gpuipc-doctor replay` of messages, and the C programs that it prints, on real MPI libraries."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.histories import documents, results
from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.operations import History
from gpuipc_doctor.simulator.node import prepare
from gpuipc_doctor.supervise import keeper
from tests import waiting
from tests.e2e.conftest import Command

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]

LIBRARY = "mpich50"
PREFIX = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere")).absolute() / LIBRARY
MPI_LIB = str(PREFIX / "lib/libmpi.so.12")

SENT: dict[str, Any] = {
    "version": 1,
    "check": "mpi-histories",
    "backend": "cuda",
    "processes": {"1": {}, "2": {}},
    "operations": [
        {"do": "allocate", "by": 1, "makes": 1, "nbytes": 1024, "kind": "device"},
        {"do": "allocate", "by": 2, "makes": 2, "nbytes": 1024, "kind": "device"},
        {"do": "recv", "by": 1, "on": 1, "nbytes": 1024, "peer": 2, "tag": 2},
        {"do": "send", "by": 2, "on": 2, "nbytes": 1024, "stamp": 1, "peer": 1, "tag": 2},
    ],
}

WRONG, HEALTHY = "mpi-wrong-byte", "healthy-single"


def history() -> History:
    """A phase that contains most operations."""
    generator = Generator("cuda", 3, 4, (8192,))
    return generator.history.of(operation for _ in range(3) for operation, _ in generator.phase())


def compiled(program: str, tmp_path: Path) -> Path:
    source, binary = tmp_path / "history.c", tmp_path / "history"
    source.write_text(program)
    command = ["cc", "-Wall", "-Werror", f"-I{PREFIX}/include", "-o", binary, source]
    subprocess.run([*command, MPI_LIB, "-ldl", f"-Wl,-rpath,{PREFIX}/lib"], check=True)
    return binary


def performed(binary: Path, ranks: int, node: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    simulated, began = prepare(node, tmp_path), time.time()
    try:
        return subprocess.run(
            [str(PREFIX / "bin/mpiexec"), "-n", str(ranks), str(binary)],
            env={**os.environ, **simulated.env, **simulated.rank_env},
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        named = str(binary).encode()
        waiting.until(
            "the ranks ended", lambda: all(named not in said for _, said in keeper._of_processes("cmdline"))
        )
        keeper.remove_abandoned(began, {})  # what MPICH leaves after MPI_Abort


@pytest.mark.full
@pytest.mark.parametrize(("node", "code"), [(HEALTHY, 0), (WRONG, 12)])
def test_messages_are_replayed(doctor: Command, tmp_path: Path, node: str, code: int) -> None:
    file = tmp_path / "history.json"
    file.write_text(json.dumps(SENT))
    ended = doctor("replay", str(file), "--simulate", node, "--mpi-lib", MPI_LIB)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ("3. rank 0 receives 1024 B" in ended.stdout) == (code == 12)


@pytest.mark.parametrize(("node", "code"), [(HEALTHY, 0), (WRONG, 1)])
def test_program_fails_at_the_step_that_fails(tmp_path: Path, node: str, code: int) -> None:
    program = documents.program(documents.read(SENT))
    assert len(program.splitlines()) <= 150
    ended = performed(compiled(program, tmp_path), 2, node, tmp_path)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ("step 3 failed" in ended.stdout) == bool(code)
    assert ("all steps succeeded" in ended.stdout) == (not code)


def test_program_of_a_whole_history_passes_on_a_healthy_node(tmp_path: Path) -> None:
    ended = performed(compiled(documents.program(history()), tmp_path), 3, HEALTHY, tmp_path)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr
    assert "all steps succeeded" in ended.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"operations": SENT["operations"][:3]}, "step 3: no send or receive matches this operation"),
        ({"operations": [{"do": "open", "by": 1}]}, "step 1: unknown operation 'open'"),
        (
            {"operations": SENT["operations"][2:]},
            "step 1 (recv) is not valid on cuda: process 1 has no buffer 1",
        ),
        ({"check": "mpi-start"}, "check 'mpi-start' performs no histories"),
    ],
)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "history.json"
    file.write_text(json.dumps(SENT | change))
    ended = CliRunner().invoke(cli, ["replay", str(file)])
    assert ended.exit_code == 2
    assert says in ended.output


def test_history_of_a_report_is_read_as_a_file(tmp_path: Path) -> None:
    whole = history()
    assert documents.parse(json.dumps(results.history_to_json(whole)).encode()) == whole
