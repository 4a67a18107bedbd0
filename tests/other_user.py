"""Calls by another user, in a process of their own; for tests that root runs."""

from __future__ import annotations

import os
from collections.abc import Callable

NOBODY = 65534


def as_user(uid: int, call: Callable[[], object]) -> str:
    """The error of a call; empty if it succeeds."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            call()
        except BaseException as error:
            os.write(writes, f"{type(error).__name__}: {error}".encode()[:1000])
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(pid, 0)
    with os.fdopen(reads) as said:
        return said.read()
