"""Missing, empty or malformed kernel files crash no command and count as unknown."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gpuipc_doctor import node_name
from gpuipc_doctor.api import process_leaks
from gpuipc_doctor.files import node_files
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.job import growth, ipc_files, processes, selection, shared_memory
from gpuipc_doctor.job.activity import activity
from gpuipc_doctor.job.document import Cause, Process, Snapshot
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.job.processes import read_process
from gpuipc_doctor.job.selection import NoSuchJob, Request
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.node import fabric_devices, file_facts, gpus, loaded
from gpuipc_doctor.node.memory_sysfs import Amdgpu
from gpuipc_doctor.prolog.state import State
from gpuipc_doctor.stacks import counting, proc_files, process_list, rights, sampling, sleeping
from gpuipc_doctor.stacks.code import Code
from gpuipc_doctor.stacks.mappings import Mapping, mappings
from gpuipc_doctor.stacks.proc_files import Gone, Reader, Stat
from gpuipc_doctor.stacks.thread import UNREAD, Thread
from gpuipc_doctor.supervise import rank, tree
from gpuipc_doctor.vendors import AMD
from gpuipc_doctor.worker import children, fabric, fork_server, mpi_communicator

PID = 4_000_077
"""A pid that no process has."""

_STATED = {0: 1, 10: 150, 11: 50, 18: 812, 24: 4096}
NUMBERS = " ".join(str(_STATED.get(place, 0)) for place in range(49))
"""Fields of ``/proc/PID/stat`` after the state."""

ODD = b"odd \xff(: - unknown\n? 0x -1 :\n"
TEXTS = (None, b"", b"\n", ODD)

texts = pytest.mark.parametrize("text", TEXTS, ids=("absent", "empty", "line", "odd"))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private `/proc`, with one process that has no file yet."""
    for module in (processes, proc_files, process_list, rights, selection, ipc_files, shared_memory, tree):
        monkeypatch.setattr(module, "PROC", tmp_path)
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / str(PID) / "task" / str(PID)).mkdir(parents=True)
    return tmp_path


def write(file: Path, text: bytes | None) -> Path:
    if text is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    return file


# -- the processes of a node ----------------------------------------------------------------------------


@texts
def test_process_without_a_stat_is_not_listed(proc: Path, text: bytes | None) -> None:
    write(proc / str(PID) / "stat", text)
    assert process_list.processes() == {}
    assert tree.exit_code_of_zombie(PID) is None
    with pytest.raises(NoSuchJob, match="cannot be read; run this as root"):
        selection.select(Request(pids=(PID,)))


@pytest.mark.parametrize("name", ["a) R 1 (b", "line\nfeed", "", "(sd-pam)"])
def test_name_of_a_process_may_contain_anything(proc: Path, name: str) -> None:
    text = f"{PID} ({name}) S {NUMBERS}\n"
    write(proc / str(PID) / "stat", text.encode())
    assert process_list.processes() == {PID: process_list.Process(PID, 1, name, "S")}
    stat = Stat(text)
    assert (stat.name, stat.state, stat.parent, stat.started_ticks) == (name, "S", 1, 812)
    assert stat.used_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    assert stat.stack_begin == 4096


def test_proc_of_another_pid_namespace_is_refused(proc: Path) -> None:
    (proc / "self").unlink()
    (proc / "self").symlink_to("1")
    with pytest.raises(OSError, match="another pid namespace"):
        process_list.processes()


# -- a job ----------------------------------------------------------------------------------------------


@texts
def test_rank_that_cannot_be_read_has_not_ended(proc: Path, text: bytes | None) -> None:
    for name in ("stat", "environ", "maps", "task/{}/stat", "task/{}/io", "task/{}/syscall", "task/{}/stack"):
        write(proc / str(PID) / name.format(PID), text)
    process = read_process(PID, lambda tid, used_s: 0.0, frozenset())
    assert process
    assert (process.parent, process.started, process.libraries, process.transferred) == (0, 0, (), None)
    assert [thread.state for thread in process.threads] == [UNREAD]
    assert activity([process]).kind is Kind.UNKNOWN
    assert ("environ" in process.refused) == (text is None)


