"""Files named by a user: non-files, and files too long or too deeply nested, are refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuipc_doctor.files import reading

MIB = 1 << 20


def test_file_is_read_completely(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * MIB)
    assert len(reading.read(tmp_path / "file", MIB)) == MIB


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("/dev/zero", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("link to pipe", "is not a regular file"),
        (".", "is a directory, not a file"),
        ("none", "cannot be read: No such file or directory"),
        ("nul\0byte", "is not a file name"),
        ("long", "is longer than 1 MiB"),
        ("huge", "is longer than 1 MiB"),
    ],
)
def test_anything_else_is_refused_without_waiting(tmp_path: Path, what: str, says: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to pipe").symlink_to("pipe")
    (tmp_path / "long").write_bytes(b"x" * (MIB + 1))
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    with pytest.raises(reading.Unreadable) as refused:
        reading.read(tmp_path / what, MIB)
    assert str(refused.value) == says


@pytest.mark.parametrize("text", ["[" * 1_000_000, "[" * 200 + "]" * 200, '{"a":' * 200 + "1" + "}" * 200])
def test_too_deeply_nested_data_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(reading.Unreadable, match=r"is nested deeper than 100 levels|is not JSON"):
        reading.read_json(tmp_path / "file", MIB)


def test_json_of_realistic_depth_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("[" * reading.MAX_DEPTH + "]" * reading.MAX_DEPTH)
    assert reading.read_json(tmp_path / "file", MIB)
