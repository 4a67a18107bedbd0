"""Nodes described by their inventories (nodes.yaml), with the exact issues of each."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuipc_doctor import knownissues
from gpuipc_doctor.model import Device, Fact
from gpuipc_doctor.node.inventory import NAMES
from gpuipc_doctor.report_types import Join, Relation
from tests import golden

ISSUES = knownissues.load()
ASKED = {need.fact for issue in ISSUES for need in issue.needs if need.is_env}
NODES: dict[str, Any] = yaml.load(Path(__file__).with_name("nodes.yaml").read_text(), yaml.BaseLoader)


def devices(node: dict[str, Any]) -> list[Device]:
    numbers = {"cuda": count(), "hip": count()}
    return [
        Device(backend, next(numbers[backend]), "GPU-1", "0000:01:00.0", model, 80 << 30)
        for backend, how_many, model in node.get("devices", ())
        for _ in range(int(how_many))
    ]


def facts(node: dict[str, Any]) -> list[Fact]:
    environment = {f"env:{name}": value for name, value in node.get("env", {}).items()}
    return [
        *(Fact(name, value, "read somewhere") for name, value in {**node["facts"], **environment}.items()),
        *(Fact(name, None, "not set") for name in ASKED - environment.keys()),
        *(Fact(name, None, "looked for everywhere") for name in node.get("lacks", ())),
    ]


def matches(node: dict[str, Any]) -> list[Join]:
    found = knownissues.match_versions(ISSUES, facts(node), devices(node))
    return sorted(found, key=lambda match: match.issue)


@pytest.mark.parametrize("name", NODES)
def test_node_has_exactly_its_issues(name: str) -> None:
    found = matches(NODES[name])
    assert {match.relation for match in found} <= {Relation.LATENT}
    assert [match.issue for match in found] == NODES[name]["issues"]


def test_golden_file_of_each_node() -> None:
    lines = []
    for name, node in NODES.items():
        lines.append(f"# {name}")
        for match in matches(node):
            where = f" [{', '.join(match.subjects)}]" if match.subjects else ""
            lines += [
                f"{match.issue}{where}",
                f"    {match.reason}",
                f"    Do: {match.remedy or 'nothing known'}",
            ]
        lines.append("")
    golden.check("knownissues/nodes.txt", "\n".join(lines))


def test_nodes_have_only_names_of_the_inventory() -> None:
    for node in NODES.values():
        assert set(node["facts"]) | set(node.get("lacks", ())) <= set(NAMES)
