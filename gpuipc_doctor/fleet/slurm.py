"""What Slurm says of its nodes: which there are, and in which order its topology has them."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuipc_doctor.site import hosts

PATIENCE_S = 60.0
"""For an answer of Slurm's."""

_LINE = re.compile(
    r"^(?:SwitchName|BlockName)=(?P<name>\S+)(?: Level=(?P<level>\d+))?.* Nodes=(?P<nodes>\S+)"
)
"""As `scontrol show topology` prints topology/tree (tried: 22.05) and topology/block (read: its
topology_block.c, 24.05)."""


class Refused(Exception):
    """Slurm does not say; the text is one line."""


def nodes_of(*, partition: str | None, reservation: str | None, all_idle: bool) -> str:
    """The set of a reservation, else of a partition (by default of all), idle ones only if so asked.

    Raises `Refused`.
    """
    if reservation:
        said = _ask("scontrol", "-o", "show", "reservation", reservation)
        fields = dict(field.partition("=")[::2] for field in said.split())
        return fields.get("Nodes", "")
    words = ["-p", partition] if partition else []
    words += ["-t", "idle"] if all_idle else []
    return ",".join(dict.fromkeys(_ask("sinfo", "-h", "-N", "-o", "%N", *words).split()))


def in_order(nodes: Sequence[str]) -> list[str]:
    """The nodes in the order of Slurm's topology; as they are where it has none, or where it does not say."""
    try:
        return ordered(nodes, _ask("scontrol", "-o", "show", "topology"))
    except Refused:
        return list(nodes)


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


def _ask(*words: str) -> str:
    """What a program of Slurm's prints. Raises `Refused`."""
    try:
        asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except OSError as error:
        raise Refused(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{words[0]} did not answer within {PATIENCE_S:g} s") from None
    if asked.returncode != 0:
        raise Refused(f"{words[0]}: {' '.join((asked.stderr or asked.stdout).split())}")
    return asked.stdout
