"""The direct dependencies of a shared library: ``DT_NEEDED`` entries of its ELF file."""

from __future__ import annotations

import struct
from pathlib import Path

from gpuipc_doctor.secure import reading

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_CLASS_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


MAX_BYTES = 2 << 30


class Damaged(Exception):
    """A file that cannot be loaded on this machine."""


def is_elf(path: Path) -> bool:
    """Whether the file begins like a library for this machine."""
    try:
        return reading.sample(path, len(_CLASS_64_LITTLE_ENDIAN)) == _CLASS_64_LITTLE_ENDIAN
    except reading.Unreadable:
        return False


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
