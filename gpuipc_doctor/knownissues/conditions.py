"""Conditions on a node, other than a component's version, under which a known issue applies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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

    def judge(self, facts: Iterable[Fact]) -> Verdict:
        """BAD if the condition holds on this node, UNKNOWN if the fact was not found, else FINE."""
        named = [fact.value for fact in NamedFacts.of(facts).named(self.fact)]
        values = [value for value in named if value is not None]
        if self.absent:
            return Verdict.UNKNOWN if not named else Verdict.FINE if values else Verdict.BAD
        if named and not values and self.is_env:
            values = [""]
            if not self.matches:
                return Verdict.FINE
        if not values:
            return Verdict.UNKNOWN
        if self.range:
            return any_of(self.range.judge(value) for value in values)
        return Verdict.BAD if any(re.search(self.matches, value) for value in values) else Verdict.FINE

    def found(self, facts: Iterable[Fact]) -> str:
        """The facts as text: ``gpu-model NVIDIA GH200 120GB``, ``MPICH_GPU_IPC_ENABLED not set``."""
        values = [fact.value for fact in NamedFacts.of(facts).named(self.fact) if fact.value is not None]
        if self.is_env:
            name = self.fact.removeprefix(ENV)
            return " ".join(f"{name}={value}" for value in values) or f"{name} not set"
        return f"{self.fact} {', '.join(values)}" if values else f"no {self.fact}"

    @property
    def is_mere_presence(self) -> bool:
        return not (self.matches or self.range or self.absent or self.is_env)

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
        if self.matches:
            return f"{name} {self.says or in_words(self.matches) or self.matches}"
        return f"{name} set" if self.is_env else name


_PLAIN = re.compile(r"\^?([\w.: -]+(?:\|[\w.: -]+)*)(\??)\$?")


def in_words(pattern: str) -> str:
    """A simple pattern as text: ``unset or 1`` for ``^1?$``, ``docker or podman`` for ``docker|podman``.
    Empty for any other pattern."""
    plain = _PLAIN.fullmatch(pattern)
    if not plain:
        return ""
    return " or ".join([*["unset"] * bool(plain[2]), *plain[1].split("|")])
