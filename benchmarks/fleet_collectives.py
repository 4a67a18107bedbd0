"""What `fleet collectives` costs its head: simulated nodes that answer over real connections.

    python benchmarks/fleet_collectives.py [NODES]

One other process plays all nodes: each has its own connection, and answers a round at once as if it had run
8 ranks. Rounds, bytes and processor time of the head are real; what NCCL takes is not here.
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from gpuipc_doctor.fleet import collective_report, collectives
from gpuipc_doctor.fleet.collective_head import Head
from gpuipc_doctor.fleet.collective_types import Ending, Joined, RankResult, Round, RoundResult, Speed
from gpuipc_doctor.fleet.secret_line import Line, greet
from gpuipc_doctor.model import Json
from gpuipc_doctor.supervise import process_limits

GPUS, BELOW = 8, 32

Fails = Callable[[set[str]], bool]


def faults(nodes: list[str]) -> Mapping[str, Fails]:
    """Name → whether a group of nodes fails."""
    inside = {*nodes[BELOW : 2 * BELOW]}
    return {
        "healthy": lambda _: False,
        "a node": lambda group: nodes[-2] in group,
        "a pair": lambda group: {nodes[1], nodes[-2]} <= group,
        "a switch": lambda group: bool(group & inside) and bool(group - inside),
        "only all together": lambda group: len(group) == len(nodes),
    }


def play(nodes: list[str], secret: bytes, port: int) -> None:
    """All nodes, in one process; all pass: the faults are added by the head, which knows the groups."""
    lines: dict[str, Line] = {}
    with selectors.DefaultSelector() as ready:
        for node in nodes:
            line = greet(socket.create_connection(("127.0.0.1", port)), secret, node)
            facts = {"adapters": " ".join(f"mlx5_{place}" for place in range(GPUS)), "memlock": "unlimited"}
            told = Joined(node, ("NVIDIA H200",) * GPUS, library="NCCL 2.28.3", facts=facts)
            told = replace(told, clock_s=time.time())
            line.send({"joined": msgspec.to_builtins(told)})
            lines[node] = line
            ready.register(line, selectors.EVENT_READ, node)
        left = len(nodes)
        while left:
            for key, _ in ready.select():
                head = lines[key.data]
                for message in head.receive():
                    if "end" in message:
                        left -= 1
                        ready.unregister(head)
                    elif "round" in message:
                        head.send(answer(key.data, message["round"]))


def answer(node: str, asked: Json) -> Json:
    speeds = tuple(Speed("all-reduce", size, size / 40e9 + 1e-5) for size in (8, 256 << 20))
    done = RankResult(
        node,
        0,
        0,
        Ending.DONE,
        start_s=1.0,
        first_s=0.5,
        cases=50,
        speeds=speeds,
        transports={"NET/IB/0/GDRDMA": 16},
        network="IB: mlx5_0:1/RoCE",
    )
    ranks = [replace(done, rank=asked["first"] + place, gpu=gpu) for place, gpu in enumerate(asked["gpus"])]
    return {"number": asked["number"], "ranks": msgspec.to_builtins(ranks)}


def measure(number: int, name: str) -> None:
    nodes = [f"nid{place:05}" for place in range(number)]
    fails = faults(nodes)[name]
    topology = {node: f"leaf{place // BELOW}" for place, node in enumerate(nodes)}
    secret = secrets.token_bytes(32)
    began, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    head = Head(nodes, secret)
    child = os.fork()
    if not child:
        play(nodes, secret, head.port)
        os._exit(0)
    joined = head.gather(dict, 300)

    def meet(asked: Round) -> RoundResult:
        found = head.meet(asked)
        hung = (
            replace(group, ranks=tuple(replace(rank, ending=Ending.HUNG, speeds=()) for rank in group.ranks))
            if len(group.group.nodes) > 1 and fails({*group.group.nodes})
            else group
            for group in found.groups
        )
        return replace(found, groups=tuple(hung))

    with tempfile.TemporaryDirectory() as directory:
        log = collective_report.Log(Path(directory))
        rounds = collectives.Rounds(meet, joined, Round("", ()), saved=log.earlier, save=log.add)
        findings = list(collectives.examine(rounds, nodes, {}, topology))
        report = collective_report.report(nodes, joined, findings, rounds.done, datetime.now().astimezone())
        collective_report.screen(report, 0)
        size = (Path(directory) / collective_report.ROUNDS).stat().st_size
    head.dismiss()
    os.waitpid(child, 0)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    cpu = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    searched = sum("search" in each.round.name or each.round.name == "all together" for each in rounds.done)
    said = next((f"{each.key} {each.values.get('who', '')}" for each in findings), "")
    print(
        f"| {number} | {name} | {said} | {searched} | {len(rounds.done)} | {cpu:.1f} | "
        f"{time.monotonic() - started:.0f} | {size >> 20} |",
        flush=True,
    )


if __name__ == "__main__":
    process_limits.raise_soft()
    print("| nodes | fault | said | rounds of the search | all rounds | CPU s | s | MiB of rounds |")
    print("|---|---|---|---|---|---|---|---|")
    for fault in faults([""] * 3 * BELOW):
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, fault)
