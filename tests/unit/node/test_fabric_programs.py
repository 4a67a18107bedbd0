"""Search order of the programs of libfabric and UCX, and the library that they are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.node import fabric_programs


def program(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def found(root: Path, path: str = "", library: str | None = None) -> dict[str, tuple[str, str]]:
    every = fabric_programs.find(str(root), path, library, others=False)
    return {name: (one.file, one.via) for name, one in every.items()}


def test_path_precedes_the_mpi_and_vendors_directories(tmp_path: Path) -> None:
    on_path = program(tmp_path / "usr/fi_info")
    beside = program(tmp_path / "mpi/bin/fi_pingpong")
    program(tmp_path / "mpi/bin/fi_info")
    vendors = program(tmp_path / "opt/cray/libfabric/2.3.1/bin/ucx_info")
    library = str(tmp_path / "mpi/lib/libmpi.so.12")
    assert found(tmp_path, str(on_path.parent), library) == {
        "fi_info": (str(on_path), "PATH"),
        "fi_pingpong": (str(beside), f"beside {library}"),
        "ucx_info": (str(vendors), "not on PATH"),
    }


def test_newest_release_is_used(tmp_path: Path) -> None:
    """Releases are compared by number, not by name: 2.10 is newer than 2.9."""
    for release in ("1.22.0", "2.9.0", "2.10.0"):
        program(tmp_path / f"opt/cray/libfabric/{release}/bin/fi_info")
    assert "/2.10.0/" in found(tmp_path)["fi_info"][0]


def test_intel_mpis_script_is_skipped(tmp_path: Path) -> None:
    program(tmp_path / "bin/fi_info")
    real = program(tmp_path / "bin/libfabric/fi_info")
    assert found(tmp_path / "nowhere", str(tmp_path / "bin"))["fi_info"] == (str(real), "PATH")


@pytest.mark.parametrize("made", ["not executable", "a directory", "a relative PATH"])
def test_file_that_cannot_be_executed_is_not_found(
    tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if made == "a directory":
        (tmp_path / "bin/fi_info").mkdir(parents=True)
    else:
        program(tmp_path / "bin/fi_info").chmod(0o644 if made == "not executable" else 0o755)
    assert not found(tmp_path / "nowhere", "bin" if made == "a relative PATH" else str(tmp_path / "bin"))


@pytest.mark.parametrize(("name", "soname"), [("fi_info", "libfabric.so.1"), ("ucx_info", "libucp.so.0")])
@pytest.mark.parametrize("place", ["bin", "bin/libfabric"])
def test_library_of_the_same_installation_comes_first(
    tmp_path: Path, name: str, soname: str, place: str
) -> None:
    file = program(tmp_path / place / name)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / soname).touch()
    environ = fabric_programs.environment(str(file), {"LD_LIBRARY_PATH": "/mine", "HOME": "/root"})
    assert environ == {"LD_LIBRARY_PATH": f"{tmp_path}/lib:/mine", "HOME": "/root"}


def test_without_a_library_nothing_is_added(tmp_path: Path) -> None:
    assert fabric_programs.environment(str(program(tmp_path / "bin/fi_info")), {"HOME": "/root"}) == {
        "HOME": "/root"
    }
