"""The nodes of a site config: Slurm's cluster name, and ClusterShell's node sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.yamlfile import BadFile, Document
from gpuipc_doctor.site import layers

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json

SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
"""Paths of Slurm's configuration: the default, the fetched copy on a configless node
(slurm.schedmd.com/configless_slurm.html), and Debian 11's."""

_MAX_BYTES = 1 << 20
MOST_NODES = 1 << 18
"""Maximum nodes of a node set."""
_LONGEST_NUMBER = 18


class BadNodes(ValueError):
    """A text that is not a valid node set; the message is one line."""


def expand(text: str) -> list[str]:
    """The nodes of ``nid[0001-0128],@gpu``, in order. Raises `BadNodes`, also for an empty set."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    if _most_nodes(text) > MOST_NODES:  # ClusterShell would list them all
        raise BadNodes(f"{text[:100]!r} names more than {MOST_NODES} nodes")
    try:
        nodes = [str(node) for node in NodeSet(text)]
    except NodeSetException as error:
        raise BadNodes(f"{text!r} names no nodes: {error}") from None
    if not nodes:
        raise BadNodes(f"{text!r} names no nodes: the set is empty")
    return nodes


def _most_nodes(text: str) -> int:
    """An upper limit of the nodes in a node set: for each name, the product of its brackets."""
    total = 0
    for name in re.split(r",(?![^\[]*\])", text):
        product = 1
        for bracket in re.findall(r"\[([^\]]*)\]", name):
            ranges = re.findall(r"(\d+)-(\d+)", bracket)
            if any(len(end) > _LONGEST_NUMBER for _, end in ranges):
                return MOST_NODES + 1
            product *= bracket.count(",") + 1 + sum(max(0, int(end) - int(begin)) for begin, end in ranges)
        total += product
    return total


def hold(sets: Json, host: str) -> bool:
    """Whether one of these node sets contains this node. Raises `BadNodes`."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return any(host in NodeSet(text) for text in listed(sets))
    except NodeSetException as error:
        raise BadNodes(f"{sets!r} names no nodes: {error}") from None


def listed(said: Json) -> list[str]:
    """The texts of a key whose value is a text or a list."""
    return [] if said is None else [said] if isinstance(said, str) else list(said)


def cluster_name(environment: Mapping[str, str]) -> str:
    """Slurm's name for this cluster, from the job's environment or Slurm's configuration; empty if none.

    Slurm's programs are not run, since their answers may take long.
    """
    if name := environment.get("SLURM_CLUSTER_NAME"):
        return name
    for text in _slurm_confs(environment, Path("/")):
        if found := re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE):
            return found[1]
    return ""


def gpus_by_slurm(host: str, environment: Mapping[str, str], root: Path) -> int:
    """This node's number of GPUs in Slurm's configuration (``Gres=gpu:a100:4``); 0 if none.

    ``root``: root of the node's files. Source: slurm.schedmd.com/slurm.conf.html, NodeName and Gres.
    """
    for text in _slurm_confs(environment, root):
        usual = 0
        for line in _NODES.findall(text):
            said = {key.casefold(): value for key, value in re.findall(r"(\w+)=(\S+)", line)}
            number = _gpus(said["gres"]) if "gres" in said else usual
            if said["nodename"] == "DEFAULT":
                usual = number
            elif number and _holds(said["nodename"], host):
                return number
    return 0


_NODES = re.compile(r"^[ \t]*(NodeName=[^#\n]*)", re.MULTILINE | re.IGNORECASE)
_INCLUDED = re.compile(r"^[ \t]*Include[ \t]+(\S+)", re.MULTILINE | re.IGNORECASE)


def _slurm_confs(environment: Mapping[str, str], root: Path) -> Iterator[str]:
    """Text of each of Slurm's configuration files, with included files."""
    for name in filter(None, (environment.get("SLURM_CONF"), *SLURM_CONF)):
        path = root / name.lstrip("/")
        if text := _text(path):
            included = [
                _text((root if name.startswith("/") else path.parent) / name.lstrip("/"))
                for name in _INCLUDED.findall(text)
            ]
            yield re.sub(r"\\\n", " ", "\n".join([text, *included]))


def _text(path: Path) -> str:
    try:
        return reading.read(path, _MAX_BYTES).decode(errors="replace")
    except reading.Unreadable:
        return ""


def _gpus(gres: str) -> int:
    """Number of GPUs in a Gres: ``gpu:a100:4(S:0-1),gpu:2,shard:32`` has six."""
    entries = (entry.partition("(")[0].split(":") for entry in gres.casefold().split(","))
    return sum(int(words[-1]) if words[-1].isdecimal() else 1 for words in entries if words[0] == "gpu")


def _holds(nodes: str, host: str) -> bool:
    try:
        return hold(nodes, host)
    except BadNodes:
        return False


def is_of(data: Mapping[str, Json], host: str, cluster: str) -> bool:
    """Whether a config is for this node, by its cluster, its node set, or both.

    Raises `BadNodes`.
    """
    clusters, sets = listed(data.get("cluster")), data.get("hosts")
    if not clusters and sets is None:
        return False
    return (not clusters or cluster in clusters) and (sets is None or hold(sets, host))


def matching(host: str, cluster: str, read: Callable[[Path], Document]) -> Path | None:
    """The shipped site config for this node. Raises `BadFile` if several match."""
    found = [config for config in map(read, _shipped()) if is_of(config.data, host, cluster)]
    if len(found) > 1:
        others = ", ".join(layers.shown(document.path) for document in found[1:])
        key = "cluster" if "cluster" in found[0].data else "hosts"
        meant = f"name the config for this node: --config {found[0].path.stem}"
        text = f"{key}: this node also matches {others}; {meant}"
        raise BadFile([found[0].mistake(text, key)])
    return found[0].path if found else None


def _shipped() -> Iterable[Path]:
    """Shipped files that name their nodes, found without parsing."""
    files = sorted(layers.shipped().glob("*.yaml"))
    return [file for file in files if re.search(r"^(cluster|hosts):", file.read_text("utf-8"), re.MULTILINE)]
