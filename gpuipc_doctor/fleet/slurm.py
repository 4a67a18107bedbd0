"""What Slurm says of its nodes: which there are and in which state, its limits, and its topology."""

from __future__ import annotations

import enum
import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuipc_doctor.site import hosts

PATIENCE_S = 60.0
"""For an answer of Slurm's."""

_LINE = re.compile(
    r"^(?:SwitchName|BlockName)=(?P<name>\S+)(?: Level=(?P<level>\d+))?.* Nodes=(?P<nodes>\S+)"
)
"""As `scontrol show topology` prints topology/tree (tried: 22.05) and topology/block (read: its
topology_block.c, 24.05)."""


_GONE = re.compile(r"down|drain|fail|error|unknown|inval|power(ing|ed)?_?(down|off)")
"""Begins the states of sinfo in which a node gets no job, until somebody acts."""

_READY = re.compile(r"idle|planned|reserved|maint")
"""Begins those in which it gets one at once."""


class Readiness(enum.Enum):
    """Whether a job would get a node."""

    READY = "ready"
    BUSY = "busy"
    """Or in a state of which nothing is known here: a job for it may wait."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What sinfo says of a node, its reason included."""

    readiness: Readiness
    words: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a partition: nodes of a job, and seconds that it may take."""

    partition: str = ""
    nodes: float = math.inf
    seconds: float = math.inf


class Refused(Exception):
    """Slurm or Flux does not say; the text is one line."""


def nodes_of(*, partition: str | None, reservation: str | None, all_idle: bool) -> str:
    """The set of a reservation, else of a partition (by default of all), idle ones only if so asked.

    Raises `Refused`.
    """
    if reservation:
        said = printed_by("scontrol", "-o", "show", "reservation", reservation)
        fields = dict(field.partition("=")[::2] for field in said.split())
        return fields.get("Nodes", "")
    words = ["-p", partition] if partition else []
    words += ["-t", "idle"] if all_idle else []
    return ",".join(dict.fromkeys(printed_by("sinfo", "-h", "-N", "-o", "%N", *words).split()))


def states() -> dict[str, NodeState]:
    """Of all nodes; empty where Slurm does not say."""
    try:
        lines = printed_by("sinfo", "-h", "-N", "-o", "%N|%T|%E").splitlines()
    except Refused:
        return {}
    found = {}
    for line in lines:
        node, _, said = line.partition("|")
        state, _, reason = said.partition("|")
        readiness = Readiness.BUSY
        if _GONE.match(state):
            readiness = Readiness.GONE
        elif _READY.match(state) and not state.endswith("*"):  # with *, it does not respond
            readiness = Readiness.READY
        words = f"Slurm: it is {state}" + (f": {reason.strip()}" if reason not in ("", "none") else "")
        found[node] = NodeState(readiness, words)
    return found


def limits(partition: str | None) -> Limits:
    """Of a partition, by default of Slurm's default one; none where Slurm does not say."""
    try:
        lines = printed_by(
            "scontrol", "-o", "show", "partition", *([partition] if partition else [])
        ).splitlines()
    except Refused:
        return Limits()
    for line in lines:
        fields = dict(field.partition("=")[::2] for field in line.split())
        if partition or fields.get("Default") == "YES":
            nodes = fields.get("MaxNodes", "")
            return Limits(
                fields.get("PartitionName", ""),
                int(nodes) if nodes.isdigit() else math.inf,
                _seconds(fields.get("MaxTime", "")),
            )
    return Limits()


def _seconds(limit: str) -> float:
    """Of ``[days-]hours:minutes:seconds``, as scontrol prints a time limit; infinite if it is none."""
    said = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", limit)
    if not said:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in said.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def topology() -> str:
    """Slurm's, as scontrol prints it; empty where it has none, or does not say."""
    try:
        return printed_by("scontrol", "-o", "show", "topology")
    except Refused:
        return ""


def leaves(nodes: Sequence[str], topology: str) -> dict[str, str]:
    """Of each of the nodes that the topology knows, the name of its lowest switch, or of its block."""
    lines = topology.splitlines()
    switches = _switches(topology)
    lowest = {node: lines[switches[node][-1]] for node in nodes if node in switches}
    return {node: said["name"] for node, line in lowest.items() if (said := _LINE.match(line))}


def ordered(nodes: Sequence[str], topology: str) -> list[str]:
    """Neighbours side by side, so that each two of them, from the first on, are below one switch.

    Of a switch with an odd number of these nodes one is left over; those stand at the end, and so do nodes
    of which the topology does not know. Otherwise the order of ``nodes`` is kept.
    """
    switches = _switches(topology)
    below: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for node in nodes:
        below[switches.get(node, ())].append(node)
    unknown = below.pop((), [])
    even, left = [], []
    for _, those in sorted(below.items()):
        keep = len(those) & ~1
        even += those[:keep]
        left += those[keep:]
    return [*even, *left, *unknown]


def _switches(topology: str) -> Mapping[str, tuple[int, ...]]:
    """Of each node the switches above it, the highest first, by their place in the text."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for place, line in enumerate(topology.splitlines()):
        if (said := _LINE.match(line)) and said["nodes"] != "(null)":
            for node in _expanded(said["nodes"]):
                found[node].append((-int(said["level"] or 0), place))
    return {node: tuple(place for _, place in sorted(above)) for node, above in found.items()}


def _expanded(nodes: str) -> Iterable[str]:
    try:
        return hosts.expand(nodes)
    except hosts.BadNodes:
        return ()


def printed_by(*words: str) -> str:
    """What a program of Slurm's or of Flux's prints. Raises `Refused`."""
    try:
        asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except OSError as error:
        raise Refused(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{words[0]} did not answer within {PATIENCE_S:g} s") from None
    if asked.returncode != 0:
        raise Refused(f"{words[0]}: {' '.join((asked.stderr or asked.stdout).split())}")
    return asked.stdout