def test_rank_without_a_list_of_threads_has_not_ended(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "names", lambda reader, name: [])
    process = read_process(PID, lambda tid, used_s: 0.0, frozenset())
    assert process
    assert process.refused["task"] == "lists no thread"
    assert activity([process]).kind is Kind.UNKNOWN


def test_file_that_a_kernel_lacks_is_not_the_end_of_the_process(proc: Path) -> None:
    reader = Reader(PID)
    assert reader.text(f"task/{PID}/stack") == ""
    assert reader.refused == {"stack": "No such file or directory"}
    with pytest.raises(Gone):
        Reader(PID + 1).text("stack")
    with pytest.raises(Gone):
        reader.text(f"task/{PID + 1}/stack")


@pytest.mark.parametrize("is_hidden", [False, True])
def test_rank_whose_environment_is_refused_has_not_ended(is_hidden: bool) -> None:
    stack = (("MPI_Recv (libmpi.so.12)", "main (rank)"),)

    def process(pid: int, rank: int | None, **more: Any) -> Process:
        thread = Thread(tid=pid, name="rank", state="R", native=stack)
        mpi = ("/lib/libmpi.so.12",)
        return Process(pid=pid, parent=1, uid=0, program="rank", rank=rank, size=3, threads=(thread,),
                       libraries=mpi, **more)  # fmt: skip

    seen = [process(1, 0), process(2, 1)]
    if is_hidden:
        seen.append(process(3, None, refused={"environ": "Permission denied"}))
    snapshots = [Snapshot(at=at, host="n1", processes=tuple(seen)) for at in (1.0, 2.0)]
    expected = Cause.ALL_WAIT if is_hidden else Cause.RANK_ENDED
    assert examine(snapshots, {}).verdict.cause is expected


