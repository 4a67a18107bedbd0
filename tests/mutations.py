"""Break every check in one place after the other, and see that its tests notice.

    python -m tests.mutations [CHECK]...     # ipc-release; without a name, all of them

Broken is what concludes: each judge as a whole, and each decision in it and in what it calls. What runs in
workers is not: whether a role sees the fault that it looks for, the fault profiles show.
A break that no test in tests/checks/ notices is printed, and is a missing test; the exit code then is 1.
"""

from __future__ import annotations

import ast
import copy
import os
import signal
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

LIMIT_S = 60
"""A break may make a loop endless; that is noticed, too."""

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
}
OPPOSITE |= {one: other for other, one in OPPOSITE.items()}


def breaks(source: str) -> Iterator[tuple[int, str, ast.Module]]:
    """Line, what is broken there, and the module that has this one break."""
    tree = ast.parse(source)
    concludes = _reached_from_classes(tree)
    for place, function in enumerate(ast.walk(tree)):
        if not isinstance(function, ast.FunctionDef) or function not in concludes:
            continue
        if function.name == "judge":
            yield function.lineno, "judge concludes nothing", _with(tree, place, 0, _conclude_nothing)
        for inner, node in enumerate(ast.walk(function)):
            for what, change in _changes(node):
                yield node.lineno, what, _with(tree, place, inner, change)  # type: ignore[attr-defined]


def _reached_from_classes(tree: ast.Module) -> set[ast.FunctionDef]:
    """The methods of the check, and the functions that they call or that those call; no role functions."""
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    reached: set[ast.FunctionDef] = set()
    left: list[ast.AST] = [one for one in tree.body if isinstance(one, ast.ClassDef) and _is_check(one)]
    while left:
        for node in ast.walk(left.pop()):
            named = functions.get(node.id) if isinstance(node, ast.Name) else node
            if isinstance(named, ast.FunctionDef) and named not in reached and not _is_role(named):
                reached.add(named)
                left.append(named)
    return reached


def _is_check(one: ast.ClassDef) -> bool:
    return "Check" in map(ast.unparse, one.bases)


def _is_role(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(one.annotation) == "Worker" for one in function.args.args if one.annotation)


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            yield f"the opposite of {ast.unparse(node)}", _turn_round
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.BoolOp):
            yield f"the opposite of {ast.unparse(test)}", _negate
        case ast.BoolOp():
            yield f"the other connective in {ast.unparse(node)}", _connect_otherwise


def _turn_round(node: Any) -> None:
    node.ops = [OPPOSITE[type(node.ops[0])]()]


def _negate(node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _connect_otherwise(node: Any) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _conclude_nothing(node: Any) -> None:
    node.body = [ast.Return(ast.Tuple([], ast.Load()))]


def _with(tree: ast.Module, place: int, inner: int, change: Any) -> ast.Module:
    """A copy of the tree, changed at the ``inner``-th node of the function that is its ``place``-th."""
    changed = copy.deepcopy(tree)
    function = list(ast.walk(changed))[place]
    change(list(ast.walk(function))[inner])
    return ast.fix_missing_locations(changed)


def is_noticed(file: Path, broken: ast.Module | None) -> bool:
    """Whether the tests of a check fail with this in place of its file. In a process of its own."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    signal.alarm(LIMIT_S)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    load = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> Any:
        same = broken is not None and Path(self.path).resolve() == file
        return compile(broken, self.path, "exec") if same else load(self, name)  # type: ignore[arg-type]

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    tests = ROOT / "tests/checks" / f"test_{file.stem}.py"
    os._exit(pytest.main(["-qx", "-n0", "-p", "no:cacheprovider", str(tests)]))


def main(*names: str) -> int:
    files = [ROOT / "checks" / f"{name.replace('-', '_')}.py" for name in names]
    tried = missed = 0
    for file in files or sorted((ROOT / "checks").glob("[!_]*.py")):
        if is_noticed(file, None):
            print(f"{file.relative_to(ROOT)}: its tests fail, or there are none: nothing can be broken")
            missed += 1
            continue
        for line, what, broken in breaks(file.read_text()):
            tried += 1
            if not is_noticed(file, broken):
                missed += 1
                print(f"{file.relative_to(ROOT)}:{line}: no test notices {what}", flush=True)
    print(f"{tried} breaks, {missed} not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
