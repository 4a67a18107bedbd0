"""Run nodes over ssh through a site's gateways, as defined in ClusterShell's topology.

Without gateways, `ask` runs ssh: it can also start srun and flux, send the tool and run pairs. For 500 nodes,
`ask` takes 0.3 s of processor time, ClusterShell 1.1 s.

Each gateway needs ClusterShell, and runs as many ssh at a time as this host. Gateways are listed in
topology.conf: https://clustershell.readthedocs.io/en/latest/tools/clush.html#tree-mode
"""

from __future__ import annotations

import math
import shlex
import socket
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ClusterShell.Event import EventHandler
from ClusterShell.NodeSet import NodeSet, NodeSetException
from ClusterShell.Task import Task, TimeoutError, task_self  # noqa: A004 - so it is called there
from ClusterShell.Topology import TopologyError, TopologyParser

from gpuipc_doctor.fleet.ask import (
    MAX_ANSWER,
    MAX_WORDS,
    NOT_ASKED,
    LaunchOptions,
    Listener,
    Target,
    Via,
    answer,
)
from gpuipc_doctor.fleet.summary import State, clocked, silent


class BadTopology(ValueError):
    """The site's topology cannot be read; the message is one line."""


def is_laid_out() -> bool:
    """Whether the site has a topology with this node as a root. Raises `BadTopology`."""
    for path in filter(Path.exists, map(Path, reversed(Task.TOPOLOGY_CONFIGS))):
        try:
            laid_out = TopologyParser(str(path))
        except (TopologyError, NodeSetException, ValueError) as error:
            raise BadTopology(f"{path}: {' '.join(str(error).split())}") from None
        try:
            laid_out.tree(socket.gethostname().partition(".")[0])
        except TopologyError:  # this node is not one of its roots
            return False
        return True
    return False


def ask(nodes: Sequence[str], way: LaunchOptions, listener: Listener) -> None:
    """Run the command on all nodes until each has answered or failed. Ctrl-C ends the commands."""
    task = task_self()
    task.set_info("fanout", way.fanout)
    task.set_info("connect_timeout", math.ceil(way.patience_s))
    task.set_info("ssh_options", shlex.join(["-oBatchMode=yes", *way.options]))
    told = _Answers(listener)
    names = NodeSet.fromlist(list(nodes))
    worker = task.shell(
        way.line(Target("", "")),
        nodes=names,
        handler=told,
        timeout=way.deadline_s,
        stderr=True,
        stdin=bool(way.given),
        tree=True,
    )
    if way.given:
        worker.write(way.given.read_bytes())
        worker.set_write_eof()
    late = unasked = f"no answer within {min(way.deadline_s, way.budget_s):g} s"
    try:
        task.resume(None if math.isinf(way.budget_s) else way.budget_s)
    except TimeoutError:
        unasked = NOT_ASKED
    finally:
        task.abort(kill=True)
    for node in nodes:
        if node in told.begun - told.ended:
            listener.finished(silent(node, State.DEADLINE, late), b"")
        elif node not in told.ended:
            listener.finished(silent(node, State.NO_ANSWER, unasked), b"")


class _Answers(EventHandler):  # type: ignore[misc]
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lines: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        self._left: dict[tuple[str, str], int] = {}
        self.begun: set[str] = set()
        self.ended: set[str] = set()

    def ev_pickup(self, worker: Any, node: Any) -> None:
        self.begun.add(str(node))
        self._listener.started(str(node))

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        stream = (str(node), sname)
        left = self._left.setdefault(stream, MAX_ANSWER if sname == "stdout" else MAX_WORDS)
        if left > 0:
            self._lines[stream].append(msg[:left])
            self._left[stream] = left - len(msg) - 1

    def ev_hup(self, worker: Any, node: Any, rc: int | None) -> None:
        name = str(node)
        self.ended.add(name)
        data, said = (b"\n".join(self._lines.pop((name, sname), [])) for sname in ("stdout", "stderr"))
        found, full = answer(name, data, rc or 0, said.decode(errors="replace"), Via.SSH)
        self._listener.finished(clocked(found, datetime.now().astimezone()), full)
