"""Bug reports of real runs: the bundle is opened and read; bad input is one line."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.diagnose.decompress import decompressed
from gpuipc_doctor.job import document
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import report_json
from tests.e2e.conftest import Command
from tests.sample_reports import gpus, healthy
from tests.unit.job.test_job_content import ONE_LATE
from tests.unit.ticket.sample_subjects import NVIDIA, node

GIB = 1 << 30

TICKET = ("report", "--format", "ticket")


@pytest.fixture(scope="session")
def run(doctor: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the report and the logs of a run on a simulated node with a fault."""
    directory = tmp_path_factory.mktemp("anna-flood")
    files = ["--output", str(directory / "report.json"), "--keep-logs", str(directory / "logs")]
    ended = doctor("check", "ipc-reopen", "--simulate", "nvidia-460.32.03", "--backend", "cuda", *files)
    assert ended.returncode == 12, ended.stdout + ended.stderr
    return directory


def opened(file: Path) -> dict[str, bytes]:
    raw = file.read_bytes()
    packed = b"".join(decompressed(raw[:4], iter([raw[4:]])))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = archive.getmembers()
        assert all(each.isreg() and (each.uid, each.uname) == (0, "") for each in members)
        found = {each.name: archive.extractfile(each) for each in members}
        return {name.partition("/")[2]: content.read() for name, content in found.items() if content}


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".tar.zst", ".tar.gz"])
def test_bundle_has_all_given_files(doctor: Command, run: Path, tmp_path: Path, suffix: str) -> None:
    bundle = tmp_path / f"b{suffix}"
    log = tmp_path / "nvidia-bug-report.log.gz"
    log.write_bytes(b"\x1f\x8b\0binary")
    options = ["--for", "nvidia", "--bundle", str(bundle), "--logs", str(run / "logs"), "--add", str(log)]
    ended = doctor(*TICKET, str(run / "report.json"), *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    members = opened(bundle)
    assert members["ticket.md"].decode() == ended.stdout
    assert report_json.loads(members["report.json"]) == report_json.loads((run / "report.json").read_bytes())
    assert b"<html" in members["report.html"]
    assert {"name", "value", "source"} == json.loads(members["inventory.json"])["facts"][0].keys()
    assert b"int main" in members["reproducer.c"]
    assert members["attached/nvidia-bug-report.log.gz"] == log.read_bytes()
    results = report_json.loads((run / "report.json").read_bytes()).results
    passed = {one.logs for one in results} - {
        one.logs for one in results if one.finding.status not in (Status.PASS, Status.SKIP)
    }
    files = [each.relative_to(run / "logs") for each in (run / "logs").rglob("*") if each.is_file()]
    kept = {f"logs/{each}" for each in files if each.parts[0] not in passed}
    assert {name for name in members if name.startswith("logs/")} == kept
    assert [name for name in kept if "journal" in name]
    assert "attached: nvidia-bug-report.log.gz" in ended.stdout
    assert "SIMULATED" in ended.stdout


def test_serials_reach_the_ticket_and_anonymised_no_document(doctor: Command, tmp_path: Path) -> None:
    report, log, bundle = (tmp_path / name for name in ("report.json", "dmesg.txt", "b.tar.gz"))
    ran = doctor("check", "gpu-health", "--simulate", "odd-gpu-links", "--output", str(report))
    assert ran.returncode == 12, ran.stdout + ran.stderr
    serials = ("1650123450003", "1650123450004", "1650123450005")
    log.write_text(f"board {serials[1]} fell off; replaced by SN{serials[2]}\n")
    attached = ["--add", str(log), "--also", str(report), "--before", str(report)]
    named = doctor(*TICKET, str(report), *attached)
    assert (named.returncode, named.stderr) == (0, "")
    assert "the server's maker" in named.stdout
    assert all(serial in named.stdout for serial in serials)
    assert "serial and part number" not in named.stdout.partition("Still missing")[2]
    assert "links 0-16 to" in named.stdout
    evidence = named.stdout.partition("## Evidence")[2]
    assert "- cuda:3: 17 of 18 NVLinks are active\n- gpu-health passed on cuda:0-2,4-7\n" in evidence
    hidden = doctor(*TICKET, str(report), *attached, "--anonymise", "--bundle", str(bundle))
    assert (hidden.returncode, hidden.stderr) == (0, "")
    members = opened(bundle)
    assert {"ticket.md", "report.json", "inventory.json", "attached/dmesg.txt"} <= members.keys()
    texts = [hidden.stdout, *(name + content.decode() for name, content in members.items())]
    assert not [text[:80] for text in texts for serial in serials if serial in text]
    assert all("692-2G520-0200-000" in text for text in (hidden.stdout, members["report.json"].decode()))
    assert "0000:29:00.0 links 0-16 to 0000:31:00.0" in hidden.stdout
    assert report_json.loads(members["report.json"])


def test_logs_of_passed_probes_are_left_out(doctor: Command, run: Path, tmp_path: Path) -> None:
    report = report_json.loads((run / "report.json").read_bytes())
    first, *others = [result for result in report.results if result.logs]
    good = replace(first, finding=replace(first.finding, status=Status.PASS), logs="001-passed")
    (tmp_path / "report.json").write_text(report_json.dumps(replace(report, results=(good, *others))))
    for name in ("001-passed", others[0].logs, "unknown"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "a.log").write_text("fine\n")
    bundle = tmp_path / "b.tar.gz"
    options = ["--for", "ucx", "--logs", str(tmp_path / "logs"), "--bundle", str(bundle)]
    ended = doctor(*TICKET, str(tmp_path / "report.json"), *options)
    kept = [name for name in opened(bundle) if name.startswith("logs/")]
    assert sorted(kept) == sorted(f"logs/{name}/a.log" for name in (others[0].logs, "unknown"))
    assert "Not in the bundle: logs of 1 probe: passed or skipped" in ended.stdout


@pytest.mark.full
def test_anonymised_bundle_names_neither_host_nor_path(doctor: Command, run: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar.zst"
    options = [
        "--for",
        "hpe",
        "--bundle",
        str(bundle),
        "--logs",
        str(run / "logs"),
        "--anonymise",
        "--hide",
        "flood",
    ]
    ended = doctor(*TICKET, str(run / "report.json"), *options)
    assert ended.returncode == 0, ended.stderr
    members = opened(bundle)
    report_json.loads(members["report.json"])
    host = socket.gethostname().partition(".")[0]
    for secret in (str(run), "flood", json.loads((run / "report.json").read_text())["host"]):
        assert not [name for name, content in members.items() if secret in name + content.decode()], secret
        assert secret not in ended.stdout
    assert len(host) < 4 or host not in ended.stdout


def test_links_and_special_files_among_the_logs_are_left_out(
    doctor: Command, run: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("fine\n")
    (logs / "core").write_bytes(b"\0\xff")
    (logs / "shadow").symlink_to("/etc/passwd")
    os.mkfifo(logs / "pipe")
    with (logs / "large").open("wb") as large:
        large.truncate(GIB)
    bundle = tmp_path / "b.tar.gz"
    options = ["--for", "ucx", "--logs", str(logs), "--bundle", str(bundle), "--anonymise"]
    ended = doctor(*TICKET, str(run / "report.json"), *options)
    assert [name for name in opened(bundle) if name.startswith("logs/")] == ["logs/a.log"]
    for said in (
        "logs/core: is not text",
        "logs/shadow: is a link",
        "logs/pipe: is not a regular file",
        "logs/large: is longer than 64 MiB",
    ):
        assert said in ended.stdout


def test_job_and_inventory_make_one_ticket(doctor: Command, tmp_path: Path) -> None:
    job, inventory = tmp_path / "job.json", tmp_path / "inventory.json"
    job.write_text(document.dumps(ONE_LATE))
    inventory.write_text(doctor("inventory", "--json").stdout)
    ended = doctor(*TICKET, str(job), "--for", "libfabric", "--also", str(inventory))
    assert ended.returncode == 0, ended.stderr
    assert "ranks 0-14 wait for it in MPI" in ended.stdout
    assert "kernel " in ended.stdout.partition("## Versions")[2].partition("## ")[0]


def test_ticket_of_one_check(doctor: Command, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(report_json.dumps(node(*NVIDIA)))
    assert "mpi-small-message" in doctor(*TICKET, str(file), "--for", "ucx").stdout
    fine = doctor(*TICKET, str(file), "--for", "ucx", "--check", "ipc-reopen")
    assert "mpi-small-message" not in fine.stdout


@pytest.mark.parametrize("arguments", [[], ["--for", "hpe"], ["--anonymise"]])
def test_ticket_is_a_format_of_report(doctor: Command, tmp_path: Path, arguments: list[str]) -> None:
    file = tmp_path / "r.json"
    file.write_text(report_json.dumps(node(*NVIDIA)))
    ended = doctor("report", str(file), "--format", "ticket", *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "## What fails" in ended.stdout


@pytest.mark.parametrize("option", ["--bundle=b.tar.gz", "--anonymise", "--for=ucx", "--check=ipc-reopen"])
def test_other_format_refuses_options_of_a_ticket(doctor: Command, tmp_path: Path, option: str) -> None:
    ended = doctor("report", str(whole(tmp_path)), option)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"{option.partition('=')[0]} needs --format ticket" in ended.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["whole.json"]


TORN = report_json.dumps(healthy(gpus(1)))[:2000]
WHOLE = report_json.dumps(healthy(gpus(1)))
NEWER = {
    "job": document.dumps(ONE_LATE).replace("job/2", "job/9"),
    "report": WHOLE.replace("report/2", "report/9"),
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "this is not JSON"),
        (TORN, "this is not JSON"),
        ("{}", "this is not a report"),
        ('{"schema": "gpuipc-doctor/fleet/3"}', "give a report of"),
        (NEWER["job"], "another version of gpuipc-doctor"),
        (NEWER["report"], "another version of gpuipc-doctor"),
        (b"\xff\xfe", "it is not text"),
        (None, "No such file"),
    ],
)  # fmt: skip
def test_other_file_is_one_line(
    doctor: Command, tmp_path: Path, text: str | bytes | None, words: str
) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    for arguments in (
        [str(file)],
        [str(whole(tmp_path)), "--also", str(file)],
        [str(whole(tmp_path)), "--before", str(file)],
    ):
        ended = doctor(*TICKET, *arguments, "--for", "ucx")
        assert (ended.returncode, ended.stdout) == (2, "")
        (line,) = ended.stderr.splitlines()
        assert str(file) in line
    assert words in doctor(*TICKET, str(file), "--for", "ucx").stderr


def whole(directory: Path) -> Path:
    file = directory / "whole.json"
    file.write_text(WHOLE)
    return file


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--for", "nvida"], "did you mean 'nvidia'?"),
        (["--for", "ucx", "--check", "ipc-repoen"], "in the report; did you mean 'ipc-reopen'?"),
        (["--for", "ucx", "--bundle", "b.zip"], "does not end in .tar.zst or .tar.gz"),
        (["--for", "ucx", "--bundle", "whole.tar.gz"], "exists; name a new file"),
        (["--for", "ucx", "--bundle", "nowhere/b.tar.gz"], "cannot write nowhere/b.tar.gz: No such file"),
        (["--for", "ucx", "--logs", "."], "--logs needs --bundle"),
        (["--for", "ucx", "--bundle", "b.tar.gz", "--logs", "nowhere"], "cannot read nowhere: No such file"),
        (["--for", "ucx", "--hide", "x"], "--hide needs --anonymise"),
        (["--for", "ucx", "--add", "nowhere.txt"], "nowhere.txt"),
        (["--for", "nvidia", "--anonymise", "--add", "x.log.gz"], "x.log.gz is not text"),
    ],
)  # fmt: skip
def test_wrong_usage_is_reported_and_nothing_is_left(
    doctor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.tar.gz").write_text("mine")
    (tmp_path / "x.log.gz").write_bytes(b"\x1f\x8b\0")
    before = sorted([*tmp_path.iterdir(), whole(tmp_path)])
    ended = doctor(*TICKET, "whole.json", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "whole.tar.gz").read_text() == "mine"
