"""Archives of logs, tar and zip: read in blocks and in memory only; nothing is unpacked to disk."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, cast

from gpuipc_doctor.diagnose.decompress import RawBlocks, Unreadable

MOST_FILES = 4096
"""Maximum files read from one archive."""
MOST_BYTES = 1 << 34
"""Maximum bytes read from one archive: a few kB of archive can expand to any size."""
_PIECE = 1 << 14
"""Bytes read at a time. If data is damaged, this many bytes before the damage are lost."""
_LONGEST_HEADER = 1 << 20
_LONG_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Member(NamedTuple):
    name: str
    blocks: Iterator[bytes]


def is_tar(sample: bytes) -> bool:
    return sample[257:262] == b"ustar"


def is_zip(sample: bytes) -> bool:
    return sample.startswith(b"PK\3\4")


def tar_members(begin: bytes, rest: Iterable[bytes | None]) -> Iterator[Member]:
    """Regular files of a tar archive; links and devices are skipped."""
    raw = cast("IO[bytes]", RawBlocks(begin, rest))
    with (
        _damage_named("tar"),
        tarfile.open(fileobj=raw, mode="r|", tarinfo=_BoundedHeader, errorlevel=1) as archive,
    ):
        files = (member for member in archive if member.isreg())
        yield from _bounded(
            "tar", ((file.name, None if file.issparse() else archive.extractfile(file)) for file in files)
        )


def zip_members(file: IO[bytes]) -> Iterator[Member]:
    """The files of a zip archive."""
    with _damage_named("zip"), zipfile.ZipFile(file) as archive:
        files = (member for member in archive.infolist() if not member.is_dir())
        yield from _bounded("zip", ((member.filename, archive.open(member)) for member in files))


@contextlib.contextmanager
def _damage_named(form: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise Unreadable(f"has damaged {form} data; only its beginning was read ({error})") from None
    except MemoryError:
        raise Unreadable(f"is {form} data that needs too much memory; only its beginning was read") from None
    except RuntimeError as error:  # encrypted, or compressed in a way that Python does not support
        raise Unreadable(f"cannot be read further: {error}") from None


def _bounded(form: str, files: Iterable[tuple[str, IO[bytes] | None]]) -> Iterator[Member]:
    """The files, up to the limits. A sparse file is given as None, and not read."""
    left = MOST_BYTES

    def blocks(file: IO[bytes] | None) -> Iterator[bytes]:
        nonlocal left
        if file is None:
            raise Unreadable("is a sparse file; not read")
        with _damage_named(form):
            while left > 0 and (block := file.read(min(_PIECE, left))):
                left -= len(block)
                yield block

    for number, (name, file) in enumerate(files):
        if number == MOST_FILES:
            raise Unreadable(f"holds more than {MOST_FILES} files; the rest was not read")
        yield Member(name, blocks(file))
        if not left:
            raise Unreadable(f"holds more than {MOST_BYTES} bytes; the rest was not read")


class _BoundedHeader(tarfile.TarInfo):
    """A header of a tar archive, refused if tarfile would read too much of it into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        if header.type in _LONG_HEADERS and header.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size} bytes, more than {_LONGEST_HEADER}")
        return header
