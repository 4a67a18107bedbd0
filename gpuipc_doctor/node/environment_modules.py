"""The effect of ``module load`` on the environment, from Lmod or Environment Modules without a shell.

In a shell, ``module`` is a function that executes the output of a program. Here the program is run with
Python as the output's language; its output is parsed, never executed. Tried: Lmod 8.6.19, Environment Modules
5.2.0.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from gpuipc_doctor.files import foreign
from gpuipc_doctor.node.mpi_locate import NotFound

_PROGRAMS = ("LMOD_CMD", "MODULES_CMD")
"""Variables that contain the path of the module system's program."""

_LIMIT_S = 30.0
"""Seconds for all modules together; a cold network file system is slow."""

_OWN = ("_ModuleTable", "__LMOD_", "__MODULES_", "_LMFILES_")
"""Prefixes of the module systems' own variables, which ranks do not need."""


def load(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that these modules set in this environment. Unsetting a variable has no effect.

    Raises `NotFound` if there is no module system, or a module does not exist.
    """
    program = find_program(environment)
    try:
        command = (program, "python", "load", *names)
        ended = foreign.run(command, limit_s=_LIMIT_S, environment=environment)
    except OSError as error:
        raise NotFound(
            f"{program} cannot be run: {error.strerror}", f"correct or unset {' and '.join(_PROGRAMS)}"
        ) from None
    except subprocess.TimeoutExpired:
        reason = f"{program} did not load {' '.join(names)} within {_LIMIT_S:g} s"
        raise NotFound(reason, "check whether `module load` also hangs in a shell") from None
    try:
        done, changes = foreign.parsed(_read, ended.stdout)
    except foreign.Refused:  # no Python
        done, changes = False, []
    if not done:
        said = " ".join(ended.stderr.split())[:200] or f"exit code {ended.returncode}, no output"
        raise NotFound(
            f"{program} cannot load {' '.join(names)}: {said}",
            "see `module avail`, and correct `modules` in the site config",
        )
    return {name: value for name, value in changes if not name.startswith(_OWN)}


def find_program(environment: Mapping[str, str]) -> str:
    """The module system's program. Raises `NotFound`."""
    named = (environment.get(name) for name in _PROGRAMS)
    found = next(filter(None, named), None) or shutil.which("modulecmd", path=environment.get("PATH"))
    if found is None:
        raise NotFound(
            "no module system found: no LMOD_CMD, no MODULES_CMD, no modulecmd on PATH",
            "run where `module` works (a login shell), or set the variables with `environment`",
        )
    return found


def _read(text: str) -> tuple[bool, list[tuple[str, str]]]:
    """Whether the modules were loaded, and the variables that the output assigns."""
    tree = ast.parse(text)
    done = False
    changes: dict[str, str] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="_mlstatus")], value=ast.Constant(value=value)):
                done = value is True
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value=str(name)))],
                value=ast.Constant(value=str(value)),
            ):
                changes[name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Delete):
            for gone in node.targets:
                if isinstance(gone, ast.Subscript) and isinstance(gone.slice, ast.Constant):
                    changes.pop(str(gone.slice.value), None)
    return done, list(changes.items())
