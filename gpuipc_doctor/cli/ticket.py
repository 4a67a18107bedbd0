"""``report --format ticket``: write a bug report, and the files that go with it."""

from __future__ import annotations

import importlib
import json
import os
import pwd
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from gpuipc_doctor import node_name
from gpuipc_doctor.cli import options, saved
from gpuipc_doctor.cli.stdio import can_redraw, redraw
from gpuipc_doctor.diagnose.decompress import ZSTD
from gpuipc_doctor.files import yamlfile
from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.writing import OutputFile
from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.model import Fact
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.ticket import anonymise, components, ticket_content
from gpuipc_doctor.ticket import bundle as archive
from gpuipc_doctor.ticket.anonymise import GENERIC_USERS, Names, Pseudonyms
from gpuipc_doctor.ticket.bundle import is_text
from gpuipc_doctor.ticket.subject import Subject

T = TypeVar("T")

_SUFFIXES = (".tar.zst", ".tar.gz")


def write(
    ctx: click.Context,
    file: Path,
    *,
    component: str | None,
    checks: tuple[str, ...],
    also: tuple[Path, ...],
    before: Path | None,
    add: tuple[Path, ...],
    logs: Path | None,
    bundle: Path | None,
    anonymise: bool,
    words: tuple[str, ...],
) -> None:
    """Print the bug report, and write its bundle. Raises `click.UsageError` and `BadFile`."""
    if words and not anonymise:
        raise click.UsageError("--hide needs --anonymise", ctx)
    if logs and not bundle:
        raise click.UsageError("--logs needs --bundle", ctx)
    about = saved.report_or_job(file)
    subject = _subject(about, checks, also, before)
    goes_to = components.load()[component] if component else components.concerned(subject)
    added = {path.name: yamlfile.content(path, archive.MOST_BYTES) for path in add}
    kept: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    beside = 0
    if logs:
        with options.naming_option("--logs", f"cannot read {logs}"):
            passed = archive.passed(subject, about) if isinstance(about, Report) else ()
            kept, left_out = archive.of_directory(logs, passed)
            beside = sum((logs / each).is_dir() for each in passed)
    compress, place = _place(bundle) if bundle else (None, None)
    if anonymise:
        if unfit := [name for name, content in added.items() if not archive.is_text(content)]:
            raise click.UsageError(
                f"{unfit[0]} is not text, so it cannot be anonymised: omit --add or --anonymise", ctx
            )
        pseudonyms = _pseudonyms(subject, [*added.values(), *kept.values()], words)
        subject = pseudonyms.of(subject)
        added, _ = archive.rewritten(added, pseudonyms.text)
        kept, unfit_logs = _without_names(kept, pseudonyms)
        left_out = pseudonyms.of(left_out) | unfit_logs
    subject = replace(subject, files=tuple(added))
    if compress is None or place is None:
        click.echo(ticket_content.ticket(subject, goes_to), nl=False)
        return
    members, absent = archive.of_documents(subject)
    members |= {f"attached/{name}": content for name, content in added.items()}
    members |= {f"logs/{name}": content for name, content in kept.items()}
    absent |= {f"logs/{name}": why for name, why in left_out.items()}
    if beside:
        absent[f"logs of {counted(beside, 'probe')}"] = "passed or skipped"
    if not logs:
        absent["logs"] = "to add logs and journals, run check --keep-logs DIR, then add --logs DIR"
    said = [f"In the bundle: {', '.join(_folded(members))}."]
    said += [f"Not in the bundle: {name}: {why}" for name, why in absent.items()]
    text = ticket_content.ticket(subject, goes_to, said)
    with options.naming_option("--bundle", f"cannot write {bundle}"):
        place.write(archive.pack({"ticket.md": text.encode(), **members}, compress))
    click.echo(text, nl=False)


def _subject(
    about: Report | JobReport, checks: tuple[str, ...], also: tuple[Path, ...], before: Path | None
) -> Subject:
    if checks:
        if not isinstance(about, Report):
            raise click.BadParameter("the report of a job has no checks", param_hint="--check")
        about = _narrowed(about, checks)
    documents: list[Report | JobReport] = []
    facts: list[Fact] = []
    for path in also:
        if saved.is_inventory(path):
            facts += saved.inventory(path)
        else:
            documents.append(saved.report_or_job(path))
    return Subject(about, tuple(documents), tuple(facts), saved.report(before) if before else None)


