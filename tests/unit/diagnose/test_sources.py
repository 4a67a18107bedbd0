"""Logs of every kind are read to the end, or as far as possible, with one line about the unread rest."""

import bz2
import errno
import gzip
import lzma
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.diagnose import sources
from gpuipc_doctor.diagnose.decompress import Unreadable
from gpuipc_doctor.diagnose.sources import STDIN, Log
from gpuipc_doctor.knownissues.lines import BLOCK

TEXT = "".join(f"line {n} of a log, {n * 7919 % 10007}\n" for n in range(20_000)).encode()


def xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)  # a tenth of the time of the usual one


def zstd(data: bytes) -> bytes:
    module = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    return bytes(module.compress(data))


FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": xz,
    "zstd": zstd,
}


def read(path: Path) -> tuple[bytes, str]:
    """The data that could be read, and the message about a problem."""
    data = b""
    try:
        log = Log(str(path))
        for block in log.blocks():
            data += block or b""
    except Unreadable as trouble:
        return data, str(trouble)
    log.close()
    return data, "; ".join([*log.unread, *log.notes])


def written(directory: Path, data: bytes) -> Path:
    path = directory / "log"
    path.write_bytes(data)
    return path


def test_text_is_read_as_it_is(tmp_path: Path) -> None:
    assert read(written(tmp_path, TEXT)) == (TEXT, "")
    assert read(written(tmp_path, b"")) == (b"", "")
    assert read(written(tmp_path, b"x")) == (b"x", "")


@pytest.mark.parametrize("name", FORMATS)
def test_compressed_text_is_read(tmp_path: Path, name: str) -> None:
    compress = FORMATS[name]
    assert read(written(tmp_path, compress(TEXT))) == (TEXT, "")
    assert read(written(tmp_path, compress(TEXT) + compress(b"more\n"))) == (TEXT + b"more\n", "")
    assert read(written(tmp_path, compress(b""))) == (b"", "")


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_data_is_read_as_far_as_possible(tmp_path: Path, name: str) -> None:
    whole = FORMATS[name](TEXT)
    data, said = read(written(tmp_path, whole[: len(whole) * 3 // 4]))
    assert said == f"is truncated {name} data; only its beginning was read"
    assert TEXT.startswith(data)
    if name != "bzip2":  # bzip2's blocks are larger than this text, and cannot be read in part
        assert len(data) > len(TEXT) // 2


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_data_is_reported(tmp_path: Path, name: str) -> None:
    whole = bytearray(FORMATS[name](TEXT))
    for at in range(len(whole) // 2, len(whole) // 2 + 40):
        whole[at] ^= 0x5A
    _, said = read(written(tmp_path, bytes(whole)))
    assert said.startswith((f"has damaged {name} data", f"is truncated {name} data"))
    assert len(said.splitlines()) == 1


def test_decompression_bomb_is_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 1 << 30)
    log = Log(str(written(tmp_path, gzip.compress(b"a" * 10_000 + b"\0" * 30_000_000))))
    blocks = [len(block or b"") for block in log.blocks()]
    log.close()
    assert sum(blocks) == 30_010_000
    assert max(blocks) <= BLOCK


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Path(sys.executable).read_bytes()[:200_000], "is neither text nor compressed text"),
        (gzip.compress(os.urandom(20_000)), "is neither text nor compressed text"),
    ],
    ids=["a program", "compressed noise"],
)
def test_data_that_is_not_text_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    assert read(written(tmp_path, data))[1].startswith(said)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_as_utf_8(tmp_path: Path, encoding: str) -> None:
    text = "Größe µ 𝄞 NVRM: Xid\r\n" * 40_000  # a character of four bytes on the edge of a block
    data = ("\ufeff" + text).encode(encoding)
    assert read(written(tmp_path, data)) == (text.encode(), "")
    assert read(written(tmp_path, data[:-1]))[0] == text.encode()[:-1]  # cut within a character


