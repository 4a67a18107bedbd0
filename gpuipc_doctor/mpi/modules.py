"""What ``module load`` would do to the environment: asked of Lmod or Environment Modules, in no shell.

Both have a program behind the shell's ``module`` that writes commands in a language of one's choice, Python
among them. What it writes is read, never run. Tried: Lmod 8.6.19, Environment Modules 5.2.0.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from gpuipc_doctor.mpi.locate import NotFound

_PROGRAMS = ("LMOD_CMD", "MODULES_CMD")
"""Variables in which Lmod and Environment Modules say where that program is."""

_LIMIT_S = 30.0
"""For all modules together; a cold network file system takes its time."""

_OWN = ("_ModuleTable", "__LMOD_", "__MODULES_", "_LMFILES_")
"""How variables begin in which a module system keeps accounts; nothing in a rank asks for them."""


def load(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that these modules set, in this environment; those that they unset stay.

    Raises `NotFound` where there is no module system, or where it has no such module.
    """
    program = find_program(environment)
    try:
        ended = subprocess.run(
            (program, "python", "load", *names),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise NotFound(f"{program} cannot be run: {error.strerror}", "unset what names it") from None
    except subprocess.TimeoutExpired:
        reason = f"{program} did not load {' '.join(names)} within {_LIMIT_S:g} s"
        raise NotFound(reason, "see whether `module load` hangs in a shell, too") from None
    done, changes = _read(ended.stdout)
    if not done:
        said = " ".join(ended.stderr.split())[:200] or f"it ended with {ended.returncode} and no word"
        raise NotFound(
            f"{program} cannot load {' '.join(names)}: {said}",
            "see `module avail`, and correct the list",
        )
    return {name: value for name, value in changes if not name.startswith(_OWN)}


def find_program(environment: Mapping[str, str]) -> str:
    """The module system's program. Raises `NotFound` where there is none."""
    named = (environment.get(name) for name in _PROGRAMS)
    found = next(filter(None, named), None) or shutil.which("modulecmd", path=environment.get("PATH"))
    if found is None:
        raise NotFound(
            "there is no module system here: no LMOD_CMD, no MODULES_CMD, and no modulecmd in PATH",
            "start it where `module` works (a login shell), or give the variables as `environment`",
        )
    return found


def _read(text: str) -> tuple[bool, list[tuple[str, str]]]:
    """Whether the modules were loaded, and the assignments to ``os.environ`` among the statements."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, []
    done = False
    changes: dict[str, str] = {}
    for target, value in _assigned(tree):
        match target:
            case ast.Name(id="_mlstatus"):
                done = value is True
            case ast.Subscript(slice=ast.Constant(value=str(name))) if isinstance(value, str):
                changes[name] = value
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.Delete):
            for gone in node.targets:
                if isinstance(gone, ast.Subscript) and isinstance(gone.slice, ast.Constant):
                    changes.pop(str(gone.slice.value), None)
    return done, list(changes.items())


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.expr, object]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[target], value=ast.Constant(value=value)):
                yield target, value
            case _:
                pass
