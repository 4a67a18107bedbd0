"""Slurm's nodes and their states, its limits, and its topology."""

from __future__ import annotations

import enum
import math
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuipc_doctor.files import foreign
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.site import hosts

PATIENCE_S = 60.0
"""Seconds to wait for Slurm's answer."""

_LINE = re.compile(
    r"^(?:SwitchName|BlockName)=(?P<name>\S+)(?: Level=(?P<level>\d+))?.* Nodes=(?P<nodes>\S+)"
)
"""Lines of `scontrol show topology` for topology/tree (tried: 22.05) and topology/block (from its
topology_block.c, 24.05)."""


_GONE = re.compile(r"down|drain|fail|error|unknown|inval|power(ing|ed)?_?(down|off)")
"""Prefixes of sinfo states in which a node gets no job until an administrator acts."""

_READY = re.compile(r"idle|planned|reserved|maint")
"""Prefixes of states in which a node gets a job at once."""


class Readiness(enum.Enum):
    """Whether a node would get a job."""

    READY = "ready"
    BUSY = "busy"
    """A job would wait. Unknown states also count as busy."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a partition: nodes per job, and seconds per job."""

    partition: str = ""
    nodes: float = math.inf
    seconds: float = math.inf


class Refused(Exception):
    """Slurm or Flux gave no answer; the message is one line."""


def nodes_of(*, partition: str | None, reservation: str | None, all_idle: bool) -> str:
    """Node set of a reservation, or of a partition (by default, all nodes). Raises `Refused`."""
    if reservation:
        said = printed_by("scontrol", "-o", "show", "reservation", reservation)
        fields = dict(field.partition("=")[::2] for field in said.split())
        return fields.get("Nodes", "")
    words = ["-p", partition] if partition else []
    words += ["-t", "idle"] if all_idle else []
    return ",".join(dict.fromkeys(printed_by("sinfo", "-h", "-N", "-o", "%N", *words).split()))


def states() -> dict[str, tuple[Readiness, str]]:
    """Node → whether it would get a job, and sinfo's state in words; empty if Slurm does not report any."""
    found = {}
    for line in _printed_if_any("sinfo", "-h", "-N", "-o", "%N|%T|%E").splitlines():
        node, _, said = line.partition("|")
        state, _, reason = said.partition("|")
        readiness = Readiness.BUSY
        if _GONE.match(state):
            readiness = Readiness.GONE
        elif _READY.match(state) and not state.endswith("*"):  # with *, the node does not respond
            readiness = Readiness.READY
        words = f"Slurm: it is {state}" + (f": {reason.strip()}" if reason not in ("", "none") else "")
        found[node] = readiness, words
    return found


def limits(partition: str | None) -> Limits:
    """Limits of a partition (default: Slurm's default partition); none if Slurm does not report any."""
    words = ("scontrol", "-o", "show", "partition", *filter(None, [partition]))
    for line in _printed_if_any(*words).splitlines():
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
    """Seconds of scontrol's time limit ``[days-]hours:minutes:seconds``; infinite if unlimited."""
    said = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", limit)
    if not said:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in said.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def topology() -> str:
    """Slurm's topology, as printed by scontrol; empty if there is none."""
    return _printed_if_any("scontrol", "-o", "show", "topology")


def leaves(nodes: Sequence[str], topology: str) -> dict[str, str]:
    """Node → its lowest switch or its block, for nodes in the topology."""
    lines = topology.splitlines()
    switches = _switches(topology)
    lowest = {node: lines[switches[node][-1]] for node in nodes if node in switches}
    return {node: said["name"] for node, line in lowest.items() if (said := _LINE.match(line))}


def ordered(nodes: Sequence[str], topology: str) -> list[str]:
    """Nodes in pairs below the same switch; then nodes left over; then nodes outside the topology."""
    switches = _switches(topology)
    below = by_key((switches.get(node, ()), node) for node in nodes)
    unknown = below.pop((), [])
    even, left = [], []
    for _, those in sorted(below.items()):
        keep = len(those) & ~1
        even += those[:keep]
        left += those[keep:]
    return [*even, *left, *unknown]


def _switches(topology: str) -> Mapping[str, tuple[int, ...]]:
    """Node → the switches above it, highest first, as line numbers of the topology."""
    found = by_key(
        (node, (-int(said["level"] or 0), place))
        for place, line in enumerate(topology.splitlines())
        if (said := _LINE.match(line)) and said["nodes"] != "(null)"
        for node in _expanded(said["nodes"])
    )
    return {node: tuple(place for _, place in sorted(above)) for node, above in found.items()}


def _expanded(nodes: str) -> Iterable[str]:
    try:
        return hosts.expand(nodes)
    except hosts.BadNodes:
        return ()


def _printed_if_any(*words: str) -> str:
    try:
        return printed_by(*words)
    except Refused:
        return ""


def printed_by(*words: str, limit_s: float = PATIENCE_S) -> str:
    """Output of a program of Slurm or Flux. Raises `Refused`."""
    try:
        asked = foreign.run(words, limit_s=limit_s)
    except OSError as error:
        raise Refused(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{words[0]} did not answer within {limit_s:g} s") from None
    if asked.returncode != 0:
        raise Refused(f"{words[0]}: {' '.join((asked.stderr or asked.stdout).split())[:200]}")
    return asked.stdout
