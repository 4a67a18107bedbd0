"""Network namespaces of this machine as nodes: each with one interface, all on one bridge with this machine.

``tc`` and ``iptables`` in a namespace make a link slow, lossy or dead; see `Networks.run`.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

import pytest


class Networks:
    """A namespace for each node, as a context. `address` is this machine's on the bridge."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._tag = secrets.token_hex(2)
        self._net = f"10.{201 + int(self._tag[:2], 16) % 40}.{int(self._tag[2:], 16)}"
        self.address = f"{self._net}.254"
        self.nodes = {node: f"gd{self._tag}-{node}" for node in nodes}
        self.of = {node: f"{self._net}.{number}" for number, node in enumerate(nodes, 1)}

    def __enter__(self) -> Networks:
        if not shutil.which("ip") or subprocess.run(["unshare", "--net", "true"]).returncode:
            pytest.skip("needs network namespaces")
        bridge = f"gd{self._tag}"
        self._ip(f"link add {bridge} type bridge")
        self._ip(f"address add {self.address}/24 dev {bridge}")
        self._ip(f"link set {bridge} up")
        for number, (node, name) in enumerate(self.nodes.items()):
            end = f"{bridge}v{number}"
            self._ip(f"netns add {name}")
            self._ip(f"link add {end} type veth peer name eth0 netns {name}")
            self._ip(f"link set {end} master {bridge} up")
            self.run(node, f"ip address add {self.of[node]}/24 dev eth0")
            self.run(node, "ip link set eth0 up")
            self.run(node, "ip link set lo up")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for name in self.nodes.values():
            subprocess.run(["ip", "netns", "del", name])
        subprocess.run(["ip", "link", "del", f"gd{self._tag}"])

    def enter(self, node: str) -> str:
        """Words before a command that runs on the node, for a shell."""
        return f"ip netns exec {self.nodes[node]}"

    def run(self, node: str, command: str) -> None:
        subprocess.run([*self.enter(node).split(), *command.split()], check=True)

    def _ip(self, command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True)
