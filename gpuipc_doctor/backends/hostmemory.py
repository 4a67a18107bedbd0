"""Host memory by address: what the bindings' objects hide and what copies without a copy need."""

from __future__ import annotations

from functools import cache
from typing import Any

_MADV_HUGEPAGE = 14  # <asm-generic/mman-common.h>


def peek(address: int, nbytes: int) -> bytes:
    """A copy of the ``nbytes`` bytes at ``address``."""
    import ctypes

    return ctypes.string_at(address, nbytes)


def poke(address: int, data: bytes) -> None:
    """Overwrite what is at ``address``."""
    import ctypes

    ctypes.memmove(address, data, len(data))


def address_of(data: bytes) -> int:
    """Address of the characters of ``data``; valid while ``data`` lives."""
    return int(_as_string()(data))


def unfilled(nbytes: int) -> bytes:
    """A new `bytes` to be filled once, through its address, before anybody else sees it.

    CPython allows exactly this for an object made by ``PyBytes_FromStringAndSize(NULL, n)``
    (https://docs.python.org/3/c-api/bytes.html); it saves a copy of every byte that is read.
    """
    data: bytes = _from_string_and_size()(None, nbytes)
    _prefer_huge_pages(address_of(data), nbytes)
    return data


# Cached, for a prototype is a class, and to make one takes longer than most of what is done with it.


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
    """Have the kernel back this fresh memory with 2 MiB pages where it can; where not, nothing changes.

    Reading 155 MB from an H200 took 88 ms, of which most was the kernel clearing one small page after the
    other, and 47 ms with huge pages.
    """
    import ctypes

    huge_page = 2 << 20
    first = -(-address // huge_page) * huge_page
    end = (address + nbytes) // huge_page * huge_page
    if first < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_HUGEPAGE)
