"""Conditions on a node, other than a component's version, under which a known issue applies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Range, Verdict, any_of

ENV = "env:"
"""Prefix of an environment variable's name in the name of its fact."""


class NamedFacts(tuple[Fact, ...]):
    """Facts with an index by name, which makes hundreds of look-ups fast."""

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[Fact]]:
        found = defaultdict[str, list[Fact]](list)
        for fact in self:
            found[fact.name].append(fact)
        return found

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> NamedFacts:
        return facts if isinstance(facts, NamedFacts) else cls(facts)

    def named(self, name: str) -> Sequence[Fact]:
        return self._by_name.get(name, ())


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on an inventory fact: it was found, matches a pattern, or is in a range.

    An environment variable that is not set counts as empty text: the pattern ``^0?$`` holds if it is unset or
    0. If no pattern is given, the variable must be set. A condition on any other fact without a value is
    unknown.
    """

    fact: str
    """Name of an inventory fact; ``env:NAME`` for an environment variable."""
    matches: str = ""
    range: Range | None = None
    absent: bool = False
    """Inverted: the condition holds if the fact was looked for and not found."""
    says: str = ""
    """``matches`` in words, for patterns that `in_words` cannot express."""
    switch: str = ""
    """One of `SWITCHES`, for a variable that programs read as a truth value, in any of its spellings."""
    lacks: str = ""
    """A pattern that the value must not match."""
    at_most: str = ""
    """The largest amount for which the condition holds: ``64 MiB``."""

    def judge(self, facts: Iterable[Fact]) -> Verdict:
        """BAD if the condition holds or is `_PRESUMED`, UNKNOWN if the fact was not found, else FINE."""
        named = [fact.value for fact in self._facts(facts)]
        values = [value for value in named if value is not None]
        if self.absent:
            return Verdict.UNKNOWN if not named else Verdict.FINE if values else Verdict.BAD
        if named and not values and self.is_env:
            values = [""]
            if not (self.matches or self.switch or self.lacks):
                return Verdict.FINE
        if not values:
            return Verdict.BAD if self.fact in _PRESUMED else Verdict.UNKNOWN
        if self.range:
            return any_of(self.range.judge(value) for value in values)
        if self.switch:
            return any_of(self._judge_switch(value) for value in values)
        if self.at_most:
            return any_of(self._judge_amount(value) for value in values)
        if self.lacks:
            return Verdict.FINE if any(re.search(self.lacks, value) for value in values) else Verdict.BAD
        return Verdict.BAD if any(re.search(self.matches, value) for value in values) else Verdict.FINE

    @property
    def names(self) -> tuple[str, ...]:
        """The fact's name, and names by which programs also read the variable."""
        return (self.fact, *_ALSO_READ.get(self.fact, ()))

    def _facts(self, facts: Iterable[Fact]) -> Sequence[Fact]:
        """The facts with the first of the names that has a value; without any, those of the first name."""
        each = [NamedFacts.of(facts).named(name) for name in self.names]
        return next((some for some in each if any(fact.value is not None for fact in some)), each[0])

    def _judge_switch(self, value: str) -> Verdict:
        state = switched(value)
        if state is None:
            return Verdict.UNKNOWN
        return Verdict.BAD if state in self.switch.split(" or ") else Verdict.FINE

    def _judge_amount(self, value: str) -> Verdict:
        most, found = amount(self.at_most), amount(value)
        if most is None or found is None:
            return Verdict.UNKNOWN
        return Verdict.BAD if found <= most else Verdict.FINE

    def found(self, facts: Iterable[Fact]) -> str:
        """The facts as text: ``gpu-model NVIDIA GH200 120GB``, ``MPICH_GPU_IPC_ENABLED not set``.
        Empty if the condition is presumed."""
        facts = self._facts(facts)
        values = [fact.value for fact in facts if fact.value is not None]
        if self.is_env:
            name = (facts[0].name if values else self.fact).removeprefix(ENV)
            return " ".join(f"{name}={value}" for value in values) or f"{name} not set"
        if not values and self.fact in _PRESUMED:
            return ""
        return f"{self.fact} {', '.join(values)}" if values else f"no {self.fact}"

    @property
    def is_mere_presence(self) -> bool:
        return not (self.matches or self.range or self.absent or self.at_most or self.is_env)

    @property
    def is_env(self) -> bool:
        return self.fact.startswith(ENV)

    def __str__(self) -> str:
        """The condition as text: ``nvidia-driver 580 and later``, ``MPICH_GPU_IPC_ENABLED unset or 1``."""
        name = self.fact.removeprefix(ENV)
        if self.absent:
            return f"no {name}"
        if self.range:
            return f"{name} {self.range}"
        if self.switch:
            return f"{name} {self.switch}"
        if self.at_most:
            return f"{name} of {self.at_most} or less"
        if self.lacks:
            return f"{name} {self.says}"
        if self.matches:
            return f"{name} {self.says or in_words(self.matches) or self.matches}"
        return f"{name} set" if self.is_env else name


SWITCHES = ("on", "off", "unset or on", "unset or off")

_PRESUMED = frozenset(["ucx-modules"])
"""Facts whose conditions hold if the fact is unknown: a UCX may have its modules elsewhere, or built in."""

_ALSO_READ = {f"{ENV}PYTORCH_ALLOC_CONF": (f"{ENV}PYTORCH_CUDA_ALLOC_CONF", f"{ENV}PYTORCH_HIP_ALLOC_CONF")}
"""Variable → its older names, which PyTorch 2.9 reads if it is not set (c10/core/AllocatorConfig.cpp)."""

_ON = re.compile(r"[1-9]\d*|y|yes|t|true|on|enabled?", re.IGNORECASE)
_OFF = re.compile(r"0+|n|no|f|false|off|disabled?", re.IGNORECASE)


def switched(value: str) -> str | None:
    """``on``, ``off`` or ``unset`` for the value of a variable that is a truth value; None for other words.

    Spellings of UCX, libfabric, Open MPI and MPICH, which ignore case, and of programs that read a number.
    """
    if not (word := value.strip()):
        return "unset"
    return "on" if _ON.fullmatch(word) else "off" if _OFF.fullmatch(word) else None


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def amount(text: str) -> float | None:
    """Bytes of an amount such as ``64 MiB``; infinite for ``unlimited``, None for other texts."""
    if text.strip() == "unlimited":
        return inf
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    return float(found[1]) * _UNITS[found[2].upper()] if found else None


def is_same_setting(one: str, other: str) -> bool:
    """Whether two values of a variable mean the same: equal, or two spellings of a truth value."""
    return one.strip() == other.strip() or (switched(one) == switched(other) is not None)


_PLAIN = re.compile(r"\^?([\w.: -]+(?:\|[\w.: -]+)*)(\??)\$?")


def in_words(pattern: str) -> str:
    """A simple pattern as text: ``unset or 1`` for ``^1?$``, ``docker or podman`` for ``docker|podman``.
    Empty for any other pattern."""
    plain = _PLAIN.fullmatch(pattern)
    if not plain:
        return ""
    return " or ".join([*["unset"] * bool(plain[2]), *plain[1].split("|")])
