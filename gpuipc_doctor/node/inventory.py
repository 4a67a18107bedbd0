"""A node's versions and modes, each with its source.

The package reads plain files below a root. This also works for simulated nodes, and cannot hang like a driver
call. Facts from drivers and libraries come from workers (`survey_plan`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import file_facts, libraries
from gpuipc_doctor.node.fact_names import NAMES
from gpuipc_doctor.node.libraries import Libraries
from gpuipc_doctor.node.survey_plan import LOOKED_FOR, LOOKED_FOR_FOREIGN
from gpuipc_doctor.probe_types import ProbeOutcome
from gpuipc_doctor.report import sentences

__all__ = ["CHECK", "NAMES", "SURVEYS", "facts_from_files", "facts_from_surveys", "merged", "of_modules"]

CHECK = "inventory"
"""Check id of the `survey_plan`. Reports omit the findings of this check."""

SURVEYS = Path(__file__).with_name("survey_plan.py")


def facts_from_files(root: str, environ: Mapping[str, str]) -> tuple[Fact, ...]:
    """The node's facts from files below ``root``, for a process with the environment ``environ``."""
    tree = Tree(Path(root))
    return (*file_facts.facts(tree, environ), *libraries.facts(tree, Libraries(tree, environ)))


def of_modules(root: str) -> tuple[Fact, ...]:
    """Facts about kernel modules. Read them after drivers were used, because drivers may load modules."""
    return tuple(file_facts.of_modules(Tree(Path(root))))


def merged(
    asked: Iterable[Fact], found: Iterable[Fact], *, foreign: bool = True, surveyed: bool = True
) -> tuple[Fact, ...]:
    """The facts from drivers (``asked``) and from files (``found``), in the order of `NAMES`.

    Equal values share a row. Different values, such as the versions of NVIDIA's kernel module and libraries,
    have separate rows. The other parameters only serve to explain missing facts. ``foreign``: whether surveys
    may load what the environment names. ``surveyed``: whether surveys ran.
    """
    facts = [*asked, *found]
    facts += _not_asked({fact.name for fact in facts}, foreign, surveyed)
    names = dict.fromkeys((*NAMES, *(fact.name for fact in facts)))
    return tuple(row for name in names for row in _rows([fact for fact in facts if fact.name == name]))


def _not_asked(told: Collection[str], foreign: bool, surveyed: bool) -> Iterator[Fact]:
    """A row for each fact that no worker could read."""
    elsewhere = "queried only on a real node, and not in a prolog"
    reasons = {name: where if surveyed else "not queried in a prolog" for name, where in LOOKED_FOR.items()}
    reasons |= {name: where if foreign else elsewhere for name, where in LOOKED_FOR_FOREIGN.items()}
    yield from (Fact(name, None, why) for name, why in reasons.items() if name not in told)


def facts_from_surveys(outcomes: Iterable[ProbeOutcome]) -> Iterator[Fact]:
    """Facts from the surveys in ``outcomes``. For a missing fact, a row has the reason."""
    from gpuipc_doctor.supervise import blame  # imported here: workers import this package for their survey

    for outcome in outcomes:
        if "facts" not in outcome.params:
            continue
        rows = (row for records in outcome.records.values() for row in records.items())
        found = [Fact(*fact) for name, fact in rows if name != "rooms"]
        yield from found
        if not outcome.completed:
            why = sentences.summary(blame.conclude(outcome))
            told = {fact.name for fact in found}
            yield from (Fact(name, None, why) for name in outcome.params["facts"] if name not in told)


def _rows(facts: list[Fact]) -> Iterator[Fact]:
    """One row for each value of a fact. A fact without a value has one row, which says what was searched."""
    found = [fact for fact in facts if fact.value is not None]
    if not found:
        if facts:
            yield Fact(facts[0].name, None, "; ".join(dict.fromkeys(fact.source for fact in facts)))
        return
    rows: dict[str, list[Fact]] = {}
    for fact in found:
        assert fact.value is not None
        same = next((value for value in rows if _is_part(value, fact.value)), fact.value)
        rows.setdefault(same, []).append(fact)
    for row in rows.values():
        fullest = max((fact.value or "" for fact in row), key=len)
        yield Fact(row[0].name, fullest, "; ".join(dict.fromkeys(fact.source for fact in row)))


def _is_part(a: str, b: str) -> bool:
    """Whether one version is a prefix of the other: a directory named 8.1.30 may hold 8.1.30.16."""
    short, long = sorted((a, b), key=len)
    return short == long or (short.count(".") >= 2 and long.startswith((f"{short}.", f"{short}-")))
