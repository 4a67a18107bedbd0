"""Findings if roles ran on another number of nodes than requested."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import misplaced
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences


@pytest.mark.parametrize(("nodes", "across"), [(["n1", "n1"], False), (["n2", "n1"], True)])
def test_roles_on_the_requested_number_of_nodes_pass(nodes: list[str], across: bool) -> None:
    assert misplaced(nodes, across=across) is None


@pytest.mark.parametrize(
    ("nodes", "across", "says"),
    [
        (["n2", "n1"], False, "the launcher did not put the ranks on one node: they ran on n1, n2"),
        (["n1", "n1"], True, "the launcher did not put the ranks on two nodes: they ran on n1"),
        (["n3", "n2", "n1"], True, "the launcher did not put the ranks on two nodes: they ran on n1, n2, n3"),
    ],
)
def test_roles_on_another_number_of_nodes_are_an_error(nodes: list[str], across: bool, says: str) -> None:
    found = misplaced(nodes, across=across)
    assert found is not None
    assert (found.status, found.key) == (Status.ERROR, "misplaced")
    assert sentences.summary(found) == says
