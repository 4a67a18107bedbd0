"""The code of a process: the function at an address, and the return addresses on a stack.

If a word on a stack points behind a call instruction, it is taken for a return address. Some such words are
left over from earlier calls, so these stacks are approximate; only the frames next to the stack pointer are
exact.
"""

from __future__ import annotations

import platform
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

from gpuipc_doctor.job import arm64
from gpuipc_doctor.job.document import MPI_LIBRARY, Stack
from gpuipc_doctor.job.mappings import Mapping, mappings

MAX_FRAMES = 60

_X86_CALL = re.compile(
    rb"(?s).*(?:\xe8....|\xff[\xd0-\xd7]|\xff[\x50-\x57].|\xff[\x10-\x17]|\xff[\x90-\x97\x15]....)"
)
"""Pattern for the bytes before a return address: call rel32 and the indirect calls (Intel SDM, CALL)."""

_PUSHES = re.compile(rb"(?:\x41?[\x50-\x57])+")

_SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM, _STT_FUNC = 2, 4, 11, 2
_CALL_NEAR, _CALL_MEMORY, _JUMP_MEMORY = b"\xe8", b"\xff\x15", b"\xff\x25"
"""Opcodes before a 32-bit distance: near call, call through memory, and jump through memory, as in a
procedure linkage table (x86-64)."""
_MPI_FUNCTION = re.compile(r"P?MPI_[A-Z]\w+$|p?mpi_\w+_$")
_RELOCATIONS = (6, 7, 1025, 1026)
"""GLOB_DAT and JUMP_SLOT: relocations that say where an imported function's address is (System V ABI for
AMD64, "Relocation"; for AArch64, "Dynamic relocations")."""


