"""Instructions of arm64, as far as stacks need them (Arm Architecture Reference Manual, C6.2)."""

from __future__ import annotations

import struct

MACHINE = 183
"""``e_machine`` of an ELF file (System V ABI for AArch64, EM_AARCH64)."""

LINK_REGISTER = 30
"""Register with the return address of a function that calls no other one."""

STUB_BYTES = 24
"""Bytes of a stub in the procedure linkage table, with a landing pad (BTI C) at its begin."""

_ADDRESS = (1 << 48) - 1
"""Bits of an address in user space. Above it, a signed return address has its signature (Linux,
Documentation/arch/arm64/pointer-authentication.rst)."""

_PAGE = 1 << 12


def address(value: int) -> int:
    """An address without the signature of a return address (pointer authentication)."""
    return value & _ADDRESS


def is_call(word: int) -> bool:
    """Whether an instruction is BL, BLR, or BLR with authentication (BLRAA and others)."""
    return word >> 26 == 0b100101 or word & 0xFFFFFC1F == 0xD63F0000 or word & 0xFEFFF800 == 0xD63F0800


def called(word: int, at: int) -> int:
    """The address that BL at this address calls; -1 for another instruction."""
    return at + _signed(word & 0x3FFFFFF, 26) * 4 if word >> 26 == 0b100101 else -1


def slot(code: bytes, at: int) -> int:
    """The address from which the first ADRP and LDR among these instructions load; -1 if they do not.

    This is the slot of the global offset table that a stub, or code before a BLR, loads.
    """
    pages: dict[int, int] = {}
    for number, (word,) in enumerate(struct.iter_unpack("<I", code[: len(code) & ~3])):
        if word & 0x9F000000 == 0x90000000:  # ADRP
            distance = _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) * _PAGE
            pages[word & 31] = (at + 4 * number & -_PAGE) + distance
        elif word & 0xFFC00000 == 0xF9400000 and word >> 5 & 31 in pages:  # LDR, 64 bits, unsigned offset
            return pages[word >> 5 & 31] + 8 * int(word >> 10 & 0xFFF)
    return -1


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value
