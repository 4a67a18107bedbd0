"""The code of a process: the function at an address, and the return addresses on a stack.

If a word on a stack points behind a call instruction, it is taken for a return address. Some such words are
left over from earlier calls, so these stacks are approximate; only the frames next to the stack pointer are
exact.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from gpuipc_doctor.files import reading
from gpuipc_doctor.stacks import arm64
from gpuipc_doctor.stacks.mappings import Mapping, mappings
from gpuipc_doctor.stacks.thread import MPI_LIBRARY, Stack

T = TypeVar("T")

MAX_FRAMES = 60

_X86_CALL = re.compile(
    rb"(?s).*(?:\xe8....|\xff[\xd0-\xd7]|\xff[\x50-\x57].|\xff[\x10-\x17]|\xff[\x90-\x97\x15]....)"
)
"""Pattern for the bytes before a return address: call rel32 and the indirect calls (Intel SDM, CALL)."""

_ELF_64 = b"\x7fELF\x02"
_MACHINE_AT = slice(0x12, 0x14)
"""Place of ``e_machine`` in an ELF file (System V ABI, "ELF Header")."""
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
        self._pid = pid
        with Path(f"/proc/{pid}/maps").open(errors="replace") as maps:
            text = maps.read(_LONGEST_MAPS)
        mapped = sorted(mappings(text))
        self._segments = [each for each in mapped if "x" in each.rights and each.file.startswith("/")]
        self.is_arm64 = _is_of_arm64(pid)
        """Whether the process runs a program of arm64."""
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
        addresses = (arm64.address(value) if self.is_arm64 else value for value in (link, *on_stack))
        frames = [self._frame(counter, returns=False)]
        for address in addresses:
            if frame := self._frame(address, returns=True):
                frames += [entered(frames[-1], self.called(address)), frame]
        return tuple(frame for frame in frames if frame)[:MAX_FRAMES]

    def called(self, address: int) -> str:
        """The imported function that is called just before this address; empty if unknown."""
        return _called(*self._place(address))

    def returns_to_mpi(self, address: int) -> bool:
        """Whether an address follows a call instruction in MPI's library."""
        for segment in self._mpi:
            if segment.begin <= address < segment.end:
                return self.is_return(address)
        return False

    def is_return(self, address: int) -> bool:
        """Whether an address follows a call instruction in any file."""
        image, offset = self._place(address)
        return image is not None and image.is_after_call(offset)

    def saved_registers(self, address: int) -> int:
        """Number of registers that the function at an address saves on the stack first."""
        image, offset = self._place(address)
        return image.saved_registers(offset) if image else 0

    def file(self, address: int) -> str:
        """Name of the mapped file at an address; empty if the address is not in code."""
        segment = self._segment(address)
        return Path(segment.file).name if segment else ""

    def _place(self, address: int) -> tuple[_Image | None, int]:
        """The file at an address, and the offset in it."""
        segment = self._segment(address)
        if segment is None:
            return None, 0
        return _image(segment.file, segment, self._pid), address - segment.begin + segment.offset

    def _segment(self, address: int) -> Mapping | None:
        place = bisect_right(self._segments, address, key=lambda segment: segment.begin) - 1
        is_code = place >= 0 and address < self._segments[place].end
        return self._segments[place] if is_code else None

    def _frame(self, address: int, *, returns: bool) -> str:
        """A frame as ``function (file)``; ``[file]`` if the function has no name; empty if the address is no
        code."""
        image, offset = self._place(address)
        if image is None or (returns and not image.is_after_call(offset)):
            return ""
        name, function = self.file(address), image.function(offset - 1 if returns else offset)
        return f"{function} ({name})" if function else f"[{name}]"


def _is_of_arm64(pid: int) -> bool:
    """Whether a process's program is one of arm64; what this machine is, if the program cannot be read."""
    try:
        machine = _File([f"/proc/{pid}/exe"])[_MACHINE_AT]
    except (OSError, reading.Unreadable):
        return platform.machine() == "aarch64"
    return int.from_bytes(machine, "little") == arm64.MACHINE


