"""Turn a finding into text, at the end of a run. Decisions use only the finding's key and values.

In a sentence, ``{name}`` is a value and ``{name:form}`` a value in one of the `FORMS`. Nothing else is
special, and a name without a value stays as it is. `str.format` is not used, because a sentence from a check
file or a JSON report could then read our objects' attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Json

_OPEN = re.compile(r"\{([a-z][a-z0-9_]*)(?::([a-z]+))?\}")


def _plain(value: Json) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _in(unit: str, nbytes: int, value: Json) -> str:
    number = value / nbytes
    return f"{number:.0f} {unit}" if abs(number) >= 10 or number == round(number) else f"{number:.1f} {unit}"


def _bytes(value: Json) -> str:
    return _in(*next((unit for unit in _UNITS if abs(value) >= unit[1]), ("B", 1)), value)


_UNITS = (("MiB", 2**20), ("KiB", 2**10))


def _aside(value: Json) -> str:
    return f" ({value})" if value else ""


FORMS: Mapping[str, Callable[[Json], str]] = {
    "bytes": _bytes,
    "mib": lambda value: _in("MiB", 2**20, value),
    "s": lambda value: f"{value:g} s",
    "ms": lambda value: f"{1000 * value:.3g} ms",
    "us": lambda value: f"{1e6 * value:.1f} µs",
    "times": lambda value: f"{value:.1f}",
    "round": lambda value: f"{value:.0f}",
    "env": lambda value: " ".join(f"{name}={setting}" for name, setting in value.items()),
    "aside": _aside,
    "place": _aside,
}
"""Form → function that formats a value. Short lines omit values of the forms ``aside`` and ``place``. A
headline leaves the ``place`` of a call, the step of its check, to the evidence."""


def fill(says: str, values: Mapping[str, Json], *, without: Collection[str] = ()) -> str:
    """The sentence with its values filled in, ``without`` those of these forms."""

    def one(found: re.Match[str]) -> str:
        name, form = found.groups()
        if name not in values:
            return found[0]
        if form in without:
            return ""
        try:
            return FORMS.get(form or "", _plain)(values[name])
        except (TypeError, ValueError, AttributeError, OverflowError):  # a report may contain any type
            return _plain(values[name])

    return _OPEN.sub(one, says)


def summary(finding: Finding, *, brief: bool = False) -> str:
    """The summary in one line: the cause before the call, if one is known."""
    return _summary(finding, ("aside", "place") if brief else ())


def headline(finding: Finding) -> str:
    """The summary without the place of the call, which `place` says."""
    return _summary(finding, ("place",))


def place(finding: Finding) -> tuple[str, ...]:
    """The line of evidence that says in which step of its check a call was made, if its sentence has that."""
    found = [finding.values.get(name) for name, form in _OPEN.findall(finding.says) if form == "place"]
    return tuple(f"this call: {step}" for step in found if step)


def _summary(finding: Finding, without: Collection[str]) -> str:
    causes = (fill(item.says, item.values) for item in finding.evidence if item.kind is EvidenceKind.CAUSE)
    return "; ".join((*causes, fill(finding.says, finding.values, without=without)))


def evidence(finding: Finding) -> tuple[str, ...]:
    """One line per item of evidence."""
    return tuple(line(item) for item in finding.evidence if item.kind is not EvidenceKind.CAUSE)


def line(item: Evidence) -> str:
    return fill(item.says, item.values)
