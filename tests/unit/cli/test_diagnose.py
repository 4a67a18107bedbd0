"""``diagnose``: bad input is one line each and loses nothing else; an endless input can be interrupted."""

import contextlib
import fcntl
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import termios
import zipfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from click.testing import CliRunner, Result

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.diagnose import sources
from gpuipc_doctor.diagnose.exits import MEANINGS
from gpuipc_doctor.knownissues.lines import BLOCK
from tests.waiting import LIMIT_S, until

LOGS = Path(__file__).parents[2] / "logs"
SEED_1 = str(LOGS / "faulty" / "seed-001-cxi-device-memory.log")
SEED_2 = str(LOGS / "faulty" / "seed-002-ipc-reopen.log")
HEALTHY = str(LOGS / "healthy" / "made-slurm.log")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["diagnose", *arguments])


def test_known_issue_is_found_in_a_file() -> None:
    result = run(SEED_2)
    assert result.exit_code == 12
    assert result.stdout.count("FOUND  ") == 1
    assert "FOUND  nvidia-ipc-reopen · high confidence" in result.stdout
    assert result.stderr == ""


def test_standard_input_is_read_without_a_file_and_for_a_hyphen() -> None:
    for arguments in ((), ("-",)):
        result = subprocess.run(
            [sys.executable, "-m", "gpuipc_doctor.cli.main", "diagnose", *arguments],
            input=Path(SEED_2).read_bytes(),
            capture_output=True,
            check=False,
        )
        assert result.returncode == 12
        assert b"standard input:34" in result.stdout


def test_bad_input_costs_its_own_line_only(tmp_path: Path) -> None:
    library = tmp_path / "lib\x1b[31m.so"
    library.write_bytes(Path(sys.executable).read_bytes()[:50_000])
    result = run(str(tmp_path / "none"), str(library), SEED_2)
    assert result.exit_code == 12
    assert "nvidia-ipc-reopen" in result.stdout
    assert "2 logs not read to the end" in result.stdout
    assert [line.rpartition(": ")[2] for line in result.stderr.splitlines()] == [
        "No such file or directory",
        "is neither text nor compressed text; not read",
    ]
    assert "\x1b" not in result.stderr


