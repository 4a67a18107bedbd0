"""The direct dependencies of a shared library: ``DT_NEEDED`` entries of its ELF file."""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path

from gpuipc_doctor.files import reading

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_CLASS_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


_MAX_DYNAMIC = 1 << 16
"""Maximum bytes of the dynamic section: 4,096 entries."""
_LONGEST_NAME = 4096
_HEADER_BYTES = 56
"""Bytes of a program header (``Elf64_Phdr``)."""


class Damaged(Exception):
    """A file that cannot be loaded on this machine."""


_MACHINE_AT = 18
_MACHINES = {21: "ppc64le", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""``e_machine`` → the name that uname(1) has for it."""


def is_elf(path: Path) -> bool:
    """Whether the file begins like a library, of this machine or another."""
    return machine(path) is not None


def is_foreign(path: Path) -> bool:
    """Whether the file is a library of another machine."""
    return machine(path) not in (None, platform.machine())


def machine(path: Path) -> str | None:
    """The machine that a library is for, as uname(1) names it; None if the file is no library."""
    try:
        head = reading.sample(path, _MACHINE_AT + 2)
    except reading.Unreadable:
        return None
    if not head.startswith(_CLASS_64_LITTLE_ENDIAN) or len(head) < _MACHINE_AT + 2:
        return None
    (number,) = struct.unpack_from("<H", head, _MACHINE_AT)
    return _MACHINES.get(number, f"machine {number}")


def needed(path: Path) -> tuple[str, ...]:
    """The sonames, in the file's order. Raises `Damaged`."""
    try:
        with reading.opened(path) as fd:
            return _needed(fd, path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    except reading.Unreadable as reason:
        raise Damaged(f"{path} {reason}") from None
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        raise Damaged(f"{path} is a damaged ELF file") from error


def _needed(fd: int, path: Path) -> tuple[str, ...]:
    head = os.pread(fd, 0x40, 0)
    if not head.startswith(_CLASS_64_LITTLE_ENDIAN):
        raise Damaged(f"{path} is not a 64-bit little-endian ELF file")
    (headers_at,) = struct.unpack_from("<Q", head, 0x20)
    size, count = struct.unpack_from("<HH", head, 0x36)
    if size != _HEADER_BYTES:
        raise ValueError(f"program headers of {size} bytes")
    headers = os.pread(fd, size * count, headers_at)
    segments = [struct.unpack_from("<IIQQQQ", headers, n * size) for n in range(count)]
    entries: list[tuple[int, int]] = []
    for kind, _, offset, _, _, nbytes in segments:
        if kind == _PT_DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", os.pread(fd, min(nbytes, _MAX_DYNAMIC), offset)))
    names_at = dict(entries)[_DT_STRTAB]
    for kind, _, offset, address, _, nbytes in segments:
        if kind == _PT_LOAD and address <= names_at < address + nbytes:
            names_at += offset - address
            break
    return tuple(_string(fd, names_at + value) for tag, value in entries if tag == _DT_NEEDED)


def _string(fd: int, at: int) -> str:
    name = os.pread(fd, _LONGEST_NAME, at)
    return name[: name.index(b"\0")].decode()
