"""Stacks of arm64: signed return addresses, the link register, calls and stubs, from recorded code.

The files of arm64 code are those of `tests/arm64`, whatever machine this is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.job.activity import activity
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.stacks import arm64, callers, code
from gpuipc_doctor.stacks.code import Code
from gpuipc_doctor.stacks.thread import Stack, Thread

FILES = Path(__file__).parents[2] / "arm64"

STUB_AT = 0x1000
STUB = struct.pack("<4I", 0x90000110, 0xF9451611, 0x9128A210, 0xD61F0220)
"""adrp x16, 0x21000; ldr x17, [x16, 2600]; add x16, x16, 2600; br x17: a stub as GNU's linker writes it."""
PAD = struct.pack("<I", 0xD503245F)
"""bti c, with which a stub begins if branch protection is on."""
SLOT = 0x21000 + 2600


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
    found.is_arm64 = True
    monkeypatch.setattr(
        Code, "_frame", lambda self, address, *, returns: f"{address:x}" if address < 1 << 32 else ""
    )
    monkeypatch.setattr(Code, "called", lambda self, address: "")
    return found.frames(0x1000, struct.pack(f"<{len(words)}Q", *words), link)


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
        is_arm64 = True

        def __init__(self, pid: int) -> None:
            self.stack = begin, begin + 64

        def returns_to_mpi(self, address: int) -> bool:
            return address == IN_MPI

        def called(self, address: int) -> str:
            return "MPI_Recv" if address == IN_PROGRAM else ""

        def is_return(self, address: int) -> bool:
            return address in (IN_MPI, IN_PROGRAM)

    monkeypatch.setattr(callers, "Code", Recorded)
    waits = callers.fingerprint(os.getpid())
    stack[2] = 8  # a variable of MPI
    assert waits
    assert callers.fingerprint(os.getpid()) == waits
    stack[6] += 1  # a variable of the program: it has moved on
    assert callers.fingerprint(os.getpid()) not in ("", waits)


def load(register: int, slot: int, base: int = 1) -> bytes:
    """ADRP and LDR, at address 0, of a slot in the second page."""
    return struct.pack("<II", 0xB0000000 | base, 0xF9400000 | slot // 8 << 10 | base << 5 | register)


ARGUMENT, FUNCTION = load(3, 0x10, 3), load(6, 0x20, 6)
MOVE_6, LOAD_6, CALL = (struct.pack("<I", word) for word in (0xAA0303E6, 0xF94000C6, 0x97FFFC00))
"""mov x6, x3; ldr x6, [x6]; bl."""


@pytest.mark.parametrize(
    ("instructions", "slot"),
    [
        (FUNCTION, 0x1020),
        (ARGUMENT + FUNCTION, 0x1020),
        (FUNCTION + ARGUMENT, 0x1020),
        (FUNCTION + MOVE_6, -1),
        (FUNCTION + LOAD_6, -1),
        (FUNCTION + CALL, -1),
        (ARGUMENT, -1),
        (b"", -1),
    ],
    ids=["alone", "after-argument", "before-argument", "moved", "pointer", "clobbered", "other", "nothing"],
)
def test_indirect_call_goes_through_the_slot_of_its_own_register(instructions: bytes, slot: int) -> None:
    assert arm64.slot(instructions, 0, 6) == slot


@contextmanager
def mapped(*names: str) -> Iterator[tuple[Code, list[int]]]:
    """Files of arm64 code in a process of arm64, and the address of each."""
    maps = []
    for name in names:
        with (FILES / name).open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    found = Code(os.getpid())
    found.is_arm64 = True
    begins = {Path(segment.file).name: segment.begin for segment in found._segments}
    yield found, [begins[name] for name in names]
    for each in maps:
        each.close()


def calls(name: str, function: str = "") -> list[int]:
    """Offsets behind the calls in a function of a file; without one, in those that have no name."""
    image = code._image(str(FILES / name))
    assert image
    file = (FILES / name).read_bytes()
    code_ends = max(begin + nbytes for begin, nbytes, _ in image._functions)
    behind = range(4, code_ends, 4)
    called = [at for at in behind if arm64.is_call(*struct.unpack_from("<I", file, at - 4))]
    return [at for at in called if image.function(at - 1) == function]


@pytest.mark.parametrize("protection", ["pac", "plain"])
@pytest.mark.parametrize("how", ["plt", "got"])
def test_imported_functions_are_named_at_their_calls(protection: str, how: str) -> None:
    """Through stubs, whose relocations are R_AARCH64_JUMP_SLOT, and without, by R_AARCH64_GLOB_DAT."""
    app, library = f"app-{protection}-{how}.so", f"libmpi-{protection}.so"

    def named(name: str, function: str) -> list[str]:
        return [code.called(str(FILES / name), at) for at in calls(name, function)]

    assert named(app, "halo_exchange") == ["MPI_Waitall", "MPI_Recv"]
    assert named(app, "time_step") == ["halo_exchange"]
    assert named(library, "MPI_Recv") == ["opal_progress", "poll_network", ""]
    assert named(library, "") == ["opal_progress", ""]  # then through a variable, not a function


@pytest.mark.parametrize(
    "signature", [0, 0x0042 << 48, 0xFF7F << 48], ids=["unsigned", "signed", "signed-high"]
)
@pytest.mark.parametrize("protection", ["pac", "plain"])
@pytest.mark.parametrize("how", ["plt", "got"])
@pytest.mark.parametrize("call", ["MPI_Waitall", "MPI_Recv"])
def test_leaf_function_below_an_mpi_call_belongs_to_it(
    call: str, how: str, protection: str, signature: int
) -> None:
    """MPI_Waitall jumps to a function without a name; the leaf function's caller is in the link register."""
    app, library = f"app-{protection}-{how}.so", f"libmpi-{protection}.so"
    inside = calls(library, "" if call == "MPI_Waitall" else call)[-1]
    number = ["MPI_Waitall", "MPI_Recv"].index(call)
    (word,) = struct.unpack_from("<I", (FILES / library).read_bytes(), calls(library, "MPI_Recv")[-1] - 4)
    leaf = arm64.called(word, calls(library, "MPI_Recv")[-1] - 4)
    in_app = [calls(app, "halo_exchange")[number], calls(app, "time_step")[0]]
    with mapped(library, app) as (found, (in_mpi, in_program)):
        words = [word for at in in_app for word in (1 << 46, signature | (in_program + at))]
        stack = found.frames(in_mpi + leaf, struct.pack("<4Q", *words), signature | (in_mpi + inside))
    waits = f"[{library}]" if call == "MPI_Waitall" else f"{call} ({library})"
    jumped = [f"{call} ({library})"] if call == "MPI_Waitall" else []
    assert stack == (f"[{library}]", waits, *jumped, f"halo_exchange ({app})", f"time_step ({app})")
    assert what_it_does(stack) == (Kind.PROGRESSES if call == "MPI_Waitall" else Kind.RECEIVES, call)


def what_it_does(*stacks: Stack) -> tuple[Kind, str]:
    """What a running process with these approximate stacks does."""
    thread = Thread(tid=7, name="app", state="R", busy=1.0, approximate=stacks)
    seen = activity([Process(pid=7, parent=1, uid=0, program="app", threads=(thread,))] * 2)
    return seen.kind, seen.operation
