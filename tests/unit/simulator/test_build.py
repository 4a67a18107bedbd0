"""The symbol table, and building the simulated drivers from it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuipc_doctor.simulator import build as build_module
from gpuipc_doctor.simulator.build import FACES, SOURCES, Row, SimulatorUnavailable, Symbol, build, read_table

ROWS = read_table((SOURCES / "calls.table").read_text())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache; returns the directory that libraries go into."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpuipc-doctor"


# The table


def test_rows_are_parsed_with_versions_and_variants() -> None:
    row = "fill: sim_fill(uint64_t address, size_t count)\n    cuFill_v2@3020+ptds\n    hipFill\n"
    fill, end = read_table(f"# why\n{row}\nexit:\n")
    assert fill.symbols == (
        Symbol("cuFill_v2", 3020),
        Symbol("cuFill_v2_ptds", 3020, True),
        Symbol("hipFill"),
    )
    assert fill.arguments == ["address", "count"]
    assert end == Row("exit", "", "", ())


def test_invalid_row_is_reported() -> None:
    with pytest.raises(ValueError, match=r"^calls\.table:2: not a row: fill sim_fill$"):
        read_table("# why\nfill sim_fill\n")


def test_every_symbol_is_in_one_row() -> None:
    names = [symbol.name for row in ROWS for symbol in row.symbols]
    assert sorted(set(names)) == sorted(names)


# The libraries


def test_libraries_export_the_symbols_of_the_table() -> None:
    libraries = build()
    for face in FACES:
        library = ctypes.CDLL(str(libraries / face.soname))
        missing = [
            symbol.name
            for row in ROWS
            for symbol in row.symbols
            if symbol.name.startswith(face.prefix)
            # An exported function of Level Zero would be called in place of the loader's.
            and hasattr(library, symbol.name) is (build_module.LEVEL_ZERO_DRIVER in face.soname)
        ]
        assert missing == []
        for link in face.links:
            assert (libraries / link).resolve() == libraries / face.soname


@pytest.mark.parametrize("name", ["libcuda.so.1", "libamdhip64.so"])
def test_drivers_without_a_node_refuse_in_one_line(name: str) -> None:
    init = "cuInit" if "cuda" in name else "hipInit"
    code = f"import ctypes; ctypes.CDLL({str(build() / name)!r}).{init}(0)"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUIPC_SIM")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.returncode == -6
    assert ended.stderr == "simulated driver: GPUIPC_SIM_NODE is not set, so there is no node to simulate\n"


# The build


@pytest.mark.full
def test_simultaneous_builds_agree_leave_nothing_and_are_reused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also shows that the C code has no warning."""
    monkeypatch.setenv("CC", "cc -Werror")
    built: list[Path] = []
    threads = [threading.Thread(target=lambda: built.append(build())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 2
    assert len(set(built)) == 1
    assert list(cache.iterdir()) == [built[0]]
    assert cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(build_module, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build() == built[0]


def test_no_compiler_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SimulatorUnavailable, match=r"^no C compiler \(no-such-compiler\).*set CC$"):
        build()


def test_failing_compiler_is_reported_with_its_first_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'a.c:1: warning: hm' >&2\necho 'a.c:2: error: no' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(
        SimulatorUnavailable, match=r"^cannot build the simulated drivers: a\.c:2: error: no$"
    ):
        build()
    assert list(cache.iterdir()) == []


def test_cache_that_others_can_write_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o770)
    with pytest.raises(SimulatorUnavailable, match=r"other users can write to .*chmod go-w"):
        build()


def test_cache_below_a_directory_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyones = tmp_path / "everyones"
    everyones.mkdir()
    everyones.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(everyones))
    with pytest.raises(SimulatorUnavailable, match=f"other users can write to {everyones};"):
        build()


def test_cache_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(cache, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(SimulatorUnavailable, match="other users can write to"):
        build()


def test_cache_that_cannot_be_created_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SimulatorUnavailable, match="Not a directory; set XDG_CACHE_HOME"):
        build()
