"""Host memory by address, for values that the bindings hide and for avoiding copies."""

from __future__ import annotations

from functools import cache
from typing import Any

_MADV_HUGEPAGE = 14  # <asm-generic/mman-common.h>


def peek(address: int, nbytes: int) -> bytes:
    """A copy of the ``nbytes`` bytes at ``address``."""
    import ctypes

    return ctypes.string_at(address, nbytes)


def poke(address: int, data: bytes) -> None:
    """Overwrite the memory at ``address``."""
    import ctypes

    ctypes.memmove(address, data, len(data))


def address_of(data: bytes) -> int:
    """Address of the characters of ``data``; valid while ``data`` lives."""
    return int(_as_string()(data))


def unfilled(nbytes: int) -> bytes:
    """A new `bytes` object to be filled once, through its address, before other code sees it.

    CPython allows this for an object made by ``PyBytes_FromStringAndSize(NULL, n)``
    (https://docs.python.org/3/c-api/bytes.html); it saves a copy of every byte read.
    """
    data: bytes = _from_string_and_size()(None, nbytes)
    _prefer_huge_pages(address_of(data), nbytes)
    return data


# Cached: a prototype is a class, and creating one takes longer than most calls of it.


@cache
def _as_string() -> Any:
    import ctypes

    return ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


@cache
def _from_string_and_size() -> Any:
    import ctypes

    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
        ("PyBytes_FromStringAndSize", ctypes.pythonapi)
    )


def _prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask the kernel for 2 MiB pages for this new memory; without support nothing changes.

    Reading 155 MB from an H200 took 88 ms, most of it for clearing small pages in the kernel, and 47 ms with
    huge pages.
    """
    import ctypes

    huge_page = 2 << 20
    first = -(-address // huge_page) * huge_page
    end = (address + nbytes) // huge_page * huge_page
    if first < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_HUGEPAGE)
