"""Untrusted files: one line per unusable file, and no control sequence reaches the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from gpuipc_doctor.report import report_json
from tests.command_server import SERVER
from tests.sample_reports import seed_002
from tests.waiting import LIMIT_S

EVIL = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e"

ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def doctor(*arguments: str | Path, timeout: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    return SERVER.run("gpuipc_doctor", *arguments, timeout=timeout)


def is_harmless(*ended: subprocess.CompletedProcess[str]) -> bool:
    return not any(ACTED_UPON.search(process.stdout + process.stderr) for process in ended)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report in which every free text contains control sequences."""
    document = json.loads(report_json.dumps(seed_002()))

    def spoil(value: object, key: str) -> object:
        if isinstance(value, dict):
            return {name: spoil(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [spoil(item, key) for item in value]
        free = (
            "host",
            "name",
            "uuid",
            "value",
            "source",
            "title",
            "summary",
            "says",
            "remedy",
            "line",
            "step",
        )
        return f"{value}{EVIL}" if isinstance(value, str) and key in free else value

    file = tmp_path / "report.json"
    file.write_text(json.dumps(spoil(document, "")))
    return file


def test_report_sends_no_control_sequences(report: Path) -> None:
    for form in ("matrix", "junit", "prometheus"):
        ended = doctor("report", report, "--format", form)
        assert ended.returncode == 0, ended.stderr
        assert is_harmless(ended)
    for form in (["--format", "table"], ["--format", "markdown"], ["--json"]):
        assert is_harmless(doctor("compare", report, report, *form))


def test_quoted_keys_send_no_control_sequences(report: Path) -> None:
    document = json.loads(report.read_text())
    report.write_text(json.dumps({**document, EVIL: 1, "results": {EVIL: EVIL}}))
    ended = doctor("report", report)
    assert ended.returncode == 2
    assert is_harmless(ended)


def test_inventory_sends_no_control_sequences(tmp_path: Path) -> None:
    facts = [{"name": f"kernel{EVIL}", "value": EVIL, "source": EVIL}]
    file = tmp_path / f"inventory{EVIL}.json"
    file.write_text(json.dumps({"facts": facts}))
    assert is_harmless(doctor("inventory", "--simulate", "healthy-single", "--diff", file))
    assert is_harmless(doctor("inventory", "--simulate", "healthy-single", "--diff", file, "--json"))
    log = tmp_path / "log"
    log.write_text("nothing\n")
    assert is_harmless(doctor("diagnose", "--inventory", file, log))


def test_file_names_send_no_control_sequences(tmp_path: Path) -> None:
    name = tmp_path / f"x{EVIL}"
    site = tmp_path / f"site{EVIL}.yaml"
    site.write_text("tier: acceptance\n")
    for arguments in (
        ("report", name),
        ("compare", name, name),
        ("inventory", "--diff", name),
        ("check", "--all", "--config", name),
        ("check", "--all", "--output", name / "none"),
        ("check", "--all", "--simulate", name),
        ("check", f"ipc{EVIL}"),
        (f"chekc{EVIL}",),
        ("report", "--format", EVIL),
        ("diagnose", name),
        ("config", "validate", site),
        ("known-issues", "lint", name),
        ("explain", EVIL),
    ):
        ended = doctor(*arguments)
        assert is_harmless(ended), arguments
        assert "Traceback" not in ended.stderr


def test_broken_check_of_a_site_sends_no_control_sequences(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "ours.py").write_text(f"raise RuntimeError({EVIL!r})\n")
    site = tmp_path / "site.yaml"
    site.write_text("checks_dirs: [checks]\n")
    ended = [doctor(*command, site) for command in (("list", "--config"), ("config", "validate"))]
    assert is_harmless(*ended)
    assert all("RuntimeError" in process.stdout + process.stderr for process in ended)


@pytest.mark.parametrize("command", [("report",), ("compare",), ("inventory", "--diff")])
@pytest.mark.parametrize("what", ["/dev/zero", "pipe", "huge", "deep", "list with a number"])
def test_unreadable_document_is_one_line_at_once(tmp_path: Path, command: tuple[str, ...], what: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1_200_000_000)
    (tmp_path / "deep").write_text("[" * 1_000_000)
    (tmp_path / "list with a number").write_text(
        '{"facts": [{"name": "kernel", "value": [1], "source": "x"}]}'
    )
    file = tmp_path / what
    ended = doctor(*command, file, *([file] if command == ("compare",) else []))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") == 1
