"""The part of the backends that needs neither a GPU nor a simulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.model import Device, DriverFault
from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.worker.backends import CAPABILITIES, Backend, hostmemory, nvml, open_backend, rules
from gpuipc_doctor.worker.backends.cuda import CudaDriver
from gpuipc_doctor.worker.backends.device import DriverGpu
from gpuipc_doctor.worker.backends.driver import Driver
from gpuipc_doctor.worker.backends.hip import HipDriver


class CUresult(IntEnum):
    SUCCESS = 0
    ERROR_INVALID_HANDLE = 400


class Journal:
    """Arms operations as a worker does, and records them."""

    def __init__(self) -> None:
        self.armed: str | None = None
        self.seen: list[str] = []

    @contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        self.armed = operation
        self.seen.append(operation)
        yield
        self.armed = None


@pytest.fixture
def journal() -> Journal:
    return Journal()


def driver_of(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, root: Path = Path("/"), **functions: Any
) -> CudaDriver:
    """A CUDA driver with ``functions`` as its binding, and a library that loads."""
    monkeypatch.setattr(CudaDriver, "_import_binding", lambda self: SimpleNamespace(**functions))
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)
    return CudaDriver(journal, root)


# Calls


def test_call_is_armed_under_its_own_name_while_it_runs(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    during: list[str | None] = []
    driver = driver_of(
        journal, monkeypatch, cuInit=lambda flags: during.append(journal.armed) or (CUresult.SUCCESS,)
    )
    driver.call("init", 0)
    assert during == ["cuInit"]
    assert journal.armed is None


def test_failed_call_raises_the_drivers_name_of_the_error(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_of(journal, monkeypatch, cuMemFree=lambda address: (CUresult.ERROR_INVALID_HANDLE,))
    with pytest.raises(DriverError) as caught:
        driver.call("mem-free", 1)
    assert caught.value.fault == DriverFault("cuMemFree", 400, "ERROR_INVALID_HANDLE")


def test_unknown_code_is_a_driver_error(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(journal, monkeypatch, cuMemFree=lambda address: (CUresult(9999),))
    with pytest.raises(DriverError) as caught:
        driver.call("mem-free", 1)
    assert caught.value.fault.code == 9999


@pytest.mark.parametrize("empty", [None, 0])
def test_success_without_a_result_is_a_driver_error(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, empty: int | None
) -> None:
    driver = driver_of(journal, monkeypatch, cuMemAlloc=lambda nbytes: (CUresult.SUCCESS, empty))
    with pytest.raises(DriverError, match="cuMemAlloc returned success without a result"):
        driver.number("mem-alloc", 4096)


@pytest.mark.parametrize(
    ("address", "is_right"), [(0x7F0000000100, True), (0x7F0000000008, False), (1, False)]
)
def test_misaligned_address_is_blamed_on_the_call_that_returned_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, address: int, is_right: bool
) -> None:
    driver = driver_of(journal, monkeypatch, cuIpcOpenMemHandle=lambda *_: (CUresult.SUCCESS, address))
    if is_right:
        assert driver.address("ipc-open", b"", 1) == address
    else:
        with pytest.raises(
            DriverError, match="cuIpcOpenMemHandle returned success with a misaligned address"
        ):
            driver.address("ipc-open", b"", 1)


def test_text_that_is_not_utf_8_is_a_driver_error(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(journal, monkeypatch, cuDeviceGetName=lambda *_: b"\xff".decode())
    with pytest.raises(DriverError, match="cuDeviceGetName returned text that is not UTF-8"):
        driver.call("device-name", 256, 0)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("9999 is not a valid CUresult", "cuMemFree returned a code unknown to the binding \\(9999\\)"),
        (
            "32633 is not a valid hipMemAccessFlags",
            "cuMemFree returned an error whose code the binding hides",
        ),
    ],
)
def test_number_that_is_no_code_is_not_told_as_one(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    def rejects(address: object) -> None:
        raise ValueError(says)

    driver = driver_of(journal, monkeypatch, cuMemFree=rejects)
    with pytest.raises(DriverError, match=told):
        driver.call("mem-free", "x")


def test_our_own_mistake_is_not_blamed_on_the_driver(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejects(address: object) -> None:
        raise ValueError("invalid literal for int() with base 10")

    driver = driver_of(journal, monkeypatch, cuMemFree=rejects)
    with pytest.raises(ValueError, match="invalid literal"):
        driver.call("mem-free", "x")


def test_missing_entry_point_makes_the_backend_unavailable(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(flags: int) -> None:
        raise RuntimeError('Function "cuCtxCreate_v4" not found')

    driver = driver_of(journal, monkeypatch, cuInit=missing)
    with pytest.raises(BackendUnavailable, match="cuCtxCreate_v4"):
        driver.call("init", 0)
    with pytest.raises(BackendUnavailable, match="cuMemAlloc"):  # the binding itself has no such function
        driver.call("mem-alloc", 1)


@pytest.mark.parametrize("driver", [CudaDriver, HipDriver])
def test_both_drivers_have_the_methods_that_shared_code_calls(
    driver: type[CudaDriver] | type[HipDriver],
) -> None:
    own = {"device-uuid-mig", "runtime-version", "alloc-with-flags"}
    calls = {call for call in driver.calls if call not in own and not call.startswith("rtc-")}  # hiprtc's
    assert calls == (CudaDriver.calls.keys() & HipDriver.calls.keys())


# Contexts


class Machine:
    """A driver of one device that records the calls made to it, in the order of the journal."""

    def __init__(self, own_memory: bool = True) -> None:
        self.contexts_own_memory = own_memory
        self.current = None
        self.backend = "cuda"
        self.calls: list[tuple[Any, ...]] = []

    def call(self, operation: str, *arguments: Any) -> Any:
        self.calls.append((operation, *arguments))
        return {"primary-retain": "primary", "mem-alloc": 0x1000, "mem-info": [1, 2]}.get(operation)

    number, numbers, see_result = Driver.number, Driver.numbers, Driver.see_result
    memory_info = Driver.memory_info

    def take_working_memory(self) -> None:
        """Nothing to do, as with CUDA."""

    def device_at(self, ordinal: int) -> int:
        return ordinal

    def create_context(self, ordinal: int) -> str:
        self.calls.append(("context-create", ordinal))
        return f"context {len(self.calls)}"


def gpu_of(machine: Machine, ordinal: int = 0) -> Any:
    from gpuipc_doctor.worker.backends.device import DriverGpu

    device = Device("cuda", ordinal, f"GPU-{ordinal}", "", "", 0)
    return DriverGpu(machine, device, ordinal)  # type: ignore[arg-type]


def test_without_a_context_the_primary_one_is_retained_once() -> None:
    machine = Machine()
    gpu = gpu_of(machine)
    gpu.memory_info()
    gpu.memory_info()
    assert machine.calls == [
        ("primary-retain", 0),
        ("context-set", "primary"),
        ("mem-info",),
        ("mem-info",),
    ]


def test_each_gpu_uses_its_own_latest_context() -> None:
    machine = Machine()
    one, other = gpu_of(machine, 0), gpu_of(machine, 1)
    mine = one.create_context()
    other.create_context()
    one.memory_info()
    assert machine.calls[-2:] == [("context-set", mine.handle), ("mem-info",)]


@pytest.mark.parametrize(("own_memory", "freed"), [(True, False), (False, True)])
def test_memory_released_with_its_context_is_not_freed_again(own_memory: bool, freed: bool) -> None:
    machine = Machine(own_memory)
    gpu = gpu_of(machine)
    context = gpu.create_context()
    with gpu.alloc(64):
        context.destroy()
        context.destroy()
    assert (("mem-free", 0x1000) in machine.calls) is freed
    assert [call[0] for call in machine.calls].count("context-destroy") == 1


def test_a_buffer_is_freed_once() -> None:
    machine = Machine()
    with gpu_of(machine).alloc(64) as buffer:
        buffer.free()
    assert machine.calls.count(("mem-free", 0x1000)) == 1


def test_block_ended_by_an_error_makes_no_further_call() -> None:
    """After an error the block frees nothing: a further call could hang, or hide the first error."""
    machine = Machine()
    with pytest.raises(ZeroDivisionError), gpu_of(machine).alloc(64):
        raise ZeroDivisionError
    assert ("mem-free", 0x1000) not in machine.calls


# Devices


def backend_of(journal: Journal, monkeypatch: pytest.MonkeyPatch, root: Path, count: int) -> Backend:
    """A CUDA backend whose driver reports ``count`` devices, all without a uuid."""
    driver = driver_of(
        journal,
        monkeypatch,
        root,
        cuInit=lambda flags: (CUresult.SUCCESS,),
        cuDeviceGetCount=lambda: (CUresult.SUCCESS, count),
        cuDeviceGetPCIBusId=lambda length, ordinal: (CUresult.SUCCESS, b"0000:%02X:00.0\0" % (10 + ordinal)),
    )
    monkeypatch.setattr(CudaDriver, "uuid", lambda self, ordinal: "")
    return Backend(driver)


def test_driver_that_reports_no_device_has_none(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BackendUnavailable, match="this node has no NVIDIA GPU"):
        backend_of(journal, monkeypatch, tmp_path, count=0).devices()


def test_device_without_a_uuid_is_found_by_its_pci_address(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = backend_of(journal, monkeypatch, tmp_path, count=2)
    assert backend.gpu(Device("cuda", 0, "", "0000:0b:00.0", "", 0)).ordinal == 1
    assert journal.seen.count("cuInit") == 1


@pytest.mark.parametrize("uuid", ["", "GPU-0"])
def test_parts_of_a_gpu_with_one_identity_are_told_by_their_numbers(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uuid: str
) -> None:
    backend = backend_of(journal, monkeypatch, tmp_path, count=3)
    monkeypatch.setattr(CudaDriver, "uuid", lambda self, ordinal: uuid)
    monkeypatch.setattr(CudaDriver, "text", lambda self, operation, ordinal: "0000:0A:00.0")
    parts = [Device("cuda", index, uuid, "0000:0a:00.0", "", 0) for index in (2, 0, 1)]
    assert [backend.gpu(part).ordinal for part in parts] == [2, 0, 1]
    assert (
        backend.gpu(Device("cuda", 5, uuid, "0000:0a:00.0", "", 0)).ordinal == 0
    )  # the only one that it sees


def test_device_invisible_to_this_process_is_named(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = backend_of(journal, monkeypatch, tmp_path, count=2)
    with pytest.raises(BackendUnavailable, match=r"cuda:3 \(GPU-lost\) is not visible") as caught:
        backend.gpu(Device("cuda", 3, "GPU-lost", "0000:0b:00.0", "", 0))
    assert caught.value.broken


# Calls that a GPU refuses by design


OPEN, GET, ALLOC = "cuIpcOpenMemHandle", "cuIpcGetMemHandle", "cuMemAlloc"
PEER, POOL = "cuCtxEnablePeerAccess", "cuMemPoolImportFromShareableHandle"
UNSUPPORTED, MANY, VALUE = "NOT_SUPPORTED", "TOO_MANY_PEERS", "INVALID_VALUE"


@pytest.mark.parametrize(
    ("call", "error", "kind", "peers", "in_gvisor", "reason"),
    [
        (GET, UNSUPPORTED, "a vGPU", 1, False, "is a vGPU, which has no such feature"),
        (GET, UNSUPPORTED, "", 1, False, ""),
        (GET, VALUE, "a vGPU", 1, False, ""),
        (OPEN, MANY, "", 9, False, "has 9 peers, of which the driver admits 8"),
        (PEER, MANY, "", 15, False, "has 15 peers"),
        (OPEN, MANY, "", 8, False, ""),  # within the limit: a fault
        (OPEN, VALUE, "", 9, False, ""),
        (OPEN, VALUE, "", 1, True, "is in a sandbox that passes no peer mappings"),
        (PEER, UNSUPPORTED, "", 1, True, "is in a sandbox"),
        (POOL, "INVALID_HANDLE", "", 1, True, "is in a sandbox"),
        (OPEN, "OUT_OF_MEMORY", "", 1, True, ""),
        (GET, VALUE, "", 1, True, ""),
        (ALLOC, "UNKNOWN", "", 1, True, ""),
    ],
)
def test_refusal_by_design_depends_on_call_error_and_node(
    call: str, error: str, kind: str, peers: int, in_gvisor: bool, reason: str
) -> None:
    driver = SimpleNamespace(
        device_at=lambda ordinal: ordinal, kind=lambda device: kind, is_in_gvisor=in_gvisor
    )
    device = Device("cuda", 0, "", "", "", 1, peers=frozenset(f"cuda:{n + 1}" for n in range(peers)))
    failed = DriverError(DriverFault(call, 1, f"CUDA_ERROR_{error}"))
    said = DriverGpu(cast("Any", driver), device, 0).refuses_by_design(failed)
    assert said.startswith(reason)
    assert bool(said) is bool(reason)


@pytest.mark.parametrize(
    ("version", "is_gvisor"),
    [
        ("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n", True),
        ("Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n", True),
        ("Linux version 4.4.0 (buildd@x) #1 SMP Mon Jan 11 01:00:00 UTC 2016\n", False),
    ],
)
def test_gvisor_is_recognised_by_its_version(version: str, is_gvisor: bool, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/version").write_text(version)
    here = SimpleNamespace(absence=SimpleNamespace(root=tmp_path))
    assert Driver.is_in_gvisor.func(cast("Any", here)) is is_gvisor


# Host memory


@pytest.mark.parametrize("nbytes", [0, 1, 2, 4099, 5 << 20])
def test_bytes_can_be_filled_in_place(nbytes: int) -> None:
    data = hostmemory.unfilled(nbytes)
    hostmemory.poke(hostmemory.address_of(data), b"\xa5" * nbytes)
    assert data == b"\xa5" * nbytes
    assert hostmemory.peek(hostmemory.address_of(data), nbytes) == data
    assert hostmemory.unfilled(1) is not hostmemory.unfilled(1)  # otherwise CPython shares one-byte objects


# The table of expectations


def test_every_case_has_a_value_and_a_source_for_both_backends() -> None:
    for case, by_backend in rules.cases().items():
        assert {"cuda", "hip"} <= {*by_backend} <= {"cuda", "hip", "hip-5", "hip-6", "hip-7", "ze"}, case
        for rule in by_backend.values():
            assert rule.value in rules.VALUES | {rules.UNSPECIFIED}, case
            assert rule.source, case


def test_an_unknown_case_is_an_error() -> None:
    with pytest.raises(KeyError):
        rules.expects("cuda", "no-such-case")


# The package


def test_importing_the_backends_loads_no_binding() -> None:
    heavy = ("cuda.bindings", "hip", "ctypes")
    code = f"import sys, gpuipc_doctor.worker.backends; print([m for m in {heavy} if m in sys.modules])"
    listed = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout.strip() == "[]"


def test_unknown_backend_is_named(journal: Journal) -> None:
    with pytest.raises(ValueError, match="level-zero"):
        open_backend("level-zero", journal)


def test_the_documentation_names_every_capability() -> None:
    import inspect

    from gpuipc_doctor.api import capabilities

    assert all(f"``{word}``" in inspect.getsource(capabilities) for word in CAPABILITIES)


# -- memory of other processes -------------------------------------------------------------------------


def test_foreign_processes_are_alive_and_outside_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a running process outside this run is foreign: a dead one may be our own killed importer."""
    monkeypatch.setenv(MARKER, "run-1/7")
    own, other = {**os.environ, MARKER: "run-1/8"}, {**os.environ, MARKER: "run-2/7"}
    without = {name: value for name, value in os.environ.items() if name != MARKER}
    found = []
    for environment in (own, other, without):
        with waiting(sys.executable, environment) as process:
            found.append(nvml.is_stranger(process.pid))
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # and the process is a zombie
            assert not nvml.is_stranger(process.pid)
        assert not nvml.is_stranger(process.pid)
    assert found == [False, True, True]


