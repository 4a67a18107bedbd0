"""The table of variables, from ``variables.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from gpuipc_doctor.files.tables import frozen, table
from gpuipc_doctor.model import Json
from gpuipc_doctor.versions import BEGINNING, Range, Verdict

SHIPPED = Path(__file__).with_name("variables.yaml")
SCHEMA = Path(__file__).with_name("variables.schema.json")

_KINDS: Mapping[str, frozenset[str]] = {
    "boolean": frozenset({"0", "1", "y", "n", "yes", "no", "true", "false", "on", "off"}),
    "ternary": frozenset({"0", "1", "y", "n", "yes", "no", "true", "false", "on", "off", "try", "auto"}),
}


@dataclass(frozen=True, slots=True)
class Form:
    """What a variable does and accepts in some versions of one library."""

    library: str
    versions: Range
    does: str
    values: str | tuple[str, ...] = ""
    """What values are accepted: ``boolean``, ``ternary``, ``integer``, ``size`` or a list of words; empty if
    unknown."""
    default: str = ""

    def has(self, version: str) -> bool | None:
        """Whether a version of the library has this form of the variable; None if unknown."""
        return {Verdict.BAD: True, Verdict.FINE: False}.get(self.versions.judge(version))

    def takes(self, value: str) -> bool:
        """Whether the variable accepts this value; True if that is unknown."""
        word = value.strip().lower()
        if isinstance(self.values, tuple):
            return word in (known.lower() for known in self.values)
        if self.values == "directories":
            return bool(word)
        if self.values == "integer":
            return word.lstrip("+-").isdigit()
        if self.values == "size":
            number = word.rstrip("ib").rstrip("kmgt")
            return number.lstrip("+-").isdigit() or word in ("inf", "auto")
        return word in _KINDS.get(self.values, {word})

    @property
    def wanted(self) -> str:
        """The accepted values in words: ``a whole number``, ``generic, specialized or disabled``."""
        if isinstance(self.values, tuple):
            *some, last = self.values
            return f"{', '.join(some)} or {last}" if some else last
        words = {
            "boolean": "0 or 1",
            "directories": "a list of directories",
            "ternary": "yes, no or try",
            "size": "a number of bytes",
        }
        return words.get(self.values, "a whole number")


@dataclass(frozen=True, slots=True)
class Unsafe:
    """The values of a variable that switch a safety off; ``any``: all values."""

    values: tuple[str, ...]
    then: str
    """What may follow: ``crash``, wrong ``data``, ``hang``, or a failed ``start``."""

    def has(self, value: str) -> bool:
        return "any" in self.values or value.strip().lower() in self.values


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    does: str
    forms: tuple[Form, ...]
    source: str
    evidence: str
    instead: str = ""
    """The variable to set if the library does not know this one."""
    misspelt: tuple[str, ...] = ()
    """Wrong names that documents use and that no version reads."""
    unsafe: Unsafe | None = None

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(form.library for form in self.forms))

    @property
    def changing(self) -> frozenset[str]:
        """Libraries whose versions differ in what the variable does or accepts."""
        return frozenset(
            form.library for form in self.forms if form.versions != Range(form.library, BEGINNING)
        )


@cache
def load(path: Path = SHIPPED) -> Mapping[str, Variable]:
    """The variables by name. A test validates the shipped file; at run time it is not validated."""
    variables = (
        _variable(group, variable) for group in table(path)["groups"] for variable in group["variables"]
    )
    return MappingProxyType({variable.name: variable for variable in variables})


def _variable(group: Json, data: Json) -> Variable:
    of_group = {name: group[name] for name in ("source", "evidence")}
    unsafe = (
        {"unsafe": Unsafe(tuple(found["values"]), found["then"])} if (found := data.get("unsafe")) else {}
    )
    return Variable(**{**of_group, **frozen(data), "forms": tuple(_forms(group, data)), **unsafe})


def _forms(group: Json, data: Json) -> Iterable[Form]:
    forms = data.get("forms", [{}])
    yield from (_form(group["library"], form, data["does"]) for form in forms)
    # If a library shares the variable without own forms, no source says which of its versions have it.
    named = {form.get("library") for form in forms}
    for library in group.get("also", ()):
        if library not in named:
            values = {key: form[key] for form in forms for key in ("values", "default") if key in form}
            yield _form(library, values if len(forms) == 1 else {}, data["does"])


def _form(library: str, data: Json, does: str) -> Form:
    library = data.get("library", library)
    bounds = {"fixed": data.get("gone", ""), "last_affected": data.get("last", "")}
    seen = (data["seen"],) if "seen" in data else ()
    values = data.get("values", "")
    return Form(
        library,
        Range(library, data.get("since", BEGINNING), **bounds, known_bad=seen),
        data.get("does", does),
        tuple(values) if isinstance(values, list) else values,
        data.get("default", ""),
    )
