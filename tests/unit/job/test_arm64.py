"""Stacks of arm64: signed return addresses, the link register, calls and stubs, from recorded code."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

import pytest

from gpuipc_doctor.job import arm64, callers
from gpuipc_doctor.job.code import Code

STUB_AT = 0x1000
STUB = struct.pack("<4I", 0x90000110, 0xF9451611, 0x9128A210, 0xD61F0220)
"""adrp x16, 0x21000; ldr x17, [x16, 2600]; add x16, x16, 2600; br x17: a stub as GNU's linker writes it."""
PAD = struct.pack("<I", 0xD503245F)
"""bti c, with which a stub begins if branch protection is on."""
SLOT = 0x21000 + 2600


def test_signature_of_a_return_address_is_removed() -> None:
    assert arm64.address(0x0042_AAAA_DEAD_BEE0) == 0xAAAA_DEAD_BEE0
    assert arm64.address(0xAAAA_DEAD_BEE0) == 0xAAAA_DEAD_BEE0


@pytest.mark.parametrize(
    ("word", "calls"),
    [(0x97FFFC00, True), (0xD63F0220, True), (0xD63F0A3F, True), (0xD73F0A30, True), (0xD61F0220, False),
     (0x14000000, False), (0xD65F03C0, False)],
    ids=["bl", "blr", "blraaz", "blraa", "br", "b", "ret"],
)  # fmt: skip
def test_calls_are_told_from_branches(word: int, calls: bool) -> None:
    assert arm64.is_call(word) is calls


def test_target_of_a_call_may_be_before_it() -> None:
    assert arm64.called(0x97FFFC00, 0x2000) == STUB_AT
    assert arm64.called(0x94000002, 0x2000) == 0x2008
    assert arm64.called(0xD63F0220, 0x2000) == -1


@pytest.mark.parametrize("stub", [STUB, PAD + STUB], ids=["plain", "with-landing-pad"])
def test_stub_loads_from_its_slot(stub: bytes) -> None:
    at = STUB_AT if stub == STUB else STUB_AT - 4
    assert arm64.slot(stub, at) == SLOT
    assert arm64.slot(PAD * 6, at) == -1
    assert arm64.slot(stub[:6], at) == -1


def frames(monkeypatch: pytest.MonkeyPatch, words: list[int], link: int) -> tuple[str, ...]:
    """The frames of a stack where every small number is a return address."""
    found = Code.__new__(Code)
    found._is_arm64 = True
    monkeypatch.setattr(
        Code, "_frame", lambda self, address, *, returns: f"{address:x}" if address < 1 << 32 else ""
    )
    monkeypatch.setattr(Code, "called", lambda self, address: "")
    return found.frames(0x1000, struct.pack(f"<{len(words)}Q", *words), link)


def test_leaf_functions_caller_is_in_the_link_register_and_signatures_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signed = 0x0042_0000_0000_3000
    assert frames(monkeypatch, [signed, 1 << 40], link=0x2000) == ("1000", "2000", "3000")


IN_MPI, IN_PROGRAM = 0xAAAA_0000_1000, 0xAAAA_0000_2000
"""A return address in MPI's library, and one in the program that called it."""


@pytest.mark.parametrize("signature", [0, 0x0042 << 48, 0xFF7F << 48], ids=["plain", "signed", "signed-high"])
def test_callers_are_compared_from_the_frame_record_on_with_signed_addresses(
    signature: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack by hand: MPI's frame; the program's frame pointer, return address and variables."""
    stack = (ctypes.c_uint64 * 8)()
    begin = ctypes.addressof(stack)
    stack[:] = (7, signature | IN_MPI, 7, begin + 40, signature | IN_PROGRAM, 11, 12, 13)

    class Recorded:
        def __init__(self, pid: int) -> None:
            self.stack = begin, begin + 64

        def returns_to_mpi(self, address: int) -> bool:
            return address == IN_MPI

        def called(self, address: int) -> str:
            return "MPI_Recv" if address == IN_PROGRAM else ""

        def is_return(self, address: int) -> bool:
            return address in (IN_MPI, IN_PROGRAM)

    monkeypatch.setattr(callers, "Code", Recorded)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    waits = callers.fingerprint(os.getpid())
    stack[2] = 8  # a variable of MPI
    assert waits
    assert callers.fingerprint(os.getpid()) == waits
    stack[6] += 1  # a variable of the program: it has moved on
    assert callers.fingerprint(os.getpid()) not in ("", waits)
