"""The direct dependencies of a shared library: ``DT_NEEDED`` entries of its ELF file."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from gpuipc_doctor.files import reading

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_CLASS_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


MAX_BYTES = 2 << 30


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
        image = reading.read(path, MAX_BYTES)
    except reading.Unreadable as reason:
        raise Damaged(f"{path} {reason}") from None
    if not image.startswith(_CLASS_64_LITTLE_ENDIAN):
        raise Damaged(f"{path} is not a 64-bit little-endian ELF file")
    try:
        return _needed(image)
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        raise Damaged(f"{path} is a damaged ELF file") from error


def _needed(image: bytes) -> tuple[str, ...]:
    (headers_at,) = struct.unpack_from("<Q", image, 0x20)
    size, count = struct.unpack_from("<HH", image, 0x36)
    segments = [struct.unpack_from("<IIQQQQ", image, headers_at + n * size) for n in range(count)]
    entries = []
    for kind, _, offset, _, _, nbytes in segments:
        if kind == _PT_DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", image[offset : offset + nbytes]))
    names_at = dict(entries)[_DT_STRTAB]
    for kind, _, offset, address, _, nbytes in segments:
        if kind == _PT_LOAD and address <= names_at < address + nbytes:
            names_at += offset - address
            break
    return tuple(_string(image, names_at + value) for tag, value in entries if tag == _DT_NEEDED)


def _string(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()
