"""``config validate`` and ``known-issues lint`` report all mistakes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor import knownissues
from gpuipc_doctor.api import loader
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.run import finding_keys
from gpuipc_doctor.simulator import profile
from tests.waiting import LIMIT_S


def test_config_with_its_checks_and_known_issues_is_validated(tmp_path: Path) -> None:
    for name in ("checks", "issues"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "checks" / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "issues" / "ours.yaml").write_text("isues: []\n")
    site = tmp_path / "site.yaml"
    site.write_text(
        "teir: soak\n"
        "checks_dirs: [checks]\n"
        "known_issues_dirs: [issues]\n"
        "disabled: {ipc-reopne: it is slow}\n"
        "mpi: {launcher: mpiexec}\n"
    )
    site.chmod(0o644)
    said = CliRunner().invoke(cli, ["config", "validate", str(site)])
    assert said.exit_code == 2
    for mistake in (
        "site.yaml:1: unknown key 'teir'",
        "site.yaml:4: disabled: no check 'ipc-reopne'; did you mean 'ipc-reopen'?",
        "site.yaml:5: mpi.launcher: {ranks} is missing",
        "ours.yaml:1: unknown key 'isues'",
        "ModuleNotFoundError",
    ):
        assert mistake in said.output


def mistakes(tmp_path: Path, text: str) -> list[str]:
    """The messages of ``config validate`` on a file, without the file's name."""
    site = tmp_path / "x.yaml"
    site.write_text(text)
    site.chmod(0o644)
    said = CliRunner().invoke(cli, ["config", "validate", str(site)])
    assert said.exit_code == (2 if said.stderr else 0)
    return [line.removeprefix(f"gpuipc-doctor: {site}:") for line in said.stderr.splitlines()]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("mpi-small-message: {sizes: [0, 1, 16]}", []),
        ("fabric-info: {status_dir: /var/run/cxi}", []),
        (
            "mpi-small-message: {sizes: [a, -4]}",
            [
                "1: options.mpi-small-message.sizes[0] must be a whole number, not 'a'",
                "1: options.mpi-small-message.sizes[1] must be at least 0, not -4",
            ],
        ),
        (
            "fabric-small-message: {sizes: 16}",
            ["1: options.fabric-small-message.sizes must be a list, not 16"],
        ),
        ("mpi-small-message: {sizes: []}", ["1: options.mpi-small-message.sizes must not be empty"]),
        ("mpi-small-message: {sizes: [1, 1]}", ["1: options.mpi-small-message.sizes lists something twice"]),
        (
            "mpi-small-message: {sizes: [true, 1.5]}",
            ["[0] must be a whole number", "[1] must be a whole number"],
        ),
        ("mpi-small-message: {sizes: [3000000000]}", ["must be at most 2147483647, not 3000000000"]),
        ("mpi-small-message: {size: [1]}", ["unknown key 'size'; did you mean 'sizes'?"]),
        ("ipc-reopen: {rounds: 3}", ["1: options.ipc-reopen: unknown key 'rounds'"]),
        ("fabric-info: {status_dir: }", ["1: options.fabric-info.status_dir must be text, not empty"]),
    ],
)
def test_options_of_checks_are_validated(tmp_path: Path, options: str, wrong: list[str]) -> None:
    said = mistakes(tmp_path, f"options: {{{options}}}\n")
    assert len(said) == len(wrong)
    assert all(part in line for part, line in zip(wrong, said, strict=True)), said


