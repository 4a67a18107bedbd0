"""The package's own tables: YAML files next to the module that reads them.

Reading YAML takes 0.2 s for each MiB, so a table is also stored in compiled form, as Python does with a
module: below ``__pycache__``, by the first process that may write there. The compiled form is used only while
the YAML file is unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from gpuipc_doctor.files import reading

DIGEST_BYTES = 16
"""Bytes of a digest, by which a torn or outdated compiled form is recognised. All users can compute it, so a
compiled form counts only if the source's owner, root or this user owns it and no other user can write it."""

STORED = "tables"
"""Directory of compiled forms, in ``__pycache__``, which Python may have made writable for others."""

MAX_BYTES = 64 << 20


@cache
def table(file: Path) -> Any:
    """Contents of one of the package's YAML files, read once and not validated."""
    return compiled(file, [file], lambda: _read(file))


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a vendor does or allows in one case, and the source that says so."""

    value: str
    source: str


@cache
def rulings(file: Path, cases: str) -> Mapping[str, Mapping[str, Ruling]]:
    """Case → backend, or generation of its runtime → ruling: the key ``cases`` of a package's file."""
    data = table(file)
    return {
        case: {on: Ruling(value, source.format_map(data["sources"])) for on, (value, source) in said.items()}
        for case, said in data[cases].items()
    }


def _read(file: Path) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with file.open(encoding="utf-8") as opened:
        return yaml.load(opened, loader)  # noqa: S506 - both are safe loaders


def compiled(name: Path, files: Sequence[Path], read: Callable[[], Any]) -> Any:
    """The result of ``read`` for these files, from its compiled form if there is one.

    ``name``: path after which the compiled form is named. Raises `OSError` if a file cannot be read.
    """
    place = Path(cache_from_source(str(name)))
    place = place.parent / STORED / place.with_suffix(".marshal").name
    sources = _digest(*(part for file in files for part in (file.name.encode(), file.read_bytes())))
    may_own = {0, os.geteuid(), name.parent.stat().st_uid}
    with contextlib.suppress(Exception):  # whatever is odd about the compiled form: the source is there
        content = _read_stored(place, may_own)
        value = content[2 * DIGEST_BYTES :]
        if content[: 2 * DIGEST_BYTES] == sources + _digest(value):
            return marshal.loads(value)  # noqa: S302 - written by whoever may write the source
    found = read()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, ValueError):  # no permission, or a type that marshal does not have
            value = marshal.dumps(found)
            _store(place, sources + _digest(value) + value, may_own)
    return found


def _read_stored(place: Path, may_own: Collection[int]) -> bytes:
    """Contents of a compiled form. Raises `OSError`, `reading.Unreadable`."""
    with (
        _directory(place.parent, may_own) as directory,
        reading.opened(place.name, within=directory, follow=False) as fd,
    ):
        _require_ours(fd, may_own)
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES)


def _store(place: Path, content: bytes, may_own: Collection[int]) -> None:
    """Write a compiled form that only this user can change. Raises `OSError`."""
    from gpuipc_doctor.files import writing

    for directory in (place.parent.parent, place.parent):  # whatever the umask is
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o755)
    with _directory(place.parent, may_own) as within:
        writing.replace_within(within, place.name, content, 0o644)


@contextlib.contextmanager
def _directory(path: Path, may_own: Collection[int]) -> Iterator[int]:
    fd = reading.open_directory(path)
    try:
        _require_ours(fd, may_own)
        yield fd
    finally:
        os.close(fd)


def _require_ours(fd: int, may_own: Collection[int]) -> None:
    """Raise `PermissionError` if a user who cannot change the source could change this file or directory."""
    status = os.fstat(fd)
    if status.st_uid not in may_own or status.st_mode & 0o022:
        raise PermissionError


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def frozen(data: Mapping[str, Any], *other: str) -> dict[str, Any]:
    """The mapping without the keys ``other``, and with tuples in place of lists."""
    return {
        name: tuple(said) if isinstance(said, list) else said
        for name, said in data.items()
        if name not in other
    }
