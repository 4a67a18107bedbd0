"""Print whose memory NVML says it is, step by step: the driver's figures by process (`memory_by_process.md`).

    python3 -m benchmarks.memory_by_process [legacy kills vmm pools contexts users mps peers]

Needs an NVIDIA GPU, cuda-bindings and nvidia-ml-py; `users` and `mps` need root. Each row has, in MiB,
the used memory of each device, each process's on it, and nobody's: the device less its processes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

MIB = 1 << 20


def call(answer: Any) -> Any:
    """Return what a driver call returned beside its code. Raises RuntimeError with the code if it failed."""
    code, *values = answer
    if int(code):
        raise RuntimeError(code)
    return values[0] if len(values) == 1 else values or None


class Actor:
    """What one process does on a GPU, by name of method."""

    def __init__(self, device: int) -> None:
        from cuda.bindings import driver

        self.cu, self.held = driver, {}
        call(driver.cuInit(0))
        self.device = call(driver.cuDeviceGet(device))
        self.context = call(driver.cuDevicePrimaryCtxRetain(self.device))
        call(driver.cuCtxSetCurrent(self.context))

    def second_context(self) -> None:
        try:
            self.held["ctx"] = call(self.cu.cuCtxCreate(None, 0, self.device))
        except TypeError:
            self.held["ctx"] = call(self.cu.cuCtxCreate(0, self.device))
        call(self.cu.cuCtxSetCurrent(self.context))

    def alloc(self, name: str, mib: float) -> bytes:
        self.held[name] = call(self.cu.cuMemAlloc(int(mib * MIB)))
        return bytes(call(self.cu.cuIpcGetMemHandle(self.held[name])).reserved)

    def free(self, name: str) -> None:
        call(self.cu.cuMemFree(self.held.pop(name)))

    def open(self, name: str, handle: bytes) -> None:
        opened = self.cu.CUipcMemHandle()
        opened.reserved = handle
        self.held[name] = call(self.cu.cuIpcOpenMemHandle(opened, 1))

    def close(self, name: str) -> None:
        call(self.cu.cuIpcCloseMemHandle(self.held.pop(name)))

    def managed(self, mib: int) -> None:
        self.held["managed"] = call(self.cu.cuMemAllocManaged(mib * MIB, 1))
        call(self.cu.cuMemsetD8(self.held["managed"], 1, mib * MIB))
        call(self.cu.cuCtxSynchronize())

    def pinned(self, mib: int) -> None:
        self.held["pinned"] = call(self.cu.cuMemAllocHost(mib * MIB))

    def _properties(self) -> Any:
        said = self.cu.CUmemAllocationProp()
        said.type = self.cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        said.location.type = self.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        said.location.id = int(self.device)
        said.requestedHandleTypes = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return said

    def create(self, name: str, mib: int) -> int:
        kind = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.held[name] = call(self.cu.cuMemCreate(mib * MIB, self._properties(), 0))
        return int(call(self.cu.cuMemExportToShareableHandle(self.held[name], kind, 0)))

    def fetch(self, pid: int, descriptor: int) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        fetched = int(libc.syscall(438, os.pidfd_open(pid), descriptor, 0))
        if fetched < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        return fetched

    def import_(self, name: str, descriptor: int) -> None:
        kind = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.held[name] = call(self.cu.cuMemImportFromShareableHandle(descriptor, kind))

    def map(self, name: str, mib: int) -> None:
        where = call(self.cu.cuMemAddressReserve(mib * MIB, 0, 0, 0))
        call(self.cu.cuMemMap(where, mib * MIB, 0, self.held[name], 0))
        access = self.cu.CUmemAccessDesc()
        access.location.type = self.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = int(self.device)
        access.flags = self.cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(self.cu.cuMemSetAccess(where, mib * MIB, [access], 1))
        self.held["mapped " + name] = where

    def unmap(self, name: str, mib: int) -> None:
        call(self.cu.cuMemUnmap(self.held.pop("mapped " + name), mib * MIB))

    def release(self, name: str) -> None:
        call(self.cu.cuMemRelease(self.held.pop(name)))

    def close_descriptor(self, descriptor: int) -> None:
        os.close(descriptor)

    def pool(self, mib: int) -> tuple[int, bytes]:
        said = self.cu.CUmemPoolProps()
        said.allocType = self.cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        said.handleTypes = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        said.location.type = self.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        said.location.id = int(self.device)
        self.held["pool"] = call(self.cu.cuMemPoolCreate(said))
        self.held["pooled"] = call(self.cu.cuMemAllocFromPoolAsync(mib * MIB, self.held["pool"], 0))
        call(self.cu.cuCtxSynchronize())
        kind = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        descriptor = int(call(self.cu.cuMemPoolExportToShareableHandle(self.held["pool"], kind, 0)))
        return descriptor, bytes(call(self.cu.cuMemPoolExportPointer(self.held["pooled"])).reserved)

    def import_pool(self, pid: int, descriptor: int, pointer: bytes) -> None:
        descriptor = self.held["descriptor"] = self.fetch(pid, descriptor)
        kind = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.held["pool"] = call(self.cu.cuMemPoolImportFromShareableHandle(descriptor, kind, 0))
        said = self.cu.CUmemPoolPtrExportData()
        said.reserved = pointer
        self.held["pooled"] = call(self.cu.cuMemPoolImportPointer(self.held["pool"], said))

    def free_pooled(self) -> None:
        call(self.cu.cuMemFreeAsync(self.held.pop("pooled"), 0))
        call(self.cu.cuCtxSynchronize())

    def close_pool(self) -> None:
        os.close(self.held.pop("descriptor"))

    def destroy_pool(self) -> None:
        call(self.cu.cuMemPoolDestroy(self.held.pop("pool")))


def serve(end: Connection, device: int, user: int | None) -> None:
    """Do what the parent asks for until its pipe is closed, as `user` if one is named."""
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    actor = None
    while True:
        try:
            method, arguments = end.recv()
        except EOFError:
            return
        try:
            if method == "start":
                actor = Actor(device)
                end.send(None)
            elif method == "look":
                end.send(figures())
            else:
                end.send(getattr(actor, method)(*arguments))
        except Exception as error:
            end.send(error)


class Process:
    """A child that acts on one GPU."""

    def __init__(self, name: str, device: int = 0, user: int | None = None, *, start: bool = True) -> None:
        spawn = get_context("spawn")
        self.end, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(other, device, user), daemon=True)
        self.process.start()
        other.close()
        self.pid, self.name = int(self.process.pid or 0), name
        names[self.pid] = name
        if start:
            self.do("start")

    def do(self, method: str, *arguments: object) -> Any:
        self.end.send((method, arguments))
        answer = self.end.recv()
        if isinstance(answer, Exception):
            raise RuntimeError(f"{self.name}: {method}: {answer}") from answer
        return answer

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.process.join()


names: dict[int, str] = {}


def figures() -> list[tuple[float, list[tuple[int, float | None]]]]:
    """Of each device the used MiB, and each process's."""
    import pynvml

    pynvml.nvmlInit()
    rows = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        used = pynvml.nvmlDeviceGetMemoryInfo(device).used / MIB
        rows.append(
            (
                used,
                [
                    (p.pid, p.usedGpuMemory / MIB if p.usedGpuMemory is not None else None)
                    for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
                ],
            )
        )
    return rows


