"""Environment variables that affect GPU and MPI libraries, and their effect in the versions on this node.

Libraries silently ignore variables that their version does not know, values that they do not accept, and
misspelt names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.files import reading
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Effect, Fact, Setting
from gpuipc_doctor.node.variables import Form, Variable

ENVIRONMENT = "environment"
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SetVariable:
    """A variable, its value, and its source: ``environment``, or ``file:line``."""

    name: str
    value: str
    where: str


def read(
    root: str, environ: Mapping[str, str], of_ranks: Iterable[SetVariable] = ()
) -> dict[str, SetVariable]:
    """Name → set variable. If a variable is set in several places, the first of these counts: environment,
    site config, ~/.nccl.conf, /etc/nccl.conf."""
    found = {name: SetVariable(name, value, ENVIRONMENT) for name, value in environ.items()}
    for rank in of_ranks:
        found.setdefault(rank.name, rank)
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    for name in (own, "/etc/nccl.conf"):
        if name.startswith("/"):
            for setting in _settings(Path(root) / name.lstrip("/"), name):
                found.setdefault(setting.name, setting)
    return found


def _settings(path: Path, name: str) -> Iterator[SetVariable]:
    """Lines ``NAME=VALUE`` of an NCCL configuration file; ``#`` starts a comment."""
    try:
        lines = reading.sample(path, _MAX_BYTES).decode(errors="replace").splitlines()
    except reading.Unreadable:
        return
    for number, line in enumerate(lines, 1):
        if stated := re.fullmatch(r"\s*(NCCL_\w+)\s*=\s*([^#]*?)\s*(?:#.*)?", line):
            yield SetVariable(stated[1], stated[2], f"{name}:{number}")


def facts(found: Mapping[str, SetVariable], names: Iterable[str]) -> Iterator[Fact]:
    """A fact ``env:NAME`` for each known variable, without a value if the variable is not set."""
    for name in names:
        if one := found.get(name):
            yield Fact(f"env:{name}", "".join(c if c.isprintable() else " " for c in one.value), one.where)
        else:
            yield Fact(f"env:{name}", None, f"not set in the {ENVIRONMENT}")


# -- effects ---------------------------------------------------------------------------------------


def judge(
    found: Mapping[str, SetVariable], variables: Mapping[str, Variable], inventory: Iterable[Fact]
) -> Iterator[Setting]:
    """The effect of each variable that is set and known, and of each probable misspelling."""
    versions = by_key((fact.name, fact.value) for fact in inventory if fact.value is not None)
    for name in sorted(found):
        one, variable = found[name], variables.get(name)
        here = variable and any(library in versions for library in variable.libraries)
        if not here and (meant := _meant(name, variables, versions if variable else None)):
            yield _setting(
                one, Effect.MISSPELT, f"no library found here reads it; did you mean {meant}?", meant
            )
        elif variable:
            yield _judge(one, variable, versions)


def _judge(one: SetVariable, variable: Variable, versions: Mapping[str, list[str]]) -> Setting:
    """The effect of a variable; the best one if it differs between libraries or versions."""
    here = [(form, version) for form in variable.forms for version in versions.get(form.library, ())]
    if not here:
        libraries = " or ".join(variable.libraries)
        return _setting(one, Effect.UNUSED, f"{variable.does}; no {libraries} was found here")
    having = [(form, version) for form, version in here if form.has(version)]
    for form, version in having:
        if form.takes(one.value):
            default = f" (default {form.default})" if form.default else ""
            unsafe = variable.unsafe and variable.unsafe.has(one.value)
            safety = "; this switches a safety off" if unsafe else ""
            return _setting(one, Effect.WORKS, f"{_what(form, version)}: {form.does}{default}{safety}")
    if having:
        form, version = having[0]
        says = f"{_what(form, version)} does not accept {one.value!r}; it accepts {form.wanted}"
        return _setting(one, Effect.INVALID, says, form.wanted)
    unsure = [(form, version) for form, version in here if form.has(version) is None]
    if unsure:
        says = f"{variable.does}; unknown whether {_what(*unsure[0])} reads it"
        return _setting(one, Effect.UNKNOWN, says)
    libraries = " and ".join(dict.fromkeys(_what(form, version) for form, version in here))
    ranges = ", ".join(dict.fromkeys(f"{form.library} {form.versions}" for form in variable.forms))
    says = f"{libraries} does not know {one.name}, which {ranges} reads"
    return _setting(one, Effect.DEAD, says, variable.instead)


def _setting(one: SetVariable, effect: Effect, says: str, instead: str = "") -> Setting:
    return Setting(one.name, one.value, one.where, effect, says, instead)


def _what(form: Form, version: str) -> str:
    return f"{form.library} {version}"


# -- near misses ----------------------------------------------------------------------------------------


def _meant(name: str, variables: Mapping[str, Variable], here: Collection[str] | None) -> str:
    """The correct name that a misspelt name probably stands for; empty if there is none. ``here``: the
    libraries found; if given, only their variables are considered."""
    for variable in variables.values():
        is_here = here is None or any(library in here for library in variable.libraries)
        if variable.name == name or not is_here:
            continue
        if name in variable.misspelt or _alike(name, variable.name):
            return variable.name
    return ""


def _alike(name: str, known: str) -> bool:
    """Whether a name is a misspelling of another.

    A misspelling has the same words in another order, the same letters with other underscores, no ``ENABLED``
    at its end, or one long word misspelt. Short words are not compared, since ``TX`` and ``RX`` are both
    valid.
    """
    if known in (f"{name}_ENABLED", f"{name}_ENABLE"):
        return True
    if len(known) < 8 or name[:2] != known[:2]:  # skips most of the work below
        return False
    words, right = name.split("_"), known.split("_")
    if words[0] != right[0]:
        return False
    if sorted(words) == sorted(right) or "".join(words) == "".join(right):
        return True
    wrong = [(a, b) for a, b in zip(words, right, strict=False) if a != b]
    if len(words) != len(right) or len(wrong) != 1:
        return False
    a, b = wrong[0]
    return min(len(a), len(b)) >= 4 and difflib.SequenceMatcher(None, a, b).ratio() >= 0.75