def test_every_key_that_a_profile_expects_may_be_suppressed() -> None:
    expected = {
        (finding.check, finding.key)
        for name in profile.names()
        for expectation in profile.load(name).expect.values()
        for finding in expectation.findings
        if finding.key
    }
    assert len(expected) > 15
    keys = {
        check: finding_keys.of_check(loader.built_in()[check]) for check in {check for check, _ in expected}
    }
    assert [(check, key) for check, key in sorted(expected) if key not in keys[check]] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "disabled: {ipc-peer: , ipc-reopne: x, ipc-stale: {reason: x, until: 2026-02-30}}",
            ["not empty", "no such date: 2026-02-30", "no check 'ipc-reopne'"],
        ),
        (
            "node_types: {a: {gpus: {count: 0}}, b: {hosts: 'n[1-', mpi: {launcher: mpiexec}}}",
            ["must be at least 1", "{ranks} is missing", "names no nodes"],
        ),
        (
            "node_types: {a: {gpu: {count: 4}, hosts: 'n[1-'}}",
            ["unknown key 'gpu'; did you mean 'gpus'?", "names no nodes"],
        ),
        ("versions: {nvidia-driver: 5, cuda-drivr: '12'}", ["quote it: '5'", "no component"]),
        (
            "versions: {cuda-drivr: {before: '1', to: '2'}}",
            ["remove either 'before' or 'to'", "no component"],
        ),
        ("tier: &a soak\ndeadline_s: *a\nteir: x", ["alias *a is not supported", "unknown key 'teir'"]),
        ("tier: !x soak\nteir: x\nstart_up_s: !y 5", ["tag '!x'", "tag '!y'", "unknown key 'teir'"]),
        ('tier: "\\x1b"\nteir: x', ["holds the control character", "unknown key 'teir'"]),
        ("mpi: {launcher: 'mpiexec -n 2 x={env}'}", ["{ranks} is missing", "{env} must be a separate word"]),
        ("mpi: {launcher: mpiexec, library: 5}", ["quote it: '5'", "{ranks} is missing"]),
        (
            "prolog: {on_fail: x, checks: [ipc-reopne]}",
            ["'x' is not known", *["is missing"] * 3, "no check 'ipc-reopne'"],
        ),
        ("checks_dirs: [none]\noptions: {ipc-reopen: {rounds: 3}}", ["No such file", "unknown key 'rounds'"]),
        ("suppressed: {ipc-reopen.hang: x, ipc-reopen.hung: }", ["not empty", "has no finding 'hang'"]),
        ("options: {mpi-small-message: 5, fabric-info: {a: 1}}", ["must be a mapping", "unknown key 'a'"]),
    ],
)
def test_mistake_hides_no_other(tmp_path: Path, text: str, wrong: list[str]) -> None:
    said = mistakes(tmp_path, f"{text}\n")
    assert len(said) == len(wrong), said
    assert [part for part in wrong if not any(part in line for line in said)] == []


def test_wrong_options_stop_a_run_before_it_begins(tmp_path: Path) -> None:
    site = tmp_path / "x.yaml"
    site.write_text("# ours\noptions: {mpi-small-message: {sizes: [a, -4]}}\n")
    site.chmod(0o644)
    command = [sys.executable, "-m", "gpuipc_doctor", "check", "mpi-small-message", "--config", str(site)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == [
        f"gpuipc-doctor: {site}:2: options.mpi-small-message.sizes[0] must be a whole number, not 'a'",
        f"gpuipc-doctor: {site}:2: options.mpi-small-message.sizes[1] must be at least 0, not -4",
    ]


def test_entry_that_breaks_the_schema_hides_no_other_mistake(tmp_path: Path) -> None:
    files = (file for file in knownissues.files() if file.parent == knownissues.SHIPPED)
    shipped = min(files, key=lambda file: file.stat().st_size).read_text()
    lines = shipped.splitlines()
    first = next(number for number, line in enumerate(lines) if line.lstrip("- ").startswith("id:"))
    entry = "\n".join(lines[first:])
    broken = entry.replace("component:", "componnet:", 1)
    again = entry.replace("detected_by: [", "detected_by: [ipc-reopne, ", 1)
    again = again if again != entry else f"{entry}\n    detected_by: [ipc-reopne]"
    head = "\n".join(lines[:first])
    file = tmp_path / "ours.yaml"
    file.write_text(f"{head}\n{broken}\n{again}\n")
    said = CliRunner().invoke(cli, ["known-issues", "lint", str(file)])
    assert said.exit_code == 2
    assert "componnet" in said.output
    assert "ipc-reopne" in said.output
