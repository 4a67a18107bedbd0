"""The stable names: every finding's check, key and status, read from the code that makes it.

``GPUIPC_UPDATE_GOLDEN=1 pytest tests/unit/run/test_finding_keys.py`` writes the list anew. Sites suppress,
compare and count findings by these names, so a line that goes or changes is Breaking in the CHANGELOG.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.simulator import profile
from tests import golden

ROOT = Path(__file__).parents[3]
ANY_CHECK = "*"
"""Stands for the check in findings of code that checks share, the engine's included."""

STATUS = {
    "Finding.ok": "PASS",
    "Finding.skip": "SKIP",
    "Finding.warn": "WARN",
    "Finding.error": "ERROR",
    "Finding.fail": "FAIL",
    "Finding.of": "as-stated",  # by the site config
}


class Source:
    """A module that makes findings, and what its calls of `Finding` say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parent = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def findings(self) -> Iterator[tuple[str, str]]:
        """(key, status) of each finding."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in STATUS:
                for call, arguments in self._calls(node):
                    key = arguments[1 if node.attr == "of" else 0]
                    yield from ((text, STATUS[ast.unparse(node)]) for text in self._texts(key, call))

    def _calls(self, constructor: ast.Attribute) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
        """Calls of a constructor, with their arguments: its own, in a row of a table, or by a variable."""
        parent = self.parent[constructor]
        if isinstance(parent, ast.Call):  # Finding.fail(key, …), or Row(Finding.fail, key, …)
            yield parent, parent.args if parent.func is constructor else parent.args[1:]
            return
        while not isinstance(parent, ast.stmt):
            parent = self.parent[parent]
        assert isinstance(parent, ast.Assign), f"{self.path}:{constructor.lineno}: which call is this of?"
        for call in ast.walk(self.parent[parent]):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == ast.unparse(parent.targets[0]):
                yield call, call.args

    def _around(self, node: ast.AST) -> list[ast.FunctionDef]:
        """The functions that contain a node, the innermost first."""
        found = []
        while node in self.parent:
            node = self.parent[node]
            if isinstance(node, ast.FunctionDef):
                found.append(node)
        return found

    def _texts(self, key: ast.expr, call: ast.Call) -> list[str]:
        """The values that a finding's key may have."""
        if isinstance(key, ast.Constant):
            return [key.value]
        if isinstance(key, ast.IfExp):
            return [*self._texts(key.body, call), *self._texts(key.orelse, call)]
        text = ast.unparse(key)
        for argument in call.args:  # fail(met.what, SAYS[met.what])
            if isinstance(argument, ast.Subscript) and ast.unparse(argument.slice) == text:
                return [*self._value(argument.value)]
        found: list[str] = []
        for function in self._around(call):
            names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
            if text in names:
                for other in ast.walk(self.tree):
                    if isinstance(other, ast.Call) and ast.unparse(other.func) == function.name:
                        found += self._texts(other.args[names.index(text)], other)
            for loop in (node for node in ast.walk(function) if isinstance(node, ast.For)):
                if text in [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]:
                    for values in self._value(loop.iter):
                        found.append(_bound(loop.target, values)[text])
        if not found and isinstance(key, ast.Name):
            found = [self._value(key)]
        assert found, f"{self.path}:{call.lineno}: write the finding's key as a text, not {text}"
        return found

    def _value(self, expression: ast.expr) -> Any:
        """The value of an expression of names that the module has."""
        names = vars(import_module(self.name))
        return eval(compile(ast.Expression(expression), str(self.path), "eval"), names)


def _bound(target: ast.expr, value: Any) -> dict[str, Any]:
    """Name → value, as a loop binds its target."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    assert isinstance(target, ast.Tuple)
    return {
        name: bound
        for one, its in zip(target.elts, value, strict=True)
        for name, bound in _bound(one, its).items()
    }


def finding_keys() -> set[tuple[str, str, str]]:
    """(check, key, status) of each finding that the package can make."""
    own = sorted((ROOT / "checks").glob("*.py"))
    ids = [path.stem.replace("_", "-") for path in own if not path.stem.startswith("_")]
    found = set()
    for path in (*own, *(ROOT / "gpuipc_doctor").rglob("*.py")):
        check = ANY_CHECK
        if path in own and path.stem != "__init__":
            stem = path.stem.replace("_", "-").removeprefix("-")
            check = max((id_ for id_ in ids if f"{stem}-".startswith(f"{id_}-")), key=len)
        found |= {(check, *named) for named in Source(path).findings()}
    return found


def test_stable_names_of_findings_are_kept() -> None:
    statuses: dict[tuple[str, str], list[str]] = {}
    for check, key, status in sorted(finding_keys()):
        statuses.setdefault((check, key), []).append(status)
    lines = [f"{check} {key} {' '.join(seen)}\n" for (check, key), seen in statuses.items()]
    golden.check("finding_keys.txt", "".join(lines))


@pytest.fixture(scope="module")
def names() -> set[str]:
    return {f"{check}.{key}" for check, key, _ in finding_keys()}


def test_names_of_findings_in_profiles_and_known_issues_exist(names: set[str]) -> None:
    used = {
        f"{finding.check}.{finding.key}"
        for name in profile.names()
        for expectation in profile.load(name).expect.values()
        for finding in expectation.findings
        if finding.key
    }
    used |= {key for issue in knownissues.load() for one in issue.signatures for key in one.finding}
    assert {
        name for name in used if name not in names and f"*.{name.partition('.')[2]}" not in names
    } == set()
