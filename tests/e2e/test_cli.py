"""The command line for a user: mistakes, files that cannot be written, Ctrl-C, kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.present.text import columns
from gpuipc_doctor.report import report_json
from gpuipc_doctor.stacks import process_list
from gpuipc_doctor.supervise import tree
from tests.e2e.conftest import Command, full
from tests.waiting import LIMIT_S, until

HUNG_IMPORTER = """\
description: An importer that hangs and ignores SIGTERM.
extends: healthy-single
faults:
  - {call: ipc-open, do: hang-ignore-term}
"""


@pytest.fixture
def hanging(tmp_path: Path) -> str:
    profile = tmp_path / "hanging.yaml"
    profile.write_text(HUNG_IMPORTER)
    return str(profile)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chek"], "no command 'chek'; did you mean 'check'?"),
        (["check"], "name the checks to run, or give --all"),
        (
            ["check", "--all", "ipc-reopen"],
            "--all runs every check of the tier; omit --all, or the names",
        ),
        (["check", "ipc-reopen", "--nodes", "2"], "need a check that runs between nodes"),
        (["check", "ipc-reopen", "--partner", "n99"], "need a check that runs between nodes"),
        (
            ["check", "--all", "--tier", "prolog", "--nodes", "2"],
            "need a check that runs between nodes",
        ),
        (["check", "ipc-reopne"], "no check 'ipc-reopne'; did you mean 'ipc-reopen'?"),
        (
            ["check", "--all", "--backend", "cudda"],
            "'cudda' is not one of 'auto', 'cuda', 'hip', 'ze', 'all'",
        ),
        (["check", "--all", "--tier", "quick"], "'quick' is not one of"),
        (["check", "--all", "--deadline", "0"], "--deadline"),
        (
            ["check", "--all", "--deadline", "soon"],
            "--deadline: 'soon' is not a number of seconds above 0, at most 31536000",
        ),
        (["check", "--all", "--deadline", "nan"], "--deadline: nan is not a number of seconds"),
        (
            ["check", "--all", "--deadline", "inf"],
            "--deadline: 'inf' is not a number of seconds above 0, at most",
        ),
        (["check", "--all", "--budget", "nan"], "--budget: nan is not a number of seconds"),
        (
            ["check", "--all", "--budget", "inf"],
            "--budget: 'inf' is not a number of seconds above 0, at most",
        ),
        (["check", "--all", "--simulate", ""], "--simulate: the name is empty"),
        (["check", "--all", "--simulate", "healthy-cudda"], "did you mean 'healthy-cuda'?"),
        (["check", "--all", "--config", "/nowhere.yaml"], "/nowhere.yaml: "),
        (["check", "--all", "--output", "/nowhere/report.json"], "cannot write /nowhere/report.json"),
        (["check", "--all", "--output", "/"], "cannot write /"),
        (["check", "--all", "--mpi-lib", "/no.so"], "--mpi-lib: file not found: /no.so; name the library"),
        (["drill", "--mpi-lib", "/no.so"], "--mpi-lib: file not found: /no.so; name the library"),
        (["config", "new", "--mpi-lib", "/no.so"], "--mpi-lib: file not found: /no.so; name the library"),
        (["check", "--all", "--keep-logs", "/dev/null"], "--keep-logs: /dev/null: "),
        (["explain", "ipc-reopne"], "did you mean 'ipc-reopen'?"),
        (["known-issues", "show", "nvidia-ipc-reopne"], "did you mean"),
        (["known-issues", "show", "x"], "no known issue 'x'; `gpuipc-doctor known-issues list` names them\n"),
    ],
)
def test_usage_mistake_is_one_line_and_exit_code_2(doctor: Command, arguments: list[str], says: str) -> None:
    ended = doctor(*arguments)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize("group", ["", "fleet", "config", "known-issues"])
def test_group_without_a_command_shows_its_help(doctor: Command, group: str) -> None:
    alone = doctor(*group.split())
    assert (alone.returncode, alone.stderr) == (2, doctor(*group.split(), "--help").stdout)


@pytest.mark.parametrize("screen", ["list", "known-issues list", "explain ipc-handles"])
def test_screen_fits_80_columns(doctor: Command, screen: str) -> None:
    ended = doctor(*screen.split())
    assert ended.returncode == 0
    lines = (line for line in ended.stdout.splitlines() if not line.startswith("file "))
    assert [line for line in lines if columns(line) > 80] == []


@pytest.mark.parametrize("command", ["check --all --config", "config validate", "known-issues lint"])
def test_every_mistake_in_a_file_begins_with_the_programs_name(
    doctor: Command, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("teir: prolog\nissues: []\nbudgte: 3\n")
    ended = doctor(*command.split(), str(file))
    lines = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert len(lines) > 1
    assert [line for line in lines if not line.startswith(f"gpuipc-doctor: {file}")] == []


def test_help_says_that_explain_accepts_known_issues(doctor: Command) -> None:
    said = "Explain a check, known issue, word, code or line of a log.\n"
    assert f"explain       {said}" in doctor("--help").stdout
    assert said in doctor("explain", "--help").stdout


def test_unknown_device_lists_the_devices_found(doctor: Command) -> None:
    ended = doctor("check", "ipc-reopen", "--simulate", "healthy-cuda", "--device", "cuda:7")
    assert ended.returncode == 2
    assert "no device 'cuda:7'; did you mean 'cuda:" in ended.stderr


def test_ambiguous_device_index_is_one_line(doctor: Command) -> None:
    ended = doctor("check", "ipc-reopen", "--simulate", "healthy-single", "--device", "0")
    assert ended.returncode == 2
    says = "gpuipc-doctor: device '0' may be any of cuda:0, hip:0; name the one you mean\n"
    assert ended.stderr == says


def test_deadline_limits_the_inventory_with_a_hanging_driver(doctor: Command) -> None:
    ended = doctor("inventory", "--simulate", "hang-init", "--deadline", "0.5", "--json")
    assert ended.returncode == 0
    assert "hung (0.5 s)" in ended.stdout


def test_check_file_that_does_not_import_is_an_error_row(doctor: Command, tmp_path: Path) -> None:
    checks = tmp_path / "checks"
    checks.mkdir(mode=0o755)
    (checks / "my_check.py").write_text("import gpuipc_doctor\n\nimport no_such_module\n")
    config = tmp_path / "site.yaml"
    config.write_text("checks_dirs: [checks]\n")
    ended = doctor("check", "known-versions", "my-check", "--config", str(config), "--json")
    errors = [r for r in json.loads(ended.stdout)["results"] if r["check"] == "my-check"]
    assert [error["finding"]["status"] for error in errors] == ["ERROR"]
    assert f"{checks / 'my_check.py'}:3: ModuleNotFoundError" in json.dumps(errors)


def test_disabled_check_is_a_skip_with_the_config_line(doctor: Command, tmp_path: Path) -> None:
    config = tmp_path / "site.yaml"
    config.write_text("disabled:\n  ipc-reopen: ticket 4711\n")
    arguments = ["--simulate", "healthy-cuda", "--config", str(config), "--json"]
    ended = doctor("check", "ipc-reopen", "ipc-peer", *arguments)
    assert ended.returncode == 0
    assert f"{config}:2: ticket 4711" in ended.stdout


def test_report_is_also_written_to_a_file(doctor: Command, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("old")
    ended = doctor("check", "driver-init", "--simulate", "healthy-single", "--output", str(report))
    assert ended.returncode == 0
    assert "SIMULATED" in ended.stdout
    assert json.loads(report.read_text())["simulated"] == "healthy-single"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_report_that_cannot_be_written_is_still_printed(doctor: Command) -> None:
    ended = doctor("check", "driver-init", "--simulate", "healthy-single", "--output", "/dev/full")
    assert ended.returncode == 1
    assert "driver-init" in ended.stdout
    assert ended.stdout.splitlines()[-1].endswith(" exit 1")
    assert "--output was not written: No space left on device" in ended.stderr


def test_deleted_working_directory_is_one_line(tmp_path: Path) -> None:
    program = "import os; from gpuipc_doctor.cli.main import main; os.rmdir(os.getcwd()); main()"
    command = [sys.executable, "-c", program, "check", "--all", "--simulate", "healthy-single"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 2
    says = "gpuipc-doctor: the working directory was deleted; change to an existing one\n"
    assert ended.stderr == says


@pytest.mark.full
def test_kept_logs_have_the_stack_of_a_hung_role(doctor: Command, tmp_path: Path, hanging: str) -> None:
    logs = tmp_path / "logs"
    arguments = ["--simulate", hanging, "--backend", "cuda", "--deadline", "2", "--keep-logs", str(logs)]
    ended = doctor("check", "ipc-handles", *arguments)
    assert ended.returncode == 12
    [kept] = logs.glob("*ipc-handles*-segments")
    assert "open_ipc" in (kept / "importer.python-stack").read_text()


NOT_WRITTEN = "gpuipc-doctor: cannot write the output: "


@pytest.mark.parametrize(
    "arguments", ["list", *map(full, ("--help", "check driver-init --simulate healthy-single --json"))]
)
@pytest.mark.parametrize(
    ("to", "says"),
    [
        (">&-", f"{NOT_WRITTEN}Bad file descriptor\n"),
        (">/dev/full", f"{NOT_WRITTEN}No space left on device\n"),
        ("", ""),
    ],
    ids=["closed", "full", "pipe that nobody reads"],
)
def test_unwritable_output_is_an_error(arguments: str, to: str, says: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = ["sh", "-c", f"exec {sys.executable} -m gpuipc_doctor {arguments} {to}"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, says)


@pytest.mark.full
def test_closed_standard_streams_change_nothing_in_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    doctor = f"{sys.executable} -m gpuipc_doctor.cli.main check ipc-peer --simulate healthy-cuda"
    ended = subprocess.run(["sh", "-c", f"{doctor} --output {report} <&- >&- 2>&-"], timeout=LIMIT_S)
    assert ended.returncode == 1  # the output is lost
    assert json.loads(report.read_text())["exit_code"] == 0


@pytest.mark.full
@pytest.mark.skipif(
    any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")), reason="this machine has a GPU"
)
def test_without_gpus_the_screen_suggests_a_simulated_node(doctor: Command) -> None:
    ended = doctor("check", "--all", "-v")
    assert ended.returncode == 3
    last = ended.stdout.splitlines()[-1]
    assert last == "no GPU here; to see an example, run `gpuipc-doctor check --all --simulate healthy-both`"
    assert "fabric-small-message: this check is only a control for" in ended.stdout


@pytest.mark.skipif(
    any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")), reason="this machine has a GPU"
)
def test_no_gpu_found_means_nothing_was_tested(doctor: Command) -> None:
    """The exit code is 3 with --exit-style nagios as well as by default."""
    ended = doctor("check", "driver-init", "ipc-reopen", "--exit-style", "nagios")
    assert (ended.returncode, "NOTHING WAS TESTED" in ended.stdout) == (3, True)


def test_dry_run_probes_nothing(doctor: Command) -> None:
    ended = doctor("check", "--all", "--simulate", "healthy-cuda", "--dry-run")
    assert ended.returncode == 0
    assert re.search(r"^ipc-reopen +cuda:0-1; cuda:0 > cuda:1 +6 +10$", ended.stdout, re.MULTILINE)
    assert "allocator-growth on cuda:0-1: SKIP, " in ended.stdout
    assert re.search(r"^[0-9]+ probes would run\.$", ended.stdout, re.MULTILINE)
    assert max(map(len, ended.stdout.splitlines())) <= 80
    assert len(ended.stdout.splitlines()) < 60


@pytest.mark.full
def test_dry_run_shows_each_probe_on_request(doctor: Command) -> None:
    ended = doctor("check", "ipc-reopen", "--simulate", "healthy-single", "--dry-run", "-v")
    assert re.search(r"^ipc-reopen +cuda:0 +destroy-context +10$", ended.stdout, re.MULTILINE)


def test_help_names_the_command_however_it_was_started(doctor: Command) -> None:
    for name in ("check", "prolog"):  # the latter restarts itself
        assert doctor(name, "--help").stdout.startswith(f"Usage: gpuipc-doctor {name} [OPTIONS]")


@pytest.mark.cuda
def test_dry_run_shows_findings_that_need_no_probe(doctor: Command) -> None:
    ended = doctor("check", "known-versions", "--simulate", "nvidia-460.32.03", "--dry-run")
    assert "known-versions on node: WARN, nvidia-ipc-reopen: " in ended.stdout


def test_checks_after_the_budget_are_skipped(doctor: Command) -> None:
    ended = doctor("check", "--all", "--simulate", "healthy-single", "--budget", "0.05", "--json")
    results = json.loads(ended.stdout)["results"]
    assert ended.returncode == 3
    skipped = [r for r in results if r["finding"]["key"] == "budget"]
    assert skipped
    for r in skipped:
        says = f"time budget exhausted; run `gpuipc-doctor check {r['check']} --budget 1`"  # not 0
        assert r["finding"]["summary"] == says


@pytest.mark.full
def test_report_given_as_config_or_log_is_recognised(doctor: Command, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    report.write_text(doctor("check", "known-versions", "--simulate", "healthy-cuda", "--json").stdout)
    told = f"{report}: is output of gpuipc-doctor (gpuipc-doctor/report/2)"
    validated = doctor("config", "validate", str(report))
    assert (validated.returncode, validated.stderr.count("\n")) == (2, 1)
    assert told in validated.stderr
    diagnosed = doctor("diagnose", str(report))
    assert (diagnosed.returncode, "OTHER" in diagnosed.stdout) == (11, False)
    assert told in diagnosed.stderr


@pytest.mark.full
def test_inventory_is_compared_with_that_of_a_report(doctor: Command, tmp_path: Path) -> None:
    report = tmp_path / "before.json"
    node = ["--simulate", "nvidia-450.102.04"]
    environment = {**os.environ, "LD_LIBRARY_PATH": "/opt/lib"}  # a known issue recommends this
    assert doctor("check", "known-versions", *node, "--output", str(report), env=environment).returncode == 0
    same = doctor("inventory", *node, "--diff", str(report), env=environment)
    assert same.stdout == "nothing has changed\n"
    told = doctor("inventory", "--simulate", "nvidia-460.32.03", "--diff", str(report), "--json")
    changes = {change["name"]: (change["before"], change["after"]) for change in json.loads(told.stdout)}
    assert changes["nvidia-driver"] == ("450.102.04", "460.32.03")


def test_interrupted_run_reports_its_results(hanging: str) -> None:
    command = [sys.executable, "-m", "gpuipc_doctor.cli.main", "check", "ipc-peer", "ipc-handles"]
    command += ["--simulate", hanging, "--backend", "cuda", "--deadline", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_workers(process.pid, 2)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
    assert process.returncode == 130
    assert "INTERRUPTED" in printed
    assert "driver-init" in printed
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, full(signal.SIGTERM), full(signal.SIGHUP)])
def test_interrupt_before_the_first_probe_is_reported_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    ended = struck_before_the_first_probe(number, tmp_path)
    assert ended.returncode == 130
    assert ended.stderr.strip() == "gpuipc-doctor: interrupted before any result"
    assert list(tmp_path.iterdir()) == []


def test_kill_before_the_first_probe_leaves_no_draft_of_the_report(tmp_path: Path) -> None:
    assert struck_before_the_first_probe(signal.SIGKILL, tmp_path).returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == []


def test_kill_during_a_check_leaves_nothing(hanging: str) -> None:
    before = set(Path("/dev/shm").glob("gpuipc-doctor-*"))
    command = [sys.executable, "-m", "gpuipc_doctor.cli.main", "check", "ipc-handles"]
    command += ["--simulate", hanging, "--backend", "cuda", "--deadline", "60"]
    environment = {**os.environ, "GPUIPC_TEST_RUN": (mark := f"killed-{os.getpid()}-{time.monotonic()}")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        wait_for_workers(process.pid, 2)
        created = set(Path("/dev/shm").glob("gpuipc-doctor-*")) - before
        process.kill()
    assert created
    until("no process of it is left", lambda: not with_environment(f"GPUIPC_TEST_RUN={mark}"))
    until("its directories are gone", lambda: not any(path.exists() for path in created))


def struck_before_the_first_probe(
    number: signal.Signals, directory: Path
) -> subprocess.CompletedProcess[str]:
    """``check --output`` on a simulated node, interrupted by this signal; its files are in ``directory``."""
    program = f"""
