"""``gpuipc-doctor explain``: what a check, known issue, message, finding key, word or error code means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from gpuipc_doctor import knownissues
from gpuipc_doctor.api import Check, loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.files import tables
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.knownissues.issue_content import message_page, page
from gpuipc_doctor.knownissues.questions import Entry, Question, ask
from gpuipc_doctor.present.terminal import COLUMNS
from gpuipc_doctor.present.text import sanitise, wrap
from gpuipc_doctor.report import exits
from gpuipc_doctor.run import check_files, finding_keys
from gpuipc_doctor.simulator import profile, vocabulary

TABLE = Path(__file__).with_name("explained.yaml")
MOST_ENTRIES = 8
"""Most known issues and messages that are listed for a code or a pasted line."""

_ITEM = r" *(?:[-*]|\d+\.) +"
_XID = re.compile(r"s?xid[\s:#=-]*(\d+)", re.IGNORECASE)
_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"


_GOOD_OR_BAD = {
    "PASS": "good",
    "FAIL": "bad",
    "WARN": "perhaps bad",
    "ERROR": "no answer",
    "SKIP": "not tested",
    "as-stated": "not as the site config or the comparison expects",
}
_NAMES = options.complete("checks", "issues")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="WORD...", shell_complete=_NAMES)
@options.config("Add a site's own checks and known issues.")
def command(words: tuple[str, ...], config_file: Path | None) -> None:
    """Explain a check, known issue, word, code or line of a log.

    A check: which jobs break without it, what to do, how it tests. A known issue: who is affected, symptoms,
    workarounds with their cost, sources. A message: what it means, where to look.

    \b
    Also a finding's key and a simulated node:
      explain ipc-handles.other-memory
      explain LATENT
      explain CUDA_ERROR_INVALID_HANDLE
      explain Xid 79
      explain "RuntimeError: CUDA error: invalid resource handle"
    """
    config = options.site_config(config_file)
    text = " ".join(" ".join(words).split())
    if not text:
        raise click.UsageError("name a check, a known issue, a word or a code, or paste a line of a log")
    known = known_here(config.checks_dirs, config.known_issues_dirs, options.config_again(config_file))
    answers = list(known.answers(text)) or known.shown_by(text)
    if not answers:
        say(known.nothing(text, words))
        raise SystemExit(2)
    if len(answers) > 1:
        answers.insert(0, f"{sanitise(text)!r} has {len(answers)} meanings:")
    click.echo("\n\n".join(answers))


def known_here(checks: Sequence[Path] = (), issues: Sequence[Path] = (), again: str = "") -> _Known:
    """What the package explains, and a site's directories of checks and known issues."""
    loaded = [item for item in check_files.load(checks) if isinstance(item, LoadedCheck)]
    return _Known(loaded, [*knownissues.load(issues), *knownissues.load_messages(issues)], again)


