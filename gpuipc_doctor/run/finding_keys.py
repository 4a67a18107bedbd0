"""The finding keys of a check, read from the source of the code that judges it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

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
