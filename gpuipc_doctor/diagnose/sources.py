"""Logs as blocks of bytes: files, standard input, pipes; compressed or not; finite, growing or replaced.

An error in a log raises `Unreadable`; the part before the error is still read.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from gpuipc_doctor.diagnose import archives, debug_dumps, flight_recorder, pickles, records
from gpuipc_doctor.diagnose.decompress import NoText, Unreadable, decompressed, is_compressed
from gpuipc_doctor.diagnose.flight_recorder import Dump
from gpuipc_doctor.diagnose.rank_files import rank_in
from gpuipc_doctor.files import foreign, reading
from gpuipc_doctor.knownissues.lines import BLOCK

STDIN = "-"

LONGEST_LINE = 1 << 24
"""Maximum bytes of a line that are searched, rounded up to a whole block."""
TOO_LONG = f"has lines of more than {LONGEST_LINE >> 20} MiB; the rest of these lines was not searched"

Blocks = Iterator[bytes | None]
"""Blocks of a log: bytes; empty if there is no new data; None if the log was replaced."""
Pieces = Iterator[bytes | str | None]
"""Blocks and, before the blocks of each file of an archive, the file's name."""

LARGEST_PICKLE = 1 << 28
"""Maximum bytes of a pickle."""
PICKLE_S = 60.0
"""Maximum seconds to read a pickle."""
_SAMPLE = 1 << 13
"""Bytes at a log's start that distinguish text from binary."""
_PATIENCE_MS = 20
"""Milliseconds to wait for a stream, whose writer is often slower than this reader."""
_LEAST = 6
"""If no more bytes arrive for a while, this many suffice to identify any compressed format."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\a\b\t\n\v\f\r\x1b")


MOST_FILES = 4096
"""Maximum files read from one directory, newest first."""


Unread = Callable[[str, str], None]
"""Called with the name of each log or part that is not read, and the reason, which begins with a verb."""


def expanded(paths: Iterable[str], unread: Unread) -> Iterator[str]:
    """The paths; for a directory, the logs below it, newest first, without binary files and links.

    ``unread`` is called for each directory of more than `MOST_FILES`, and for each that cannot be opened.
    """
    for path in paths:
        if path in ("", STDIN) or not Path(path).is_dir():
            yield path
            continue
        logs = [log for _, log in sorted(_logs_below(path, unread))]
        if len(logs) > MOST_FILES:
            unread(path, f"has {len(logs)} logs; only the newest {MOST_FILES} are read")
        yield from logs[:MOST_FILES]


def _logs_below(directory: str, unread: Unread) -> Iterator[tuple[float, str]]:
    """(age, log) of each log below a directory."""

    def failed(error: OSError) -> None:
        unread(error.filename, f"cannot be opened: {error.strerror}")

    for at, _, names in os.walk(directory, onerror=failed):
        for name in names:
            file = Path(at, name)
            try:
                status = file.lstat()
            except OSError:
                continue  # removed meanwhile
            if stat.S_ISREG(status.st_mode) and _may_be_log(Found(directory, str(file))):
                yield -status.st_mtime, Found(directory, str(file))


class Found(str):
    """Path of a log found below a directory, where another user may meanwhile put a link or a device."""

    directory: str
    below: str
    """The path from the directory on."""

    def __new__(cls, directory: str, path: str) -> Found:
        found = super().__new__(cls, path)
        found.directory, found.below = directory, os.path.relpath(path, directory)
        return found


def _may_be_log(file: Found) -> bool:
    """Whether a file starts with text or compressed data; True if it cannot be opened."""
    try:
        fd = _open(file)
        try:
            sample = os.read(fd, _SAMPLE)
        finally:
            os.close(fd)
        known = any(
            test(sample) for test in (is_compressed, archives.is_tar, archives.is_zip, pickles.is_pickle)
        )
        if not known and not sample.startswith(_UTF_16):
            _check(sample)
    except Unreadable:
        return False
    except OSError:
        return True
    return True


class Log:
    """An open log. ``endless``: only its reader can decide when to stop.

    A regular file is read up to the size that it had when opened. With ``follow`` it is read as by ``tail
    -F``: for ever, and from the start when it is replaced or truncated.
    """

    def __init__(self, path: str, *, follow: bool = False) -> None:
        """Raises `Unreadable`."""
        self.name = "standard input" if path == STDIN else path
        self.notes: list[str] = []
        """Remarks for readers of the results."""
        self.unread: list[str] = []
        """Parts of the log that were not read, each with the reason."""
        self.dumps: list[Dump] = []
        """Dumps of PyTorch's Flight Recorder read so far."""
        self._path = path
        self._fd = 0 if path == STDIN else _open(path)
        status = os.fstat(self._fd)
        self._regular = stat.S_ISREG(status.st_mode)
        self._follow = follow and self._regular and path != STDIN
        self.endless = self._follow or not self._regular

    def close(self) -> None:
        if self._path != STDIN:
            os.close(self._fd)

    def blocks(self) -> Pieces:
        """Blocks of the log. Raises `Unreadable`, at the start or later."""
        raw = self._raw()
        sample = yield from _sample(raw)
        if archives.is_zip(sample):
            yield from self._zip()
            return
        if is_compressed(sample):
            raw = decompressed(sample, raw)
            sample = yield from _sample(raw)
        if archives.is_tar(sample):
            yield from self._files(archives.tar_members(sample, raw))
        else:
            yield from self._lines(self.name, sample, raw)

    def _lines(self, name: str, sample: bytes, rest: Blocks) -> Blocks:
        """Lines of a log that starts with ``sample``, in UTF-8. Raises `NoText`."""
        if pickles.is_pickle(sample):
            whole, log, rank = _whole(sample, rest), str(name), rank_in(name)
            try:
                found = foreign.parsed(
                    lambda data: flight_recorder.dump(pickles.plain(data), log, rank),
                    whole,
                    limit_s=PICKLE_S,
                )
            except foreign.Refused as reason:
                raise Unreadable(str(reason)) from None
            if not found:
                raise NoText("is a pickle but not a dump of PyTorch's Flight Recorder; not read")
            self.dumps.append(found)
            yield records.TAKEN
            return
        if sample.startswith(_UTF_16):
            rest = _as_utf_8(sample, rest)
            sample = yield from _sample(rest)
        _check(sample)
        sample = sample.removeprefix(codecs.BOM_UTF8)
        text: Blocks = chain((sample,), rest)
        if debug_dumps.is_dump(sample) and not self._follow:
            whole, log = _whole(sample, rest), str(name)
            written = whole.decode("utf-8", "replace")
            with suppress(foreign.Refused):  # it is searched as text
                written = whole.decode("utf-8", "replace")
                self.dumps += foreign.parsed(
                    lambda text: debug_dumps.dumps(text, log), written, limit_s=PICKLE_S
                )
        if records.is_json(sample):
            log, rank = str(name), rank_in(name)
            text = records.lines(
                text, lambda value: flight_recorder.dump(value, log, rank), self.dumps.append
            )
        yield from self._shortened(text)

    def _shortened(self, blocks: Blocks) -> Blocks:
        """The blocks, with each line cut after `LONGEST_LINE` bytes."""
        length = 0
        for block in blocks:
            if block is None:
                length = 0
            elif length > LONGEST_LINE:
                rest, newline, following = block.partition(b"\n")
                block = rest[:1] + newline + following  # an empty block means no new data
            if block:
                length = len(block) - 1 - at if (at := block.rfind(b"\n")) >= 0 else length + len(block)
            if length > LONGEST_LINE and TOO_LONG not in self.unread:
                self.unread.append(TOO_LONG)
            yield block

    def _zip(self) -> Pieces:
        if not self._regular:
            raise Unreadable("is a zip archive, which cannot be read from a pipe; give the file's path")
        with os.fdopen(os.dup(self._fd), "rb") as file:
            yield from self._files(archives.zip_members(file))

    def _files(self, members: Iterable[archives.Member]) -> Pieces:
        for name, blocks in members:
            raw: Blocks = blocks
            try:
                sample = yield from _sample(raw)
                if is_compressed(sample):
                    raw = decompressed(sample, raw)
                    sample = yield from _sample(raw)
                if archives.is_tar(sample) or archives.is_zip(sample):
                    raise Unreadable("is an archive in an archive; not read")
                text = self._lines(f"{self.name}:{name}", sample, raw)
                first = next(text, b"")
                yield name
                yield first
                yield from text
            except NoText:
                continue
            except Unreadable as trouble:
                self.unread.append(f"{name} {trouble}")

    def _raw(self) -> Blocks:
        if self._follow:
            return self._followed()
        return self._file() if self._regular else self._stream()

    def _file(self) -> Blocks:
        size = os.fstat(self._fd).st_size
        left = size - os.lseek(self._fd, 0, os.SEEK_CUR)
        if not size:  # files below /proc have size 0 but are not empty
            yield from iter(self._read, b"")
        while left > 0:
            block = self._read()[:left]
            if not block:
                raise Unreadable(f"was truncated while it was read: its last {left} bytes are missing")
            left -= len(block)
            yield block
        if size and os.fstat(self._fd).st_size > size:
            self.notes.append(f"grew while it was read; its first {size} bytes were read")

    def _stream(self) -> Blocks:
        ready = select.poll()
        ready.register(self._fd, select.POLLIN)
        while True:
            if not ready.poll(_PATIENCE_MS):
                yield b""
            elif block := self._read():
                yield block
            else:
                return

    def _followed(self) -> Blocks:
        at = 0
        while True:
            block = self._read()
            at += len(block)
            yield block
            if block:
                continue
            try:
                now, mine = Path(self._path).stat(), os.fstat(self._fd)
                moved = (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)
                successor = _open(self._path) if moved else self._fd
            except (OSError, Unreadable):
                continue  # between removal and re-creation there is no file
            if moved:
                os.close(self._fd)
                self._fd, at = successor, 0
                yield None
            elif now.st_size < at:
                at = os.lseek(self._fd, 0, os.SEEK_SET)
                yield None

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, BLOCK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Unreadable(f"cannot be read any further: {error.strerror}") from None


