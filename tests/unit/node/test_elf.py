"""A library's dependencies, compared with the linker's arguments."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.node import elf


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that links with two others; the soname of one differs from its file name."""
    here = tmp_path_factory.mktemp("elf")
    source = here / "empty.c"
    source.write_text("int nothing(void) { return 0; }\n")
    shared = ["cc", "-shared", "-fPIC", str(source), "-o"]
    subprocess.run([*shared, here / "libfirst.so", "-Wl,-soname,libfirst.so.7"], check=True)
    subprocess.run([*shared, here / "libsecond.so"], check=True)
    linked = [f"-L{here}", "-Wl,--no-as-needed", "-lfirst", "-lsecond"]
    subprocess.run([*shared, here / "libboth.so", *linked], check=True)
    return here / "libboth.so"


def test_sonames_in_the_order_of_linking(library: Path) -> None:
    assert elf.needed(library)[:2] == ("libfirst.so.7", "libsecond.so")


@pytest.mark.parametrize("content", [b"", b"INPUT(libmpi.so.12)\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_file_that_is_not_elf_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "libmpi.so"
    file.write_bytes(content)
    with pytest.raises(elf.Damaged, match=r"libmpi\.so is not a 64-bit little-endian ELF file"):
        elf.needed(file)


def test_machine_is_named(library: Path) -> None:
    image = bytearray(library.read_bytes())
    assert not elf.is_foreign(library)
    for number, name in ((62, "x86_64"), (183, "aarch64"), (999, "machine 999")):
        image[18:20] = number.to_bytes(2, "little")
        other = library.with_name("other.so")
        other.write_bytes(image)
        assert (elf.machine(other), elf.is_elf(other)) == (name, True)
        assert elf.is_foreign(other) == (name != platform.machine())
    text = library.with_name("libtext.so")
    text.write_text("INPUT(libmpi.so.12)")
    assert elf.machine(text) is None
    assert not elf.is_foreign(text)


@given(data=st.data())
def test_damaged_file_is_refused_or_read(library: Path, data: st.DataObject) -> None:
    image = bytearray(library.read_bytes())
    at = data.draw(st.integers(6, 0x240))
    image[at] = data.draw(st.integers(0, 255))
    damaged = library.with_name("damaged.so")
    damaged.write_bytes(image[: data.draw(st.integers(6, len(image)))])
    with contextlib.suppress(elf.Damaged):
        elf.needed(damaged)
