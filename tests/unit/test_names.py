"""Names quoted in docstrings exist; a module's name means the same thing in every package."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.slurm.conftest import IN_EVERY_RUN

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("gpuipc_doctor/**/*.py"), *ROOT.glob("checks/*.py")]

FOREIGN = re.compile(r"(MPIX?_|cuda|cu|hip|fi_|nvml)\w+|dlopen|ps|yaml\.compose")
"""Functions of foreign libraries and programs, and names defined elsewhere."""

SAME_MEANING = {
    "check": "the class, the command",
    "collectives": "what logs say of them, the procedure over several nodes",
    "config": "the site config, the command",
    "drill": "the drill, the command",
    "environment": "the variables, the check of them",
    "examination": "what a room looks at, from its start to its end",
    "exits": "exit codes",
    "fabric_programs": "the test programs of libfabric and UCX, found or simulated",
    "inventory": "of a node, the command",
    "loaded": "the libraries that a process has loaded",
    "nvml": "the library, the backend's use of it",
    "progress": "what is shown while it runs",
    "results": "what ran, and what became of it",
}
"""Modules of one name in several packages, with the subject that they share."""


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield from value.split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value  # a key, or an attribute that `getattr` takes


def mentioned(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each word between single backticks in docstrings."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for match in re.finditer(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)", node.value.value):
                yield node.lineno, match[1]


def test_each_name_in_a_docstring_exists() -> None:
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    known = {
        *dir(builtins),
        *keyword.kwlist,
        *(file.stem for file in FILES),
        *(file.parent.name for file in FILES),
    }
    for tree in trees.values():
        known.update(identifiers(tree))
    stale = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file, tree in trees.items()
        for line, name in mentioned(tree)
        if not FOREIGN.fullmatch(name) and not known.issuperset(name.split("."))
    ]
    assert stale == []


def test_modules_of_one_name_have_one_subject() -> None:
    rooms = defaultdict(set)
    for file in FILES:
        if not file.stem.startswith("__"):
            rooms[file.stem].add(str(file.parent.relative_to(ROOT)))
    twice = {name: sorted(where) for name, where in rooms.items() if len(where) > 1}
    assert {name: twice[name] for name in set(twice) - set(SAME_MEANING)} == {}
    assert set(SAME_MEANING) <= set(twice)


def test_each_scene_of_slurm_in_every_run_exists() -> None:
    """A scene that was renamed would leave every run unseen."""
    scenes = "\n".join(path.read_text() for path in (ROOT / "tests/slurm").glob("test_*.py"))
    assert {name for name in IN_EVERY_RUN if f"def {name}(" not in scenes} == set()
