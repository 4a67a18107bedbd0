"""Registers a dma-buf with this node's RDMA adapters, through libibverbs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

LIBRARY = "libibverbs.so.1"

_ACCESS = 1 | 2 | 4
"""``IBV_ACCESS_LOCAL_WRITE``, ``_REMOTE_WRITE`` and ``_REMOTE_READ``, as UCX and NCCL ask for."""

Armed = Callable[[str], AbstractContextManager[None]]


def register_dmabuf(armed: Armed, descriptor: int, address: int, nbytes: int) -> dict[str, list[str]]:
    """Adapter → the function that failed and its error, or an empty list. Empty without library or adapter.

    ``address``: by which an adapter would name the memory. It is deregistered at once.
    """
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
        register = library.ibv_reg_dmabuf_mr  # from rdma-core 34 on
    except (OSError, AttributeError):
        return {}

    def call(name: str, *arguments: Any) -> int:
        """An address. Raises `OSError` if it is NULL."""
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        ctypes.set_errno(0)
        with armed(name):
            made = function(*arguments)
        if not made:
            raise OSError(ctypes.get_errno(), name)
        return int(made)

    def end(name: str, made: int) -> None:
        with armed(name):
            getattr(library, name)(ctypes.c_void_p(made))

    def try_one(device: int) -> list[str]:
        made: list[tuple[str, int]] = []
        try:
            context = call("ibv_open_device", ctypes.c_void_p(device))
            made.append(("ibv_close_device", context))
            domain = call("ibv_alloc_pd", ctypes.c_void_p(context))
            made.append(("ibv_dealloc_pd", domain))
            offset, length = ctypes.c_uint64(0), ctypes.c_size_t(nbytes)
            at = (ctypes.c_void_p(domain), offset, length, ctypes.c_uint64(address), descriptor, _ACCESS)
            made.append(("ibv_dereg_mr", call(register.__name__, *at)))
        except OSError as error:
            return [str(error.strerror), os.strerror(error.errno or 0)]
        finally:
            for name, thing in reversed(made):
                end(name, thing)
        return []

    count = ctypes.c_int(0)
    try:
        devices = call("ibv_get_device_list", ctypes.byref(count))
    except OSError:
        return {}
    library.ibv_get_device_name.restype = ctypes.c_char_p
    listed = ctypes.cast(devices, ctypes.POINTER(ctypes.c_void_p))[: count.value]
    names = [library.ibv_get_device_name(ctypes.c_void_p(each)).decode() for each in listed]
    found = {name: try_one(device) for name, device in zip(names, listed, strict=True)}
    end("ibv_free_device_list", devices)
    return found