class _File:
    """Bytes of a mapped file, by slices. Read in pages as needed: a library may have a GiB, and a file that a
    hostile process maps any size. What cannot be read is empty."""

    def __init__(self, places: Iterable[str]) -> None:
        """Open the first of the places. Raises `OSError`, `reading.Unreadable`."""
        self._fd = -1
        for place in places:
            with suppress(OSError):
                self._fd = _patiently(partial(reading.open_regular, place))
                break
        else:
            raise FileNotFoundError
        self._page = lru_cache(maxsize=_MOST_PAGES)(self._read)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def __getitem__(self, part: slice) -> bytes:
        begin, end = part.start, part.stop
        if begin < 0 or end <= begin or end - begin > _MOST_BYTES:
            return b""
        first, last = begin // _PAGE, (end - 1) // _PAGE
        if last - first > 1:
            return self._read(begin, end - begin)
        data = b"".join(self._page(page * _PAGE, _PAGE) for page in range(first, last + 1))
        return data[begin - first * _PAGE : end - first * _PAGE]

    def _read(self, offset: int, nbytes: int) -> bytes:
        try:
            return _patiently(partial(os.pread, self._fd, nbytes, offset))
        except (OSError, OverflowError, reading.Unreadable):
            return b""

    def unpack(self, form: str, at: int) -> tuple[Any, ...]:
        """Values at an offset. Raises `struct.error`."""
        return struct.unpack(form, self[at : at + struct.calcsize(form)])

    def text(self, at: int) -> str:
        """A name that ends with a NUL byte. Raises `ValueError`."""
        data = self[at : at + _LONGEST_NAME]
        return data[: data.index(b"\0")].decode(errors="replace")


_PAGE, _MOST_PAGES = 1 << 16, 64
_MOST_BYTES = 256 << 20
"""Maximum bytes read at a time: a table of symbols or of their names."""
_LONGEST_NAME = 1 << 14
_LONGEST_MAPS = 32 << 20
_MOST_SYMBOLS = 1 << 20
"""Maximum symbols of one table."""

_limits = {"wait_s": 10.0, "symbols": 4 * _MOST_SYMBOLS}
"""What is left for all files of all processes: seconds to wait for one read, and symbols and relocations."""
_NAME_BYTES = 128
"""A longer name counts as several symbols."""


def wait_at_most(seconds: float) -> None:
    """Lower the limit for a file system that does not answer."""
    _limits["wait_s"] = min(_limits["wait_s"], seconds)


def _patiently(call: Callable[[], T]) -> T:
    """The result of a call that may wait for a file system, as one that hangs or that a user serves (FUSE).

    After the limit, the call is left behind in its thread; after one did not answer, none is waited for.
    Raises `reading.Unreadable` then, and what the call raises.
    """
    ended: list[T | BaseException] = []

    def run() -> None:
        try:
            ended.append(call())
        except BaseException as error:  # raised again in the caller's thread
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_limits["wait_s"])
    if not ended:
        _limits["wait_s"] = 0.1
        raise reading.Unreadable("cannot be read: its file system did not answer")
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


