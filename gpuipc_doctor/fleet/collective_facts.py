"""What nodes of a collective must have in common: gathered on each node, compared by the head.

A difference is no failure: it is a WARN, and evidence for what fails on the nodes that differ. How NCCL reads
its variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_SOCKET_IFNAME,
NCCL_IB_HCA); the kernel's files: Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuipc_doctor.files.node_files import matching, quietly
from gpuipc_doctor.fleet.collective_types import Joined
from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Finding
from gpuipc_doctor.node import fabric_devices

INTERFACES, ADAPTERS = "interfaces", "adapters"
"""Facts with the names of all network interfaces, and of the adapters with an active port, and spaces."""

VIRTUAL = ("lo", "docker", "veth", "virbr", "cni", "flannel", "cali")
"""Prefixes of interfaces that differ between healthy nodes."""

LACKS = "not found"

SAME = {
    "nvidia-driver": "the NVIDIA driver",
    "libcuda": "the CUDA driver library",
    "amdgpu": "the amdgpu driver",
    "rocm": "ROCm",
    "nvidia-peermem": "nvidia_peermem, for GPUDirect",
    "kernel-dma-buf": "dma-buf in the kernel, for GPUDirect",
    "memlock": "the limit of locked memory",
}
"""Fact that must be equal on all nodes → its name in a sentence. ``mtu X``, ``pkeys X``, ``gids X`` and
variables must be, too."""

CLOCK_S = 60.0
"""Clocks that are farther apart confuse whoever compares the logs."""


def gather(root: Path = Path("/")) -> dict[str, str]:
    """This node's facts about its network, and the variables of NCCL and RCCL."""
    names = [path.name for path in matching(root, "/sys/class/net/*")]
    mtus = {
        f"mtu {name}": quietly(root / f"sys/class/net/{name}/mtu")
        for name in names
        if not name.startswith(VIRTUAL)
    }
    active = [name for fabric in ("verbs", "efa", "opa") for name in fabric_devices.active(root)[fabric]]
    facts = {INTERFACES: " ".join(sorted(names)), ADAPTERS: " ".join(sorted(active)), **mtus}
    for port in matching(root, f"{fabric_devices.VERBS}/*/ports/*"):
        name = f"{port.parent.parent.name}/{port.name}"
        keys = sorted({quietly(path) for path in matching(port, "pkeys/*")} - {"0x0000", ""})
        kinds = {int(path.name): quietly(path) for path in matching(port, "gid_attrs/types/*")}
        gids = [f"{index} {kind}" for index, kind in sorted(kinds.items()) if kind]
        facts |= {f"pkeys {name}": " ".join(keys), f"gids {name}": ", ".join(gids)}
    facts |= {name: os.environ[name] for name in os.environ if _is_setting(name)}
    return {name: value for name, value in facts.items() if value}


def compare(joined: Sequence[Joined]) -> Iterator[Finding]:
    """WARNs on what differs between nodes, or what a variable names and a node lacks."""
    folder = NodeSetFormatter([node.node for node in joined])
    for variable, fact in (("NCCL_SOCKET_IFNAME", INTERFACES), ("NCCL_IB_HCA", ADAPTERS)):
        lacking = by_key(
            ((variable, missing), node.node)
            for node in joined
            if fact in node.facts
            for missing in _not_there(node.facts.get(variable, ""), node.facts[fact].split())
        )
        for (_, name), nodes in lacking.items():
            yield Finding.warn(
                "name-not-there",
                "{variable} names {name}, which {nodes} lacks",
                remedy=f"set {variable} to what all nodes have, or configure {name} on {folder.fold(nodes)}",
                variable=variable,
                name=name,
                nodes=folder.brief(nodes),
                which=nodes,
            )
    for what, values in _rows(joined):
        groups = sorted(by_key((value, node) for node, value in values.items()).items(), key=_commonest)
        (common, others), *rare = groups
        for value, nodes in rare:
            yield Finding.warn(
                "differs",
                "{what}: {value} on {nodes}, {common} on {others}",
                what=what,
                value=value,
                common=common,
                nodes=folder.brief(nodes),
                others=folder.brief(others),
                which=nodes,
            )
    if off := [node for node in joined if abs(node.clock_s) > CLOCK_S]:
        worst = max(off, key=lambda node: abs(node.clock_s))
        yield Finding.warn(
            "clocks-apart",
            "clocks of {nodes} differ from this node's, by {seconds:round} s on {node}",
            remedy="see `timedatectl` or `chronyc tracking` there",
            nodes=folder.brief([node.node for node in off]),
            seconds=abs(worst.clock_s),
            node=worst.node,
        )


def _commonest(group: tuple[str, list[str]]) -> tuple[int, str]:
    return -len(group[1]), group[0]


def _rows(joined: Sequence[Joined]) -> Iterator[tuple[str, dict[str, str]]]:
    """(what, node → value) of each fact that is not the same on all nodes."""
    yield from (
        (what, values)
        for what, values in (
            ("GPUs", {node.node: _counted(node.gpus) for node in joined}),
            ("the library", {node.node: node.library or LACKS for node in joined}),
        )
        if len(set(values.values())) > 1
    )
    for name in sorted({name for node in joined for name in node.facts}):
        values = {node.node: node.facts.get(name, LACKS) for node in joined}
        has_names = name.startswith(("mtu ", "pkeys ", "gids "))
        if has_names:  # adapters and interfaces may have other names on other nodes
            values = {node: value for node, value in values.items() if value != LACKS}
        if (has_names or _is_setting(name) or name in SAME) and len(set(values.values())) > 1:
            yield SAME.get(name, name), values


def _is_setting(name: str) -> bool:
    """Whether a variable is one of the library's that nodes should share."""
    return name.startswith(("NCCL_", "RCCL_")) and name not in ("NCCL_HOSTID", "NCCL_DEBUG_FILE")


def _counted(gpus: Sequence[str]) -> str:
    models = by_key((model, model) for model in gpus)
    return " + ".join(f"{len(each)} × {model}" for model, each in models.items()) or "none"


def _not_there(setting: str, names: Sequence[str]) -> Iterator[str]:
    """The entries of NCCL's list that match no name: prefixes, or whole names after ``=``."""
    if setting.startswith("^"):  # those that are not to be used
        return
    is_whole = setting.startswith("=")
    for entry in filter(None, (part.partition(":")[0].strip() for part in setting.lstrip("=").split(","))):
        if not any(name == entry if is_whole else name.startswith(entry) for name in names):
            yield entry


def deviations(found: Sequence[Finding]) -> Mapping[str, list[Finding]]:
    """Node → the findings of `compare` that name it."""
    return by_key((node, finding) for finding in found for node in finding.values.get("which", ()))