def test_mps_server_is_not_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The MPS server holds its clients' memory, so it is not foreign. Without a run, no process is."""
    server = tmp_path / "nvidia-cuda-mps-server"
    server.write_bytes(Path("/bin/cat").read_bytes())
    server.chmod(0o755)
    for run, program in (("run-1/7", server), ("", "/bin/cat")):
        monkeypatch.setenv(MARKER, run)
        with waiting(program, {"PATH": os.defpath}) as process:
            assert not nvml.is_stranger(process.pid)


@contextmanager
def waiting(program: str | Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that program, which waits for its standard input."""
    arguments = ["-c", "input()"] if program == sys.executable else []
    with subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, env=environment) as process:
        while not Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.001)  # Popen returns before the kernel has set the environment
        yield process


@pytest.mark.parametrize(("runtime", "used"), [(50_221_153, 30), (50_731_921, 10), (60_443_484, 10), (0, 10)])
def test_before_rocm_5_7_used_memory_of_all_processes_is_read_from_amdgpu(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime: int, used: int
) -> None:
    monkeypatch.setattr(HipDriver, "_import_binding", lambda self: SimpleNamespace())
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)
    driver = HipDriver(journal, tmp_path)
    monkeypatch.setattr(driver, "call", lambda name: runtime if name == "runtime-version" else [90, 100])
    file = tmp_path / "sys/bus/pci/devices/0000:21:00.0/mem_info_vram_used"
    file.parent.mkdir(parents=True)
    file.write_text("30\n")
    device = Device("hip", 0, "GPU-0", "0000:21:00.0", "MI210", 100)
    assert driver.memory_info(device) == (100 - used, 100)
    file.write_text("")
    if used == 10:
        assert driver.memory_info(device) == (90, 100)
    else:
        with pytest.raises(BackendUnavailable, match=r"HIP 5\.2 counts only the calling process") as unknown:
            driver.memory_info(device)
        assert unknown.value.broken


def test_foreign_allocation_during_the_query_is_not_counted(journal: Journal) -> None:
    """Other processes' memory is queried before and after the device's, until both queries agree."""
    held = iter([0, 5, 5])
    driver = SimpleNamespace(
        process_memory=SimpleNamespace(of_strangers=lambda uuid, has_context: next(held)),
        call=lambda *_: None,
        memory_info=lambda _: (90, 100),
        device_at=lambda ordinal: ordinal,
        current=None,
        take_working_memory=lambda: None,
    )
    gpu = DriverGpu(driver, Device("cuda", 0, "GPU-0", "0000:01:00.0", "H200", 100), 0)
    assert gpu.memory_used() == 5


# Kinds of GPUs that lack features by design


@pytest.mark.parametrize(
    ("name", "uuid", "integrated", "release", "kind"),
    [
        ("NVIDIA H200", "GPU-1", 0, "6.8.0", ""),
        ("NVIDIA A100-SXM4-40GB", "GPU-1", 0, "6.8.0", ""),
        ("NVIDIA A100-PCIE-40GB", "GPU-1", 0, "6.8.0", ""),
        ("Tesla V100-SXM2-32GB", "GPU-1", 0, "6.8.0", ""),
        ("NVIDIA H100 NVL", "GPU-1", 0, "6.8.0", ""),
        ("NVIDIA RTX A6000", "GPU-1", 0, "6.8.0", ""),
        ("GRID A100-40C", "GPU-1", 0, "6.8.0", "vGPU"),
        ("NVIDIA A16-8Q", "GPU-1", 0, "6.8.0", "vGPU"),
        ("GRID V100D-8A", "GPU-1", 0, "6.8.0", "vGPU"),
        ("NVIDIA A100-1-5C", "GPU-1", 0, "6.8.0", "vGPU"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-1", 0, "6.8.0", "MIG"),
        ("Orin", "GPU-1", 1, "5.15.0-tegra", "integrated"),
        ("NVIDIA GB10", "GPU-1", 1, "6.11.0", "integrated"),
        ("NVIDIA RTX 4090", "GPU-1", 0, "5.15.153.1-microsoft-standard-WSL2", "WSL"),
    ],
)
def test_kind_of_gpu_is_recognised(
    name: str,
    uuid: str,
    integrated: int,
    release: str,
    kind: str,
    tmp_path: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "proc/sys/kernel/osrelease"
    file.parent.mkdir(parents=True)
    file.write_text(f"{release}\n")
    driver = driver_of(journal, monkeypatch, tmp_path)
    monkeypatch.setattr(driver, "text", lambda operation, ordinal: name)
    monkeypatch.setattr(driver, "uuid", lambda ordinal: uuid)
    monkeypatch.setattr(driver, "attribute_of", lambda ordinal, attribute: integrated)
    monkeypatch.setattr(driver, "process_memory", SimpleNamespace(is_confidential=False))
    assert kind in driver.kind(0)
    assert bool(driver.kind(0)) is bool(kind)
    monkeypatch.setattr(driver, "process_memory", SimpleNamespace(is_confidential=True))
    assert "confidential" in driver.kind(0) or kind
