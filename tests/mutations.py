"""Mutation tests: break the checks and `api` in one place at a time; the unit tests must fail.

    python -m tests.mutations [CHECK | api/MODULE]...     # ipc-release, api/meter; without a name, all

In a check, `judge` and the functions that it calls are mutated: each is made to return no findings, and each
of its conditions is changed. In a part of a check, such as `_ipc_vmm_killed`, all functions that return
findings or evidence, or measure, are, and those that such code of another file calls. Role functions are not
mutated: the fault profiles test them. In a module of gpuipc_doctor/api, all functions are mutated in the same
way. A mutation that no test of the check, or none in tests/unit/api/, notices is printed: a test is missing.
The exit code is then 1.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import SourceFileLoader
from mmap import mmap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, NoReturn

import pytest

ROOT = Path(__file__).parents[1]

API = ROOT / "gpuipc_doctor/api"

SAME = {
    (
        "api/data_patterns",
        "in pattern max in place of min(256, nbytes // PERIOD + 1)",
    ): "the same bytes, made slower",
}
"""(module, mutation) → why it changes nothing."""

OF_A_CHECK = {"equal_gpus": "driver_init"}
"""Module of the api → the check whose tests are its own, for it serves that check only."""

LIMIT_S = 20
"""Processor time of a test. A mutation may make a loop endless; a test that takes longer counts as failed."""

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
}
OPPOSITE |= {one: other for other, one in OPPOSITE.items()}

OTHER = {"min": "max", "any": "all"}
OTHER |= {one: other for other, one in OTHER.items()}


class Break(NamedTuple):
    file: Path
    line: int
    what: str
    make: Callable[[], ast.Module]
    """Returns the broken module."""

    @property
    def name(self) -> tuple[str, str]:
        """As in `SAME`."""
        return f"{self.file.parent.name}/{self.file.stem}", self.what


def breaks(file: Path) -> Iterator[Break]:
    """All mutations of a file."""
    tree = ast.parse(file.read_text())
    concludes = None if file.parent == API else _reached(file, tree)
    for place, function in enumerate(ast.walk(tree)):
        if not isinstance(function, ast.FunctionDef) or (concludes is not None and function not in concludes):
            continue
        if (nothing := _nothing(function)) and not _is_abstract(function):
            what = f"{function.name} concludes nothing"
            yield Break(
                file, function.lineno, what, partial(_with, file, place, 0, partial(_return, nothing))
            )
        for inner, node in enumerate(ast.walk(function)):
            for what, change in _changes(node):
                line = getattr(node, "lineno", function.lineno)
                yield Break(
                    file, line, f"in {function.name} {what}", partial(_with, file, place, inner, change)
                )


def _nothing(function: ast.FunctionDef) -> str:
    """The value that the function returns for "no finding", as source; empty if it has none."""
    if not _concludes(function):
        return ""
    returns = ast.unparse(function.returns) if function.returns else ""
    nothing = {"list": "[]", "Iterable": "()", "Iterator": "iter(())"}
    return "None" if returns.endswith("| None") else nothing.get(returns.partition("[")[0], "")


def _concludes(function: ast.FunctionDef) -> bool:
    """Whether the function returns findings, or what belongs to them, or measures what they tell."""
    returns = ast.unparse(function.returns) if function.returns else ""
    belongs = re.search("Finding|Evidence|Measurement|Series", returns) is not None
    return belongs or function.name.startswith("measure_")


def _is_abstract(function: ast.FunctionDef) -> bool:
    """Whether the function only declares an interface that subclasses implement."""
    *_, last = function.body
    is_text = isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    return is_text or isinstance(last, ast.Raise) or ast.unparse(last) == "return ()"


def _reached(file: Path, tree: ast.Module) -> set[ast.FunctionDef]:
    """The methods of the check, or what concludes in a part of a check, and functions that they call, also
    indirectly and from another file; no role functions."""
    functions = {
        definition.name: definition for definition in tree.body if isinstance(definition, ast.FunctionDef)
    }
    reached: set[ast.FunctionDef] = set()
    named_elsewhere = (functions[name] for name in _named_elsewhere(file) if name in functions)
    left: list[ast.AST] = [
        *filter(_is_check, tree.body),
        *(function for function in named_elsewhere if not _is_role(function)),
    ]
    if not any(map(_is_check, tree.body)):
        left += filter(_concludes, functions.values())
    while left:
        for node in ast.walk(left.pop()):
            named = functions.get(node.id) if isinstance(node, ast.Name) else node
            if isinstance(named, ast.FunctionDef) and named not in reached and not _is_role(named):
                reached.add(named)
                left.append(named)
    return reached


def _named_elsewhere(part: Path) -> Iterator[str]:
    """What other files import from a part, and name in what is reached there."""
    for file in sorted(part.parent.glob("*.py")):
        tree = ast.parse(file.read_text())
        imported = {
            alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module == part.stem
            for alias in node.names
        }
        for function in _reached(file, tree) if imported else ():
            named = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            yield from sorted(imported & named)


def _is_check(one: ast.stmt) -> bool:
    return isinstance(one, ast.ClassDef) and "Check" in map(ast.unparse, one.bases)


def _is_role(function: ast.FunctionDef) -> bool:
    return any(
        ast.unparse(argument.annotation) == "Worker" for argument in function.args.args if argument.annotation
    )


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            yield f"the opposite of {ast.unparse(node)}", _turn_round
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.BoolOp):
            yield f"the opposite of {ast.unparse(test)}", _negate
        case ast.comprehension(ifs=[test]) if not isinstance(test, ast.Compare | ast.BoolOp):
            yield f"the opposite of {ast.unparse(test)}", _leave_out
        case ast.BoolOp():
            yield f"the other connective in {ast.unparse(node)}", _connect_otherwise
        case ast.Call(func=ast.Name(id=name)) if name in OTHER:
            yield f"{OTHER[name]} in place of {ast.unparse(node)}", _call_otherwise


def _turn_round(node: Any) -> None:
    node.ops = [OPPOSITE[type(node.ops[0])]()]


def _negate(node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _leave_out(node: Any) -> None:
    node.ifs = [ast.UnaryOp(ast.Not(), node.ifs[0])]


def _call_otherwise(node: Any) -> None:
    node.func.id = OTHER[node.func.id]


def _connect_otherwise(node: Any) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _return(value: str, node: Any) -> None:
    node.body = ast.parse(f"return {value}").body


def _with(file: Path, place: int, inner: int, change: Any) -> ast.Module:
    """The file's tree, with ``change`` applied to node ``inner`` of function ``place`` (`ast.walk`)."""
    changed = ast.parse(file.read_text())
    function = list(ast.walk(changed))[place]
    change(list(ast.walk(function))[inner])
    return ast.fix_missing_locations(changed)


