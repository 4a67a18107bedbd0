"""The inventory finds the library that a process would load, without loading it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.node.libraries import CACHE, Libraries
from gpuipc_doctor.node.survey_plan import mpi_libraries
from tests.unit.node.test_inventory import facts_of, link, plant

X86_64 = 0x0303


def cache(entries: list[tuple[int, str, str]], before: bytes = b"") -> bytes:
    """A cache in ldconfig's format, after one in an older format. ``entries``: (flags, soname, file)."""
    strings, places = b"", []
    at = 48 + 24 * len(entries)
    for _, soname, file in entries:
        offsets = []
        for text in (soname, file):
            offsets.append(at + len(strings))
            strings += text.encode() + b"\0"
        places.append(offsets)
    head = struct.pack("<20sII5I", b"glibc-ld.so.cache1.1", len(entries), len(strings), 0, 0, 0, 0, 0)
    body = b"".join(
        struct.pack("<iIIIQ", flags, *place, 0, 0)
        for (flags, _, _), place in zip(entries, places, strict=True)
    )
    return before + head + body + strings


def found(root: Path, soname: str, **environ: str) -> tuple[str, str] | None:
    library = Libraries(Tree(root), environ).find(soname)
    return (library.file, library.via) if library else None


def fact(root: Path, name: str, **environ: str) -> list[str | None]:
    return [fact.value for fact in facts_of(root, (), environ) if fact.name == name]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A driver's libcuda in the cache, and another one in a compatibility package."""
    link(tmp_path, "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "libcuda.so.570.86.15")
    link(tmp_path, "/usr/lib32/libcuda.so.1", "libcuda.so.1.1")
    link(tmp_path, "/usr/local/cuda/compat/libcuda.so.1", "libcuda.so.580.82.07")
    entries = [
        (0x0003, "libcuda.so.1", "/usr/lib32/libcuda.so.1"),
        (X86_64, "libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1"),
        (X86_64, "libgone.so.1", "/usr/lib/libgone.so.1"),
    ]
    plant(tmp_path, CACHE, cache(entries))
    return tmp_path


def test_cache_entry_of_this_architecture_is_used(node: Path) -> None:
    assert found(node, "libcuda.so.1") == ("/usr/lib/aarch64-linux-gnu/libcuda.so.1", CACHE)
    assert fact(node, "libcuda") == ["570.86.15"]


def test_ld_library_path_precedes_the_cache(node: Path) -> None:
    path = "relative:/nowhere:/usr/local/cuda/compat"
    expected = ("/usr/local/cuda/compat/libcuda.so.1", "LD_LIBRARY_PATH")
    assert found(node, "libcuda.so.1", LD_LIBRARY_PATH=path) == expected
    assert fact(node, "libcuda", LD_LIBRARY_PATH=path) == ["580.82.07"]


def test_removed_file_is_not_found(node: Path) -> None:
    assert found(node, "libgone.so.1") is None


def test_without_a_cache_default_directories_are_searched(tmp_path: Path) -> None:
    link(tmp_path, "/usr/lib64/libcudart.so.12", "libcudart.so.12.4.127")
    link(tmp_path, "/usr/lib64/libcudart.so.11.0", "libcudart.so.11.8.89")
    assert sorted(map(str, fact(tmp_path, "cuda-runtime"))) == ["11.8.89", "12.4.127"]


@given(st.binary(), st.integers(0, 200))
def test_damaged_cache_finds_nothing(noise: bytes, cut: int) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as root:
        raw = cache([(X86_64, "libx.so.1", "/usr/lib/libx.so.1")])
        for damaged in (raw[:cut] + noise, noise + raw[cut:]):
            plant(Path(root), CACHE, damaged)
            assert found(Path(root), "libx.so.1") is None


def test_stub_or_wsl_library_has_no_driver_version(tmp_path: Path) -> None:
    plant(tmp_path, "/usr/lib64/libcuda.so.1", "")
    [one] = [fact for fact in facts_of(tmp_path, (), {}) if fact.name == "libcuda"]
    assert (one.value, one.source) == (None, "no version in the name of /usr/lib64/libcuda.so.1 (default)")


def test_rocm_version_of_a_distribution_is_in_its_librarys_name(tmp_path: Path) -> None:
    """Debian's libamdhip64-7 has no /opt/rocm, and no .info/version in its library's directory."""
    plant(tmp_path, "/usr/lib64/libamdhip64.so.7.2.53211", "")
    (tmp_path / "usr/lib64/libamdhip64.so.7").symlink_to("libamdhip64.so.7.2.53211")
    assert fact(tmp_path, "rocm") == ["7.2"]


def test_libfabric_of_hpe_is_not_upstreams(tmp_path: Path) -> None:
    directory = "/opt/cray/libfabric/1.15.2.0/lib64"
    plant(tmp_path, f"{directory}/libfabric.so.1", "")
    plant(tmp_path, f"{directory}/pkgconfig/libfabric.pc", "Version: 1.15.2.0\n")
    assert fact(tmp_path, "shs-libfabric", LD_LIBRARY_PATH=directory) == ["1.15.2.0"]
    assert fact(tmp_path, "libfabric", LD_LIBRARY_PATH=directory) == [None]


def test_link_out_of_a_simulated_node_is_not_followed(tmp_path: Path) -> None:
    directory = tmp_path / "usr/lib64"
    directory.mkdir(parents=True)
    (directory / "libcuda.so.1").symlink_to("/usr/lib/libcuda.so.570.86.15")
    assert fact(tmp_path, "libcuda") == [None]


def test_search_order_of_mpi_libraries(tmp_path: Path) -> None:
    plant(tmp_path, "/opt/ompi/bin/mpiexec", "")
    (tmp_path / "opt/ompi/bin/mpiexec").chmod(0o755)
    link(tmp_path, "/opt/ompi/lib/libmpi.so.40", "libmpi.so.40.40.7")
    plant(tmp_path, "/opt/ompi/lib/libmpi_cxx.so.40", "")
    plant(tmp_path, "/opt/cray/pe/mpich/8.1.30/ofi/gnu/12.3/lib/libmpi_gnu_123.so.12", "")
    plant(tmp_path, "/usr/lib64/libmpi.so.12", "")
    environ = {
        "PATH": "relative:/nowhere:/opt/ompi/bin",
        "CRAY_MPICH_DIR": "/opt/cray/pe/mpich/8.1.30/ofi/gnu/12.3",
        "LD_LIBRARY_PATH": "/opt/ompi/lib",
    }
    tree = Tree(tmp_path)
    assert mpi_libraries(tree, Libraries(tree, environ), environ) == [
        "/opt/ompi/lib/libmpi.so.40",
        "/opt/cray/pe/mpich/8.1.30/ofi/gnu/12.3/lib/libmpi_gnu_123.so.12",
        "/usr/lib64/libmpi.so.12",
    ]


def test_modules_of_a_ucx_lie_next_to_its_library(tmp_path: Path) -> None:
    for name in ("libucp.so.0", "ucx/libuct_cma.so.0", "ucx/libuct_cma.so.0.0.0", "ucx/libuct_rocm.so"):
        plant(tmp_path, f"/opt/x/lib/{name}", "")
    assert fact(tmp_path, "ucx-modules", LD_LIBRARY_PATH="/opt/x/lib") == ["cma rocm"]
