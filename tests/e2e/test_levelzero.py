"""Intel GPUs through the real loader of Level Zero, over the simulated driver; never run on a real one."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.simulator.node import prepare
from gpuipc_doctor.worker import descriptors
from gpuipc_doctor.worker.backends.levelzero import handles
from tests.conftest import LOADER
from tests.e2e.conftest import Command

pytestmark = pytest.mark.ze

ENV = {**os.environ, "LD_LIBRARY_PATH": LOADER}

NODE = """
description: d
extends: healthy-ze
devices:
  - {{backend: ze, name: Intel Arc B580, memory: 12 GiB, count: {count}}}
versions: {{intel-compute-runtime: {driver}}}
"""
LEGACY, OPAQUE = "25.18.33578.6", "26.31.39395.13"
"""Versions of the driver with handles that their user moves, and that it opens itself."""

APPLY = ("driver-init", "ipc-handles", "ipc-stale", "ipc-concurrent", "ipc-release", "ipc-peer")
LACKING = ("ipc-reopen", "ipc-pool", "ipc-vmm", "ipc-vmm-release", "ipc-fabric", "driver-pool-release")


def node(directory: Path, driver: str = LEGACY, count: int = 1, faults: str = "[]", more: str = "") -> str:
    file = directory / "node.yaml"
    file.write_text(NODE.format(count=count, driver=driver) + f"faults: {faults}\n{more}")
    return str(file)


def checked(doctor: Command, *asked: str) -> dict[str, list[dict[str, str]]]:
    """Check → its findings."""
    ran = doctor("check", *asked, "--json", env=ENV)
    found: dict[str, list[dict[str, str]]] = {}
    for result in json.loads(ran.stdout)["results"]:
        found.setdefault(result["check"], []).append(result["finding"])
    return found


@pytest.mark.parametrize("driver", [LEGACY, OPAQUE])
def test_healthy_node_passes_every_check_that_applies(doctor: Command, tmp_path: Path, driver: str) -> None:
    found = checked(doctor, *APPLY, "--simulate", node(tmp_path, driver, count=2))
    said = {check: {finding["status"] for finding in findings} for check, findings in found.items()}
    assert said == {check: {"PASS"} for check in APPLY}, found


def test_what_level_zero_lacks_is_skipped_with_the_reason(doctor: Command, tmp_path: Path) -> None:
    found = checked(doctor, *LACKING, "--simulate", node(tmp_path))
    for check in LACKING:
        assert [finding["status"] for finding in found[check]] == ["SKIP"], check
        assert "that this tool tests through Level Zero" in found[check][0]["summary"]


@pytest.mark.parametrize(
    ("fault", "check", "key", "mentions"),
    [
        ("call: init, do: hang", "driver-init", "hung", "zeInit #1"),
        ("call: ipc-get, do: collide", "ipc-handles", "other-memory", "opened the wrong memory"),
        ("call: ipc-open, nth: 2, do: hang", "ipc-handles", "hung", "zeMemOpenIpcHandle #2"),
        (
            "call: ipc-open, nth: 2, do: error, error: UNKNOWN",
            "ipc-handles",
            "returned-error",
            "zeMemOpenIpcHandle #2 (open segment 1, 1000 B) returned ZE_RESULT_ERROR_UNKNOWN",
        ),
        (
            "call: ipc-close, do: end-another",
            "ipc-handles",
            "returned-error",
            "zeCommandListAppendMemoryCopy",
        ),
        ("call: ipc-open, nth: 2, do: corrupt-byte", "ipc-concurrent", "wrong-data", "wrong data"),
        ("call: ipc-open, when: overlap, do: stale", "ipc-stale", "stale", "after its address was reused"),
        ("call: ipc-open, do: leak, bytes: 2 MiB", "ipc-release", "grows", "grows by 2 MiB with each open"),
        ("call: ipc-open, do: leak-descriptor", "ipc-release", "descriptors-left", "open descriptors grow"),
        ("call: exit, do: keep", "ipc-release", "not-returned", "was not released after the importer"),
        ("call: ipc-open, do: lose-writes", "ipc-peer", "writes-lost", "reached the exporter"),
        ("call: ipc-open, do: leak, bytes: 2 MiB", "ipc-histories", "leak", "increases used device memory"),
    ],
)
def test_each_check_that_applies_finds_its_fault(
    doctor: Command, tmp_path: Path, fault: str, check: str, key: str, mentions: str
) -> None:
    simulated = node(tmp_path, count=1 + (check == "ipc-peer"), faults=f"[{{{fault}}}]")
    asked = (check, "--deadline", "3", "--simulate", simulated)
    bad = [finding for finding in checked(doctor, *asked)[check] if finding["status"] == "FAIL"]
    said = [(finding["key"], finding["summary"]) for finding in bad]
    assert any(found == key and mentions in summary for found, summary in said), said


FDINFO = """
  /proc/4242/fd/{fd}: /dev/dri/renderD128
  /proc/4242/fdinfo/{fd}: "drm-driver: {driver}\\ndrm-client-id: {client}\\ndrm-pdev: {pci}\\n{memory}\\n"