def unnoticed(tests: Path, made: list[Break]) -> Iterator[Break]:
    """The breaks with which these tests pass.

    The tests are imported once, in a forked process, and run in a process of their own for each break. Raises
    `TestsFailError` if they fail without a break.
    """
    told, tell = os.pipe()
    if not (pid := os.fork()):
        os.close(told)
        _test(tests, _Breaker(made, tell))
    os.close(tell)
    with os.fdopen(told) as lines:
        for number in lines:
            if not is_noticed(tests, made[int(number)]):
                yield made[int(number)]
    if os.waitpid(pid, 0)[1]:
        raise TestsFailError


class TestsFailError(Exception):
    pass


def is_noticed(tests: Path, one: Break) -> bool:
    """Whether these tests fail if the broken module is in its file's place before anything is imported."""
    if not (pid := os.fork()):
        _load_instead(one)
        _test(tests, _Limit())
    return os.waitpid(pid, 0)[1] != 0


def _test(tests: Path, plugin: _Limit) -> NoReturn:
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os._exit(pytest.main(["-qx", "-n0", "-p", "no:cacheprovider", str(tests)], [plugin]))


def _load_instead(one: Break) -> CodeType:
    """Let Python load the broken module in its file's place."""
    code: CodeType = compile(one.make(), str(one.file), "exec")
    load = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> Any:
        return code if Path(self.path).resolve() == one.file else load(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    return code


class _Limit:
    """Plugin of pytest: an endless loop ends the process."""

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)