def test_only_missing_file_is_one_line(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none"))
    assert (result.exit_code, result.stdout) == (11, "")
    assert result.stderr == f"gpuipc-doctor: {tmp_path}/none: cannot be opened: No such file or directory\n"


def long_line(directory: Path) -> Path:
    log = directory / "job.out"
    log.write_bytes(b"x" * (3 * BLOCK) + b" and more\nquiet\n")
    return log


def damaged_member(directory: Path) -> Path:
    with zipfile.ZipFile(directory / "logs.zip", "w") as archive:
        archive.writestr("quiet", b"step 1\n")
        archive.writestr("rank0.gz", gzip.compress(os.urandom(1000).hex().encode())[:500])
    return directory / "logs.zip"


def archive_in_archive(directory: Path) -> Path:
    log = damaged_member(directory)
    with zipfile.ZipFile(directory / "all.zip", "w") as archive:
        archive.writestr("quiet", b"step 1\n")
        archive.write(log, "n17.zip")
    return directory / "all.zip"


def many_logs(directory: Path) -> Path:
    for number in range(3):
        (directory / f"{number}.log").write_bytes(b"step 1\n")
    return directory


@pytest.mark.parametrize(
    ("made", "name", "trouble"),
    [
        (long_line, "job.out", sources.TOO_LONG),
        (damaged_member, "logs.zip", "rank0.gz is truncated gzip data; only its beginning was read"),
        (archive_in_archive, "all.zip", "n17.zip is an archive in an archive; not read"),
        (many_logs, "", "has 3 logs; only the newest 2 are read"),
    ],
)
def test_part_that_was_not_read_is_an_error_and_in_the_report(
    made: Callable[[Path], Path], name: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", BLOCK)
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    log = str(made(tmp_path))
    result = run(log)
    assert result.exit_code == 11
    assert trouble in result.stderr
    assert "UNREAD" in result.stdout
    assert f"{name}: {trouble}".replace(" ", "") in re.sub(r"\s", "", result.stdout)
    assert "1 log not read to the end" in result.stdout
    (told,) = (log for log in json.loads(run(log, "--json").stdout)["logs"] if log["trouble"])
    assert (told["name"], told["trouble"]) == (log, trouble)
    assert run(log, SEED_2).exit_code == 12


def test_empty_name_is_reported_and_loses_nothing_else() -> None:
    result = run("", HEALTHY)
    assert (result.exit_code, result.stderr) == (11, 'gpuipc-doctor: "": the name is empty\n')


def test_unreadable_input_shows_in_the_exit_code() -> None:
    assert run("none", HEALTHY).exit_code == 11
    assert run(HEALTHY).exit_code == 0
    assert run("/dev/null").exit_code == 3


def test_only_json_goes_to_standard_output() -> None:
    result = run("--json", SEED_1, SEED_2, "none")
    told = json.loads(result.stdout)
    assert told["exit_code"] == result.exit_code == 12
    assert {issue_["issue"] for issue_ in told["recognised"]} >= {
        "nvidia-ipc-reopen",
        "cxi-device-memory-not-mapped",
    }
    assert len(result.stderr.splitlines()) == 1


def test_inventory_is_used(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.json"
    facts = [{"name": "nvidia-driver", "value": "580.159.04", "source": "NVML"}]
    inventory.write_text(json.dumps({"facts": facts}), encoding="utf-8")
    result = run("--json", "--inventory", str(inventory), SEED_2)
    (one,) = (
        issue_ for issue_ in json.loads(result.stdout)["recognised"] if issue_["issue"] == "nvidia-ipc-reopen"
    )
    assert "580.159.04" in one["reason"]
    inventory.write_text("[]", encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "gpuipc_doctor.cli.main", "diagnose", "--inventory", str(inventory), SEED_2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "has no inventory" in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_sites_own_issue_is_found(tmp_path: Path) -> None:
    (tmp_path / "issues").mkdir()
    (tmp_path / "issues" / "site.yaml").write_text(
        """issues:
  - id: site-lustre
    title: the file system went away
    component: kernel
    class: hang
    status: open
    symptom: jobs hang
    affected: []
    signatures: ['LustreError: .*evicted']
    references: [{type: web, url: "https://example.org"}]
""",
        encoding="utf-8",
    )
    site = tmp_path / "site.yaml"
    site.write_text(f"known_issues_dirs: [{tmp_path / 'issues'}]\n", encoding="utf-8")
    log = tmp_path / "log"
    log.write_text("LustreError: 11-0: this client was evicted by oss3\n", encoding="utf-8")
    result = run("--config", str(site), str(log))
    assert "FOUND  site-lustre" in result.stdout, result.output
    for form in ("screen", "markdown", "html"):
        asked = "".join(run("--config", str(site), str(log), "--format", form).stdout.split())
        assert "".join(f"known-issues show site-lustre --config {site}".split()) in asked.replace("\\", "")
    for words in (["site"], ["file", "system", "went"]):
        listed = CliRunner().invoke(cli, ["known-issues", "list", *words, "--config", str(site)]).stdout
        assert "site-lustre" in listed
        assert "1 known issue" in listed
    shown = CliRunner().invoke(cli, ["explain", "site-lustre", "--config", str(site)]).stdout
    assert "".join(f"gpuipc-doctor diagnose LOG --config {site}".split()) in "".join(shown.split())
    assert "The site config adds none" in CliRunner().invoke(cli, ["known-issues", "list", "site"]).stdout


def test_help_has_the_exit_codes() -> None:
    result = run("--help")
    for exit_, meaning in MEANINGS.items():
        assert f"{exit_.value:<4} {meaning}"[:60] in result.stdout


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts ``diagnose`` in ``tmp_path``, and kills the remaining processes at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuipc_doctor.cli.main", "diagnose", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def await_read(pipe: TextIO) -> None:
    """Wait until the reader has read everything written."""
    pipe.flush()
    left = array("i", [1])

    def empty() -> bool:
        fcntl.ioctl(pipe, termios.FIONREAD, left)
        return left[0] == 0

    until("the pipe is empty", empty)


def has_read(pid: int, file: Path) -> bool:
    """Whether a process has read all of a file that it has open."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if link.readlink() == file:
                position = (link.parent.parent / "fdinfo" / link.name).read_text().split()[1]
                return int(position) == file.stat().st_size
    return False


@pytest.mark.full
def test_endless_pipe_is_read_last_and_can_be_interrupted(
    tmp_path: Path, background: Callable[..., "subprocess.Popen[str]"]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    process = background("fifo", SEED_2)
    with (tmp_path / "fifo").open("w") as writer:
        writer.write(Path(SEED_1).read_text(encoding="utf-8"))
        await_read(writer)
        writer.write("and then nothing\n")  # once this is read, the lines before it have been examined
        await_read(writer)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # as timeout(1) does
        out, err = process.communicate(timeout=LIMIT_S)
    assert "cxi-device-memory-not-mapped" in out
    assert "nvidia-ipc-reopen" in out
    assert "interrupted" in out
    assert err == ""
    assert process.returncode == 12


def test_followed_log_reports_issues_at_once(
    tmp_path: Path, background: Callable[..., "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    log = tmp_path / "job.out"
    log.write_text("begin\n", encoding="utf-8")
    process = background("--follow", "job.out")
    until("it has read what is there", lambda: has_read(process.pid, log))
    with log.open("a", encoding="utf-8") as file:
        file.write(Path(SEED_2).read_text(encoding="utf-8"))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("FOUND  nvidia-ipc-reopen")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert "1 known issue recognised · interrupted" in out
    assert max(map(len, out.splitlines())) <= 120  # longer lines are hard to read
    assert process.returncode == 12