def look(step: str, rows: list[tuple[float, list[tuple[int, float | None]]]] | None = None) -> None:
    begun = time.perf_counter()
    rows = figures() if rows is None else rows
    took = (time.perf_counter() - begun) * 1e3
    said = []
    for index, (used, processes) in enumerate(rows):
        each = " ".join(
            f"{names.get(pid, pid)}={'N/A' if mib is None else round(mib, 1)}" for pid, mib in processes
        )
        nobody = used - sum(mib or 0 for _, mib in processes)
        said.append(f"gpu{index}: device {used:.1f} [{each}] nobody {nobody:.1f}")
    print(f"| {step} | {' · '.join(said)} | {took:.1f} ms", flush=True)


def over_time(step: str) -> None:
    """Look at once and later: does a figure lag?"""
    begun = time.monotonic()
    for later in (0.0, 0.01, 0.1, 0.5, 2.0):
        time.sleep(max(0.0, begun + later - time.monotonic()))
        look(f"{step}, after {time.monotonic() - begun:.3f} s")


def legacy() -> None:
    owner, other = Process("owner"), Process("importer")
    look("two contexts")
    handle = owner.do("alloc", "a", 100)
    look("owner allocates 100 and exports")
    other.do("open", "a", handle)
    other.do("open", "b", owner.do("alloc", "b", 0.004))
    look("importer opens both (100 and 4 KiB)")
    owner.do("free", "a")
    look("owner frees the 100")
    other.do("close", "a")
    look("importer closes it")
    owner.do("pinned", 64)
    look("owner: 64 of pinned host memory")
    owner.do("managed", 64)
    look("owner: 64 managed, written on the device")
    for process in (owner, other):
        process.kill(signal.SIGTERM)
    over_time("both ended")


def kills() -> None:
    owner, other = Process("owner"), Process("importer")
    other.do("open", "a", owner.do("alloc", "a", 100))
    look("opened")
    owner.kill()
    over_time("kill -9 of the owner")
    other.do("close", "a")
    look("importer closes")
    owner = Process("owner2")
    other.do("open", "b", owner.do("alloc", "b", 100))
    owner.do("free", "b")
    look("second owner freed, importer maps")
    other.kill()
    over_time("kill -9 of the importer")
    owner.kill()
    over_time("kill -9 of the second owner")


