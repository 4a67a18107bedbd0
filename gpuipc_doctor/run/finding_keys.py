"""The finding keys of a check, read from the source of the code that judges it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpuipc_doctor.files import tables

_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_OF_ALL_CHECKS = ("api", "run", "supervise")
"""Packages whose finding keys any check can have, because their code is shared."""


def of_check(file: Path) -> set[str]:
    """Keys of the findings of the check in this file and its parts, and some other words that look like
    keys."""
    sources = (file, *file.parent.glob(f"_{file.stem}_*.py"))
    return {*_shared(), *(text for each in sources for text in _texts(ast.parse(each.read_text("utf-8"))))}


@cache
def _shared() -> frozenset[str]:
    sources = (
        source.read_text("utf-8")
        for package in _OF_ALL_CHECKS
        for source in files("gpuipc_doctor").joinpath(package).iterdir()
        if source.name.endswith(".py")
    )
    trees = list(map(ast.parse, sources))
    constants = {name: text for tree in trees for name, text in _constants(tree)}
    return frozenset(text for tree in trees for text in _arguments(tree, constants))


@cache
def sentences(file: Path) -> Mapping[str, str]:
    """Key → sentence, with "…" for its figures, of the findings of the check in this file. The sentence is
    empty if it is composed elsewhere."""
    return _sentences([file, *file.parent.glob(f"_{file.stem}_*.py")])


@cache
def shared_sentences() -> Mapping[str, str]:
    """`sentences` of the findings that any check can have."""
    return _sentences(
        source
        for package in (*_OF_ALL_CHECKS, "collective", "node")
        for source in Path(str(files("gpuipc_doctor").joinpath(package))).glob("*.py")
    )


def _sentences(sources: Iterable[Path]) -> dict[str, str]:
    trees = [ast.parse(source.read_text("utf-8")) for source in sources]
    names = {name: text for tree in trees for name, text in _named_texts(tree)}
    found: dict[str, str] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        for key, says in _pairs(node):
            named, said = _text(key, names), _text(says, names)
            if _KEY.fullmatch(named) and (" " in said or _is_finding(node) or _is_composed(says)):
                found[named] = found.get(named) or _without_figures(said)
        if isinstance(node, ast.ImportFrom):  # a check's table: key → row
            module = (node.module or "").removeprefix("gpuipc_doctor.api.")
            if (rows := Path(str(files("gpuipc_doctor").joinpath(f"api/{module}.yaml")))).is_file():
                found |= dict(_rows(tables.table(rows)))
    return found


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in data.values():
        for key, row in part.items() if isinstance(part, dict) else ():
            if isinstance(row, dict) and "says" in row:
                yield key, _without_figures(row["says"])


def _without_figures(says: str) -> str:
    without_asides = re.sub(r"\{\w+:(?:aside|place)\}|^\{\w+\}: ", "", says)
    return re.sub(r"\{[^}]*\}", "…", without_asides).removeprefix("…: ")


def _named_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, _text(node.value, {})


def _text(node: ast.AST | None, names: Mapping[str, str]) -> str:
    """The text of an expression, with "…" for its computed parts; empty if it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.IfExp):
        return _text(node.body, names)
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def _pairs(node: ast.AST) -> Iterable[tuple[ast.AST | None, ast.AST]]:
    """Neighbours that may be a key and its sentence: in a call, a row of a table, or a dictionary."""
    if isinstance(node, ast.Dict):
        return zip(node.keys, node.values, strict=True)
    items = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else ()
    return pairwise(items)


def _is_finding(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("Finding.")


def _is_composed(says: ast.AST) -> bool:
    return isinstance(says, ast.Name) and says.id in ("says", "absent", "searched", "summary")


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value):
            yield node.value


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for text in _texts(node.value) if isinstance(node.value, ast.Constant) else ():
                yield node.targets[0].id, text


def _arguments(tree: ast.AST, constants: Mapping[str, str]) -> Iterator[str]:
    """Texts passed as positional arguments, as finding keys are, or as the names of such texts."""
    for node in ast.walk(tree):
        for argument in node.args if isinstance(node, ast.Call) else ():
            if isinstance(argument, ast.Name) and argument.id in constants:
                yield constants[argument.id]
            yield from _texts(argument) if isinstance(argument, ast.Constant) else ()
