"""Function names recovered from stripped libraries."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuipc_doctor.stacks import code, sleeping
from gpuipc_doctor.stacks.callers import fingerprint
from tests.hanging_fs import AS_ROOT, hanging
from tests.waiting import until

LIBRARY = """
#include <unistd.h>
static volatile int waits = 1;
__attribute__((noinline)) static int wait_for_all(void) { while (waits) pause(); return 0; }
int MPI_Waitall(void) { return wait_for_all(); }
"""
PROGRAM = """
int MPI_Waitall(void);
__attribute__((noinline)) static int halo(void) { return MPI_Waitall() + 1; }
int main(void) { return halo() + 1; }
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize("how", ["-fplt", "-fno-plt"])
def test_function_that_jumps_to_a_nameless_one_is_named_by_its_caller(tmp_path: Path, how: str) -> None:
    """MPI_Waitall of MPICH 5.0 and MPI_Ssend of Intel MPI 2021 are five and two bytes long."""
    for name, text in (("mpi.c", LIBRARY), ("app.c", PROGRAM)):
        (tmp_path / name).write_text(text)
    library = tmp_path / "libmpi.so.12"
    for command in (
        ["gcc", "-O2", "-s", "-shared", "-fPIC", "mpi.c", "-o", library],
        ["gcc", "-O1", how, "app.c", library, f"-Wl,-rpath,{tmp_path}", "-o", "app"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    with subprocess.Popen([tmp_path / "app"]) as app:
        try:
            seen = until("it waits", lambda: [*filter(_is_of_mpi, sleeping.stack(app.pid, app.pid))])
        finally:
            app.kill()
    assert seen[-1] == "MPI_Waitall (libmpi.so.12)"


POLLS = """
#include <time.h>
static int (*volatile poll)(const struct timespec *, struct timespec *) = nanosleep;
int MPI_Mprobe(int number) {
    volatile long polled[8] = {number};
    struct timespec pause = {0, 1000000};
    while (polled[0] >= 0) { polled[3]++; poll(&pause, 0); if (polled[0] == 1) return 0; }
    return 1;
}
"""
CALLER = """
int MPI_Mprobe(int);
int main(int argc, char **argv) { volatile long n; for (n = 0;; n++) if (MPI_Mprobe(argc - 1)) return 1; }
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize(("arguments", "moves"), [((), False), (("again",), True)])
def test_call_that_polls_in_its_own_frame_does_not_move_its_caller(
    tmp_path: Path, arguments: tuple[str, ...], moves: bool
) -> None:
    (tmp_path / "mpi.c").write_text(POLLS)
    (tmp_path / "app.c").write_text(CALLER)
    library = tmp_path / "libmpi.so.12"
    for command in (
        ["gcc", "-O1", "-shared", "-fPIC", "mpi.c", "-o", library],
        ["gcc", "-O1", "app.c", library, f"-Wl,-rpath,{tmp_path}", "-o", "app"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    with subprocess.Popen([tmp_path / "app", *arguments]) as app:
        try:
            until("it polls", lambda: fingerprint(app.pid))
            seen = {fingerprint(app.pid) for _ in range(100) if not time.sleep(0.003)} - {""}
        finally:
            app.kill()
    assert (len(seen) > 1) is moves


def _is_of_mpi(frame: str) -> bool:
    return "libmpi" in frame


def test_frame_of_a_call_is_listed_once() -> None:
    assert code.entered("[libmpi.so.12]", "MPI_Waitall") == "MPI_Waitall (libmpi.so.12)"
    assert code.entered("PMPI_Waitall (libmpi.so.12)", "MPI_Waitall") == ""
    assert code.entered("poll (libc.so.6)", "MPI_Waitall") == ""
    assert code.entered("[libmpi.so.12]", "exchange") == ""
    assert code.called("/nowhere", 77) == ""


MAPS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("planted", ["pipe", "link to /dev/zero", "sparse", "directory", "device"])
def test_what_a_process_puts_at_the_path_of_its_code_is_not_read(tmp_path: Path, planted: str) -> None:
    if planted == "device" and os.geteuid() != 0:
        pytest.skip("making a device needs root")
    library = tmp_path / "libhostile.so"
    shutil.copy(sys.executable, library)
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        library.unlink()
        plant(library, planted)
        began = time.monotonic()
        found = code.Code(process.pid)
        (segment,) = (each for each in found._segments if each.file == str(library))
        found.frames(segment.begin + 4096, b"")
        code.called(str(library), 4096)
        process.communicate()
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB


def plant(path: Path, planted: str) -> None:
    if planted == "pipe":
        os.mkfifo(path)
    elif planted == "directory":
        path.mkdir()
    elif planted == "device":  # opening it would start the watchdog, and closing it reset the node
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(10, 130))
    elif planted == "sparse":
        table = struct.pack("<IIQQQQIIQQ", 1, 2, 0, 0, 128, 1 << 39, 0, 0, 0, 24)
        head = bytearray(b"\x7fELF\x02".ljust(64, b"\0"))
        struct.pack_into("<Q", head, 0x28, 64)
        struct.pack_into("<HH", head, 0x3A, 64, 1)
        path.write_bytes(bytes(head) + table)
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open what a process has mapped")
def test_code_is_read_from_what_is_mapped(tmp_path: Path) -> None:
    library = tmp_path / "libtrue.so"
    shutil.copy(sys.executable, library)
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        library.unlink()
        library.write_text("no ELF file")
        found = code.Code(process.pid)
        (segment,) = (each for each in found._segments if each.file == str(library))
        image, _ = found._place(segment.begin)
        process.communicate()
    assert image is not None


@AS_ROOT
def test_file_system_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(code._limits, "wait_s", 1.0)
    with hanging(tmp_path / "fuse") as served:
        began = time.monotonic()
        assert [code.called(str(served / f"lib{n}.so"), 64) for n in range(5)] == [""] * 5
        took_s = time.monotonic() - began
    assert 1.0 <= took_s < 3.0


def hostile(kind: int, sections: int, nbytes: int, names: int) -> bytes:
    """An ELF file whose sections all show the same table of one kind, before a table of one long name."""
    head, size = 0x40, 0x40
    table_at = head + size * (sections + 1)
    row = struct.pack("<IBBHQQ", 0, 2, 0, 1, 0x1000, 16) if kind == 2 else struct.pack("<QQq", 0, 6, 0)
    section = struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, table_at, nbytes, sections, 0, 0, 24)
    strings = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, table_at + nbytes, names + 1, 0, 0, 0, 0)
    file = bytearray(b"\x7fELF\x02\x01\x01".ljust(head, b"\0"))
    struct.pack_into("<HHIQQQIHHHHHH", file, 16, 3, 62, 1, 0, 0, head, 0, head, 56, 0, size, sections + 1, 0)
    name = b"x" if kind == 2 else b"\0"
    return bytes(file) + section * sections + strings + row * (nbytes // 24) + name * names + b"\0"


@pytest.mark.parametrize(
    ("kind", "sections", "rows", "names"),
    [(2, 1, 200_000, 1 << 20), (2, 4000, 2000, 8), (4, 4000, 2000, 8), (2, 1, 10, 64 << 20)],
    ids=["long names", "tables of symbols", "tables of relocations", "one longer name"],
)
def test_hostile_tables_of_a_file_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: int, sections: int, rows: int, names: int
) -> None:
    """200,000 symbols that share a name of 1 MiB would take 200 GB."""
    monkeypatch.setattr(code, "_images", {})
    monkeypatch.setattr(code, "_limits", {"wait_s": 10.0, "symbols": 1 << 16})
    file = tmp_path / "libhostile.so"
    file.write_bytes(hostile(kind, sections, 24 * rows, names))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    code.called(str(file), 0x1000)
    image = code._image(str(file))
    assert image is None or len(image._imports) <= 1
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB
