"""What must hold on a node beside a component's version, for a known issue to matter there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Range, Verdict, any_of

ENV = "env:"
"""What stands before an environment variable's name in the name of its fact."""


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on a fact of the inventory: that it was found, is so by text, or is in a range.

    A variable of the environment that is known to be unset counts as empty text, so that ``^0?$`` holds
    where it is unset or 0; without ``matches`` it must be set. Of any other fact that has no value
    nothing is known.
    """

    fact: str
    """A name of the inventory; ``env:NAME`` for a variable of the environment."""
    matches: str = ""
    range: Range | None = None
    absent: bool = False
    """The other way round: it was looked for and not found."""
    says: str = ""
    """``matches`` in words, where these cannot be made of it."""

    def judge(self, facts: Iterable[Fact]) -> Verdict:
        """BAD: the condition for the fault holds here; UNKNOWN: the fact was not found."""
        named = [fact.value for fact in facts if fact.name == self.fact]
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
        """What was found of it: ``gpu-model NVIDIA GH200 120GB``, ``MPICH_GPU_IPC_ENABLED not set``."""
        values = [fact.value for fact in facts if fact.name == self.fact and fact.value is not None]
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
        """``nvidia-driver 580 and later``, ``gpu-model GH200``, ``MPICH_GPU_IPC_ENABLED unset or 1``."""
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
    """``unset or 1`` for ``^1?$``, ``docker or podman`` for ``docker|podman``; empty if not as simple."""
    plain = _PLAIN.fullmatch(pattern)
    if not plain:
        return ""
    return " or ".join([*["unset"] * bool(plain[2]), *plain[1].split("|")])
