"""Registration of a dma-buf with adapters, by a libibverbs made for the test: no adapter is needed."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from gpuipc_doctor.worker import verbs
from tests.waiting import LIMIT_S

FD, ADDRESS, NBYTES = 7, 0x7F0000200000, 4 << 20

C = """
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
static int opened;
static void *fail(int code) { errno = code; return NULL; }
void **ibv_get_device_list(int *n) {
    *n = DEVICES;
    void **list = DEVICES < 0 ? fail(ENOSYS) : calloc(3, sizeof *list);
    for (int i = 0; i < DEVICES; i++) list[i] = (void *)(0x7fff00000000 + i);
    return list;
}
void ibv_free_device_list(void **list) { if (opened) abort(); free(list); }
const char *ibv_get_device_name(void *device) { return (uintptr_t)device & 1 ? "mlx5_1" : "mlx5_0"; }
void *ibv_open_device(void *device) { return OPEN ? fail(OPEN) : (opened++, (char *)device + 16); }
int ibv_close_device(void *context) { opened--; return 0; }
void *ibv_alloc_pd(void *context) { opened++; return (char *)context + 16; }
int ibv_dealloc_pd(void *pd) { opened--; return 0; }
int ibv_dereg_mr(void *mr) { opened--; return 0; }
#ifndef OLD
void *ibv_reg_dmabuf_mr(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    if (offset || length != 4 << 20 || iova != 0x7f0000200000 || fd != 7 || access != 7) return fail(EINVAL);
    if (REGISTER && (uintptr_t)pd & 1) return fail(REGISTER);
    opened++;
    return (char *)pd + 16;
}
#endif
"""


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[str]]]:
    def build_and_register(*defined: str) -> dict[str, list[str]]:
        source, library = tmp_path / "verbs.c", tmp_path / f"lib{len(defined)}.so"
        source.write_text(C)
        defaults = [f"-D{name}=0" for name in ("OPEN", "REGISTER") if not any(name in d for d in defined)]
        command = ["cc", "-shared", "-fPIC", *defaults, *(f"-D{each}" for each in defined)]
        subprocess.run([*command, "-o", str(library), str(source)], check=True, timeout=LIMIT_S)
        monkeypatch.setattr(verbs, "LIBRARY", str(library))
        return verbs.register_dmabuf(lambda _: nullcontext(), FD, ADDRESS, NBYTES)

    return build_and_register


@pytest.mark.parametrize(
    ("defined", "found"),
    [
        (["DEVICES=2"], {"mlx5_0": [], "mlx5_1": []}),
        (["DEVICES=0"], {}),
        (["DEVICES=-1"], {}),  # no RDMA in this kernel
        (["DEVICES=2", "OLD"], {}),  # rdma-core before 34
        (["DEVICES=2", "REGISTER=95"], {"mlx5_0": [], "mlx5_1": ["ibv_reg_dmabuf_mr", os.strerror(95)]}),
        (["DEVICES=1", "OPEN=13"], {"mlx5_0": ["ibv_open_device", os.strerror(13)]}),
    ],
)
def test_each_adapter_registers_or_names_the_failed_call(
    register: Callable[..., dict[str, list[str]]], defined: list[str], found: dict[str, list[str]]
) -> None:
    assert register(*defined) == found


def test_node_without_the_library_has_no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "LIBRARY", "libibverbs-absent.so.1")
    assert verbs.register_dmabuf(lambda _: nullcontext(), FD, ADDRESS, NBYTES) == {}


def test_real_library_of_this_machine_lists_its_adapters() -> None:
    try:
        ctypes.CDLL(verbs.LIBRARY)
    except OSError:
        pytest.skip("no libibverbs here")
    adapters = [path.name for path in Path("/sys/class/infiniband").glob("*")]
    assert set(verbs.register_dmabuf(lambda _: nullcontext(), -1, ADDRESS, NBYTES)) <= set(adapters)
