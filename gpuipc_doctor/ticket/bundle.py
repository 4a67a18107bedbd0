"""The files that belong to a ticket, in one archive."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Callable, Container, Mapping
from importlib.util import find_spec
from pathlib import Path

from gpuipc_doctor.files import reading
from gpuipc_doctor.job import document, job_content
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import json_documents, node_exports, report_json
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.ticket import answers
from gpuipc_doctor.ticket.subject import Subject

MOST_BYTES = 64 << 20
"""Maximum bytes of one file; larger files are omitted."""

MOST_TOTAL = 1 << 30
"""Maximum bytes of all log files together."""

DIRECTORY = "gpuipc-doctor-ticket"

Members = dict[str, bytes]
"""File name → contents."""


def of_documents(subject: Subject) -> tuple[Members, dict[str, str]]:
    """(the documents by file name, the missing files with their reasons)."""
    members: Members = {}
    absent: dict[str, str] = {}
    for number, each in enumerate((subject.about, *subject.also)):
        is_report = isinstance(each, Report)
        stem = "report" if is_report else "job"
        name = stem if number == 0 else f"{stem}-{number + 1}"
        text = report_json.dumps(each) if isinstance(each, Report) else document.dumps(each)
        members[f"{name}.json"] = text.encode()
        if find_spec("jinja2"):
            page = node_exports.html(each) if isinstance(each, Report) else job_content.html(each)
            members[f"{name}.html"] = page.encode()
        else:
            absent[f"{name}.html"] = "jinja2 is not installed: pip install jinja2"
    if subject.before:
        members["earlier-report.json"] = report_json.dumps(subject.before).encode()
    facts = subject.inventory or tuple(fact for report in subject.reports[:1] for fact in report.inventory)
    if facts:
        members["inventory.json"] = json_documents.dumps({"facts": json_documents.encode(facts)}).encode()
    else:
        absent["inventory.json"] = "run gpuipc-doctor inventory --json > i.json, then add --also i.json"
    for name, frames in subject.stacks.items():
        file = re.sub(r"[^\w.-]+", "-", name).strip("-")[:100]
        members[f"stacks/{file}.txt"] = ("\n".join(frames) + "\n").encode()
    if not subject.stacks:
        absent["stacks"] = "no process in the documents has a stack"
    if program := answers.source(subject):
        members["reproducer.c"] = program.encode()
    else:
        absent["reproducer.c"] = "no C program exists for this failure"
    return members, absent


def of_directory(directory: Path, without: Container[str] = ()) -> tuple[Members, dict[str, str]]:
    """(regular files below a directory by relative path, omitted files with the reasons). Raises `OSError`.

    ``without``: names of directories that are not read.

    Links are not followed: their targets may belong to another user.
    """
    members: Members = {}
    absent: dict[str, str] = {}
    left = MOST_TOTAL

    def fail(error: OSError) -> None:
        raise error

    for root, directories, files, fd in os.fwalk(directory, onerror=fail):
        directories[:] = sorted(each for each in directories if each not in without)
        for file in sorted(files):
            name = os.path.relpath(os.path.join(root, file), directory)  # noqa: PTH118 - bytes of any name
            try:
                content = reading.read(file, MOST_BYTES, within=fd, follow=False)
            except reading.Unreadable as reason:
                absent[name] = str(reason)
                continue
            if len(content) <= left:
                members[name] = content
                left -= len(content)
            else:
                absent[name] = f"more than {MOST_TOTAL >> 30} GiB in all"
    return members, absent


def passed(subject: Subject, run: Report) -> set[str]:
    """The logs' directories of the run's probes that say nothing of the failure; none if nothing failed."""
    good = (Status.PASS, Status.SKIP)
    needed = {one.logs for each in subject.reports for one in each.results if one.finding.status not in good}
    return {result.logs for result in run.results} - needed - {""} if needed else set()


def is_text(content: bytes) -> bool:
    """Whether the contents are text, in which names can be replaced."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def rewritten(members: Mapping[str, bytes], rewrite: Callable[[str], str]) -> tuple[Members, dict[str, str]]:
    """(text files with rewritten names and contents, other files with the reasons for omitting them)."""
    texts = {
        rewrite(name): rewrite(content.decode()).encode()
        for name, content in members.items()
        if is_text(content)
    }
    return texts, {
        rewrite(name): "is not text, so it cannot be anonymised"
        for name, content in members.items()
        if not is_text(content)
    }


def pack(members: Mapping[str, bytes], compress: Callable[[bytes], bytes]) -> bytes:
    """The archive, without owner names."""
    packed, now = io.BytesIO(), int(time.time())
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{DIRECTORY}/{name}")
            info.size, info.mtime, info.mode = len(content), now, 0o644
            archive.addfile(info, io.BytesIO(content))
    return compress(packed.getvalue())
