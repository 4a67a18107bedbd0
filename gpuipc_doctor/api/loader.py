"""Load a `Check` from a check file, in the parent and in workers.

The built-in checks are the modules of ``gpuipc_doctor.checks``; a site adds its own directories. A file that
cannot be imported becomes a `BrokenCheck`, which the engine reports.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType

import gpuipc_doctor
from gpuipc_doctor.api import Check
from gpuipc_doctor.api.capabilities import CAPABILITIES
from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.model import Tier
from gpuipc_doctor.probe_types import Role

BUILT_IN = "gpuipc_doctor.checks"

_PACKAGE, _PACKAGE_DIR = "gpuipc_doctor", Path(gpuipc_doctor.__file__).parent

VERSIONS = "known-versions"
"""The built-in check that reports the known issues of the versions found, all at once."""


@dataclass(frozen=True, slots=True)
class LoadedCheck:
    check: Check
    file: Path


@dataclass(frozen=True, slots=True)
class BrokenCheck:
    """A check file that could not be loaded; ``id`` is guessed from its name."""

    id: str
    file: Path
    reason: str


def load(
    extra_dirs: Iterable[Path] = (), *, unfit: Mapping[Path, str] = MappingProxyType({})
) -> list[LoadedCheck | BrokenCheck]:
    """All checks, built-in ones first, ordered by id; the first file with an id wins.

    ``unfit``: files that must not be imported → reason.
    """
    loaded: dict[str, LoadedCheck | BrokenCheck] = {}
    for directory in (built_in_dir(), *extra_dirs):
        for file in files(directory):
            if file in unfit:
                item: LoadedCheck | BrokenCheck = BrokenCheck(_guessed(file), file, f"{file}: {unfit[file]}")
            else:
                item = load_file(file)
            id_ = item.check.id if isinstance(item, LoadedCheck) else item.id
            if id_ in loaded:
                item = BrokenCheck(
                    f"{id_} ({file})", file, f"the check's id {id_!r} is already used by {loaded[id_].file}"
                )
                id_ = item.id
            loaded[id_] = item
    return list(loaded.values())


def files(directory: Path) -> list[Path]:
    """The check files in a directory, in loading order."""
    return sorted(directory.glob("[!_]*.py"))


def built_in_dir() -> Path:
    package = importlib.import_module(BUILT_IN)
    assert package.__file__ is not None
    return Path(package.__file__).parent


def built_in() -> dict[str, Path]:
    """Id → file of the built-in checks. No file is imported, since each is named after its check's id."""
    return {_guessed(file): file for file in files(built_in_dir())}


def built_in_file(id_: str) -> Path:
    """The file of a built-in check, which is not imported."""
    return built_in_dir() / f"{id_.replace('-', '_')}.py"


def load_file(file: Path) -> LoadedCheck | BrokenCheck:
    id_ = _guessed(file)
    try:
        check = getattr(module(file), "CHECK", None)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(file)), None)
        if isinstance(error, SyntaxError):
            line = error.lineno
        return BrokenCheck(id_, file, f"{file}:{line or 1}: {type(error).__name__}: {error}")
    if not isinstance(check, Check):
        return BrokenCheck(id_, file, f"{file}: defines no CHECK = YourCheck()")
    if mistake := _mistake(check):
        return BrokenCheck(id_, file, f"{file}:{inspect.getsourcelines(type(check))[1]}: {mistake}")
    return LoadedCheck(check, file)


def _guessed(file: Path) -> str:
    return file.stem.replace("_", "-")


def _mistake(check: Check) -> str:
    """The first mistake in a check's declaration; empty if there is none."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(getattr(check, "id", ""))):
        return "the check's id must be words of a to z and 0 to 9, joined by hyphens"
    if not isinstance(getattr(check, "title", None), str):
        return "the check has no title"
    if not isinstance(check.tier, Tier):
        return f"the check's tier is {check.tier!r}, which is not a Tier"
    if not isinstance(check.requires, frozenset):
        return f"the check requires {check.requires!r}, which is not a frozenset"
    for unknown in sorted(check.requires - CAPABILITIES):
        return (
            f"the check requires {unknown!r}, which no device can have"
            f"{did_you_mean(unknown, CAPABILITIES, else_list=True)}"
        )
    return ""


def name_of(function: Role, file: Path) -> str:
    """The name by which `role` finds a role function: ``module:function`` for one of this package, else the
    function's name in the check file, which is imported for it. Raises `ValueError` if it has none."""
    name, where = getattr(function, "__name__", ""), getattr(function, "__module__", "")
    names = vars(sys.modules[where] if _in_package(where) else module(file))
    if names.get(name) is not function:
        raise ValueError(f"is not a function defined in {file.name}")
    return started_as(function)


def started_as(function: Role) -> str:
    """The name of a role function that has one (`name_of`). No file is imported: it may end the process."""
    prefix = f"{function.__module__}:" if _in_package(function.__module__) else ""
    return prefix + function.__name__


def _in_package(module_name: str) -> bool:
    return module_name.startswith(f"{_PACKAGE}.")


def role(file: Path, name: str) -> Role:
    """The role function with this name in this check file, or ``module:function`` of this package."""
    where, _, own = name.rpartition(":")
    function: Role = getattr(importlib.import_module(where) if where else module(file), own)
    return function


def module(file: Path) -> ModuleType:
    """Import a check file: one of this package by its name, others under a name made from the path."""
    if file.parent == built_in_dir():
        return importlib.import_module(f"{BUILT_IN}.{file.stem}")
    if _PACKAGE_DIR in file.parents:
        parts = file.relative_to(_PACKAGE_DIR).with_suffix("").parts
        return importlib.import_module(".".join((_PACKAGE, *parts)))
    name = "gpuipc_doctor_site_check_" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in str(file))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = imported = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(imported)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