"""
XE, I915 = "drm-total-vram0:\\t8 MiB\\ndrm-resident-vram0:\\t3072 KiB", "drm-total-local0:\\t4096"


def test_memory_by_process_is_what_xe_and_i915_tell_of_open_files(doctor: Command, tmp_path: Path) -> None:
    first, second = "0000:11:00.0", "0000:19:00.0"
    files = [
        FDINFO.format(fd=7, driver="xe", client=12, pci=first, memory=XE),
        FDINFO.format(fd=8, driver="xe", client=12, pci=first, memory=XE),  # the same client
        FDINFO.format(fd=9, driver="xe", client=13, pci=first, memory=XE),
        FDINFO.format(fd=10, driver="i915", client=12, pci=second, memory=I915),
        FDINFO.format(fd=11, driver="nouveau", client=1, pci="0000:01:00.0", memory=XE),
        FDINFO.format(fd=12, driver="xe", client=14, pci=first, memory="nonsense"),
    ]
    simulated = node(tmp_path, count=2, more="files:" + "".join(files))
    shown = doctor("memory", "--simulate", simulated, env=ENV)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("EXPERIMENTAL: never run on an Intel GPU\n")
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[4:10] == [
        "ze:0 Intel GPU 0bd5 (xe) unknown unknown",
        "4242, it has ended 6 MiB",
        "(not counted by the kernel)",
        "ze:1 Intel GPU 0bd5 (xe) unknown unknown",
        "4242, it has ended 4 KiB",
        "(not counted by the kernel)",
    ], shown.stdout


# -- what may be wrong on a node --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "devices", "says"),
    [
        ("1", "1 × Intel Arc B580", ""),
        ("1,0.0,7,x", "2 × Intel Arc B580", ""),
        ("", "2 × Intel Arc B580", ""),
        ("7", "", "ZE_AFFINITY_MASK=7 leaves no Intel GPU visible"),
        ("x", "", "ZE_AFFINITY_MASK=x leaves no Intel GPU visible"),
    ],
)
def test_affinity_mask_selects_devices(
    doctor: Command, tmp_path: Path, mask: str, devices: str, says: str
) -> None:
    asked = ("driver-init", "--backend", "ze", "--simulate", node(tmp_path, count=2), "--json")
    ran = doctor("check", *asked, env={**ENV, "ZE_AFFINITY_MASK": mask})
    found = [each["finding"] for each in json.loads(ran.stdout)["results"]]
    assert found[0]["status"] == ("PASS" if devices else "ERROR")
    assert (devices or says) in found[0]["summary"]


OPEN = """
from contextlib import nullcontext
from gpuipc_doctor.api.driver_errors import BackendUnavailable
from gpuipc_doctor.worker.backends import open_backend
try:
    open_backend("ze", lambda _: nullcontext()).devices()
