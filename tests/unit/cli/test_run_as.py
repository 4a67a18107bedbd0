"""As root, the places from which another user's code would run are named in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuipc_doctor.cli import run_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root is warned: needs root")

ANNA = 4711


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Directories and files: root's, another user's, and such as others may write."""
    for name, owner, mode in [
        ("own", 0, 0o755),
        ("annas", ANNA, 0o755),
        ("open", 0, 0o777),
        ("group", 0, 0o775),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "lib.so").touch()
        os.chown(tmp_path / name, owner, owner)
        (tmp_path / name).chmod(mode)
    (tmp_path / "own/annas.so").touch()
    os.chown(tmp_path / "own/annas.so", ANNA, ANNA)
    (tmp_path / "own/link.so").symlink_to(tmp_path / "annas/lib.so")
    return {path.name: str(path) for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, []),
        ({"PATH": "", "LD_LIBRARY_PATH": ""}, []),
        ({"PATH": "{own}:/usr/bin"}, []),
        ({"PATH": "{annas}:/usr/bin"}, ["PATH: {annas}"]),
        ({"PATH": "{open}"}, ["PATH: {open}"]),
        ({"PATH": "{group}"}, ["PATH: {group}"]),
        ({"PATH": "{annas}/not-yet"}, ["PATH: {annas}/not-yet"]),
        ({"PATH": "/usr/bin:"}, ["PATH: (working directory)"]),
        ({"LD_LIBRARY_PATH": "/usr/lib:{annas}"}, ["LD_LIBRARY_PATH: {annas}"]),
        ({"LD_PRELOAD": "{own}/annas.so"}, ["LD_PRELOAD: {own}/annas.so"]),
        ({"LD_PRELOAD": "{own}/lib.so {open}/lib.so"}, ["LD_PRELOAD: {open}/lib.so"]),
        ({"MPI4PY_LIBMPI": "{own}/link.so"}, ["MPI4PY_LIBMPI: {own}/link.so"]),
        ({"MPI4PY_LIBMPI": "{own}/lib.so"}, []),
    ],
)
def test_places_of_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
    places: dict[str, str],
    environ: dict[str, str],
    named: list[str],
) -> None:
    monkeypatch.chdir(places["annas"])
    given = {name: value.format(**places) for name, value in environ.items()}
    assert [*run_as.untrusted_places(given)] == [each.format(**places) for each in named]


def test_root_is_warned_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "MPI4PY_LIBMPI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", ":".join(f"{places['annas']}/{n}" for n in range(9)))
    run_as.warn_root()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "gpuipc-doctor: WARN as root, this runs code from places that others may write: PATH:"
    )
    assert "and 5 more" in line
