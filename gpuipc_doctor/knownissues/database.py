"""The known issues of the package and those of a site, and what is wrong with their files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from pathlib import Path

from gpuipc_doctor.knownissues import mistakes
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.parse import merge, placed, read_all
from gpuipc_doctor.site.yamlfile import BadFile, Document, Mistake

SHIPPED = Path(__file__).with_name("db")


def load(extra_dirs: Iterable[Path] = ()) -> tuple[KnownIssue, ...]:
    """All known issues: those that come with the package, changed and added to by a site's own files.

    Raises `BadFile` with every mistake of a site's files.
    """
    own, _, wrong = read_all(_files_in(extra_dirs))
    issues, clashes = merge((*shipped(), *own))
    if wrong := [*wrong, *clashes, *(mistake for document in own for mistake in _within(document))]:
        raise BadFile(wrong)
    return issues


@cache
def shipped() -> tuple[Document, ...]:
    """The files that come with the package, which are read once."""
    documents, _, wrong = read_all(files(), _is_shipped)
    if wrong:
        raise BadFile(wrong)
    return tuple(documents)


def lint(
    paths: Iterable[Path],
    check_ids: Collection[str] | None = None,
    changing: Mapping[str, Collection[str]] | None = None,
    today: date | None = None,
) -> tuple[Mistake, ...]:
    """Every mistake in these files, beside those of the package.

    With ``check_ids``, also each check that ``detected_by`` invents. ``changing`` names the environment
    variables that came, went or changed their meaning, each with the components in which that happened: a
    workaround that sets one says in which versions. Suppressions that ended before ``today`` (by default,
    today) are to be renewed or removed, and count as mistakes. The package's own signatures say where the
    program prints the message, or that nobody can read that.
    """
    paths = list(paths)
    others, _, _ = read_all((path for path in files() if path not in paths), _is_shipped)
    documents, parts, wrong = read_all(paths)
    wrong += merge([*others, *documents])[1]
    for document in (*documents, *parts):
        wrong += _within(document, check_ids, changing)
        if _is_shipped(document.path):
            wrong += [mistake for one in placed(document) for mistake in mistakes.of_sources(one)]
    for document in documents:
        wrong += mistakes.of_suppressions(document, today or date.today())
    return tuple(sorted(wrong))


def files(extra_dirs: Iterable[Path] = ()) -> list[Path]:
    """The database's files, in the order in which they are read. Raises `BadFile`."""
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
    """Twelve hexadecimal digits that change with the database: two reports of one edition knew the same."""
    digest = hashlib.sha256()
    for path in files(extra_dirs):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _is_shipped(path: Path) -> bool:
    return path.parent == SHIPPED


def _within(
    document: Document,
    check_ids: Collection[str] | None = None,
    changing: Mapping[str, Collection[str]] | None = None,
) -> Iterator[Mistake]:
    for one in placed(document):
        yield from mistakes.of_entry(one, check_ids, changing or {})
