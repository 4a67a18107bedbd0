"""The code of a process: which function an address is in, and which words of a stack lead back to a caller.

A word on a stack that points behind a call instruction is a return address. Some may be left over from
earlier calls, so these stacks are approximate; the frames next to the stack pointer are exact.
"""

from __future__ import annotations

import platform
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpuipc_doctor.job.document import MPI_LIBRARY, Stack

MAX_FRAMES = 60

_X86_CALL = re.compile(
    rb"(?s).*(?:\xe8....|\xff[\xd0-\xd7]|\xff[\x50-\x57].|\xff[\x10-\x17]|\xff[\x90-\x97\x15]....)"
)
"""The end of the bytes before a return address: call rel32, and the indirect calls (Intel SDM, CALL)."""

_SHT_SYMTAB, _SHT_DYNSYM, _STT_FUNC = 2, 11, 2


@dataclass(frozen=True, slots=True)
class _Segment:
    """An executable mapping of a file."""

    begin: int
    end: int
    offset: int
    file: str


class Code:
    """The executable mappings of one process, as they are when it is made."""

    def __init__(self, pid: int) -> None:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        self._segments = sorted(_segments(maps), key=lambda segment: segment.begin)
        self._mpi = [segment for segment in self._segments if MPI_LIBRARY.search(segment.file)]
        place = next((line for line in maps.splitlines() if line.endswith("[stack]")), "")
        bounds = [int(bound, 16) for bound in place.split(" ")[0].split("-")] if place else []
        self.stack = (bounds[0], bounds[1]) if bounds else None
        """The addresses of the main thread's stack."""

    def frames(self, counter: int, words: bytes) -> Stack:
        """The frames of a stack, innermost first.

        ``counter`` is the instruction pointer, ``words`` the stack's bytes from the stack pointer on.
        """
        addresses = (value for (value,) in struct.iter_unpack("<Q", words[: len(words) & ~7]))
        frames = [self._frame(counter, returns=False)]
        frames += [self._frame(address, returns=True) for address in addresses]
        return tuple(frame for frame in frames if frame)[:MAX_FRAMES]

    def returns_to_mpi(self, address: int) -> bool:
        """Whether an address is behind a call in MPI's library."""
        for segment in self._mpi:
            if segment.begin <= address < segment.end:
                image = _image(segment.file)
                return image is not None and image.is_after_call(address - segment.begin + segment.offset)
        return False

    def file(self, address: int) -> str:
        """The name of the file that an address is in; empty if it is no code."""
        segment = self._segment(address)
        return Path(segment.file).name if segment else ""

    def _segment(self, address: int) -> _Segment | None:
        place = bisect_right(self._segments, address, key=lambda segment: segment.begin) - 1
        is_code = place >= 0 and address < self._segments[place].end
        return self._segments[place] if is_code else None

    def _frame(self, address: int, *, returns: bool) -> str:
        """``function (file)``, ``[file]`` if the function has no name, nothing if the address is no code."""
        segment = self._segment(address)
        if segment is None:
            return ""
        image = _image(segment.file)
        offset = address - segment.begin + segment.offset
        if image is None or (returns and not image.is_after_call(offset)):
            return ""
        name, function = Path(segment.file).name, image.function(offset - 1 if returns else offset)
        return f"{function} ({name})" if function else f"[{name}]"


def _segments(maps: str) -> Iterator[_Segment]:
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if "x" in fields[1] and len(fields) == 6 and fields[5].startswith("/"):
            begin, end = (int(bound, 16) for bound in fields[0].split("-"))
            yield _Segment(begin, end, int(fields[2], 16), fields[5])


class _Image:
    """An ELF file: its functions by address (System V ABI, "Symbol Table")."""

    def __init__(self, path: Path) -> None:
        self._raw = path.read_bytes()
        (headers,) = struct.unpack_from("<Q", self._raw, 0x20)
        size, count = struct.unpack_from("<HH", self._raw, 0x36)
        loads = [struct.unpack_from("<IIQQQQ", self._raw, headers + n * size) for n in range(count)]
        self._loads = [
            (offset, address, nbytes) for kind, _, offset, address, _, nbytes in loads if kind == 1
        ]
        self._functions = sorted(self._symbols())

    def is_after_call(self, offset: int) -> bool:
        before = self._raw[max(0, offset - 8) : offset]
        if platform.machine() == "aarch64":  # BL and BLR (Arm ARM, C6.2)
            (word,) = struct.unpack("<I", before[-4:].rjust(4, b"\0"))
            return bool(word >> 26 == 0b100101 or word & 0xFFFFFC1F == 0xD63F0000)
        return _X86_CALL.fullmatch(before) is not None

    def function(self, offset: int) -> str:
        address = next(
            (offset - at + start for at, start, nbytes in self._loads if at <= offset < at + nbytes), -1
        )
        place = bisect_right(self._functions, address, key=lambda function: function[0]) - 1
        if place < 0:
            return ""
        start, nbytes, name = self._functions[place]
        return name if address < start + nbytes else ""

    def _symbols(self) -> Iterator[tuple[int, int, str]]:
        (headers,) = struct.unpack_from("<Q", self._raw, 0x28)
        size, count = struct.unpack_from("<HH", self._raw, 0x3A)
        sections = [struct.unpack_from("<IIQQQQII", self._raw, headers + n * size) for n in range(count)]
        for _, kind, _, _, offset, nbytes, link, _ in sections:
            if kind in (_SHT_SYMTAB, _SHT_DYNSYM):
                names = sections[link][4]
                for at in range(offset, offset + nbytes, 24):
                    name, info, _, section, value, length = struct.unpack_from("<IBBHQQ", self._raw, at)
                    if info & 15 == _STT_FUNC and section and length:
                        end = self._raw.index(b"\0", names + name)
                        yield value, length, self._raw[names + name : end].decode(errors="replace")


@lru_cache(maxsize=64)
def _image(path: str) -> _Image | None:
    """The file, if it is an ELF file of this machine's kind that can be read."""
    try:
        return _Image(Path(path))
    except (OSError, struct.error, ValueError, IndexError):
        return None
