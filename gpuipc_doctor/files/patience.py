"""A limit for file systems that hang, or that another user serves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from gpuipc_doctor.files.reading import Unreadable

T = TypeVar("T")


class Silent(Unreadable):
    """A file system did not answer."""


def within(limit_s: float, call: Callable[[], T]) -> T:
    """The result of a call that may wait for a file system, as one that hangs or that a user serves (FUSE).

    After ``limit_s`` seconds the call is left behind in its thread. Raises `Silent` then, and what the
    call raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise Silent(f"cannot be read: its file system did not answer within {limit_s:.3g} s")
    return results[0]
