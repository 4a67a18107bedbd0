"""The known issues of the package and of a site, and mistakes in their files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path

from gpuipc_doctor import tables
from gpuipc_doctor.knownissues import mistakes
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.parse import merge, placed, read_all
from gpuipc_doctor.model import Json
from gpuipc_doctor.site import yamlfile
from gpuipc_doctor.site.yamlfile import BadFile, Document, Mistake

SHIPPED = Path(__file__).with_name("db")


def load(extra_dirs: Iterable[Path] = ()) -> tuple[KnownIssue, ...]:
    """All known issues: the package's, with a site's changes and additions.

    Raises `BadFile` with all mistakes of a site's files.
    """
    own, _, wrong = read_all(_files_in(extra_dirs))
    if not (own or wrong):
        return _shipped_issues()
    issues, clashes = merge((*shipped(), *own))
    if wrong := [*wrong, *clashes, *(mistake for document in own for mistake in _within(document))]:
        raise BadFile(wrong)
    return issues


@cache
def shipped() -> tuple[Document, ...]:
    """The shipped files, read once. Only the entries have line numbers."""
    paths = files()

    def read() -> list[tuple[Json, list[int]]]:
        documents, _, wrong = read_all(paths, _is_shipped)
        if wrong:
            raise BadFile(wrong)
        return [(document.data, document.lines("issues")) for document in documents]

    found = tables.compiled(SHIPPED / "issues.yaml", paths, read)
    return tuple(
        Document.with_lines(path, data, "issues", lines)
        for path, (data, lines) in zip(paths, found, strict=True)
    )


@cache
def _shipped_issues() -> tuple[KnownIssue, ...]:
    issues, clashes = merge(shipped())
    if clashes:
        raise BadFile(clashes)
    return issues


def lint(
    paths: Iterable[Path],
    check_ids: Collection[str] | None = None,
    changing: Mapping[str, Collection[str]] | None = None,
    today: date | None = None,
    not_found: Callable[[Sequence[KnownIssue]], Iterable[tuple[int, int]]] | None = None,
) -> tuple[Mistake, ...]:
    """All mistakes in these files, read together with the package's.

    ``check_ids``: if given, other checks in ``detected_by`` are mistakes. ``changing``: environment variable
    → components in which it appeared, disappeared or changed; a workaround that sets such a variable must
    state the versions. Suppressions that ended before ``today`` (default: the current date) are mistakes.
    ``not_found`` searches the samples as logs, and gives (issue, signature) for each that is not found. The
    package's own signatures must state where the program prints the message, or that its source is not
    public.
    """
    paths = list(paths)
    others, _, _ = read_all((path for path in files() if path not in paths), _is_shipped)
    documents, parts, wrong = read_all(paths)
    wrong += merge([*others, *documents])[1]
    for document in (*documents, *parts):
        wrong += _within(document, check_ids, changing)
        if _is_shipped(document.path):
            wrong += [mistake for entry in placed(document) for mistake in mistakes.of_sources(entry)]
    for document in documents:
        wrong += mistakes.of_suppressions(document, today or date.today())
    if not_found and not wrong:
        entries = [entry for document in documents for entry in placed(document)]
        wrong += [
            mistakes.of_search(entries[issue], signature)
            for issue, signature in not_found([entry.issue for entry in entries])
        ]
    return tuple(sorted(wrong))


def files(extra_dirs: Iterable[Path] = ()) -> list[Path]:
    """The database's files, in reading order. Raises `BadFile`."""
    return _files_in((SHIPPED, *extra_dirs))


def _files_in(directories: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for directory in directories:
        try:
            found += sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".yml"))
        except OSError as error:
            raise BadFile([Mistake(directory, 0, f"cannot be read: {error.strerror}")]) from None
    return found


def edition(extra_dirs: Iterable[Path] = ()) -> str:
    """Twelve hexadecimal digits of a hash of the database's files."""
    digest = hashlib.sha256()
    for path in files(extra_dirs):
        digest.update(hashlib.sha256(yamlfile.content(path)).digest())
    return digest.hexdigest()[:12]


def _is_shipped(path: Path) -> bool:
    return path.parent == SHIPPED


def _within(
    document: Document,
    check_ids: Collection[str] | None = None,
    changing: Mapping[str, Collection[str]] | None = None,
) -> Iterator[Mistake]:
    for entry in placed(document):
        yield from mistakes.of_entry(entry, check_ids, changing or {})
