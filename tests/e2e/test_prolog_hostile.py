"""Whatever a worker, a file or a reader does, the prolog ends in time, by the policy, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.e2e.conftest import full
from tests.e2e.test_faults import left_in_shared_memory, ours_in_shared_memory
from tests.e2e.test_prolog import POLICY
from tests.hanging_fs import AS_ROOT, hanging
from tests.waiting import LIMIT_S, LOAD_S, until

CHECK = Path(__file__).parent.parent / "fixtures" / "hostile_check.py"

BUDGET_S = 8.0

COMMAND = (sys.executable, "-I", "-m", "gpuipc_doctor", "prolog", "--config", "site.yaml")


@pytest.fixture
def mark() -> str:
    """A word in the command line of every process that a worker starts."""
    return f"mark-{uuid.uuid4()}"


@pytest.fixture
def site(tmp_path: Path, mark: str) -> Path:
    """The directory of a site whose only check is the hostile one."""
    (tmp_path / "checks").mkdir(mode=0o755)
    shutil.copyfile(CHECK, tmp_path / "checks" / "hostile.py")
    return tmp_path


def write(site: Path, do: str, mark: str, **prolog: object) -> None:
    document = {
        "checks_dirs": ["checks"],
        "options": {"hostile": {"do": do, "mark": mark, "site": str(site)}},
        "prolog": {**POLICY, "simulate": "healthy-single", "checks": ["hostile"], **prolog},
    }
    (site / "site.yaml").write_text(json.dumps(document))


def run(site: Path, **options: object) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the prolog; returns its result and duration in seconds. Asserts that no shared memory is left."""
    command = [*COMMAND, "--budget", str(BUDGET_S)]
    before = ours_in_shared_memory()
    started = time.monotonic()
    ended = subprocess.run(  # type: ignore[call-overload]
        command, cwd=site, env={}, **{"capture_output": True, "text": True, "timeout": 60, **options}
    )
    elapsed_s = time.monotonic() - started
    assert left_in_shared_memory(before) == set()
    return ended, elapsed_s


def left(mark: str) -> list[str]:
    """Command lines of processes with this mark that still run after waiting for them to end."""
    found: list[str] = []

    def gone() -> bool:
        found[:] = filter(lambda line: mark in line, map(command_line, Path("/proc").glob("[0-9]*")))
        return not found

    with contextlib.suppress(AssertionError):
        until("they are gone", gone, LOAD_S)
    return found


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("do", "on_budget"),
    [
        full("hang holding the interpreter lock", "log"),
        ("stop itself", "drain"),
        full("200 processes", "log"),
    ],
)
def test_hostile_worker_costs_no_more_than_the_budget(site: Path, mark: str, do: str, on_budget: str) -> None:
    write(site, do, mark, on_budget=on_budget)
    ended, elapsed_s = run(site)
    assert elapsed_s < BUDGET_S + 1 + LOAD_S
    assert ended.stdout.startswith("gpuipc-doctor: SIMULATED (healthy-single) ERROR ")
    assert "hostile" in ended.stdout
    assert ended.returncode == (11 if on_budget == "drain" else 0)
    assert left(mark) == []


@pytest.mark.full
def test_clerk_answers_for_a_killed_supervisor(site: Path, mark: str) -> None:
    write(site, "kill its supervisor", mark, on_error="drain", log="log.jsonl")
    ended, _ = run(site)
    assert "ERROR ended without a result while hostile on node ran" in ended.stdout
    assert ended.returncode == 11
    assert json.loads((site / "log.jsonl").read_text())["exit_code"] == 11
    assert left(mark) == []


@pytest.mark.full
def test_stopped_supervisor_does_not_delay_the_guard(site: Path, mark: str) -> None:
    write(site, "stop its supervisor", mark, on_budget="drain")
    ended, elapsed_s = run(site)
    assert elapsed_s < BUDGET_S + 1 + LOAD_S
    assert "ERROR the budget was exhausted while hostile on node ran" in ended.stdout
    assert ended.returncode == 11
    assert left(mark) == []
    assert left(f"checks/{site.name}") == []


def test_killed_guard_leaves_nothing(site: Path, mark: str) -> None:
    write(site, "kill the guard", mark)
    ended, _ = run(site)
    assert ended.returncode == -signal.SIGKILL
    assert left(mark) == []


@AS_ROOT
def test_config_on_a_hanging_file_system_is_reported(site: Path) -> None:
    with hanging(site / "nfs") as nfs:
        (site / "site.yaml").symlink_to(nfs / "site.yaml")
        ended, elapsed_s = run(site)
    assert elapsed_s < BUDGET_S + 1 + LOAD_S
    assert (ended.returncode, ended.stdout) == (
        0,
        "gpuipc-doctor: ERROR the budget was exhausted while the prolog read site.yaml\n",
    )


def test_config_that_is_a_pipe_is_not_waited_for(site: Path) -> None:
    os.mkfifo(site / "site.yaml")
    ended, _ = run(site)
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1)
    assert "ERROR invalid config" in ended.stdout
    assert "site.yaml: is not a regular file" in ended.stdout


def test_signal_ends_the_prolog_at_once(site: Path, mark: str) -> None:
    write(site, "hang holding the interpreter lock", mark)
    before = ours_in_shared_memory()
    with subprocess.Popen(
        [*COMMAND, "--budget", "60"], cwd=site, stdout=subprocess.PIPE, text=True
    ) as process:
        until("the worker hangs", (site / mark).exists)
        process.terminate()
        line, _ = process.communicate()
    assert "ERROR was terminated while hostile on node ran" in line
    assert process.returncode == 0
    assert left_in_shared_memory(before) == set()


@pytest.mark.full
def test_reader_that_does_not_read_delays_nothing(site: Path, mark: str) -> None:
    write(site, "nothing", mark, log="log.jsonl")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    try:
        ended, elapsed_s = run(site, capture_output=False, stdout=writer, stderr=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert elapsed_s < BUDGET_S + 1 + LOAD_S
    assert ended.returncode == 0


@pytest.mark.full
def test_closed_standard_streams_change_nothing(site: Path, mark: str) -> None:
    write(site, "nothing", mark, log="log.jsonl")
    shell = ["/bin/sh", "-c", '"$@" <&- >&- 2>&-', "sh", *COMMAND]  # as the hooks start it
    assert subprocess.run(shell, cwd=site, env={}, timeout=LIMIT_S, capture_output=True).returncode == 0
    assert json.loads((site / "log.jsonl").read_text())["exit_code"] == 0


@pytest.mark.parametrize("to", [">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_usage_mistake_with_unwritable_output_lets_the_job_start(to: str) -> None:
    shell = ["/bin/sh", "-c", f'"$@" --bugdet 5 {to}', "sh", *COMMAND]
    assert subprocess.run(shell, env={}, timeout=LIMIT_S, stderr=subprocess.DEVNULL).returncode == 0