def vmm() -> None:
    for ends in ("release", "kill"):
        owner, other = Process("owner"), Process("importer")
        descriptor = owner.do("create", "v", 64)
        look("owner creates 64 (VMM) and exports a descriptor")
        fetched = other.do("fetch", owner.pid, descriptor)
        other.do("import_", "v", fetched)
        look("importer imports")
        other.do("map", "v", 64)
        look("importer maps")
        owner.do("map", "v", 64)
        look("owner maps")
        if ends == "release":
            owner.do("unmap", "v", 64)
            owner.do("release", "v")
            look("owner unmaps and releases")
            owner.do("close_descriptor", descriptor)
            look("owner closes its descriptor")
        else:
            owner.kill()
            over_time("kill -9 of the owner")
        other.do("close_descriptor", fetched)
        look("importer closes its descriptor")
        other.do("unmap", "v", 64)
        look("importer unmaps")
        other.do("release", "v")
        look("importer releases")
        other.kill()
        if ends == "release":
            owner.kill()
        over_time("both killed")


def pools() -> None:
    for ends in ("free", "kill"):
        owner, other = Process("owner"), Process("importer")
        descriptor, pointer = owner.do("pool", 96)
        look("owner allocates 96 of an exportable pool")
        other.do("import_pool", owner.pid, descriptor, pointer)
        look("importer imports pool and pointer")
        other.do("close_pool")
        look("importer closes the pool's descriptor")
        if ends == "free":
            other.do("free_pooled")
            look("importer frees")
            owner.do("free_pooled")
            look("owner frees")
            owner.do("destroy_pool")
            look("owner destroys the pool")
            owner.do("close_descriptor", descriptor)
            look("owner closes the descriptor")
            other.do("destroy_pool")
            look("importer destroys its pool")
        else:
            owner.kill()
            over_time("kill -9 of the owner")
            other.do("free_pooled")
            look("importer frees")
        other.kill()
        owner.kill() if ends == "free" else None
        over_time("both killed")


def contexts() -> None:
    look("nothing")
    all_of_them = []
    for count in range(1, 6):
        all_of_them.append(Process(f"p{count}"))
        look(f"{count} contexts")
    all_of_them[0].do("second_context")
    look("p1 makes a second context")
    for process in all_of_them:
        process.kill()
    over_time("killed")


def users() -> None:
    roots, nobodys = Process("root's"), Process("nobody's", user=65534)
    roots.do("alloc", "a", 32)
    nobodys.do("alloc", "a", 32)
    look("seen by root")
    watcher = Process("watcher", user=65534, start=False)
    look("seen by nobody", watcher.do("look"))
    for process in (roots, nobodys, watcher):
        process.kill()


def mps() -> None:
    control = shutil.which("nvidia-cuda-mps-control")
    print("| MPS control:", control)
    if control is None:
        return
    folder = tempfile.mkdtemp()
    os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
    try:
        subprocess.run([control, "-d"], check=True, timeout=20)
        first, second = Process("first"), Process("second")
        look("two clients of MPS")
        handle = first.do("alloc", "a", 100)
        look("first allocates 100")
        second.do("open", "a", handle)
        look("second opens it")
        first.do("free", "a")
        look("first frees it")
        second.kill()
        over_time("kill -9 of the second")
        first.kill()
    except Exception as error:
        print("| MPS:", error)
    finally:
        subprocess.run([control], input="quit -t 2\n", text=True, timeout=30, check=False)
        for key in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            del os.environ[key]
        time.sleep(1)
        look("MPS ended")


def peers() -> None:
    if len(figures()) < 2:
        print("| peers: one GPU only, not run")
        return
    owner, other = Process("owner", 0), Process("importer", 1)
    look("a context on each")
    handle = owner.do("alloc", "a", 100)
    other.do("open", "a", handle)
    look("importer of GPU 1 opens 100 of GPU 0")
    owner.do("free", "a")
    look("owner frees")
    other.do("close", "a")
    look("importer closes")
    descriptor = owner.do("create", "v", 64)
    other.do("import_", "v", other.do("fetch", owner.pid, descriptor))
    look("importer imports 64 (VMM)")
    other.do("map", "v", 64)
    look("and maps it")
    owner.do("release", "v")
    owner.do("close_descriptor", descriptor)
    look("owner releases")
    for process in (owner, other):
        process.kill()
    over_time("killed")


def main() -> None:
    every: list[Callable[[], None]] = [contexts, legacy, kills, vmm, pools, users, mps, peers]
    for part in every:
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            print(f"\n## {part.__name__}", flush=True)
            try:
                part()
            except Exception as error:
                print(f"| {part.__name__} ended: {error}", flush=True)


if __name__ == "__main__":
    main()