import pathlib, signal
from gpuipc_doctor.cli import main, options
from gpuipc_doctor.simulator import node
options.SHARED_MEMORY = pathlib.Path({str(directory)!r})
node.prepare = lambda *_: signal.raise_signal({number:d})
main.main()
"""
    command = [sys.executable, "-c", program, "check", "--all", "--simulate", "healthy-single"]
    command += ["--output", str(directory / "report.json")]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def wait_for_workers(pid: int, count: int) -> None:
    """Wait until the command has ``count`` workers, each of which writes to the log of its role."""
    logs = ("exporter.log", "importer.log")
    until(
        "it has workers", lambda: [log_of(p.pid) in logs for p in tree.descendants(pid)].count(True) >= count
    )


def log_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/fd/2").readlink().name
    except OSError:
        return ""


def with_environment(variable: str) -> list[int]:
    found = []
    for pid in process_list.processes():
        try:
            if variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.full
def test_plots_are_drawn_for_measured_series(doctor: Command, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "pictures"
    ended = doctor(
        *("check", "ipc-release", "--simulate", "healthy-single", "--device", "cuda:0"),
        *("--plots", str(directory)),
    )
    assert ended.returncode == 0
    names = {"ipc-release-cuda0.svg", "ipc-release-cuda0.png"}
    assert {file.name for file in directory.iterdir()} == names
    assert ended.stderr == f"gpuipc-doctor: drew in {directory}: ipc-release-cuda0\n"


@pytest.mark.full
def test_plots_without_measured_series_say_so(doctor: Command, tmp_path: Path) -> None:
    ended = doctor("check", "driver-init", "--simulate", "healthy-single", "--plots", str(tmp_path))
    assert ended.returncode == 0
    assert "nothing to plot: no check that ran watches memory over time" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("profile", "options", "full"),
    [
        full("healthy-cuda", [], False),
        ("nvidia-460.32.03", [], True),
    ],
)
def test_summary_is_one_line_after_the_full_report_if_needed(
    doctor: Command, profile: str, options: list[str], full: bool
) -> None:
    ended = doctor("check", "ipc-reopen", "--backend", "cuda", "--simulate", profile, "--summary", *options)
    *before, last = ended.stdout.splitlines()
    found = summary.loads(last.encode())
    assert (found.exit_code, found.node, "ipc-reopen" in found.checks) == (ended.returncode, "", True)
    assert [report_json.loads(line).host for line in before] == [found.host] * full