except BackendUnavailable as absent:
    print(absent.reason, absent.remedy, sep="; ")
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "the loader finds no driver: "),
        ("int nothing;", " is no driver for this loader: it has no zeGetGlobalProcAddrTable; install "),
        (
            "int zeGetGlobalProcAddrTable(int v, void **t) { return t[0] = 0, 0; }",
            " is no driver for this loader: it has no zeGetMemProcAddrTable; install a loader",
        ),
    ],
)
def test_loader_without_a_whole_driver_is_explained(tmp_path: Path, source: str, says: str) -> None:
    library = tmp_path / "driver.so"
    if source:
        compiler = ["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"]
        subprocess.run(compiler, input=source.encode(), check=True)
    ran = subprocess.run(
        [sys.executable, "-c", OPEN],
        env={**ENV, "ZE_ENABLE_ALT_DRIVERS": str(library)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert says in ran.stdout, ran.stderr
    assert ran.stdout.startswith("zeInit returned ZE_RESULT_ERROR_UNINITIALIZED (2013265921): ")


@pytest.mark.parametrize("refused", [True, False])
def test_handles_pass_by_socket_where_the_kernel_has_no_pidfd(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    def refuse(pid: int, number: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    memory = os.memfd_create("memory")
    os.write(memory, b"data")
    if refused:
        monkeypatch.setattr(descriptors, "fetch", refuse)
    exported = handles.Exported()
    packed = exported.packed(4096, struct.pack("i", memory) + bytes(60))
    assert packed.startswith(handles.SOCKET if refused else handles.PIDFD)
    with handles.opened(packed) as handle:
        number = handles.number_in(handle)
        assert number != memory
        assert os.pread(number, 4, 0) == b"data"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    exported.close_rest(exported.end(4096))  # the driver has not closed its own
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory)


def test_descriptor_that_is_another_file_now_stays_open() -> None:
    memory = os.memfd_create("memory")
    exported = handles.Exported()
    exported.packed(4096, struct.pack("i", memory) + bytes(60))
    os.close(memory)  # by the driver
    other = os.dup2(os.open("/dev/null", os.O_RDONLY), memory)
    exported.close_rest(exported.end(4096))
    os.close(other)


def test_descriptor_of_two_small_buffers_is_closed_with_the_last() -> None:
    """As Intel's driver has it for buffers in one pool; the offset in the handle differs."""
    memory = os.memfd_create("pool")
    exported = handles.Exported()
    for address in (4096, 8192):
        exported.packed(address, struct.pack("iq", memory, address) + bytes(48))
    exported.close_rest(exported.end(4096))
    os.fstat(memory)
    exported.close_rest(exported.end(8192))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory)


def test_handle_with_the_exporters_pid_is_opened_as_it_is() -> None:
    memory = os.memfd_create("memory")
    handle = struct.pack("2i8xi", memory, 0, os.getpid()).ljust(64, b"\0")
    packed = handles.Exported().packed(4096, handle)
    assert packed.startswith(handles.OPAQUE)
    with handles.opened(packed) as here:
        assert here == handle
    os.close(memory)


ON_SIMULATED = """
import ctypes
from contextlib import nullcontext
from gpuipc_doctor.worker.backends import open_backend
backend = open_backend("ze", lambda _: nullcontext())
gpu = backend.gpu(backend.devices()[0])
buffer = gpu.alloc(4096)
"""
READS = "print(ctypes.string_at(buffer.address, 1))"
EXECUTES = """
library, pointer, flags = ctypes.CDLL("libze_loader.so.1"), ctypes.c_void_p, ctypes.create_string_buffer(64)
def made(create, *of):
    handle = pointer()
    assert getattr(library, create)(*map(pointer, of), flags, ctypes.byref(handle)) == 0, create
    return handle
context, device = backend.driver._context, gpu.contexts.device
queue, commands = made("zeCommandQueueCreate", context, device), made("zeCommandListCreate", context, device)
pattern = ctypes.c_uint32(0x12345678)
fill = (commands, pointer(buffer.address), ctypes.byref(pattern), 4, ctypes.c_size_t(4096), None, 0, None)
assert library.zeCommandListAppendMemoryFill(*fill) == library.zeCommandListClose(commands) == 0
assert buffer.read(4) == bytes(4)
for _ in range(2):
    buffer.write(bytes(4096))
    assert library.zeCommandQueueExecuteCommandLists(queue, 1, ctypes.byref(commands), None) == 0
    assert buffer.read() == bytes.fromhex("78563412") * 1024
print("executed")
"""


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [(READS, -signal.SIGSEGV, ""), (EXECUTES, 0, "executed\n")],
    ids=["the host does not reach device memory", "a closed list is executed again"],
)
def test_simulated_driver(tmp_path: Path, program: str, code: int, says: str) -> None:
    simulated = prepare(node(tmp_path), tmp_path)
    environment = {**os.environ, **simulated.env}
    environment["LD_LIBRARY_PATH"] += f":{LOADER}"
    command = [sys.executable, "-c", ON_SIMULATED + program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (code, says), ran.stderr