def test_logs_of_a_directory_are_read_newest_first(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    names = ["old.log", "deep/new.log.gz", "deep/newest"]
    for age, name in enumerate(names):
        data = gzip.compress(TEXT) if name.endswith("gz") else TEXT
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    (tmp_path / "core").write_bytes(os.urandom(5000))
    (tmp_path / "link.log").symlink_to(tmp_path / "old.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert list(sources.expanded([str(tmp_path), STDIN, "", "none"], pytest.fail)) == [
        *(str(tmp_path / name) for name in reversed(names)),
        STDIN,
        "",
        "none",
    ]


def test_newest_of_very_many_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    for age in range(3):
        (tmp_path / str(age)).write_bytes(TEXT)
        os.utime(tmp_path / str(age), (1000 + age, 1000 + age))
    unread: dict[str, str] = {}
    assert list(sources.expanded([str(tmp_path)], unread.setdefault)) == [f"{tmp_path}/2", f"{tmp_path}/1"]
    assert unread == {str(tmp_path): "has 3 logs; only the newest 2 are read"}


def test_directory_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.log").write_bytes(TEXT)
    (tmp_path / "closed").mkdir()

    def scandir(path: str, opened: Callable[[str], Any] = os.scandir) -> Any:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path)

    monkeypatch.setattr(os, "scandir", scandir)
    unread: dict[str, str] = {}
    assert list(sources.expanded([str(tmp_path)], unread.setdefault)) == [f"{tmp_path}/job.log"]
    assert unread == {f"{tmp_path}/closed": "cannot be opened: Permission denied"}


def test_text_in_other_encodings_and_colours_is_text(tmp_path: Path) -> None:
    for data in (b"caf\xe9 \xff\xfe\n" * 99, b"\x1b[31mred\x1b[0m\r\n\a\b" * 99, "Größe µ ×".encode() * 99):
        assert read(written(tmp_path, data)) == (data, "")


def test_hole_of_a_truncated_log_is_skipped(tmp_path: Path) -> None:
    data, said = read(written(tmp_path, b"\0" * 300_000 + TEXT))
    assert (data, said) == (TEXT, "")


def test_file_that_cannot_be_opened_is_reported_with_the_reason(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == (b"", "cannot be opened: No such file or directory")
    assert read(tmp_path) == (b"", "is a directory; name files in the directory")
    assert read(Path("nul\0byte"))[1] == "is not the name of a file"


def test_growing_file_is_read_up_to_its_initial_size(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT)
    log = Log(str(path))
    blocks = log.blocks()
    data = next(blocks) or b""
    with path.open("ab") as file:
        file.write(b"new\n")
    data += b"".join(block or b"" for block in blocks)
    log.close()
    assert data == TEXT
    assert log.notes == [f"grew while it was read; its first {len(TEXT)} bytes were read"]


@pytest.mark.parametrize("name", ["", *FORMATS])
def test_endless_line_is_cut_and_the_next_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 2 * BLOCK)
    text = b"first\n" + b"x" * (9 * BLOCK + 5) + b"\nbehind it\n" + b"y" * (BLOCK - 7) + b"\nlast\n"
    data, notes = read(written(tmp_path, FORMATS[name](text) if name else text))
    first, long, *rest = data.split(b"\n")
    assert (first, rest) == (b"first", text.split(b"\n")[2:])
    assert 2 * BLOCK < len(long) <= 3 * BLOCK + 9
    assert notes == sources.TOO_LONG


def test_shrinking_file_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT)
    log = Log(str(path))
    blocks = log.blocks()
    next(blocks)
    os.truncate(path, 100)
    with pytest.raises(Unreadable, match=r"was truncated while it was read: its last \d+ bytes are missing"):
        list(blocks)
    log.close()


def test_removed_file_is_still_read(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT)
    log = Log(str(path))
    path.unlink()
    assert b"".join(block or b"" for block in log.blocks()) == TEXT
    log.close()


def test_files_of_proc_are_read_despite_size_0() -> None:
    assert b"Pid:" in read(Path("/proc/self/status"))[0]


