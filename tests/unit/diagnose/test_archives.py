"""Logs in archives are read like single files; each problem with an archive is one line."""

import bz2
import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.diagnose import archives, sources
from gpuipc_doctor.diagnose.decompress import Unreadable
from gpuipc_doctor.diagnose.sources import Log
from gpuipc_doctor.knownissues.lines import BLOCK
from tests.unit.diagnose.test_sources import TEXT, zstd

SEED = Path(__file__).parents[2] / "logs" / "faulty" / "seed-002-ipc-reopen.log"
MEMBERS = {
    "rank0.log": b"one\n",
    "core": bytes(range(256)) * 40,
    "deep/rank1.log.gz": gzip.compress(TEXT, compresslevel=1),
    "../outside": b"two\n",
    "wide": "\ufeffGröße\n".encode("utf-16-le"),
    "empty": b"",
}
READ = {
    "rank0.log": b"one\n",
    "deep/rank1.log.gz": TEXT,
    "../outside": b"two\n",
    "wide": "Größe\n".encode(),
    "empty": b"",
}


def tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            other = tarfile.TarInfo(f"no-file-{kind.decode()}")
            other.type, other.linkname = kind, "/etc/passwd"
            archive.addfile(other)
        for name, data in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return made.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("directory/", b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def read(path: Path) -> tuple[dict[str, bytes], str]:
    """The files of the archive, and the message about a problem."""
    files: dict[str, bytes] = {}
    log = Log(str(path))
    trouble, name = "", ""
    try:
        for piece in log.blocks():
            if isinstance(piece, str):
                name = piece
                files[name] = b""
            else:
                assert len(piece or b"") <= BLOCK
                files[name] = files.get(name, b"") + (piece or b"")
    except Unreadable as error:
        trouble = str(error)
    log.close()
    return files, "; ".join(filter(None, [*log.unread, *log.notes, trouble]))


@pytest.mark.parametrize(
    "archive",
    [
        tar,
        lambda files: gzip.compress(tar(files)),
        lambda files: bz2.compress(tar(files)),
        lambda files: zstd(tar(files)),
        zipped,
    ],
    ids=["tar", "tar.gz", "tar.bz2", "tar.zst", "zip"],
)
def test_every_text_in_an_archive_is_read_and_no_file_written(
    tmp_path: Path, archive: Callable[[dict[str, bytes]], bytes]
) -> None:
    path = tmp_path / "in" / "logs"
    path.parent.mkdir()
    path.write_bytes(archive(MEMBERS))
    assert read(path) == (READ, "")
    assert list(sources.expanded([str(tmp_path)], pytest.fail)) == [str(path)]
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


@pytest.mark.parametrize("archive", [tar, zipped])
def test_place_of_a_line_names_the_file_in_the_archive(
    tmp_path: Path, archive: Callable[[dict[str, bytes]], bytes]
) -> None:
    path = tmp_path / "logs"
    path.write_bytes(archive({"rank0": TEXT, "rank1": SEED.read_bytes()}))
    result = CliRunner().invoke(cli, ["diagnose", str(path)])
    assert result.exit_code == 12
    assert "FOUND  nvidia-ipc-reopen" in result.stdout
    assert f"{path}:rank1:34" in result.stdout.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("archive", [tar, zipped])
def test_damaged_file_does_not_lose_the_others(
    tmp_path: Path, archive: Callable[[dict[str, bytes]], bytes]
) -> None:
    path = tmp_path / "logs"
    path.write_bytes(archive({"cut.gz": gzip.compress(TEXT)[:20_000], "whole": b"text\n"}))
    files, said = read(path)
    assert files["whole"] == b"text\n"
    assert TEXT.startswith(files["cut.gz"])
    assert said == "cut.gz is truncated gzip data; only its beginning was read"


@pytest.mark.parametrize("archive", [tar, zipped])
def test_archive_in_an_archive_is_named(tmp_path: Path, archive: Callable[[dict[str, bytes]], bytes]) -> None:
    path = tmp_path / "logs"
    path.write_bytes(archive({"a": b"text\n", "n1.tgz": gzip.compress(tar(MEMBERS)), "n2": zipped(MEMBERS)}))
    assert read(path) == (
        {"a": b"text\n"},
        "n1.tgz is an archive in an archive; not read; n2 is an archive in an archive; not read",
    )


def test_sparse_file_is_named(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, headers in (("holes", {"GNU.sparse.map": "0,5", "GNU.sparse.size": "9"}), ("a", {})):
            header = tarfile.TarInfo(name)
            header.size, header.pax_headers = 5, headers
            archive.addfile(header, io.BytesIO(b"text\n"))
    path = tmp_path / "logs"
    path.write_bytes(made.getvalue())
    files, said = read(path)
    assert files["a"] == b"text\n"
    assert said == "holes is a sparse file; not read"


def test_truncated_archive_is_read_as_far_as_possible(tmp_path: Path) -> None:
    path = tmp_path / "logs"
    for whole, form in ((tar({"a": b"text\n", "b": TEXT}), "tar"), (gzip.compress(tar({"a": TEXT})), "gzip")):
        path.write_bytes(whole[: len(whole) // 2])
        files, said = read(path)
        assert f"{form} data" in said
        assert files["a"]
    path.write_bytes(zipped({"a": TEXT})[:5000])
    assert read(path)[1].startswith("has damaged zip data")


def test_endless_archives_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "logs"
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    for archive in (tar, zipped):
        path.write_bytes(archive({"a": TEXT, "b": TEXT}))
        assert read(path) == ({"a": TEXT[:1000]}, "holds more than 1000 bytes; the rest was not read")
    monkeypatch.setattr(archives, "MOST_FILES", 1)
    path.write_bytes(zipped({"a": b"text", "b": b"text"}))
    assert read(path) == ({"a": b"text"}, "holds more than 1 files; the rest was not read")


def test_gigabyte_header_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    path = tmp_path / "logs"
    path.write_bytes(tar({"a": b"text"})[: 512 * 6] + header.tobuf(tarfile.GNU_FORMAT) + b"n" * 10_000)
    files, said = read(path)
    assert files == {"a": b"text"}
    assert "a header of 1073741824 bytes" in said


def test_zip_archive_in_a_pipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = Log(str(path))
    with path.open("wb", buffering=0) as writer:
        writer.write(zipped({"a": b"text"}))
        with pytest.raises(Unreadable, match="is a zip archive, which cannot be read from a pipe"):
            list(log.blocks())
    log.close()