class Code:
    """The executable mappings that a process has when this object is created."""

    def __init__(self, pid: int) -> None:
        mapped = sorted(mappings(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
        self._segments = [each for each in mapped if "x" in each.rights and each.file.startswith("/")]
        self._is_arm64 = platform.machine() == "aarch64"
        self._mpi = [segment for segment in self._segments if MPI_LIBRARY.search(segment.file)]
        self.stack = next(((each.begin, each.end) for each in mapped if each.file == "[stack]"), None)
        """Address range of the main thread's stack."""

    def frames(self, counter: int, words: bytes, link: int = 0) -> Stack:
        """The frames of a stack, innermost first.

        ``counter`` is the instruction pointer; ``words`` are the stack's bytes from the stack pointer on;
        ``link`` is the link register, in which arm64 has the return address of a function that calls no other
        one.
        """
        on_stack = (value for (value,) in struct.iter_unpack("<Q", words[: len(words) & ~7]))
        addresses = (arm64.address(value) if self._is_arm64 else value for value in (link, *on_stack))
        frames = [self._frame(counter, returns=False)]
        for address in addresses:
            if frame := self._frame(address, returns=True):
                frames += [entered(frames[-1], self.called(address)), frame]
        return tuple(frame for frame in frames if frame)[:MAX_FRAMES]

    def called(self, address: int) -> str:
        """The imported function that is called just before this address; empty if unknown."""
        segment = self._segment(address)
        return called(segment.file, address - segment.begin + segment.offset) if segment else ""

    def returns_to_mpi(self, address: int) -> bool:
        """Whether an address follows a call instruction in MPI's library."""
        for segment in self._mpi:
            if segment.begin <= address < segment.end:
                image = _image(segment.file)
                return image is not None and image.is_after_call(address - segment.begin + segment.offset)
        return False

    def is_return(self, address: int) -> bool:
        """Whether an address follows a call instruction in any file."""
        segment = self._segment(address)
        image = _image(segment.file) if segment else None
        return bool(segment and image and image.is_after_call(address - segment.begin + segment.offset))

    def saved_registers(self, address: int) -> int:
        """Number of registers that the function at an address saves on the stack first."""
        segment = self._segment(address)
        image = _image(segment.file) if segment else None
        return image.saved_registers(address - segment.begin + segment.offset) if segment and image else 0

    def file(self, address: int) -> str:
        """Name of the mapped file at an address; empty if the address is not in code."""
        segment = self._segment(address)
        return Path(segment.file).name if segment else ""

    def _segment(self, address: int) -> Mapping | None:
        place = bisect_right(self._segments, address, key=lambda segment: segment.begin) - 1
        is_code = place >= 0 and address < self._segments[place].end
        return self._segments[place] if is_code else None

    def _frame(self, address: int, *, returns: bool) -> str:
        """A frame as ``function (file)``; ``[file]`` if the function has no name; empty if the address is no
        code."""
        segment = self._segment(address)
        if segment is None:
            return ""
        image = _image(segment.file)
        offset = address - segment.begin + segment.offset
        if image is None or (returns and not image.is_after_call(offset)):
            return ""
        name, function = Path(segment.file).name, image.function(offset - 1 if returns else offset)
        return f"{function} ({name})" if function else f"[{name}]"


class _Image:
    """An ELF file: its functions by address (System V ABI, "Symbol Table")."""

    def __init__(self, path: Path) -> None:
        self._raw = path.read_bytes()
        self._is_arm64 = int.from_bytes(self._raw[0x12:0x14], "little") == arm64.MACHINE
        (headers,) = struct.unpack_from("<Q", self._raw, 0x20)
        size, count = struct.unpack_from("<HH", self._raw, 0x36)
        loads = [struct.unpack_from("<IIQQQQ", self._raw, headers + n * size) for n in range(count)]
        self._loads = [
            (offset, address, nbytes) for kind, _, offset, address, _, nbytes in loads if kind == 1
        ]
        (headers,) = struct.unpack_from("<Q", self._raw, 0x28)
        size, count = struct.unpack_from("<HH", self._raw, 0x3A)
        self._sections = [
            struct.unpack_from("<IIQQQQII", self._raw, headers + n * size) for n in range(count)
        ]
        self._functions = sorted(self._symbols())

    def is_after_call(self, offset: int) -> bool:
        before = self._raw[max(0, offset - 8) : offset]
        if self._is_arm64:
            (word,) = struct.unpack("<I", before[-4:].rjust(4, b"\0"))
            return arm64.is_call(word)
        return _X86_CALL.fullmatch(before) is not None

    def function(self, offset: int) -> str:
        return self._function(offset)[1]

    def saved_registers(self, offset: int) -> int:
        """Number of registers that the function at this offset saves first, from its pushes after endbr64
        (Intel SDM)."""
        begin = self._offset(self._function(offset)[0])
        prologue = self._raw[begin : begin + 32].removeprefix(b"\xf3\x0f\x1e\xfa") if begin >= 0 else b""
        pushes = _PUSHES.match(prologue)
        return len(pushes[0].replace(b"\x41", b"")) if pushes else 0

    def _function(self, offset: int) -> tuple[int, str]:
        """Address and name of the function at an offset; -1 and an empty name if the function has no name."""
        address = self._address(offset)
        place = bisect_right(self._functions, address, key=lambda function: function[0]) - 1
        start, nbytes, name = self._functions[place] if place >= 0 else (0, 0, "")
        return (start, name) if address < start + nbytes else (-1, "")

    def called(self, offset: int) -> str:
        """The imported function that is called just before this offset."""
        if self._is_arm64:
            return self._imports.get(self._slot(offset), "")
        if self._raw[offset - 5 : offset - 4] == _CALL_NEAR:
            stub = self._offset(self._target(offset))
            jump = self._raw.find(_JUMP_MEMORY, stub, stub + 16) if stub >= 0 else -1
            return self._imports.get(self._target(jump + 6), "") if jump >= 0 else ""
        if self._raw[offset - 6 : offset - 4] == _CALL_MEMORY:
            return self._imports.get(self._target(offset), "")
        return ""

    def _slot(self, offset: int) -> int:
        """The slot of the global offset table through which arm64's call before this offset goes."""
        (word,) = struct.unpack("<I", self._raw[offset - 4 : offset].rjust(4, b"\0"))
        target = arm64.called(word, self._address(offset) - 4)
        if target < 0:  # BLR, after a load from the table
            begin = max(0, offset - arm64.STUB_BYTES)
            return arm64.slot(self._raw[begin:offset], self._address(offset) - (offset - begin))
        stub = self._offset(target)
        return arm64.slot(self._raw[stub : stub + arm64.STUB_BYTES], target) if stub >= 0 else -1

    def _target(self, offset: int) -> int:
        """The address to which the instruction before this offset refers."""
        (distance,) = struct.unpack_from("<i", self._raw, offset - 4)
        return self._address(offset) + int(distance)

    def _address(self, offset: int) -> int:
        return next((offset - at + start for at, start, size in self._loads if at <= offset < at + size), -1)

    def _offset(self, address: int) -> int:
        there = ((address - start, at, size) for at, start, size in self._loads)
        return next((inside + at for inside, at, size in there if 0 <= inside < size), -1)

    @cached_property
    def _imports(self) -> dict[int, str]:
        """Slot in the global offset table → imported symbol."""
        found = {}
        for _, kind, _, _, offset, nbytes, link, _ in self._sections:
            if kind == _SHT_RELA:
                for at in range(offset, offset + nbytes, 24):
                    slot, info = struct.unpack_from("<QQ", self._raw, at)
                    if info & 0xFFFFFFFF in _RELOCATIONS:
                        found[slot] = self._name(self._sections[link], info >> 32)
        return found

    def _name(self, table: tuple[int, ...], number: int) -> str:
        (name,) = struct.unpack_from("<I", self._raw, table[4] + 24 * number)
        begin = self._sections[table[6]][4] + name
        return self._raw[begin : self._raw.index(b"\0", begin)].decode(errors="replace")

    def _symbols(self) -> Iterator[tuple[int, int, str]]:
        for section in self._sections:
            _, kind, _, _, offset, nbytes, *_ = section
            if kind in (_SHT_SYMTAB, _SHT_DYNSYM):
                for number in range(nbytes // 24):
                    at = offset + 24 * number
                    _, info, _, defined, value, length = struct.unpack_from("<IBBHQQ", self._raw, at)
                    if info & 15 == _STT_FUNC and defined and length:
                        yield value, length, self._name(section, number)


def entered(inner: str, function: str) -> str:
    """``function (file)`` for an MPI function whose own frame has another name, or none, in MPI's library;
    else empty. ``inner``: that frame."""
    file = inner.strip("[]").rpartition("(")[2].strip(")")
    is_known = not MPI_LIBRARY.search(f"/{file}") or inner.removeprefix("P").startswith(f"{function} ")
    return f"{function} ({file})" if _MPI_FUNCTION.match(function) and not is_known else ""


def called(file: str, offset: int) -> str:
    """The imported function that is called just before this offset of a file; empty if unknown.

    Some frames get their name this way: MPI_Waitall of MPICH 5.0 and MPI_Ssend of Intel MPI 2021 jump to
    functions that are not exported.
    """
    image = _image(file)
    try:
        return image.called(offset) if image else ""
    except (struct.error, IndexError):
        return ""


@lru_cache(maxsize=64)
def _image(path: str) -> _Image | None:
    """The parsed file; None unless it is a readable ELF file for this architecture."""
    try:
        return _Image(Path(path))
    except (OSError, struct.error, ValueError, IndexError):
        return None