def test_pipe_is_waited_for_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = Log(str(path))
    blocks = log.blocks()
    assert log.endless
    assert next(blocks) == next(blocks) == b""
    with path.open("wb", buffering=0) as writer:
        writer.write(b"a few\n")
        assert next(blocks) == b"a few\n"
        assert next(blocks) == b""
        writer.write(b"more\n")
    assert b"".join(block or b"" for block in blocks) == b"more\n"
    log.close()


def test_followed_file_is_read_on_after_growth_truncation_or_replacement(tmp_path: Path) -> None:
    path = written(tmp_path, b"begin\n")
    log = Log(str(path), follow=True)
    blocks = log.blocks()

    def come() -> list[bytes | None]:
        """The data until no more arrives."""
        came: list[bytes | None] = []
        for block in blocks:
            if block == b"" and came:
                return came
            if block != b"":
                came.append(block)
        raise AssertionError("a followed file does not end")

    assert come() == [b"begin\n"]
    with path.open("ab") as file:
        file.write(b"grown\n")
    assert come() == [b"grown\n"]
    path.write_bytes(b"anew\n")
    assert come() == [None, b"anew\n"]
    path.rename(tmp_path / "log.1")
    assert next(blocks) == b""
    path.write_bytes(b"rotated\n")
    assert come() == [None, b"rotated\n"]
    log.close()


def with_dictionary(data: bytes, code: int) -> bytes:
    """An xz stream that claims a dictionary of this size (xz file format 1.1, 3.1 and 5.3.1)."""
    block = bytearray(data)
    size = (block[12] + 1) * 4
    assert block[14:16] == b"\x21\x01"  # LZMA2, one byte of properties
    block[16] = code
    block[12 + size - 4 : 12 + size] = zlib.crc32(block[12 : 12 + size - 4]).to_bytes(4, "little")
    return bytes(block)


def test_dictionary_of_xz_is_limited(tmp_path: Path) -> None:
    """Code 40 stands for 4 GiB, 30 for 128 MiB, more than `xz -9` has."""
    data, trouble = read(written(tmp_path, with_dictionary(xz(TEXT), 40)))
    assert (data, trouble) == (b"", "is xz data that needs too much memory; only its beginning was read")
    assert read(written(tmp_path, with_dictionary(xz(TEXT), 30))) == (TEXT, "")


@pytest.mark.parametrize("between", [b"", b"\0\0\0\0"])
def test_xz_streams_may_follow_each_other(tmp_path: Path, between: bytes) -> None:
    data = xz(TEXT) + between + xz(b"more\n") + between
    assert read(written(tmp_path, data)) == (TEXT + b"more\n", "")
    damaged, trouble = read(written(tmp_path, xz(TEXT) + b"no xz"))
    assert damaged == TEXT
    assert trouble.startswith("has damaged xz data; only its beginning was read")


@pytest.mark.parametrize("planted", ["link", "pipe", "link above"])
@pytest.mark.parametrize("when", ["listed", "opened"])
def test_directory_is_not_left_by_what_is_planted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str, when: str
) -> None:
    """Between the look at a file and its opening, and between that and the next opening."""
    secret, logs = tmp_path / "secret", tmp_path / "logs"
    (logs / "sub").mkdir(parents=True)
    secret.mkdir()
    for directory in (secret, logs / "sub"):
        (directory / "app.log").write_text("a line\n")

    def plant() -> None:
        if planted == "link above":
            (logs / "sub").rename(tmp_path / "moved")
            (logs / "sub").symlink_to(secret)
            return
        (logs / "sub" / "app.log").unlink()
        if planted == "pipe":
            os.mkfifo(logs / "sub" / "app.log")
        else:
            (logs / "sub" / "app.log").symlink_to(secret / "app.log")

    if when == "listed":
        open_ = sources._open

        def planting(path: str) -> int:
            monkeypatch.setattr(sources, "_open", open_)
            plant()
            return open_(path)

        monkeypatch.setattr(sources, "_open", planting)
        assert list(sources.expanded([str(logs)], lambda name, why: None)) == []
        return
    (log,) = sources.expanded([str(logs)], lambda name, why: None)
    plant()
    with pytest.raises(Unreadable, match=r"^is a link$|^is not a regular file$"):
        Log(log)
