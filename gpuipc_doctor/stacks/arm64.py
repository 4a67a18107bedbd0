"""Instructions of arm64, as far as stacks need them (Arm Architecture Reference Manual, C6.2)."""

from __future__ import annotations

import struct

MACHINE = 183
"""``e_machine`` of an ELF file (System V ABI for AArch64, EM_AARCH64)."""

LINK_REGISTER = 30
"""Register with the return address of a function that calls no other one."""

STUB_BYTES, STUB_REGISTER = 24, 17
"""Bytes of a stub in the procedure linkage table, with a landing pad (BTI C) at its begin; the register
through which it jumps."""

LOAD_BYTES = 64
"""Bytes before a BLR in which the called address is looked for: compilers load arguments after it."""

_KEPT = range(19, 29)
"""Registers that a called function leaves as they were (Procedure Call Standard for AArch64)."""

_BRANCH = 0xD61F0000
"""BR, but for its register."""

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


def called_register(word: int) -> int:
    """The register with the address that BLR calls, with authentication or without."""
    return word >> 5 & 31


def slot(code: bytes, at: int, register: int = STUB_REGISTER) -> int:
    """The address from which these instructions load a register; -1 if they do not, or change it later.

    This is the slot of the global offset table that a stub, or code before a BLR, loads by ADRP and LDR.
    ``at``: the address of the first instruction.
    """
    pages: dict[int, int] = {}
    slots: dict[int, int] = {}
    for number, (word,) in enumerate(struct.iter_unpack("<I", code[: len(code) & ~3])):
        if word & 0xFFFFFC1F == _BRANCH and register in slots:
            break
        written, base = word & 31, word >> 5 & 31
        page = pages.get(base)
        pages.pop(written, None)
        slots.pop(written, None)
        if word & 0x9F000000 == 0x90000000:  # ADRP
            distance = _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) * _PAGE
            pages[written] = (at + 4 * number & -_PAGE) + distance
        elif word & 0xFFC00000 == 0xF9400000 and page is not None:  # LDR, 64 bits, unsigned offset
            slots[written] = page + 8 * int(word >> 10 & 0xFFF)
        elif is_call(word):
            slots = {kept: place for kept, place in slots.items() if kept in _KEPT}
    return slots.get(register, -1)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value