def _narrowed(report: Report, checks: tuple[str, ...]) -> Report:
    known = {check.id for check in report.checks}
    for check in checks:
        if check not in known:
            meant = did_you_mean(check, known)
            raise click.BadParameter(f"no check {check!r} in the report{meant}", param_hint="--check")
    return replace(
        report,
        checks=tuple(each for each in report.checks if each.id in checks),
        results=tuple(each for each in report.results if each.check in checks),
    )


def _place(path: Path) -> tuple[Callable[[bytes], bytes], OutputFile]:
    """The compressor for the path's suffix, and the file to write. Raises `click.BadParameter`."""
    if not path.name.endswith(_SUFFIXES):
        raise click.BadParameter(
            f"{path.name!r} does not end in {' or '.join(_SUFFIXES)}", param_hint="--bundle"
        )
    if os.path.lexists(path):
        raise click.BadParameter(f"{path} exists; name a new file", param_hint="--bundle")
    try:
        module = importlib.import_module("gzip" if path.suffix == ".gz" else ZSTD)
    except ImportError:
        raise click.BadParameter(
            f".tar.zst needs Python's {ZSTD}: pip install backports.zstd, or name a .tar.gz",
            param_hint="--bundle",
        ) from None
    with options.naming_option("--bundle", f"cannot write {path}"):
        return module.compress, OutputFile(path)


def _pseudonyms(subject: Subject, files: list[bytes], words: tuple[str, ...]) -> Pseudonyms:
    """Pseudonyms for this node's names and for names in the documents and files."""
    known = (subject.about, *subject.also, *([subject.before] if subject.before else []))
    texts = [json.dumps(json_documents.encode(document), ensure_ascii=False) for document in known]
    texts += [content.decode() for content in files if is_text(content)]
    return anonymise.Pseudonyms(
        anonymise.names(known, subject.inventory, _names_here(words)),
        _counted(texts, len(texts), "names looked for in"),
    )


def _without_names(logs: dict[str, bytes], pseudonyms: Pseudonyms) -> tuple[dict[str, bytes], dict[str, str]]:
    """The logs with pseudonyms, and those that cannot have any, with the reason."""
    kept, left_out = dict[str, bytes](), dict[str, str]()
    for name, content in _counted(logs.items(), len(logs), "names replaced in"):
        readable, unfit = archive.rewritten({name: content}, pseudonyms.text)
        kept |= readable
        left_out |= unfit
    return kept, left_out


def _counted(files: Iterable[T], number: int, what: str) -> Iterator[T]:
    """The files, and on a terminal how many have been read: a thousand long logs take a minute."""
    for done, file in enumerate(files, 1):
        if can_redraw(sys.stderr):
            redraw(f"{what} {done}/{number} files", last=done == number)
        yield file


def _names_here(words: tuple[str, ...]) -> Names:
    users = {os.environ.get(name, "") for name in ("LOGNAME", "SUDO_USER", "USER")}
    with suppress(KeyError):
        users.add(pwd.getpwuid(os.getuid()).pw_name)
    # People's accounts: those of the system have lower numbers (login.defs(5)), and 65534 is nobody's.
    users |= {
        each.pw_name for each in pwd.getpwall() if 1000 <= each.pw_uid != 65534 and len(each.pw_name) > 2
    }
    users -= GENERIC_USERS
    return Names(
        hosts=frozenset({node_name.short()}), users=frozenset(users), words=frozenset(filter(None, words))
    )


def _folded(members: dict[str, bytes]) -> list[str]:
    """Names of the files; for each directory, its name and the number of files in it."""
    names = [name for name in members if "/" not in name]
    for directory in dict.fromkeys(name.partition("/")[0] for name in members if "/" in name):
        names.append(f"{directory} ({len([name for name in members if name.startswith(directory + '/')])})")
    return names
