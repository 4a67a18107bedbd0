"""A node's part in `fleet collectives`: take rounds from the head, and run a rank on each GPU in each."""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec  # noqa: TID253 - messages are those of `collective_types`

from gpuipc_doctor.collective import across, channels
from gpuipc_doctor.fleet.collective_facts import gather
from gpuipc_doctor.fleet.collective_types import Ending, Joined, RankResult, Speed, Wrong
from gpuipc_doctor.fleet.secret_line import SECRET_BYTES, Line, NotOurs, greet
from gpuipc_doctor.model import Json, MemoryShare
from gpuipc_doctor.probe_types import Ending as RoleEnding
from gpuipc_doctor.probe_types import Observed, Probe, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.standing import Standing
from gpuipc_doctor.supervise import scratch

TICK_S = 0.02
SKEW_S = 3.0
"""A round's deadlines on its nodes differ by less. A peer lost then was ended there, and both hung."""
CONNECT_S = 5.0
"""Seconds to connect to one address of the head."""
LOG_BYTES = 8 << 20

_REMOTE_ERROR = 6  # ncclRemoteError
_ENDINGS = {RoleEnding.COMPLETED: Ending.DONE, RoleEnding.HUNG: Ending.HUNG, RoleEnding.STOPPED: Ending.HUNG}
_OWN = re.compile(r"NCCL INFO Bootstrap ?: Using \[?\d*\]?[\w.-]+:([\w.:]+)<\d+>")
"""``Bootstrap: Using eno1:10.0.0.1<0>``: NCCL, src/bootstrap.cc."""
_REFUSED = re.compile(r"[Cc]onnect(?:ion)? to (?:peer )?([\w.:%-]+)<(\d+)>")
"""``socketStartConnect: Connect to 10.0.0.2<41000> failed : No route to host``: NCCL, src/misc/socket.cc."""
_NETWORK = re.compile(r"NCCL INFO NET/(\w+) : Using (.+)")
_PLACE = re.compile(r"\[\d+\]")


class NoHead(Exception):
    """The head of the run cannot be reached; the message names each address that was tried."""


def reach(addresses: Sequence[str], secret: bytes, name: str) -> Line:
    """The line to the head, by the first of its addresses that answers. Raises `NoHead`."""
    if len(secret) != SECRET_BYTES:
        raise NoHead(
            "the run's secret did not come on standard input; `fleet collectives` starts this command"
        )
    tried = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except OSError as error:
            tried.append(f"{address} ({error.strerror or error})")
            continue
        try:
            return greet(connection, secret, name)
        except (OSError, NotOurs) as error:
            connection.close()
            tried.append(f"{address} ({getattr(error, 'strerror', None) or error})")
    raise NoHead(f"the head of this run cannot be reached; tried: {', '.join(tried)}")


def joined(node: str, standing: Standing) -> Joined:
    backends = list(dict.fromkeys(device.backend for device in standing.devices))
    found = standing.collectives.of(backends[0]) if backends else ()
    lacks = ""
    if not backends:
        lacks = "no GPU that can be tested"
    elif len(backends) > 1:
        lacks = f"GPUs of two vendors ({', '.join(backends)}); name one with -- --backend"
    elif not found:
        name = standing.devices[0].vendor.collectives.name
        lacks = f"no {name} found; searched: {standing.collectives.searched}"
    return Joined(
        node,
        tuple(device.name for device in standing.devices),
        tuple(f"{device.label}: {sentences.summary(finding)}" for device, finding in standing.full.items()),
        f"{standing.devices[0].vendor.collectives.name} {found[0].version}".strip() if found else "",
        lacks,
        _room(standing) if backends else 0,
        time.time(),  # the head takes the difference
        {fact.name: fact.value for fact in standing.facts if fact.value is not None} | gather(),
    )


def _room(standing: Standing) -> int:
    return MemoryShare().of(min(device.total_bytes for device in standing.devices)) // 3


def serve(line: Line, standing: Standing, node: str, stop: threading.Event) -> None:
    """Run rounds until the head ends the run or is lost, or ``stop`` is set."""
    line.send({"joined": msgspec.to_builtins(joined(node, standing))})
    with ThreadPoolExecutor(1) as thread:
        place = _Place(line, standing, node, thread)
        try:
            while not stop.is_set():
                if select.select([line], [], [], TICK_S if place.is_busy else 0.5)[0]:
                    for message in line.receive():
                        if "end" in message:
                            return
                        place.take(message)
                place.tell()
        finally:
            place.end()


