"""Programs of libfabric and UCX as supervised children of a worker; implements ``api.Fabric``.

They carry the worker's marker in their environment, so that none survives the worker.
"""

from __future__ import annotations

import errno
import math
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Protocol

from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.model import Json
from gpuipc_doctor.node import fabric_devices as devices
from gpuipc_doctor.node.fabric_programs import environment
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker import cxi_healthcheck, fabric_interfaces, message_pair, ucx_protocols, verbs

APART = ["timeout", "--kill-after=1", "15", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Runs a program in a PID namespace of its own with its own /proc, as in a container, for 15 s at most."""

Told = dict[str, Json]
Armed = Callable[[str], AbstractContextManager[None]]

_MAX_BYTES = 1 << 18
"""Maximum bytes of a program's output; of longer output, the end is kept."""

_SHOWN = 200
"""Characters shown of unreadable output."""

_POLL_S = 0.005

_LISTENS_EVERY_S = 0.03
"""Seconds between checks for a listener, which read the kernel's table of connections."""

_SETTLE_S = 1.0
"""Seconds for a program to end by itself after the other end has failed."""

_LISTENING = "0A"
"""TCP_LISTEN in ``/proc/net/tcp`` (Linux, include/net/tcp_states.h)."""


class Other(Protocol):
    def send(self, value: Json) -> None: ...
    def recv(self) -> Json: ...
    def has_news(self) -> bool: ...


class Fabric:
    """Implements `api.Fabric` for one role. ``place`` is the role's index; role 0 waits for messages."""

    def __init__(self, place: int, root: Path, armed: Armed, other: Callable[[], Other], host: str) -> None:
        self._place = place
        self._root = root
        self._armed = armed
        self._other = other
        self._host = host
        self._read_to = 0

    # -- what is here -----------------------------------------------------------------------------------

    def look(self, programs: Mapping[str, str], results: str | None, *, transports: bool) -> dict[str, Json]:
        told: dict[str, Json] = {
            "adapters": [asdict(adapter) for adapter in devices.cxi_adapters(self._root)],
            "ports": devices.ports(self._root),
            "health": cxi_healthcheck.results(Path(results)) if results else [],
        }
        broken: dict[str, Json] = {}

        def offered(text: str) -> Json:
            return [asdict(interface) for interface in fabric_interfaces.offered(text)]

        def ask(
            key: str, program: str, option: str, read: Callable[[str], Json], nothing: int | None = None
        ) -> None:
            """Record a program's output or failure. ``nothing``: the program's exit code if it has nothing to
            list."""
            code, text = self._run([programs[program], option])
            found = read(text)
            if code != nothing and (bad := message_pair.failure(code, text) or _silent(text, found)):
                broken[program] = bad
            else:
                told[key] = found

        if "fi_info" in programs:
            ask("libfabric", "fi_info", "--version", partial(_version, "libfabric"))
            ask("interfaces", "fi_info", "-v", offered, nothing=errno.ENODATA)
        if "ucx_info" in programs:
            ask("ucx", "ucx_info", "-v", partial(_version, "Library version"))
            if transports and "ucx_info" not in broken:  # UCX opens every device for this
                ask("transports", "ucx_info", "-d", fabric_interfaces.transports)
        return {**told, "broken": broken}

    def routes(self, fi_info: str | None, *, across: bool, stated: str | None) -> list[str]:
        offered = self._offered(fi_info) if fi_info else []
        return fabric_interfaces.routes(offered, across=across, stated=stated)

    def _offered(self, fi_info: str) -> list[fabric_interfaces.Interface]:
        return fabric_interfaces.offered(self._run([fi_info, "-v"])[1])

    # -- messages ---------------------------------------------------------------------------------------

    def ping_pong(
        self,
        program: str,
        route: str,
        sizes: Sequence[int],
        rounds: int,
        stated: str | None,
        operations: Sequence[str] = ("message",),
        *,
        apart: bool = False,
    ) -> dict[str, Json]:
        chosen = {
            name: value
            for name, value in message_pair.transports(program, route, stated).items()
            if name not in os.environ
        }
        with tempfile.TemporaryFile("w") as batch:
            batch.write(message_pair.batch(sizes, operations))
            batch.flush()
            count = len(sizes) * len(operations)
            what = sizes[0] if count == 1 else f"/dev/fd/{batch.fileno()}"
            command = [*(APART if apart else ()), *message_pair.command(program, route, what, rounds)]
            judge = partial(_told, rounds=rounds, sizes=count, nbytes=max(sizes))
            ours, theirs = self._end(command, chosen, judge, (batch.fileno(),))
        self._other().send(ours)
        theirs = theirs or self._other().recv()
        found = [*ours.get("protocols", ()), *theirs.get("protocols", ())]
        told = message_pair.worse_of(ours, theirs)
        told.pop("protocols", None)
        ipc = SUPPORTED[route].mpi.ucx_ipc if route in SUPPORTED else ""
        return {**told, "chosen": chosen, "carried": ucx_protocols.carried(found, ipc) if ipc else {}}

    def why_not_apart(self) -> str:
        with self._armed("unshare"):
            try:
                tried = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
            except OSError as error:
                return str(error.strerror)
        return tried.stderr.strip() or f"exit code {tried.returncode}" if tried.returncode else ""

    def carried(self, nbytes: int, backend: str) -> dict[str, Json]:
        """See `ucx_protocols.carried`; from what UCX printed in this process since the last call."""
        import ctypes

        ctypes.CDLL(None).fflush(None)  # UCX prints to C's standard output
        with Path("/proc/self/fd/1").open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._read_to, size - _MAX_BYTES))
            text = log.read().decode(errors="replace")
        self._read_to = size
        ipc = SUPPORTED[backend].mpi.ucx_ipc
        told = ucx_protocols.carried(ucx_protocols.rows(text, nbytes), ipc)
        return {**(told or ucx_protocols.of_open_mpi(text))}

    def register_dmabuf(self, descriptor: int, address: int, nbytes: int) -> dict[str, list[str]]:
        """See `verbs.register_dmabuf`; empty if the descriptor is no dma-buf of the kernel (simulation)."""
        is_dmabuf = "exp_name:" in quietly(Path(f"/proc/self/fdinfo/{descriptor}"))
        return verbs.register_dmabuf(self._armed, descriptor, address, nbytes) if is_dmabuf else {}

    def _end(
        self, command: Sequence[str], env: Mapping[str, str], told: Callable[..., Told], fds: Sequence[int]
    ) -> tuple[Told, Told | None]:
        """The result of this end's program, and the other end's result if it arrived first."""
        apart = list(command[: len(APART)]) == APART
        program, serves, port = command[len(APART) if apart else 0], self._place == 0, 0
        judge = partial(told, has_result=message_pair.has_result(program, serves=serves))
        if serves:
            port = _free_port()
            _listens(port)  # before anything is armed: a kernel that does not tell is no fault of the program
            command = [*command, *message_pair.serve(program, port)]
        elif met := self._other().recv():
            command = [*command, *message_pair.call(program, met["host"], met["port"])]
        else:
            return message_pair.no_listener(), None
        with self._armed(Path(program).name), tempfile.TemporaryFile() as output:
            try:
                process = self._start(command, output, {"UCX_PROTO_INFO": "y", **env}, fds)
            except OSError as error:
                if serves:
                    self._other().send(None)
                return judge(*_not_executed(error)), None
            if serves:
                while not (listens := _listens(port)) and process.poll() is None:
                    time.sleep(_LISTENS_EVERY_S)
                self._other().send({"host": self._host, "port": port} if listens else None)
            theirs = self._watch(process)
            return judge(process.wait(), _text(output)), theirs

    def _watch(self, process: subprocess.Popen[bytes]) -> dict[str, Json] | None:
        """Wait for the program's end, unless the partner failed: the program might then wait for ever."""
        theirs, until = None, math.inf
        while process.poll() is None:
            if theirs is None and self._other().has_news():
                theirs = self._other().recv()
                until = math.inf if theirs["ended"] == message_pair.RIGHT else time.monotonic() + _SETTLE_S
            if time.monotonic() > until:
                process.terminate()
            time.sleep(_POLL_S)
        return theirs

    # -- programs ---------------------------------------------------------------------------------------

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        """A program's exit code, negative for a signal, and its output."""
        with self._armed(Path(command[0]).name), tempfile.TemporaryFile() as output:
            try:
                process = self._start(command, output)
            except OSError as error:
                return _not_executed(error)
            return process.wait(), _text(output)

    def _start(
        self, command: Sequence[str], output: IO[bytes], env: Mapping[str, str] = {}, fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        program = next(word for word in command if word not in APART)
        environ = {**environment(program, os.environ), **self._visible, **env}
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
        )

    @cached_property
    def _visible(self) -> dict[str, str]:
        """Variables that list this role's own device first, because a program uses the first device."""
        rotated = {}
        for name in [vendor.choice.variable for vendor in SUPPORTED.values()]:
            if devices := os.environ.get(name, "").split(","):
                first = self._place % len(devices)
                rotated[name] = ",".join([*devices[first:], *devices[:first]])
        return {name: value for name, value in rotated.items() if value}


