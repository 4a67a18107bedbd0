"""Variables for jobs that make hangs easier to diagnose, if the versions on this node support them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.files.tables import table
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Range, Verdict, any_of

_TABLE = Path(__file__).with_name("arming.yaml")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable to set; the shell expands ``value``."""

    name: str
    value: str
    use: str
    """Purpose of the variable, and how to use it on a hanging job."""
    component: str = ""
    """Component that must be on the node; empty: the variable is for every job."""
    since: str = ""
    """First version of the component that supports the variable; empty: any version."""
    cost: str = ""


def variables(facts: Iterable[Fact], environ: Iterable[str] = ()) -> Iterator[Variable]:
    """Variables that this node's versions support, and that are not in ``environ``."""
    facts, set_already = tuple(facts), frozenset(environ)
    for each in table(_TABLE):
        variable = Variable(**each)
        known = Range(variable.component, variable.since)
        versions = [fact.value for fact in facts if fact.name == variable.component and fact.value]
        is_known = not variable.since or any_of(map(known.judge, versions)) is Verdict.BAD
        fits = not variable.component or (bool(versions) and is_known)
        if fits and variable.name not in set_already:
            yield variable


def script(facts: Iterable[Fact], sets: str = 'export {name}="{value}"') -> Iterator[str]:
    """Lines that set the variables in a job script."""
    facts = tuple(facts)
    for variable in variables(facts):
        yield f"# {_use(variable)}"
        yield sets.format(name=variable.name, value=variable.value)
    yield from (f"# {limit}" for limit in limits(facts))


def task_prolog(facts: Iterable[Fact]) -> Iterator[str]:
    """A TaskProlog for Slurm, which prints the variables for each task
    (slurm.schedmd.com/prolog_epilog.html).
    """
    yield "#!/bin/sh"
    yield from script(facts, 'echo "export {name}={value}"')


def _use(variable: Variable) -> str:
    return variable.use + (f" (cost: {variable.cost})" if variable.cost else "")


def limits(facts: Iterable[Fact]) -> Iterator[str]:
    """Kernel limits that keep users from examining their own jobs."""
    for fact in facts:
        if fact.name == "ptrace-scope" and fact.value not in (None, "0"):
            yield (
                f"kernel.yama.ptrace_scope is {fact.value}: users cannot read the stacks of "
                "blocked ranks; run gpuipc-doctor job as root, or call prctl(PR_SET_PTRACER, "
                "PR_SET_PTRACER_ANY) in the program"
            )
        if fact.name == "perf-event-paranoid" and _number(fact.value) > 2:
            yield f"kernel.perf_event_paranoid is {fact.value}: only root can sample stacks"


def lacking(facts: Iterable[Fact], environ: Iterable[str]) -> Iterator[str]:
    """Settings missing on this node that would help diagnose a hanging job."""
    facts = tuple(facts)
    for variable in variables(facts, environ):
        yield f"{variable.name} is not set; with it: {_use(variable)}"
    yield from limits(facts)


def _number(value: str | None) -> int:
    return int(value) if value and value.lstrip("-").isdecimal() else 0
