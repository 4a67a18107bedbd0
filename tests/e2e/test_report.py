"""``report`` prints a saved report as the run printed it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpuipc_doctor import knownissues
from tests.e2e.conftest import Command, full


@pytest.fixture
def saved(doctor: Command, tmp_path: Path) -> tuple[str, str]:
    """A saved report, and the screen of the run that wrote it."""
    file = str(tmp_path / "report.json")
    arguments = ["ipc-reopen", "known-versions", "--simulate", "nvidia-460.32.03", "--device", "cuda:0"]
    ended = doctor("check", *arguments, "--output", file)
    assert ended.returncode == 12
    return file, ended.stdout


def test_saved_report_is_printed_like_the_run(doctor: Command, saved: tuple[str, str]) -> None:
    file, screen = saved
    assert (again := doctor("report", file)).stdout == screen
    assert again.returncode == 0
    suite = ElementTree.fromstring(doctor("report", file, "--format", "junit").stdout)
    assert suite.attrib["failures"] == "2"
    prometheus = doctor("report", file, "--format", "prometheus").stdout
    assert prometheus.startswith("# SIMULATED (nvidia-460.32.03)\n")
    assert 'gpuipc_doctor_check_severity{check="ipc-reopen",subject="cuda:0"} 4\n' in prometheus


@pytest.mark.full
def test_report_names_the_edition_of_the_known_issues(saved: tuple[str, str]) -> None:
    file, _ = saved
    assert json.loads(Path(file).read_text())["known_issues"] == knownissues.edition()


@pytest.mark.cuda
@pytest.mark.parametrize("value", [full(None), "/opt/site/lib"])
def test_simulated_node_reports_variables_as_the_user_set_them(doctor: Command, value: str | None) -> None:
    env = {name: said for name, said in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env |= {"LD_LIBRARY_PATH": value} if value else {}
    ended = doctor("check", "known-versions", "--simulate", "healthy-cuda", "--json", env=env)
    facts = {fact["name"]: fact["value"] for fact in json.loads(ended.stdout)["inventory"]}
    assert facts.get("env:LD_LIBRARY_PATH") == value


def test_other_file_is_one_line(doctor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    ended = doctor("report", "README.md", "--format", "junit")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("gpuipc-doctor: README.md: this is not JSON: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.full
@pytest.mark.hip
def test_kept_logs_of_waiting_name_the_check(doctor: Command, tmp_path: Path) -> None:
    """Only a process that opens an AMD GPU can read its used memory, so waiting has its own logs."""
    where = ["--simulate", "healthy-hip", "--device", "hip:0", "--keep-logs", str(tmp_path / "logs")]
    assert doctor("check", "ipc-release", *where).returncode == 0
    names = [path.name for path in (tmp_path / "logs").iterdir() if "quiet" in path.name]
    before = {"anybody", "ipc-release"}
    assert {word for word in before for name in names if f"quiet-before-{word}" in name} == before


@pytest.mark.full
@pytest.mark.cuda
def test_roles_wait_until_the_first_has_seen_an_idle_device(doctor: Command, tmp_path: Path) -> None:
    where = ["--simulate", "healthy-cuda", "--device", "cuda:0", "--keep-logs", str(tmp_path / "logs")]
    assert doctor("check", "ipc-release", *where).returncode == 0
    probes = list((tmp_path / "logs").glob("*-ipc-release-cuda-0-*"))
    assert len(probes) == 2
    for probe in probes:
        exporter, importer = (
            [json.loads(line) for line in (probe / f"{role}.journal").read_text().splitlines()]
            for role in ("exporter", "importer")
        )
        seen_at = next(at for at, line in enumerate(exporter) if line.get("name") == "baselines")
        assert "cuDevicePrimaryCtxRetain" not in {line.get("operation") for line in exporter[:seen_at]}
        began = next(line["at"] for line in importer if line.get("operation") == "cuDevicePrimaryCtxRetain")
        assert began > exporter[seen_at - 1]["at"]
