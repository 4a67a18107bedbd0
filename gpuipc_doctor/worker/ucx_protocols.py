"""What carried device memory through UCX, from the tables that UCX prints with ``UCX_PROTO_INFO=y``.

UCX 1.14 and newer print a table for each kind of transfer that was used: the protocol by range of sizes. The
tests have tables of 1.22.0. Older versions, and all with ``UCX_PROTO_ENABLE=n``, print none. Open MPI without
UCX names what connects the ranks of a node (``OMPI_MCA_ompi_display_comm=mpi_init``; tests: 5.0.11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PEER, HOST, OTHER = "peer", "host", "other"

OPERATIONS = {"message": "tag_lat", "put": "ucp_put_bw", "get": "ucp_get"}
"""What may be carried, and the test of ``ucx_perftest`` that does it."""

_LOG = re.compile(r"^\[[\d.]+\] \[[^\]]+\]\s+")
_TITLE = re.compile(
    r"\| (?:(?P<message>tagged message by ucp_tag_send\*|rendezvous data (?:send|fetch))"
    r"|remote memory (?P<put>write by ucp_put\*)|remote memory (?P<get>read by ucp_get\*))"
    r"(?:\((?:multi|fast-completion)\))? (?:from|into) (?:cuda|rocm)/GPU\d+"
)
_WHERE = re.compile(r"\b(self|intra-node|inter-node) cfg#\d+")
_ROW = re.compile(r"\|\s*(\d+[KMG]?)(?:\.\.(\d+[KMG]?|inf))?\s*\|([^|]*)\|([^|]*)\|\s*$")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_OF_HOST = frozenset({"tcp", "sysv", "posix", "cma", "knem", "xpmem"})
"""UCX's transports through sockets or the host's memory (ucx_info -d)."""


_BTL = re.compile(r"^ +on-host: +all connections are (\w+)$", re.MULTILINE)


def of_open_mpi(text: str) -> dict[str, list[str]]:
    """The same as `carried`, from Open MPI's summary: what moves all messages between ranks of this
    node. Its first rank prints it for all.

    Only tcp is known to pass through the host; sm and smcuda may use peer access.
    """
    named = _BTL.findall(text)
    known = len(set(named)) == 1 and named[0] != "ucx"
    if not known:
        return {}
    return {"message": [HOST if named[0] == "tcp" else OTHER, named[0]], "mover": ["Open MPI"]}


def rows(text: str, nbytes: int) -> list[list[str]]:
    """Of each table about device memory between processes: operation, description and transports for
    transfers of ``nbytes``."""
    found, operation, before = list[list[str]](), "", ""
    for line in (_LOG.sub("", line) for line in text.splitlines()):
        if title := _TITLE.match(line):
            where = _WHERE.search(line) or _WHERE.search(before)
            operation = str(title.lastgroup) if where and where[1] == "intra-node" else ""
        elif not line.startswith(("|", "+")) or _WHERE.search(line):
            operation = ""
        elif operation and (row := _ROW.match(line)):
            low, high, how, by = row.groups()
            if _bytes(low) <= nbytes <= _bytes(high or low):
                found.append([operation, how.strip(), by.strip()])
        before = line
    return found


def _bytes(text: str) -> float:
    return float(text) if text == "inf" else float(text.rstrip("KMG")) * _UNITS.get(text[-1], 1)


def carried(found: Iterable[list[str]], ipc: str) -> dict[str, list[str]]:
    """Operation → `PEER`, `HOST` or `OTHER`, and the transport in words.

    ``ipc``: UCX's transport for peers' memory. An operation whose tables disagree is left out.
    """
    found = list(found)
    sure = [row for row in found if not row[1].startswith("(?) rendezvous")]
    by_operation: dict[str, list[tuple[str, str]]] = {}
    for operation, how, by in found:
        if how.startswith("(?) rendezvous") and any(row[0] == operation for row in sure):
            continue  # the sender's guess; the receiver has chosen
        if told := _kind(how, by, ipc):
            by_operation.setdefault(operation, []).append(told)
    return {
        operation: [kinds.pop(), " and ".join(dict.fromkeys(_names(told)))]
        for operation, told in by_operation.items()
        if len(kinds := {kind for kind, _ in told}) == 1
    }


def _names(told: list[tuple[str, str]]) -> Iterator[str]:
    """The transports; host memory without a transport only if none is named."""
    named = [name for _, name in told if name]
    yield from named or ["host memory"]


def _kind(how: str, by: str, ipc: str) -> tuple[str, str] | None:
    names = list(dict.fromkeys(re.findall(r"(?:^| )(\w+)/", by)))
    if ipc in names or re.search(rf"\b{ipc}\b", how):
        return PEER, ipc
    if "frag host" in how or (names and _OF_HOST.issuperset(names)):
        return HOST, " and ".join(names)
    return (OTHER, " and ".join(names)) if names else None
