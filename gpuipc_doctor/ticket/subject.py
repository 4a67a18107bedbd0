"""The subject of a ticket: a report or a job, with related documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.job.document import JobReport, Rank
from gpuipc_doctor.model import Fact, Status
from gpuipc_doctor.present.text import ranges
from gpuipc_doctor.probe_types import RoleOutcome
from gpuipc_doctor.report import merged_results
from gpuipc_doctor.report.merged_results import Paragraph
from gpuipc_doctor.report_types import Relation, Report


@dataclass(frozen=True)
class Subject:
    """The documents of a ticket, and the names of the files that go with it."""

    about: Report | JobReport
    also: tuple[Report | JobReport, ...] = ()
    inventory: tuple[Fact, ...] = ()
    """Facts of the node if no document has them."""
    before: Report | None = None
    """A report from before the problem appeared."""
    files: tuple[str, ...] = ()

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(each for each in (self.about, *self.also) if isinstance(each, Report))

    @property
    def job(self) -> JobReport | None:
        return next((each for each in (self.about, *self.also) if isinstance(each, JobReport)), None)

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return self.job.ranks if self.job else ()

    @cached_property
    def bad(self) -> tuple[Paragraph, ...]:
        """The paragraphs that failed; if none failed, those with an ERROR or a WARN."""
        if not isinstance(self.about, Report):
            return ()
        shown = [each for each in merged_results.paragraphs(self.about) if each.status is not Status.SKIP]
        failed = [each for each in shown if each.status is Status.FAIL]
        return tuple(failed or shown)

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that failed, or that reproduce a job's problem."""
        if self.bad:
            return tuple(dict.fromkeys(check for each in self.bad for check in each.checks))
        return tuple(
            dict.fromkeys(check for each in self.job.issues for check in each.checks) if self.job else ()
        )

    @property
    def confirmed(self) -> tuple[str, ...]:
        """The components of the known issues that the first failure confirms."""
        joins = (join for paragraph in self.bad[:1] for join in paragraph.joins)
        return tuple(join.component for join in joins if join.relation is Relation.CONFIRMED)

    @property
    def culprits(self) -> list[RoleOutcome]:
        return [role for each in self.bad for role in merged_results.culprits(each.results[0])]

    @property
    def stacks(self) -> Mapping[str, tuple[str, ...]]:
        """The stacks in the documents, innermost frame first, by their origin."""
        found = {}
        for number, role in enumerate(self.culprits):
            for kind, frames in (
                ("native", role.native_stack),
                ("python", role.python_stack),
                ("kernel", role.kernel),
            ):
                if frames:
                    found[f"{kind} stack of {role.role} in {role.operation or 'no call'} ({number + 1})"] = (
                        frames
                    )
        places = by_key((tuple(reversed(rank.path)), rank.rank) for rank in self.ranks if rank.path)
        return found | {
            f"rank{'s' * (len(those) > 1)} {ranges(those)}": path for path, those in places.items()
        }

    def facts(self, name: str) -> list[Fact]:
        """Facts with this name that have a value; those of the loaded libraries come before the node's."""
        found = [*self._loaded(name), *(fact for fact in self._read() if fact.name == name and fact.value)]
        return list({fact.value: fact for fact in reversed(found)}.values())[::-1]

    def _read(self) -> Iterator[Fact]:
        for report in self.reports[:1]:
            yield from report.stack
            yield from report.inventory
        yield from self.inventory

    def _loaded(self, name: str) -> Iterator[Fact]:
        ranks = by_key((rank.versions[name], rank.rank) for rank in self.ranks if name in rank.versions)
        yield from (
            Fact(name, value, f"loaded in ranks {ranges(numbers)}") for value, numbers in ranks.items()
        )
