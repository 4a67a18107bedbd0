"""How the stacks of a node share device memory, by version and setting, as ``sharing.yaml`` has it.

What is said here is read in sources, not tried: whether a way works on this node is what checks are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.model import Fact, Json
from gpuipc_doctor.versions import BEGINNING, Range, Verdict

SHIPPED = Path(__file__).with_name("sharing.yaml")
SCHEMA = Path(__file__).with_name("sharing.schema.json")

MECHANISMS: Mapping[str, str] = {
    "legacy handle": "legacy-ipc",
    "file descriptor": "vmm-ipc",
    "fabric handle": "fabric-handles",
    "pool": "pool-ipc",
}
"""Ways of sharing, in the words of known issues, and the capability that a check of each requires."""

DECISIVE = ("ptrace-scope", "seccomp", "container", "namespaces", "imex-channels", "imex-daemon")
"""Facts of the node that decide over them, whatever the stack."""


@dataclass(frozen=True, slots=True)
class Way:
    """How some versions share a kind of memory, with some variable set so."""

    versions: Range
    by: tuple[str, ...]
    """Words of `MECHANISMS`, the preferred one first; empty where the memory is not shared."""
    route: str
    """By which system call a descriptor travels: ``SCM_RIGHTS`` or ``pidfd_getfd``."""
    variables: tuple[str, ...]
    """Any of these must be set as ``matches`` says; where that takes the empty text, all may be unset."""
    matches: str
    says: str


@dataclass(frozen=True, slots=True)
class Memory:
    """A kind of memory of one stack."""

    stack: str
    name: str
    ways: tuple[Way, ...]
    source: str
    evidence: str
    checks: tuple[str, ...]
    """Checks that use the stack itself."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What holds for one kind of memory of a stack that is on the node."""

    memory: Memory
    version: Fact
    way: Way | None
    """None where it is not known."""
    setting: Fact | None = None
    """The variable that decided."""

    @property
    def by(self) -> str:
        """``file descriptor by pidfd_getfd``, ``not shared`` or ``not known``."""
        if self.way is None:
            return "not known"
        words = (
            f"{one} by {self.way.route}" if one == "file descriptor" and self.way.route else one
            for one in self.way.by
        )
        return ", else ".join(words) or "not shared"


def load(path: Path = SHIPPED) -> tuple[Memory, ...]:
    """The kinds of memory, in the order of the file, which a test holds to its schema."""
    import yaml

    with path.open(encoding="utf-8") as file:
        data = yaml.safe_load(file)
    return tuple(
        Memory(
            stack["stack"],
            memory["name"],
            tuple(_way(stack["stack"], way) for way in memory["ways"]),
            memory.get("source", stack["source"]),
            stack["evidence"],
            tuple(stack.get("checks", ())),
        )
        for stack in data["stacks"]
        for memory in stack["memory"]
    )


def _way(stack: str, data: Json) -> Way:
    return Way(
        Range(stack, data.get("since", BEGINNING), fixed=data.get("gone", "")),
        tuple(data.get("by", ())),
        data.get("route", ""),
        tuple(data.get("variables", ())),
        data.get("matches", ""),
        data["says"],
    )


def of_node(facts: Iterable[Fact], known: Iterable[Memory]) -> Iterator[Shared]:
    """What holds for each version of each stack that was found; ``facts`` tell of the variables, too."""
    facts = tuple(facts)
    variables = {fact.name: fact for fact in facts if fact.name.startswith("env:")}
    for memory in known:
        for fact in facts:
            if fact.name == memory.stack and fact.value is not None:
                yield _judge(memory, fact, variables)


def _judge(memory: Memory, version: Fact, variables: Mapping[str, Fact]) -> Shared:
    for way in memory.ways:
        verdict = way.versions.judge(version.value or "")
        if verdict is Verdict.FINE:
            continue
        is_so, setting = _setting(way, variables)
        if not is_so:
            continue
        return Shared(memory, version, way if verdict is Verdict.BAD else None, setting)
    return Shared(memory, version, None)


def _setting(way: Way, variables: Mapping[str, Fact]) -> tuple[bool, Fact | None]:
    """Whether the variables are as the way wants them, and which of them is set."""
    found = (variables.get(f"env:{name}") for name in way.variables)
    present = [fact for fact in found if fact and fact.value is not None]
    for fact in present:
        if re.fullmatch(way.matches, (fact.value or "").strip()):
            return True, fact
    return not present and re.fullmatch(way.matches, "") is not None, None
