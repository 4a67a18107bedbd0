"""The known issues and messages of the package and of a site, and mistakes in their files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.files import tables, yamlfile
from gpuipc_doctor.files.yamlfile import BadFile, Document, Mistake
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.message import Message
from gpuipc_doctor.knownissues.parse import merge, placed, placed_messages, read_all
from gpuipc_doctor.model import Json

if TYPE_CHECKING:
    from gpuipc_doctor.knownissues.literals import Needs

SHIPPED = Path(__file__).with_name("db")
MESSAGES = Path(__file__).with_name("messages")


def load(extra_dirs: Iterable[Path] = ()) -> tuple[KnownIssue, ...]:
    """All known issues: the package's, with a site's changes and additions.

    Raises `BadFile` with all mistakes of a site's files.
    """
    own, _, wrong = read_all(_files_in(extra_dirs))
    if not (own or wrong):
        return _shipped_issues()
    issues, clashes = merge((*_shipped(SHIPPED, "issues"), *own), _other_ids())
    if wrong := [*wrong, *clashes, *(mistake for document in own for mistake in _within(document))]:
        raise BadFile(wrong)
    return issues


def load_messages(extra_dirs: Iterable[Path] = ()) -> tuple[Message, ...]:
    """All messages: the package's and a site's. A site's known issue replaces a message of the same id.

    Raises `BadFile` with all mistakes of a site's files.
    """
    own, _, wrong = read_all(_files_in(extra_dirs))
    if wrong:
        raise BadFile(wrong)
    replaced = {entry.issue.id for document in own for entry in placed(document)}
    added = [entry.message for document in own for entry in placed_messages(document)]
    return (*(message for message in _shipped_messages() if message.id not in replaced), *added)


@cache
def _shipped(directory: Path, name: str) -> tuple[Document, ...]:
    """The shipped files, read once. Only the entries have line numbers."""
    paths = _files_in([directory])

    def read() -> list[tuple[Json, list[int]]]:
        documents, _, wrong = read_all(paths, _is_shipped)
        if wrong:
            raise BadFile(wrong)
        return [(document.data, document.lines(name)) for document in documents]

    found = tables.compiled(directory / f"{name}.yaml", paths, read)
    return tuple(
        Document.with_lines(path, data, name, lines) for path, (data, lines) in zip(paths, found, strict=True)
    )


@cache
def _shipped_issues() -> tuple[KnownIssue, ...]:
    return tuple(entry.issue for document in _shipped(SHIPPED, "issues") for entry in placed(document))


@cache
def _shipped_messages() -> tuple[Message, ...]:
    documents = _shipped(MESSAGES, "messages")
    return tuple(entry.message for document in documents for entry in placed_messages(document))


def _other_ids() -> frozenset[str]:
    """Ids that a site's files may name although they are no known issues: those of messages."""
    return frozenset(message.id for message in _shipped_messages())


def known_texts(others: Iterable[str] = ()) -> Mapping[str, Mapping[bytes, Needs]]:
    """Expression → `fixed_text`, for the package's signatures and for ``others``, which are always the same.

    To compute them all takes a second, so they are stored in compiled form.
    """
    from gpuipc_doctor.knownissues import literals

    shipped = [signature for entry in _shipped_issues() for signature in entry.signatures]
    shipped += [signature for message in _shipped_messages() for signature in message.signatures]
    patterns = [*others, *(text for signature in shipped for text in signature.patterns)]
    paths = [Path(literals.__file__), *files()]

    def compute() -> dict[str, dict[bytes, Needs]]:
        return {text: dict(literals.fixed_text(text)) for text in patterns}

    found: Mapping[str, Mapping[bytes, Needs]] = tables.compiled(MESSAGES / "texts.yaml", paths, compute)
    return found


def lint(
    paths: Iterable[Path],
    check_ids: Collection[str] | None = None,
    changing: Mapping[str, Collection[str]] | None = None,
    today: date | None = None,
) -> tuple[Mistake, ...]:
    """All mistakes in these files, read together with the package's.

    ``check_ids``: if given, other checks in ``detected_by`` are mistakes. ``changing``: environment variable
    → components in which it appeared, disappeared or changed; a workaround that sets such a variable must
    state the versions. Suppressions that ended before ``today`` (default: the current date) are mistakes.
    The package's own signatures must state where the program prints the message, or that its source is not
    public.
    """
    from gpuipc_doctor.knownissues import mistakes

    paths = list(paths)
    others = [*_shipped(SHIPPED, "issues"), *_shipped(MESSAGES, "messages")]
    if any(map(_is_shipped, paths)):
        others = read_all((path for path in files() if path not in paths), _is_shipped)[0]
    documents, parts, wrong = read_all(paths)
    wrong += merge([*others, *documents], _other_ids())[1]
    wrong += mistakes.of_ids([*others, *documents])
    for document in (*documents, *parts):
        wrong += _within(document, check_ids, changing)
        if _is_shipped(document.path):
            wrong += mistakes.of_place(document, "messages" if document.path.parent == MESSAGES else "issues")
    for document in documents:
        wrong += mistakes.of_suppressions(document, today or date.today())
    return tuple(sorted(wrong))


def files(extra_dirs: Iterable[Path] = ()) -> list[Path]:
    """The database's files, in reading order. Raises `BadFile`."""
    return _files_in((SHIPPED, MESSAGES, *extra_dirs))


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
    return path.parent in (SHIPPED, MESSAGES)


def _within(
    document: Document,
    check_ids: Collection[str] | None = None,
    changing: Mapping[str, Collection[str]] | None = None,
) -> Iterator[Mistake]:
    from gpuipc_doctor.knownissues import mistakes  # a node without a site's own entries needs no lint

    for entry in placed(document):
        yield from mistakes.of_entry(entry, check_ids, changing or {})
        if check_ids is not None:  # a site's file with an unknown fact goes on loading
            yield from mistakes.of_facts(entry)
    for message in placed_messages(document):
        yield from mistakes.of_message(message)
        if check_ids is not None:
            yield from mistakes.of_facts(message)