class _Known:
    """All that can be explained."""

    def __init__(self, checks: Sequence[LoadedCheck], entries: Sequence[Entry], again: str) -> None:
        self._again = again
        self.checks = {item.check.id: item for item in checks}
        self.entries = {entry.id: entry for entry in entries}
        self._table = tables.table(TABLE)
        self._words = {
            _folded(one): says for names, says in self._table["words"].items() for one in names.split(", ")
        }

    def answers(self, text: str) -> Iterator[str]:
        """What has this name, one text for each meaning."""
        name = _folded(text)
        if item := self.checks.get(name):
            yield self._check_page(item)
        if entry := self.entries.get(name):
            yield page(entry, again=self._again) if isinstance(entry, KnownIssue) else message_page(entry)
        if says := self._words.get(name, self._words.get(name.removesuffix("s"))):
            yield _fill(f"{text}: {says}")
        yield from self._key(*name.rpartition(".")[::2])
        if name in profile.names():
            described = f"{name} (simulated node): {profile.load(name).description}"
            yield f"{_fill(described)}\n  gpuipc-doctor check --all --simulate {name}"
        yield from self._codes(text)
        if xid := _XID.fullmatch(text) or re.fullmatch(r"(\d+)", text):
            yield from self._xid(xid[1], is_named=not text.isdigit())

    def _check_page(self, item: LoadedCheck) -> str:
        told = inspect.getdoc(loader.module(item.file)) or "(the check's file has no docstring)"
        breaks, do, *source = self._table["checks"].get(item.check.id, ("", ""))
        issues = [entry for entry in self.entries.values() if isinstance(entry, KnownIssue)]
        return "\n".join(
            [
                *wrap(f"{item.check.id}: {item.check.title}", COLUMNS),
                "",
                *(wrap(breaks, COLUMNS, "breaks    ") if breaks else ()),
                *(wrap(do, COLUMNS, "do        ", to_copy=True) if do else ()),
                *(wrap(source[0], COLUMNS, "source    ", to_copy=True) if source else ()),
                *[""] * bool(breaks),
                *_reflowed(told),
                "",
                *(
                    line
                    for name, text in facts(item.check, issues)
                    for line in wrap(text, COLUMNS, f"{name:10}")
                ),
                f"file      {item.file}",
            ]
        )

    def _key(self, check: str, key: str) -> Iterator[str]:
        """What a finding with this key says, and of which checks; ``check`` may be empty."""
        rows = {
            id_: says
            for id_, item in self.checks.items()
            if check in ("", id_) and (says := finding_keys.sentences(item.file).get(key)) is not None
        }
        of_any = self._table["keys"].get(key) or finding_keys.shared_sentences().get(key, "")
        meaning = self._table["keys"].get(key) or next(filter(None, rows.values()), of_any)
        if meaning and (rows or (check in ("", *self.checks))):
            is_bad = "good" not in self._status(key)
            yield "\n".join(
                [
                    *wrap(f"{key}: {self._status(key)}: {meaning}", COLUMNS, "", "  "),
                    *(wrap(", ".join(rows), COLUMNS, "  checks: ") if rows else ()),
                    *["  In the report, the figures are below the finding, and Do: says what to do."]
                    * is_bad,
                ]
            )

    def _status(self, key: str) -> str:
        """Whether a finding with this key is good or bad, and its statuses."""
        status = next(each for each, keys in self._table["statuses"].items() if key in keys.split(", "))
        word = _GOOD_OR_BAD[status.partition(",")[0]]
        return (
            word
            if status == "as-stated"
            else f"{word} ({status.replace(', as-stated', '').replace(', ', ' or ')})"
        )

    def _codes(self, text: str) -> Iterator[str]:
        """Error codes of drivers and NCCL with this name or number, and exit codes of this tool."""
        name = text.casefold()
        for number, (says, names) in codes().items():
            if name in (str(number), *map(str.casefold, names)):
                yield "\n".join(
                    [
                        _fill(f"{number} (CUDA, HIP): {says}"),
                        *wrap(", ".join(names), COLUMNS, "  "),
                        *self._with(names),
                    ]
                )
        for result, (number, says) in self._table["nccl"].items():
            if name in (result.casefold(), f"nccl {number}", f"nccl error {number}"):
                yield "\n".join([_fill(f"{result} (NCCL and RCCL, {number}): {says}"), *self._with([result])])
        for code, says in exits.MEANINGS.items():
            if name in (str(code.value), f"exit {code.value}", f"exit code {code.value}"):
                yield _fill(f"exit code {code.value} of gpuipc-doctor check: {says}")

    def _xid(self, number: str, is_named: bool) -> Iterator[str]:
        if found := self._search(f"NVRM: Xid (PCI:0000:01:00): {number}, pid=1, name=a.out"):
            yield "\n".join(
                [f"Xid {number}, an error of an NVIDIA GPU in the kernel log:", *self._listed(found)]
            )
        elif is_named:
            yield f"Xid {number} is not in the database; NVIDIA's catalogue: {_CATALOGUE}"

    def _with(self, names: Iterable[str]) -> Iterator[str]:
        """The known issues and messages that show an error with one of these names."""
        names = list(names)
        found = {entry.id: entry for name in names for entry in self._search(f"error: {name}")}
        for name in names:
            found |= {
                answer.entry.id: answer.entry for answer in ask(Question((name,)), self.entries.values())
            }
        if found:
            yield "Known issues and messages with it (gpuipc-doctor diagnose LOG says which):"
            yield from self._listed(list(found.values()))

    def _listed(self, entries: Sequence[Entry]) -> Iterator[str]:
        for entry in entries[:MOST_ENTRIES]:
            yield from wrap(f"{entry.id}: {entry.title}", COLUMNS, "  ", "    ")
        if (left := len(entries) - MOST_ENTRIES) > 0:
            yield f"  and {left} more"
        yield f"  More: gpuipc-doctor explain {entries[0].id}{self._again}"

    def shown_by(self, text: str) -> list[str]:
        """What a pasted line of a log shows, as `diagnose` finds it; nothing if the line is unknown."""
        found = self._search(text)
        if len(found) == 1:
            return next([one] for one in self.answers(found[0].id))
        return ["\n".join(["The line is known as:", *self._listed(found)])] if found else []

    def _search(self, line: str) -> list[Entry]:
        """The entries that `diagnose` recognises in a line, most severe first."""
        examination = Examination(self.entries.values())
        log = examination.log("line")
        log.feed(line.encode(errors="replace") + b"\n")
        log.flush()
        return [one.issue for one in examination.conclude(()).recognised]

    def nothing(self, text: str, words: Sequence[str]) -> str:
        """One line for what has no meaning here: the nearest names, or where to look."""
        shown = f"nothing known has the name or shows the line {sanitise(text)[:100]!r}"
        if Path(text).is_file():
            return f"{sanitise(text)} is a file; to search it, run `gpuipc-doctor diagnose {sanitise(text)}`"
        names = {_folded(name): name for name in self.names()}
        parts = [word for word in words if _folded(word) in names]
        check = text.partition(".")[0]
        if check in self.checks:  # a mistyped key of it
            keys = finding_keys.of_check(self.checks[check].file)
            names |= {f"{check}.{key}": f"{check}.{key}" for key in keys}
        near = sorted(parts, key=len, reverse=True) or [
            names[one] for one in get_close_matches(_folded(text), names, n=3, cutoff=0.7)
        ]
        if near:
            others = f" or {', '.join(map(repr, near[1:]))}?" if near[1:] else ""
            return f"{shown}; did you mean {near[0]!r}?{others}"
        return (
            f"{shown}; `gpuipc-doctor list{self._again}` names the checks, `gpuipc-doctor known-issues list "
            f"WORD{self._again}` searches the known issues, `gpuipc-doctor diagnose LOG{self._again}` reads "
            "a whole log"
        )

    def names(self) -> list[str]:
        """All names that can be explained, but for the keys."""
        words = [one for names in self._table["words"] for one in names.split(", ")]
        of_codes = [name for _, names in codes().values() for name in names]
        return [*self.checks, *self.entries, *words, *of_codes, *self._table["nccl"], *profile.names()]