@dataclass
class _Place:
    """The round under way, if any."""

    line: Line
    standing: Standing
    node: str
    thread: ThreadPoolExecutor
    _asked: Json = field(default_factory=dict)
    _running: Future[ProbeOutcome] | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _directory: Path | None = None
    _owes_id: bool = False
    _why_over: str = ""
    _until: float = 0.0

    @property
    def is_busy(self) -> bool:
        return self._running is not None

    def take(self, message: Json) -> None:
        if "round" in message:
            try:
                self._begin(message["round"])
            except (OSError, scratch.NoPlace) as error:
                self._fail(str(error))
        elif self._directory and "id" in message:
            self._write_id(bytes.fromhex(message["id"]))
        elif "stop" in message:
            self._why_over = message["stop"]
            self._over.set()

    def _begin(self, asked: Json) -> None:
        self._asked, self._over, self._why_over = asked, threading.Event(), ""
        if stuck := self.standing.session.unkillable:
            self._fail(f"not run after {stuck}")
            return
        self._directory = self.standing.session.own_directory()
        self._owes_id = asked["first"] == 0
        devices = tuple(self.standing.devices[gpu] for gpu in asked["gpus"])
        library = self.standing.collectives.of(devices[0].backend)[0]
        names = [f"rank {asked['first'] + place}" for place in range(len(devices))]
        probe = Probe(
            "between nodes",
            dict.fromkeys(names, across.take_part),
            devices,
            {
                **{name: asked[name] for name in ("operations", "sizes", "kinds", "speeds", "ranks")},
                "library": library.path,
                "meeting": str(self._directory / "unique-id"),
                "of": {name: asked["first"] + place for place, name in enumerate(names)},
            },
            deadline_s=2 * asked["deadline_s"],  # the round's own deadline comes first, for all ranks alike
            together=True,
            concurrent=frozenset(names),
            env={**self._as_node, **asked["settings"]},
        )
        run = partial(self.standing.session.run, "collectives", across.FILE, probe, stop=self._over)
        self._until = time.monotonic() + asked["deadline_s"]
        self._running = self.thread.submit(run, until=self._until)

    @property
    def _as_node(self) -> dict[str, str]:
        """What makes the simulated NCCL meet ranks of other nodes."""
        is_simulated = bool(self.standing.session.node.simulated)
        return {"NCCL_HOSTID": self.node} if is_simulated and "NCCL_HOSTID" not in os.environ else {}

    def _fail(self, why: str) -> None:
        """Tell the head that no rank of this node was started."""
        asked = self._asked
        ranks = [
            RankResult(self.node, asked["first"] + place, gpu, Ending.FAILED, across.START, why)
            for place, gpu in enumerate(asked["gpus"])
        ]
        self.line.send({"number": asked["number"], "ranks": msgspec.to_builtins(ranks)})
        self._clear()

    def _write_id(self, unique_id: bytes) -> None:
        assert self._directory
        draft = self._directory / "draft"
        draft.write_bytes(unique_id)
        draft.replace(self._directory / "unique-id")

    def tell(self) -> None:
        """Send the head what there is to send: the unique id, then how each rank ended."""
        if self._owes_id and self._directory and (file := self._directory / "unique-id").exists():
            self._owes_id = False
            self.line.send({"number": self._asked["number"], "id": file.read_bytes().hex()})
        if self._running and self._running.done():
            running, self._running = self._running, None
            try:
                ended = running.result()
            except OSError as error:  # the disk is full, for example
                self._fail(str(error))
                return
            is_late = time.monotonic() > self._until - SKEW_S
            ranks = results(ended, self._asked, self.node, self._why_over, is_late=is_late)
            self.line.send({"number": self._asked["number"], "ranks": msgspec.to_builtins(list(ranks))})
            self._clear()

    def end(self) -> None:
        self._over.set()
        if self._running:
            self._running.exception()  # waits
        self._clear()

    def _clear(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def results(
    ended: ProbeOutcome, asked: Json, node: str, why_over: str, *, is_late: bool = False
) -> Iterator[RankResult]:
    """How each rank of this node ended."""
    for place, gpu in enumerate(asked["gpus"]):
        rank = asked["first"] + place
        role = ended.roles.get(f"rank {rank}")
        if role is None:
            yield RankResult(node, rank, gpu, Ending.FAILED, across.START, "its process was not started")
        else:
            log = _log(Path(ended.logs) / f"{role.role}.log")
            found = _result(role, log, node, rank, gpu, why_over)
            if found.ending is Ending.LOST and is_late:
                found = replace(found, ending=Ending.HUNG, failure=why_over)
            yield found


def _result(role: RoleOutcome, log: str, node: str, rank: int, gpu: int, why_over: str) -> RankResult:
    told, ending = role.records, _ENDINGS.get(role.ending, Ending.FAILED)
    if role.fault and role.fault.code == _REMOTE_ERROR and role.fault.call.startswith("nccl"):
        ending = Ending.LOST
    refused = _REFUSED.findall(log) if ending is not Ending.DONE else []
    own = _OWN.search(log)
    failure = ""
    if ending in (Ending.FAILED, Ending.LOST):
        failure = _failure(role)
    elif ending is Ending.HUNG:
        failure = why_over
    return RankResult(
        node,
        rank,
        gpu,
        ending,
        "" if ending is Ending.DONE else role.step or role.operation or across.START,
        failure,
        (own[1], ":".join(refused[-1])) if own and refused else None,
        told.get("start_s"),
        told.get("first_s"),
        told.get("cases", 0),
        tuple(
            Wrong(each["operation"], each["kind"], each["nbytes"], each["says"])
            for each in told.get("wrong", ())
        ),
        told.get("wrong_cases", 0),
        tuple(Speed(*each) for each in told.get("speeds", ())),
        channels.by_transport(log),
        network(log),
    )


def _failure(role: RoleOutcome) -> str:
    warned = role.observed.get(Observed.WARNED.value, "")
    what = str(role.fault) if role.fault else role.exception.partition("\n")[0] or role.ending.value
    if role.signal:
        what += f" by {role.signal}"
    return f"{what}: {warned}" if warned else what


def network(log: str) -> str:
    """What NCCL says that it uses between nodes: ``Socket: eno1:10.0.0.1``; empty if it says nothing."""
    found = _NETWORK.findall(log)
    if not found:
        return ""
    name, using = found[-1]
    return f"{name}: {_PLACE.sub('', using.partition(';')[0]).replace('<0>', '').strip()}"


def _log(file: Path) -> str:
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LOG_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