def _open(path: str) -> int:
    try:
        if isinstance(path, Found):
            return reading.open_below(path.directory, path.below)
        # Do not wait for a pipe's writer: complete logs come first.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except reading.Unreadable as reason:
        raise Unreadable(str(reason)) from None
    except OSError as error:
        raise Unreadable(f"cannot be opened: {error.strerror}" if path else "the name is empty") from None
    except ValueError:
        raise Unreadable("is not the name of a file") from None
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unreadable("is a directory; name files in the directory")
    return fd


def _sample(blocks: Blocks) -> Generator[bytes | None, None, bytes]:
    """The start of a log; waits only for the bytes that are needed to recognise its kind."""
    sample = b""
    try:
        for block in blocks:
            if block is None:
                sample = b""
                yield None
                continue
            # A log truncated while being written to starts with a hole.
            sample = (sample + block).lstrip(b"\0")
            if len(sample) >= _SAMPLE or (len(sample) >= _LEAST and not block):
                break
            if not block:
                yield b""
    except Unreadable:
        _check(sample)
        yield sample
        raise
    return sample


def _whole(sample: bytes, rest: Blocks) -> bytes:
    """All bytes of a dump, which cannot be read in blocks. Raises `Unreadable` if it is too large."""
    data = bytearray(sample)
    for block in rest:
        if block is None:
            data.clear()
        else:
            data += block
        if len(data) > LARGEST_PICKLE:
            raise Unreadable(f"is a dump of more than {LARGEST_PICKLE} bytes; not read")
    return bytes(data)


def _as_utf_8(begin: bytes, rest: Blocks) -> Blocks:
    """A UTF-16 log, as written by Windows tools, in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in chain((begin,), rest):
        if block is None:
            decoder.reset()
        yield None if block is None else decoder.decode(block).encode("utf-8", "replace")


def _check(begin: bytes) -> None:
    """Raise `NoText` for this tool's own reports, and for a binary file: a library contains the texts of all
    its messages."""
    sample = begin[:_SAMPLE]
    if written := re.match(rb'\s*\{\s*"schema":\s*"(gpuipc-doctor/[a-z/0-9-]+)"', sample):
        raise NoText(f"is output of gpuipc-doctor ({written[1].decode()}), not a log")
    if (len(sample) - len(sample.translate(None, _CONTROL))) * 16 > len(sample):
        raise NoText("is neither text nor compressed text; not read")
