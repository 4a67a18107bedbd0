"""How the stacks of a node share device memory, as a page of 80 columns and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuipc_doctor.api import Check
from gpuipc_doctor.inventory import sharing
from gpuipc_doctor.inventory.sharing import DECISIVE, MECHANISMS, Shared
from gpuipc_doctor.model import Fact
from gpuipc_doctor.present.terminal import COLUMNS
from gpuipc_doctor.present.text import sanitise, wrap

_EVIDENCE = {"read": "read", "excerpts": "read in excerpts", "weak": "weak"}


def page(facts: Sequence[Fact], checks: Iterable[Check], simulated: str = "") -> str:
    """Each stack that was found with its ways, what of the node decides over them, and who tries which."""
    known = sharing.load()
    found = list(sharing.of_node(facts, known))
    trying = _trying(checks)
    blocks = [[f"SIMULATED (profile {simulated})"]] if simulated else []
    stacks: dict[Fact, list[Shared]] = {}
    for one in found:
        stacks.setdefault(one.version, []).append(one)
    for version, shared in stacks.items():
        head = _filled(f"{version.name} {version.value} ({version.source})", rest="  ")
        blocks.append([*head, *(line for one in shared for line in _memory(one)), *_tried(shared, trying)])
    absent = dict.fromkeys(memory.stack for memory in known)
    missing = [stack for stack in absent if all(version.name != stack for version in stacks)]
    blocks.append(_filled(", ".join(missing) or "none", "not found: "))
    blocks.append(["what of this node decides, too", *_decisive(facts)])
    blocks.append(["which check tries which way", *_checks(trying)])
    return "\n\n".join("\n".join(block) for block in blocks)


def _filled(text: str, first: str = "", rest: str | None = None) -> list[str]:
    return wrap(sanitise(text), COLUMNS, first, rest)


def _memory(one: Shared) -> Iterator[str]:
    yield from _filled(f"{one.memory.name}: {one.by}", "  ", "    ")
    if one.setting:
        name = one.setting.name.removeprefix("env:")
        yield from _filled(f"{name}={one.setting.value} ({one.setting.source})", "      ")
    if one.way:
        yield from _filled(one.way.says, "      ")
        yield f"      {one.memory.source} ({_EVIDENCE[one.memory.evidence]})"
    else:
        yield f"      it may be found in {one.memory.source}"


def _tried(shared: Sequence[Shared], trying: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if names := dict.fromkeys(name for one in shared for name in _names(one, trying)):
        yield from _filled(", ".join(names), "  tried by: ")


def _names(one: Shared, trying: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for mechanism in one.way.by if one.way else ():
        yield from trying[mechanism]
    yield from one.memory.checks


def _trying(checks: Iterable[Check]) -> dict[str, list[str]]:
    """For each way of sharing, the checks that try it by itself, without a library in between."""
    bare = [check for check in checks if not check.needs_mpi and not check.needs_allocators]
    return {
        mechanism: [check.id for check in bare if capability in check.requires]
        for mechanism, capability in MECHANISMS.items()
    }


def _decisive(facts: Iterable[Fact]) -> Iterator[str]:
    for fact in facts:
        if fact.name in DECISIVE:
            said = f"{fact.value} ({fact.source})" if fact.value is not None else f"not found ({fact.source})"
            yield from _filled(said, f"  {fact.name:<15}")


def _checks(trying: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for mechanism, names in trying.items():
        yield from _filled(", ".join(names), f"  {mechanism:<17}")


def document(facts: Sequence[Fact], checks: Iterable[Check], simulated: str = "") -> str:
    """The same for programs."""
    trying = _trying(checks)
    found = sharing.of_node(facts, sharing.load())
    told = {
        "simulated": simulated,
        "stacks": [_told(one, trying) for one in found],
        "node": [_fact(fact) for fact in facts if fact.name in DECISIVE],
        "checks": trying,
    }
    return json.dumps(told, indent=2)


def _told(one: Shared, trying: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        "stack": _fact(one.version),
        "memory": one.memory.name,
        "known": one.way is not None,
        "by": list(one.way.by) if one.way else [],
        "route": one.way.route if one.way else "",
        "setting": _fact(one.setting) if one.setting else None,
        "says": one.way.says if one.way else "",
        "source": one.memory.source,
        "evidence": one.memory.evidence,
        "checks": list(dict.fromkeys(_names(one, trying))),
    }


def _fact(fact: Fact) -> dict[str, str | None]:
    return {"name": fact.name.removeprefix("env:"), "value": fact.value, "source": fact.source}