class _Image:
    """An ELF file: its functions by address (System V ABI, "Symbol Table")."""

    def __init__(self, raw: _File) -> None:
        self._raw = raw
        if raw[0:5] != _ELF_64:
            raise ValueError("no ELF file of 64 bits")
        self._is_arm64 = int.from_bytes(raw[_MACHINE_AT], "little") == arm64.MACHINE
        (headers,) = raw.unpack("<Q", 0x20)
        size, count = raw.unpack("<HH", 0x36)
        loads = [raw.unpack("<IIQQQQ", headers + n * size) for n in range(count)]
        self._loads = [
            (offset, address, nbytes) for kind, _, offset, address, _, nbytes in loads if kind == 1
        ]
        (headers,) = raw.unpack("<Q", 0x28)
        size, count = raw.unpack("<HH", 0x3A)
        self._sections = [raw.unpack("<IIQQQQII", headers + n * size) for n in range(count)]
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
            jump = self._raw[stub : stub + 16].find(_JUMP_MEMORY)
            return self._imports.get(self._target(stub + jump + 6), "") if jump >= 0 else ""
        if self._raw[offset - 6 : offset - 4] == _CALL_MEMORY:
            return self._imports.get(self._target(offset), "")
        return ""

    def _slot(self, offset: int) -> int:
        """The slot of the global offset table through which arm64's call before this offset goes."""
        (word,) = struct.unpack("<I", self._raw[offset - 4 : offset].rjust(4, b"\0"))
        target = arm64.called(word, self._address(offset) - 4)
        if target < 0 and not arm64.is_call(word):
            return -1
        if target < 0:  # BLR, after a load from the table
            begin = max(0, offset - arm64.LOAD_BYTES)
            code, register = self._raw[begin : offset - 4], arm64.called_register(word)
            return arm64.slot(code, self._address(offset) - (offset - begin), register)
        stub = self._offset(target)
        return arm64.slot(self._raw[stub : stub + arm64.STUB_BYTES], target) if stub >= 0 else -1

    def _target(self, offset: int) -> int:
        """The address to which the instruction before this offset refers."""
        (distance,) = self._raw.unpack("<i", offset - 4)
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
            if kind == _SHT_RELA and nbytes // 24 <= min(_MOST_SYMBOLS, _limits["symbols"]):
                _limits["symbols"] -= nbytes // 24
                for at in range(offset, offset + nbytes, 24):
                    slot, info = self._raw.unpack("<QQ", at)
                    if info & 0xFFFFFFFF in _RELOCATIONS:
                        found[slot] = self._name(self._sections[link], info >> 32)
        return found

    def _name(self, table: tuple[int, ...], number: int) -> str:
        (name,) = self._raw.unpack("<I", table[4] + 24 * number)
        return self._raw.text(self._sections[table[6]][4] + name)

    def _symbols(self) -> Iterator[tuple[int, int, str]]:
        for section in self._sections:
            _, kind, _, _, offset, nbytes, *_ = section
            count = nbytes // 24
            if kind not in (_SHT_SYMTAB, _SHT_DYNSYM) or count > min(_MOST_SYMBOLS, _limits["symbols"]):
                continue
            _limits["symbols"] -= count
            table = self._raw[offset : offset + 24 * count]
            names_at, names_nbytes = self._sections[section[6]][4:6]
            names = self._raw[names_at : names_at + names_nbytes]
            for name, info, _, defined, value, length in struct.iter_unpack("<IBBHQQ", table):
                if info & 15 == _STT_FUNC and defined and length:
                    end = names.index(b"\0", name)
                    _limits["symbols"] -= (end - name) // _NAME_BYTES
                    if _limits["symbols"] < 0:
                        return
                    yield value, length, names[name:end].decode(errors="replace")


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
    return _called(_image(file), offset)


def _called(image: _Image | None, offset: int) -> str:
    try:
        return image.called(offset) if image else ""
    except (struct.error, ValueError, IndexError):
        return ""


_images: dict[tuple[str, str, int], _Image | None] = {}
"""(path, device, inode) → the parsed file."""

_MOST_IMAGES = 64


def _image(file: str, segment: Mapping | None = None, pid: int = 0) -> _Image | None:
    """The parsed file of a mapping or at a path; None unless it is a readable ELF file for this architecture.

    What was mapped is read, not what its process has meanwhile put at its path, if the kernel allows it.
    """
    key = (file, segment.device, segment.inode) if segment else (file, "", 0)
    if key not in _images:
        if len(_images) == _MOST_IMAGES:
            del _images[next(iter(_images))]
        try:
            _images[key] = _Image(_File([*([segment.place(pid)] if segment else []), file]))
        except (OSError, reading.Unreadable, struct.error, ValueError, IndexError):
            _images[key] = None
    return _images[key]