@texts
def test_reasons_and_limits_are_read_from_any_text(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    write(proc / str(PID) / "status", text)
    assert rights._real_uid(PID) is None
    monkeypatch.setattr(rights, "YAMA", write(tmp_path / "yama", text))
    assert rights.yama() == 0
    monkeypatch.setattr(sampling, "Path", lambda name: tmp_path / "yama")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert sampling.only_user_space() == ":u"


MAPS = (
    b"7f00-7f10 r-xp 00001000 08:01 12 /usr/lib/libmpi.so.12\n" + ODD + b"7f20-7f30 rw-s 00000000 00:17 9"
    b"  /dev/shm/a b (deleted)\n7ffd-7fff rw-p 00000000 00:00 0 [stack]\n7f40-7f5"
)


def test_mappings_are_parsed_from_the_text() -> None:
    library, shared, stack = mappings(MAPS.decode(errors="replace"))
    assert library == Mapping(0x7F00, 0x7F10, "r-xp", 0x1000, "08:01", 12, "/usr/lib/libmpi.so.12", False)
    assert (shared.file, shared.is_removed, shared.inode) == ("/dev/shm/a b", True, 9)
    assert shared.place(5) == "/proc/5/map_files/7f20-7f30"
    assert (stack.file, stack.begin) == ("[stack]", 0x7FFD)


def test_library_behind_the_most_mappings_is_seen(proc: Path) -> None:
    """By default, a process may have 65,530 mappings; libraries are mapped at high addresses."""
    path = f"/scratch/{'x' * 200}/file"
    line = f"7f00-7f10 r--s 00000000 08:01 12    {path}\n"
    write(proc / str(PID) / "maps", (line * 65_530).encode() + MAPS)
    assert processes._libraries(Reader(PID)) == {"/usr/lib/libmpi.so.12"}


@texts
def test_memory_of_a_process_without_maps_is_unknown(
    proc: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    write(proc / str(PID) / "maps", text)
    ranks = dict.fromkeys((0, 1), Process(pid=PID, parent=1, uid=0, program="rank"))
    assert shared_memory.contents(ranks) is None
    write(proc / str(PID) / "stat", text)
    write(proc / str(os.getpid()) / "maps", text)
    monkeypatch.setattr(ipc_files, "SYSV", write(proc / "sysvipc/shm", text))
    monkeypatch.setattr(ipc_files, "SHM", write(proc / "shm/of_some_process", b"x").parent)
    assert list(ipc_files.of_node("n1", ranks)) == [], "no file is called left behind"


@texts
def test_missing_stack_and_code_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    file = write(tmp_path / "file", text)
    for module in ("code", "counting", "sleeping"):
        monkeypatch.setattr(f"gpuipc_doctor.stacks.{module}.Path", lambda name: file)
    with pytest.raises(OSError):  # noqa: PT011 - absent, or not an address
        counting.outer_stack(PID)
    if text is None:
        with pytest.raises(FileNotFoundError):
            sleeping.stack(PID, PID)
    else:
        assert sleeping.stack(PID, PID) == ()
        assert Code(PID).stack is None


@pytest.mark.parametrize("text", [b"", ODD, b"RssAnon:\nThreads:\n", b"Name:\tx\n"])
def test_growth_that_the_kernel_does_not_show_is_no_verdict(
    proc: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    write(proc / str(PID) / "status", text)
    (proc / str(PID) / "fd").mkdir()
    write(proc / str(PID) / "maps", MAPS)
    monkeypatch.setattr(growth, "SHORTEST_S", 0.0)
    watched = growth.watch({0: Process(pid=PID, parent=1, uid=0, program="rank")}, 0.2)
    assert set(watched.unseen) == {"growth of host memory", "growth of threads"}


# -- the files of a node --------------------------------------------------------------------------------


@texts
def test_number_of_a_file(tmp_path: Path, text: bytes | None) -> None:
    assert node_files.number(write(tmp_path / "file", text)) is None
    assert node_files.number(write(tmp_path / "file", b" -1\n")) == -1


@texts
def test_host_name_is_the_hosts_own_if_the_file_has_none(tmp_path: Path, text: bytes | None) -> None:
    write(tmp_path / "proc/sys/kernel/hostname", text)
    stated = (text or b"").decode(errors="replace").strip()
    assert node_name.below(str(tmp_path)) == (stated or node_name.full())


def test_directories_that_fail_match_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "glob", fail)
    assert list(Tree(tmp_path).glob("/sys/*")) == []
    assert node_files.gpus_on_bus(tmp_path, "0x1002") == []
    assert fabric_devices.adapters(tmp_path) == {"cxi": (), "verbs": (), "efa": (), "opa": ()}
    assert fabric_devices.cxi_adapters(tmp_path) == []


@pytest.mark.parametrize("text", [b"", b"\n", ODD, b"x\0y\n", b"../../etc\n"])
def test_facts_come_from_files_that_state_them(tmp_path: Path, text: bytes) -> None:
    for name in ("osrelease", "numa_balancing", "yama/ptrace_scope"):
        write(tmp_path / "proc/sys/kernel" / name, text)
    write(tmp_path / "proc/config.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + text)
    for name in ("proc/cpuinfo", "proc/self/status", "proc/self/limits", "proc/driver/nvidia/version"):
        write(tmp_path / name, text)
    write(tmp_path / "dev/nvidia-caps-imex-channels/channel0x", b"")
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/odd/properties", b"simd_count 4\n")
    node = Tree(tmp_path)
    found = {fact.name: fact.value for fact in (*file_facts.of_modules(node), *file_facts.facts(node, {}))}
    assert found["kernel-dma-buf"] is None
    assert found["nvidia-driver"] is None
    assert found["imex-channels"] is None
    assert gpus.of_job(str(tmp_path), "").listed == ()


@pytest.mark.parametrize("text", [b"", b"\n", ODD])
def test_missing_facts_are_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    node = Tree(tmp_path)
    write(tmp_path / "proc/cmdline", text)
    write(tmp_path / "proc/config.gz", gzip.compress(text))
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    for kind in ("ipc", "uts", "user", "pid"):
        (tmp_path / "proc/self/ns" / kind).symlink_to("odd")
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    monkeypatch.setattr(os, "listdir", _refuse)
    found = {fact.name: fact.value for fact in (*file_facts.of_modules(node), *file_facts.facts(node, {}))}
    assert found["iommu"] is None
    assert found["namespaces"] is None
    assert found["kernel-dma-buf"] is None
    assert found["boot-parameters"] == ("none of interest" if text == ODD else None)


@texts
def test_adapter_with_an_odd_address_is_not_said_to_be_ignored(tmp_path: Path, text: bytes | None) -> None:
    (tmp_path / "sys/class/cxi/cxi0/device/net/hsn0").mkdir(parents=True)
    write(tmp_path / "sys/class/net/hsn0/addr_assign_type", text)
    write(tmp_path / "sys/class/net/hsn0/address", b"00:11:22:33:44:55\n" if text != ODD else text)
    (adapter,) = fabric_devices.cxi_adapters(tmp_path)
    assert adapter.left_out == ""


@texts
def test_amd_gpu_without_a_number_is_named(tmp_path: Path, text: bytes | None) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:c1:00.0"
    for name, stated in (("vendor", b"0x1002\n"), ("class", b"0x030000\n"), ("mem_info_vram_used", b"7\n")):
        write(device / name, stated)
    write(device / "mem_info_vram_total", text)
    (gpu,) = Amdgpu(MagicMock(), tmp_path, AMD).read()
    why = "No such file or directory" if text is None else "not a number"
    assert gpu.trouble == f"/sys/bus/pci/devices/0000:c1:00.0/mem_info_vram_total: {why}"


# -- workers and ranks ----------------------------------------------------------------------------------


@texts
def test_kernel_without_a_boot_id_is_identified_by_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    file = write(tmp_path / "boot_id", text)
    monkeypatch.setattr(rank, "Path", lambda name: file)
    stated = (text or b"").decode(errors="replace").strip()
    assert rank.boot_id() == (stated or os.uname().nodename)


def test_pass_stored_before_an_unseen_reboot_does_not_count() -> None:
    node = {"boot": "", "driver": "d"}
    stored = State(node, {"all": 1000.0})
    assert stored.age(node, "", 1010.0, 600.0) == "the kernel has no boot_id, so reboots would go unnoticed"
    assert stored.of(node) == stored


@pytest.mark.parametrize("lacks", ["Threads", "VmData", "VmSize"])
def test_figures_that_the_kernel_lacks_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    lines = {"Threads": "3", "VmData": "8 kB", "VmSize": "20 kB"}
    text = "".join(f"{name}:\t{value}\n" for name, value in lines.items() if name != lacks)
    file = write(tmp_path / "status", text.encode())
    monkeypatch.setattr(process_leaks, "Path", lambda name: file)
    found = process_leaks.figures_of_process()
    missing = {"Threads": {"threads"}, "VmData": {"host", "addresses"}, "VmSize": {"addresses"}}[lacks]
    assert {"heap", "descriptors", "threads", "host", "addresses"} - found.keys() == missing


def _refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied", "/proc/self/maps")


def test_descriptors_are_closed_without_a_list_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[int]()
    monkeypatch.setattr(os, "listdir", _refuse)
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 30)
    monkeypatch.setattr(os, "close", closed.append)
    children._close_all_but(9)
    monkeypatch.undo()
    assert closed == [number for number in range(3, 1 << 16) if number != 9]


@pytest.mark.parametrize(
    ("read", "unknown"),
    [
        (loaded.fabric, None),
        (fork_server._why_not_to_fork, "cannot read /proc/self/maps: Permission denied"),
    ],
)
def test_process_that_cannot_read_itself_reports_unknown(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], object], unknown: object
) -> None:
    monkeypatch.setattr(Path, "open", _refuse)
    monkeypatch.setattr(Path, "iterdir", _refuse)
    assert read() == unknown


def test_listener_is_found_in_the_kernels_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "Path", lambda name: tmp_path / name.rpartition("/")[2])
    with pytest.raises(FileNotFoundError):
        fabric._listens(80)
    row = "   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n"
    for text, listens in ((b"", False), (ODD, False), (row.encode(), True), (row[:20].encode(), False)):
        write(tmp_path / "tcp", text)
        assert fabric._listens(80) is listens


def test_mpi_library_without_a_version_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2)
    api = SimpleNamespace(
        Get_library_version=lambda: "\0", Init_thread=lambda: None, COMM_WORLD=world, Exception=RuntimeError
    )
    monkeypatch.setattr(mpi_communicator, "load_mpi4py", lambda arm: api)
    for name in ("OMPI_COMM_WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert mpi_communicator.Communicator(2, lambda call: nullcontext()).library_version() == ""  # type: ignore[arg-type,return-value]
