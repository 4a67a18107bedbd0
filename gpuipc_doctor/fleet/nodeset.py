"""Sets of nodes folded by ClusterShell: ranges, names with several numbers (xnames)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gpuipc_doctor.site import hosts

NAME = re.compile(r"\w[\w.:@%-]*")
"""A node's name; it cannot be taken for an option of ssh, or for a path outside a directory."""

LONGEST = 160
"""Maximum characters of a set in a sentence."""


def expand(text: str) -> list[str]:
    """The nodes of a set; each name can be an argument of `ssh` or `srun`. Raises `hosts.BadNodes`."""
    nodes = hosts.expand(text)
    for node in nodes:
        if not NAME.fullmatch(node):
            raise hosts.BadNodes(f"{node[:80]!r} is not a node name")
    return nodes


class NodeSetFormatter:
    """Folds subsets of a node set. A large subset is computed as the set without the other nodes: this is
    faster."""

    def __init__(self, nodes: Sequence[str]) -> None:
        from ClusterShell.NodeSet import NodeSet

        self._make: Any = NodeSet.fromlist
        self._number = len(nodes)
        self._nodes = frozenset(nodes)
        self._all: Any = self._make(list(nodes))
        self._seen: dict[frozenset[str], str] = {}

    def fold(self, nodes: Iterable[str]) -> str:
        """The nodes as a folded set: ``nid[0001-0128]``."""
        wanted = frozenset(nodes)
        if wanted not in self._seen:
            others = self._nodes - wanted
            if len(others) < self._number / 2 and wanted <= self._nodes:
                self._seen[wanted] = str(self._all - self._make(sorted(others)))
            else:
                self._seen[wanted] = str(self._make(sorted(wanted)))
        return self._seen[wanted]

    def brief(self, nodes: Sequence[str]) -> str:
        """The folded set, truncated if long."""
        text = self.fold(nodes)
        if len(text) <= LONGEST:
            return text
        return f"{text[:LONGEST].rpartition(',')[0]},…] ({len(nodes)} nodes)"