def codes() -> Mapping[int, tuple[str, list[str]]]:
    """Number → (meaning, names) of the errors of CUDA and HIP."""
    found = {number: (says, list(names.values())) for number, says, names in vocabulary.described_errors()}
    more: Mapping[int, Sequence[Any]] = tables.table(TABLE)["codes"]
    for number, (says, *names) in more.items():
        meaning, others = found.get(number, (says, []))
        found[number] = meaning, [*others, *names]
    return dict(sorted(found.items()))


def _folded(text: str) -> str:
    """A name as it is compared: in any case, with underscores, spaces or hyphens."""
    return text.casefold().replace("_", "-").replace(" ", "-")


def _fill(text: str) -> str:
    return "\n".join(wrap(text, COLUMNS, "", "  ", to_copy=True))


def facts(check: Check, issues: Iterable[KnownIssue]) -> Iterator[tuple[str, str]]:
    """(name, text) of what a check's page has beside the docstring: its tier, needs and known issues."""
    yield "tier", check.tier.label
    needs = [*sorted(check.requires), *["an MPI library that accepts device pointers"] * check.needs_mpi]
    needs += ["CuPy or PyTorch"] * check.needs_allocators
    yield "requires", ", ".join(needs) or "nothing"
    found = ", ".join(issue.id for issue in issues if check.id in issue.checks) or "no known issue"
    yield "detects", "every known issue with versions" if check.id == loader.VERSIONS else found


def _reflowed(text: str) -> Iterator[str]:
    """Paragraphs and list items in lines of 80 columns; indented paragraphs stay as they are."""
    for number, paragraph in enumerate(re.split(r"\n(?: *\n)+", text)):
        if number:
            yield ""
        for part in re.split(rf"\n(?={_ITEM})", paragraph):
            mark = item.group() if (item := re.match(_ITEM, part)) else ""
            if part.startswith(" ") and not mark:
                yield part
            else:
                yield from wrap(part.removeprefix(mark), COLUMNS, mark)
