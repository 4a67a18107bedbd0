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
        image = found._image(segment)
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
