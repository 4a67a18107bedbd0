"""Archives of logs, tar and zip: read a block at a time and in memory only; nothing is unpacked to a disk."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, cast

from gpuipc_doctor.diagnose.decompress import RawBlocks, Unreadable

MOST_FILES = 4096
"""Files of one archive that are read."""
MOST_BYTES = 1 << 34
"""Bytes of one archive's files that are read: a few kB of an archive can hold any number of them."""
_PIECE = 1 << 14
"""Bytes read at once; as many are lost before damage."""
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
    """The regular files of a tar archive; links, devices and sparse files are passed over."""
    raw = cast("IO[bytes]", RawBlocks(begin, rest))
    with (
        _damage_named("tar"),
        tarfile.open(fileobj=raw, mode="r|", tarinfo=_BoundedHeader, errorlevel=1) as archive,
    ):
        files = (one for one in archive if one.isreg() and not one.issparse())
        yield from _bounded("tar", ((one.name, cast("IO[bytes]", archive.extractfile(one))) for one in files))


def zip_members(file: IO[bytes]) -> Iterator[Member]:
    """The files of a zip archive."""
    with _damage_named("zip"), zipfile.ZipFile(file) as archive:
        files = (one for one in archive.infolist() if not one.is_dir())
        yield from _bounded("zip", ((one.filename, archive.open(one)) for one in files))


@contextlib.contextmanager
def _damage_named(form: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise Unreadable(f"has damaged {form} data; what is before that was looked at ({error})") from None
    except RuntimeError as error:  # encrypted, or compressed in a way that Python cannot read
        raise Unreadable(f"cannot be read any further: {error}") from None


def _bounded(form: str, files: Iterable[tuple[str, IO[bytes]]]) -> Iterator[Member]:
    left = MOST_BYTES

    def blocks(file: IO[bytes]) -> Iterator[bytes]:
        nonlocal left
        with _damage_named(form):
            while left > 0 and (block := file.read(min(_PIECE, left))):
                left -= len(block)
                yield block

    for number, (name, file) in enumerate(files):
        if number == MOST_FILES:
            raise Unreadable(f"holds more than {MOST_FILES} files; the rest was not looked at")
        yield Member(name, blocks(file))
        if not left:
            raise Unreadable(f"holds more than {MOST_BYTES} bytes; the rest was not looked at")


class _BoundedHeader(tarfile.TarInfo):
    """A header that Python's tarfile may read into memory as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        if header.type in _LONG_HEADERS and header.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header
