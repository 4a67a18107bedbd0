"""The package's tables: a compiled form is used only for the same contents, and is never required."""

from __future__ import annotations

import marshal
import os
import stat
import sys
from datetime import date
from pathlib import Path

import pytest

from gpuipc_doctor.files import tables


class Reader:
    """Counts how often the source is read."""

    def __init__(self, file: Path, value: object = None) -> None:
        self.file, self.times, self._value = file, 0, value

    def __call__(self) -> object:
        self.times += 1
        return self._value or self.file.read_text().split()

    def compiled(self) -> object:
        return tables.compiled(self.file, [self.file], self)


@pytest.fixture(autouse=True)
def writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    file = tmp_path / "words.yaml"
    file.write_text("one two")
    return Reader(file)


def stored(reader: Reader) -> Path:
    (found,) = (reader.file.parent / "__pycache__" / tables.STORED).iterdir()
    return found


def test_source_is_read_once(reader: Reader) -> None:
    assert [reader.compiled() for _ in range(3)] == [["one", "two"]] * 3
    assert reader.times == 1
    assert stored(reader).name == f"words.{sys.implementation.cache_tag}.marshal"


def test_changed_source_is_read_again(reader: Reader) -> None:
    reader.compiled()
    reader.file.write_text("one too")
    assert reader.compiled() == ["one", "too"]
    assert reader.compiled() == ["one", "too"]
    assert reader.times == 2


@pytest.mark.parametrize("kept", [0, 1, 20, 31, 32, 40, -1])
def test_torn_compiled_form_does_not_count(reader: Reader, kept: int) -> None:
    reader.compiled()
    stored(reader).write_bytes(stored(reader).read_bytes()[:kept])
    assert reader.compiled() == ["one", "two"]
    assert reader.times == 2


def test_damaged_compiled_form_does_not_count(reader: Reader) -> None:
    reader.compiled()
    content = stored(reader).read_bytes()
    for place in range(len(content)):
        stored(reader).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert reader.compiled() == ["one", "two"]


def test_nothing_is_stored_if_python_stores_no_bytecode(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert reader.compiled() == ["one", "two"]
    assert not (reader.file.parent / "__pycache__").exists()


def test_directory_that_cannot_be_written_costs_only_time(reader: Reader) -> None:
    # Like a read-only directory, which would not stop root.
    (reader.file.parent / "__pycache__").touch()
    assert [reader.compiled() for _ in range(2)] == [["one", "two"]] * 2
    assert reader.times == 2


def test_value_that_marshal_does_not_have_is_read_each_time(reader: Reader) -> None:
    dates = Reader(reader.file, {"day": date(2026, 11, 26)})
    assert [dates.compiled() for _ in range(2)] == [{"day": date(2026, 11, 26)}] * 2
    assert dates.times == 2


def test_processes_that_compile_at_once_leave_one_whole_form(reader: Reader) -> None:
    reader.file.write_text("word " * 100_000)
    started = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            os._exit(0 if reader.compiled() == ["word"] * 100_000 else 1)
        started.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started] == [0] * 4
    assert reader.compiled() == ["word"] * 100_000
    assert reader.times == 0


def replant(path: Path, value: object) -> None:
    """Replace a compiled form by another one with the right digests, in place."""
    crafted = marshal.dumps(value)
    head = path.read_bytes()[: tables.DIGEST_BYTES]
    path.write_bytes(head + tables._digest(crafted) + crafted)


def test_umask_does_not_open_the_compiled_form(reader: Reader) -> None:
    before = os.umask(0)
    try:
        reader.compiled()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (stored(reader), stored(reader).parent)]
    assert modes == [0o644, 0o755]


@pytest.mark.parametrize(
    "odd", ["file mode", "directory mode", "file owner", "directory owner", "link", "pipe"]
)
def test_compiled_form_that_another_user_could_write_does_not_count(reader: Reader, odd: str) -> None:
    if "owner" in odd and os.geteuid() != 0:
        pytest.skip("only root can give files to others")
    reader.compiled()
    file = stored(reader)
    replant(file, ["crafted"])
    assert reader.compiled() == ["crafted"]  # with the right digests, only owner and mode protect it
    target = file.parent if "directory" in odd else file
    if "mode" in odd:
        target.chmod(0o777)
    elif "owner" in odd:
        os.chown(target, 65534, 65534)
    else:
        moved = file.rename(file.with_name("moved"))
        file.symlink_to(moved) if odd == "link" else os.mkfifo(file)
    assert reader.compiled() == ["one", "two"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        *(
            pytest.param(huge, marks=pytest.mark.full)
            for huge in (b"[\xff\xff\xff\x7f", b"l\xff\xff\xff\x7f")
        ),
    ],
)
def test_any_error_of_the_compiled_form_means_that_the_source_is_read(reader: Reader, value: bytes) -> None:
    """EOFError, ValueError, MemoryError and others of marshal."""
    reader.compiled()
    head = stored(reader).read_bytes()[: tables.DIGEST_BYTES]
    stored(reader).write_bytes(head + tables._digest(value) + value)
    assert reader.compiled() == ["one", "two"]
