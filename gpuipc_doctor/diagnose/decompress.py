"""Compressed logs, recognised by their first bytes and read in blocks, whatever their size."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuipc_doctor.files import foreign
from gpuipc_doctor.knownissues.lines import BLOCK


class Unreadable(foreign.Refused):
    """A log, or the rest of it, cannot be read; the message is one line that begins with a verb."""


class NoText(Unreadable):
    """A file of a kind that is never a log."""


def is_compressed(sample: bytes) -> bool:
    return sample.startswith(tuple(_FORMATS))


def decompressed(begin: bytes, rest: Iterable[bytes | None]) -> Iterator[bytes]:
    """The decompressed data of a log that starts with ``begin`` and continues with ``rest``. Yields the data
    before any damage, then raises `Unreadable`."""
    name, open_ = next(found for magic, found in _FORMATS.items() if begin.startswith(magic))
    file, damaged = open_(RawBlocks(begin, rest))
    try:
        while block := file.read1(BLOCK):
            yield block
    except MemoryError:
        raise Unreadable(f"is {name} data that needs too much memory; only its beginning was read") from None
    except EOFError:
        raise Unreadable(f"is truncated {name} data; only its beginning was read") from None
    except (OSError, ValueError, damaged) as error:
        raise Unreadable(f"has damaged {name} data; only its beginning was read ({error})") from None


class RawBlocks(io.RawIOBase):
    """Presents blocks as a file object to the decompressors."""

    def __init__(self, begin: bytes, rest: Iterable[bytes | None]) -> None:
        self._have = begin
        self._rest = iter(rest)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._have:
            block = next(self._rest, None)
            if block is None:
                break
            self._have = block
        taken, self._have = self._have[:size], self._have[size:]
        return taken


def _gzip(raw: io.RawIOBase) -> tuple[Any, type[Exception]]:
    import gzip
    import zlib

    return gzip.GzipFile(fileobj=raw), zlib.error


def _bzip2(raw: io.RawIOBase) -> tuple[Any, type[Exception]]:
    import bz2

    return bz2.BZ2File(raw), OSError


def _xz(raw: io.RawIOBase) -> tuple[Any, type[Exception]]:
    import lzma

    return _XzFile(raw), lzma.LZMAError


class _XzFile:
    """The data of concatenated xz streams (``LZMAFile`` of Python has no limit of memory)."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._stream = self._begin()

    def _begin(self) -> Any:
        import lzma

        return lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def read1(self, nbytes: int) -> bytes:
        """The next bytes; empty at the end. Raises `EOFError` if a stream has no end, and `MemoryError`."""
        import lzma

        data = b""
        while not data:
            more = b""
            if self._stream.eof:
                more = self._stream.unused_data.lstrip(b"\0")  # padding between streams
                while not more and (block := self._raw.read(BLOCK)):
                    more = block.lstrip(b"\0")
                if not more:
                    break
                self._stream = self._begin()
            elif self._stream.needs_input and not (more := self._raw.read(BLOCK) or b""):
                raise EOFError
            try:
                data = self._stream.decompress(more, nbytes)
            except lzma.LZMAError as error:
                if "emory" in str(error):  # "Memory usage limit exceeded"
                    raise MemoryError from None
                raise
        return data


XZ_MEMORY = 256 << 20
"""Maximum bytes of memory for decompressing xz data; `xz -9` needs 65 MiB."""

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
"""This Python's module for zstd (RFC 8878)."""


def _zstd(raw: io.RawIOBase) -> tuple[Any, type[Exception]]:
    import importlib

    try:
        zstd: Any = importlib.import_module(ZSTD)
    except ImportError:
        raise Unreadable(
            f"is compressed with zstd, for which Python's {ZSTD} is missing: "
            "pip install backports.zstd, or pipe in the output of zstdcat"
        ) from None
    return zstd.ZstdFile(raw), zstd.ZstdError


_FORMATS: dict[bytes, tuple[str, Callable[[io.RawIOBase], tuple[Any, type[Exception]]]]] = {
    b"\x1f\x8b": ("gzip", _gzip),
    b"BZh": ("bzip2", _bzip2),
    b"\xfd7zXZ\0": ("xz", _xz),
    b"\x28\xb5\x2f\xfd": ("zstd", _zstd),
}
"""First bytes → format, from RFC 1952, RFC 8878 and file(1)."""
