"""A fork server, ``python -m gpuipc_doctor.worker.fork_server SOCKET``: imports once, then forks workers.

It never calls a driver. Its supervisor sends an order for each fork, with the fork's files (see
`supervise.fork_servers`). It ends when its socket is closed. A fork that is to be
another fork server imports the modules in its order, and then accepts orders.

For a worker, it forks a process that forks the worker and ends. The supervisor then adopts the worker.
So the supervisor learns how the worker ended, and killing a fork server ends no worker.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.assignment import GO, ForkServerOrder, Order, receive_order
from gpuipc_doctor.supervise.tree import carried, carry
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker import process, running

SHARED = ("gpuipc_doctor.worker.node_socket", "statistics")
"""Modules that most workers import: 5 and 8 ms of each."""

BINDINGS = {
    backend: (f"gpuipc_doctor.worker.backends.{backend}", *vendor.binding.modules, *SHARED)
    for backend, vendor in SUPPORTED.items()
}
"""Backend → modules that its workers import. An order may also name a module itself."""


def main(fd: int) -> None:
    gc.disable()  # collecting garbage in a fork server would unshare pages of its forks
    _keep_freed_memory()
    process.die_with_parent()
    order = _serve(socket.socket(fileno=fd))
    while isinstance(order, ForkServerOrder):
        order = _serve(socket.socket(fileno=order.files["orders"]), order.imports)
    if order:
        peers = [fd for name, fd in order.files.items() if name.startswith("peer")]
        running.run(Path(order.directory), order.role, peers)


def _keep_freed_memory() -> None:
    """Make glibc keep up to 64 MiB of freed memory.

    A worker fills and frees some MiB hundreds of times, and getting new pages takes longer than writing to
    them.
    """
    import ctypes

    trim_threshold, mmap_threshold = -1, -3  # <malloc.h>
    with contextlib.suppress(AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, 64 << 20)
        libc.mallopt(mmap_threshold, 32 << 20)  # glibc's maximum


def load(names: Iterable[str]) -> str:
    """Import the named modules if installed; returns errors."""
    for module in (module for name in names for module in BINDINGS.get(name, (name,))):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                return f"import {module}: {error}"
        except Exception as error:  # a library may fail in any way; its worker reports how
            return f"import {module}: {type(error).__name__}: {error}"
    return ""


def _why_not_to_fork() -> str:
    """Reasons why this process must not fork; empty if it may."""
    try:
        return _unsafe()
    except OSError as error:
        return f"cannot read {error.filename}: {error.strerror}"


def _unsafe() -> str:
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        return f"the imports started threads: {threads - 1}"
    for file in Path("/proc/self/fd").iterdir():
        is_device = file.is_char_device() or file.is_block_device()
        if is_device and str(file.readlink()) != os.devnull:
            return f"the imports opened {file.readlink()}"
    carry(os.environ[MARKER].rstrip("."))
    if carried(Path("/proc/self/environ").read_bytes()) != os.environ[MARKER].rstrip("."):
        return "the process's environment cannot be rewritten"
    return ""


def _serve(orders: socket.socket, imports: Iterable[str] = ()) -> Order | ForkServerOrder | None:
    """Serve orders. Returns the fork's order in a forked process, and None in the fork server at its end."""
    supervisor = os.getppid()
    orders.send(json.dumps(os.getpid()).encode())
    unsafe = load(imports) or _why_not_to_fork()
    orders.send(json.dumps(unsafe).encode())
    if unsafe:
        return None
    gc.freeze()  # workers need not scan existing objects for garbage
    while order := receive_order(orders):
        child = _fork()
        if child == 0:
            orders.close()
            if isinstance(order, Order):
                carry(order.marker)  # before any worker, which is found by this
            between = os.getpid()
            if _fork() != 0:
                os._exit(0)
            _become_child(order, between, supervisor)
            if isinstance(order, Order):
                _become_worker(order)
            return order
        order.close()
        if child > 0:
            os.waitpid(child, 0)
    return None


def _fork() -> int:
    """Fork. Returns -1 at the process limit; the supervisor notices because the fork's socket is closed."""
    try:
        return os.fork()
    except OSError:
        return -1


def _become_child(order: Order | ForkServerOrder, between: int, supervisor: int) -> None:
    """Give this fork the state of a process started by the supervisor itself."""
    os.setsid()
    tree.carry_priority()
    log = order.files["log"]
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    while os.getppid() == between:
        time.sleep(0.0002)
    if os.getppid() != supervisor:
        os._exit(1)
    process.die_with_parent()


def _become_worker(order: Order) -> None:
    """Adopt a worker's directory and environment, and wait until the supervisor has its pid."""
    gc.enable()
    os.chdir(order.directory)  # private: nothing in this directory shadows a module
    os.environ.update(order.environment)
    with socket.socket(fileno=order.files["go"]) as go:
        go.send(str(os.getpid()).encode())
        if go.recv(len(GO)) != GO:
            os._exit(1)  # the worker was given up meanwhile


if __name__ == "__main__":
    main(int(sys.argv[1]))