def _told(returncode: int, text: str, *, nbytes: int, **how: Any) -> Told:
    """The result of an end, and UCX's protocols for its longest messages."""
    return {
        **message_pair.judge(returncode, text, **how),
        "protocols": list[Json](ucx_protocols.rows(text, nbytes)),
    }


def _text(output: IO[bytes]) -> str:
    """The end of a program's output, from a file: a left-over child could hold a pipe open."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MAX_BYTES))
    return output.read().decode(errors="replace")


def _not_executed(error: OSError) -> tuple[int, str]:
    """The exit code of a shell, and a message, for a program that the kernel cannot execute."""
    return message_pair.CANNOT_EXECUTE, error.strerror or str(error)


def _silent(text: str, found: object) -> dict[str, Json] | None:
    """The failure of a program that reported success without usable output."""
    if found:
        return None
    said = " ".join(text.split())[:_SHOWN] or "no output"
    return {"ended": "silent", "said": f"exit code 0, but unreadable output: {said}"}


def _version(word: str, text: str) -> str:
    """The version in a line such as ``# Library version: 1.22.0``; empty if there is none."""
    lines = (line.lstrip("# ") for line in text.splitlines())
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{word}: ")), "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    """Whether a process listens on this port, according to the kernel: the other end would accept a test
    connection.

    Raises `OSError` if the kernel does not list its sockets.
    """
    table = Path("/proc/net/tcp").read_text(errors="replace") + quietly(Path("/proc/net/tcp6"))
    return re.search(rf":{port:04X} [0-9A-F]+:[0-9A-F]+ {_LISTENING} ", table) is not None
