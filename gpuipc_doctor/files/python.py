"""How Python is started: never with modules of the working directory, nor of a path that others can write.

Isolated mode (``-I``) ignores ``PYTHON*``, the working directory and the user's own packages. Root always
uses it: of its environment, only the directories of ``PYTHONPATH`` that no other user can change are passed
on, as arguments. For other users it is used where it finds this package, unless ``PYTHONPATH`` or their
packages are in use: bindings and MPI may be there. Without it, only the working directory is left out.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not from typing: nothing is imported yet that could be planted
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

_HAS_SAFE_PATH = sys.version_info >= (3, 11)
"""Whether this Python has ``-P``, which leaves out the working directory."""

_PROGRAM = "import sys; sys.path[:] = filter(None, [*sys.argv.pop(1).split(':'), *sys.path])\n"
"""Imports also from the directories in the first argument, and not from the working directory."""

_MODULE = _PROGRAM + (
    "del sys.argv[0]; import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""Runs a module as ``-m`` does."""

_unpacked = ""
"""The directory of the single file, unpacked (`unpack_into`)."""


def module(name: str, *arguments: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Command line that runs a module of this package, in this environment."""
    flag, paths = _way(environment)
    if flag and not paths:
        return [sys.executable, flag, "-m", name, *arguments]
    return [sys.executable, *filter(None, [flag]), "-c", _MODULE, paths, name, *arguments]


def program(text: str, *arguments: str) -> list[str]:
    """Command line that runs a text that imports this package."""
    flag, paths = _way(os.environ)
    return [sys.executable, *filter(None, [flag]), "-c", _PROGRAM + text, paths, *arguments]


def script(file: str, *arguments: str) -> list[str]:
    """Command line that runs a file, or ``-c`` a text, that imports Python's own modules only."""
    return [sys.executable, "-I", "-S", file, *arguments]


def unpack_into(directory: str) -> None:
    """Have all that is started import from the directory into which the single file was unpacked."""
    global _unpacked
    _unpacked = directory
    paths = [directory, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def restart(*options: str, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the same command in isolated mode, with other options and environment."""
    command = [sys.executable, "-I", *options, "-m", "gpuipc_doctor", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell is what is wanted


def _way(environment: Mapping[str, str]) -> tuple[str, str]:
    """Python's flag, and directories to import from, as in ``PYTHONPATH``."""
    if sys.flags.isolated and not _unpacked:
        return "-I", ""
    if os.geteuid() == 0:
        own = [] if is_installed() else [_package_parent()]
        named = environment.get("PYTHONPATH", "").split(os.pathsep)
        return "-I", os.pathsep.join(dict.fromkeys([*filter(None, named), *own, *_of_user()]))
    if not _has_other_packages(environment) and is_installed():
        return "-I", ""
    return ("-P" if _HAS_SAFE_PATH else ""), ""


def _of_user() -> list[str]:
    """Root's own packages, if no other user can change them; none for the single file, which has no such."""
    import site

    own = site.getusersitepackages() if site.ENABLE_USER_SITE and not _unpacked else ""
    return [own] if own and os.path.isdir(own) and not _mistrust(own) else []  # noqa: PTH112 - before pathlib


def _package_parent() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def _has_other_packages(environment: Mapping[str, str]) -> bool:
    """Whether packages are imported from ``PYTHONPATH`` or from the user's own."""
    import site

    return bool(environment.get("PYTHONPATH")) or bool(
        site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages())  # noqa: PTH112 - before pathlib
    )


def is_installed(environment: Mapping[str, str] | None = None) -> bool:
    """Whether Python's isolated mode finds this package. ``environment``: as in `subprocess.run`."""
    import site

    if _package_parent() in site.getsitepackages():
        return True
    package = os.path.join(_package_parent(), "gpuipc_doctor")  # noqa: PTH118 - before pathlib
    if environment is None and package in _INSTALLED:
        return _INSTALLED[package]
    import subprocess

    # For an editable installation, for example, the interpreter must be run to find out.
    asked = subprocess.run(
        [sys.executable, "-I", "-c", "import gpuipc_doctor; print(gpuipc_doctor.__path__[0])"],
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    _INSTALLED[package] = asked.stdout.rstrip("\n") == package
    return _INSTALLED[package]


_INSTALLED: dict[str, bool] = {}
"""Directory of this package → whether isolated mode finds it."""


def restrict_environment() -> None:
    """Leave the working directory out of the imports of this process and of its children; as root, also each
    directory of ``PYTHONPATH`` that another user can write, which is named on standard error, a ``TMPDIR`` of
    another user, and all other variables of Python's.

    Called before anything is imported that could be in such a directory.
    """
    if _unpacked or not sys.flags.isolated:
        _restrict_imports()
    if os.geteuid() == 0:
        _restrict_own_packages()
        for name in [name for name in os.environ if name.startswith(("PYTHON", "__PYVENV"))]:
            if name != "PYTHONPATH":
                del os.environ[name]
    for name in ("TMPDIR", "TEMP", "TMP"):  # as tempfile reads them, which writes a file to try a directory
        if name in os.environ and _mistrust(os.path.join(os.environ[name], "directory")):  # noqa: PTH118
            del os.environ[name]


def _restrict_own_packages() -> None:
    import site

    if (own := site.USER_SITE) in sys.path and own and _mistrust(own):
        sys.path.remove(own)


def _restrict_imports() -> None:
    try:
        here = os.getcwd()  # noqa: PTH109 - before pathlib
    except OSError:
        here = ""
    if sys.path[:1] in ([""], [here]) and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if named == [""]:
        return
    paths = [os.path.abspath(path) for path in named if path]  # noqa: PTH100 - an empty one is the directory
    left_out = {*paths, *([here] if "" in named else [])}
    others = [entry for entry in sys.path if entry not in left_out]
    sys.path[:] = others
    allowed = []
    for path in paths:
        if reason := _mistrust(path):
            print(f"gpuipc-doctor: not imported from: {path} {reason}", file=sys.stderr)  # noqa: T201
        else:
            allowed.append(path)
    sys.path[:] = allowed + others
    os.environ["PYTHONPATH"] = os.pathsep.join(allowed)


def _mistrust(path: str) -> str:
    """Why root must not use a path; empty if it may, and for other users."""
    if os.geteuid() != 0:
        return ""
    from pathlib import Path

    from gpuipc_doctor.files.trust import untrusted

    return untrusted(Path(path))