class _Breaker(_Limit):
    """Plugin of pytest: run the collected tests once as they are, and once for each break."""

    def __init__(self, made: list[Break], tell: int) -> None:
        self.made, self.tell = made, tell
        self.failed = mmap(-1, 4096)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Return, so that pytest runs the tests, in forked processes only."""
        if not (pid := os.fork()):
            return
        if os.waitpid(pid, 0)[1]:
            os._exit(1)
        for number, one in enumerate(self.made):
            self._put_first(session.items, f"test_{one.file.stem}")
            if not (pid := os.fork()):
                self._replace(one)
                return
            if not os.waitpid(pid, 0)[1]:
                os.write(self.tell, f"{number}\n".encode())
        os._exit(0)

    def _put_first(self, items: list[pytest.Item], module: str) -> None:
        """Put the module's own tests, and the one that failed last, before the others: they find most."""
        last = self.failed[:].rstrip(b"\0").decode()
        items.sort(key=lambda item: (item.nodeid != last, not item.path.stem.startswith(module)))

    def _replace(self, one: Break) -> None:
        """Give the functions that were imported from the file the code of the broken module."""
        instead = {(code.co_name, code.co_firstlineno): code for code in _codes(_load_instead(one))}
        gc.unfreeze()
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename == str(one.file):
                code = instead.get((each.__code__.co_name, each.__code__.co_firstlineno), each.__code__)
                if code.co_freevars == each.__code__.co_freevars:
                    each.__code__ = code

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[:] = report.nodeid.encode()[:4096].ljust(4096, b"\0")
            os._exit(1)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _tests(file: Path) -> Path:
    """The tests of a file: those of the api, or of the check that the file is, or is a part of."""
    if file.parent == API and file.stem not in OF_A_CHECK:
        return ROOT / "tests/unit/api"
    checks = (check.stem for check in (ROOT / "checks").glob("[!_]*.py"))
    stem = OF_A_CHECK.get(file.stem, file.stem)
    owner = next(name for name in checks if stem == name or stem.startswith(f"_{name}_"))
    return ROOT / f"tests/checks/test_{owner}.py"


def main(*names: str) -> int:
    files = [_file(name) for name in names]
    if not names:
        files = [*(ROOT / "checks").glob("*[!_].py"), *API.glob("*[!_].py")]  # not __init__.py
    by_tests: dict[Path, list[Break]] = {}
    for file in sorted(files, key=lambda file: (_tests(file), file)):
        by_tests.setdefault(_tests(file), []).extend(breaks(file))
    tried = missed = 0
    unknown = set(SAME) - {one.name for made in by_tests.values() for one in made}
    for module, what in unknown if not names else ():
        print(f"{module}: said to change nothing, and not there: {what}")
        missed += 1
    for tests, made in by_tests.items():
        made = [one for one in made if one.name not in SAME]
        tried += len(made)
        try:
            for one in unnoticed(tests, made):
                print(f"{one.file.relative_to(ROOT)}:{one.line}: no test notices {one.what}", flush=True)
                missed += 1
        except TestsFailError:
            print(f"{tests.relative_to(ROOT)} fails, or is not there: nothing can be broken")
            missed += 1
    print(f"{tried} breaks, {missed} not noticed")
    return 1 if missed else 0


def _file(name: str) -> Path:
    of_api = name.startswith("api/")
    return API / f"{name[4:]}.py" if of_api else ROOT / "checks" / f"{name.replace('-', '_')}.py"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
