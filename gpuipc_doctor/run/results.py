"""All results of a run, by check, subject, probe and repetition."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from gpuipc_doctor.model import Device, Evidence, EvidenceKind, Fact, Finding, Json, Status, Trial
from gpuipc_doctor.probe_types import Ending, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report_types import CheckInfo, Result, Series
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.site.config import ExpectedGpus, Waiver


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is attached beside a finding: a ``cause`` (`Evidence.cause`) in front of its evidence, with a
    ``remedy`` in place of its own; or further ``evidence``, with a remedy if the finding has none."""

    cause: Evidence | None = None
    remedy: str = ""
    evidence: tuple[Evidence, ...] = ()

    def beside(self, finding: Finding) -> Finding:
        """The finding as the report has it."""
        evidence = (*filter(None, [self.cause]), *finding.evidence, *self.evidence)
        remedy = (self.cause and self.remedy) or finding.remedy or self.remedy
        return replace(finding, evidence=evidence, remedy=remedy)


@dataclass
class Entry:
    """A planned probe, its findings, which never change, and what is attached beside them."""

    planned: PlannedProbe
    findings: tuple[Finding, ...]
    outcome: ProbeOutcome | None = None
    stopped: str = ""
    series: tuple[Series, ...] = ()
    logs: str = ""
    started_s: float = 0.0
    in_company: bool = False
    """Whether the findings are about a visit of a tour whose probe passes alone."""
    trials: list[Evidence] = field(default_factory=list)
    """What reruns, tried workarounds and controls showed of the findings in `to_cure`."""
    without: dict[str, Trial] = field(default_factory=dict)
    """Setting → what a rerun without it showed."""
    explanations: list[Explanation] = field(default_factory=list)
    decided: tuple[Finding, ...] = ()
    """The findings after a completed repetition, if it decides otherwise than `findings`."""

    @property
    def standing(self) -> tuple[Finding, ...]:
        return self.decided or self.findings

    @property
    def failed(self) -> bool:
        return any(finding.status is Status.FAIL for finding in self.standing)

    @property
    def to_cure(self) -> list[Finding]:
        """The findings for which to try workarounds: failures, and those in `Check.curable_warnings`.

        Empty if the probe passes alone: a rerun with a workaround would also pass, whatever the workaround.
        """
        if self.in_company:
            return []
        warnings = self.planned.check.curable_warnings
        return [
            finding
            for finding in self.standing
            if finding.status is Status.FAIL or (finding.status is Status.WARN and finding.key in warnings)
        ]

    @property
    def tried(self) -> list[Json]:
        """The workarounds tried: settings, and omitted operations."""
        return [
            [item.values["env"], item.values.get("without", [])]
            for item in self.trials
            if item.kind is EvidenceKind.TRIAL
        ]

    @property
    def reported(self) -> list[Finding]:
        """The findings with what is attached beside them: trials, further evidence, and the first cause."""
        curable, found = self.to_cure, []
        further = tuple(item for each in self.explanations if not each.cause for item in each.evidence)
        cause = next((each for each in self.explanations if each.cause), None)
        completed = self.outcome is not None and self.outcome.completed
        for finding in self.standing:
            one = finding
            is_bad = finding.status in (Status.FAIL, Status.ERROR)
            if finding in curable or is_bad:
                one = Explanation(evidence=(*self.trials, *further)).beside(one)
            if cause and is_bad and (not completed or is_of_data(finding)):
                one = cause.beside(one)
            found.append(one)
        return found

    def results(self) -> list[Result]:
        planned, outcome = self.planned, self.outcome
        return [
            Result(
                check=planned.check.id,
                finding=finding,
                devices=tuple(device.label for device in planned.probe.devices),
                probe=planned.probe.name,
                elapsed_s=outcome.elapsed_s if outcome else 0.0,
                roles=blamed_first(outcome) if outcome else (),
                logs=self.logs,
                repetition=planned.repetition,
                stopped=self.stopped,
                series=() if number else self.series,
                started_s=self.started_s,
            )
            for number, finding in enumerate(self.reported)
        ]


@dataclass
class ResultLog:
    """The results so far.

    ``keeps_logs``: whether results name the directories of their logs. ``suppressed``: finding key → why its
    findings are suppressed. ``tell`` is called with each result.
    """

    keeps_logs: bool = False
    suppressed: Mapping[str, Waiver] = field(default_factory=dict)
    gpus: ExpectedGpus = field(default_factory=ExpectedGpus)
    """The capabilities that the site demands of this node's GPUs, once it is known which node this is."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Check that the site config requires → ``file:line`` of the demand."""
    tell: Callable[[Result], None] = lambda result: None
    checks: dict[str, CheckInfo] = field(default_factory=dict)
    """Checks by id, in report order."""
    probes_run: int = 0
    """Number of probes that tested something."""
    began: float = field(default_factory=time.monotonic)
    """Start of the run."""
    recognised: Mapping[object, Explanation] = field(default_factory=dict)
    """`kind_of_failure` → what its texts show."""
    _entries: dict[int, Entry] = field(default_factory=dict)
    _said: list[Result] = field(default_factory=list)

    def announce(self, *checks: CheckInfo) -> None:
        for info in checks:
            self.checks.setdefault(info.id, info)

    def say(self, *results: Result) -> None:
        """Add findings without a probe. Their checks must have been announced with `announce`."""
        self._said += results

    def keep(
        self,
        planned: PlannedProbe,
        outcome: ProbeOutcome,
        findings: Sequence[Finding],
        series: tuple[Series, ...] = (),
        *,
        in_company: bool = False,
    ) -> None:
        """Add the findings of a probe, or (``in_company``) of its visit in a tour."""
        logs = Path(outcome.logs).name if self.keeps_logs else ""
        at_s = max(outcome.began - self.began, 0.0)
        self._add(
            Entry(
                planned, tuple(findings), outcome, outcome.stopped, series, logs, at_s, in_company=in_company
            )
        )

    def keep_unrun(self, planned: PlannedProbe, finding: Finding, stopped: str = "") -> None:
        """Add the reason why a probe was not run."""
        self._add(Entry(planned, (finding,), stopped=stopped))

    def _add(self, entry: Entry) -> None:
        if entry.planned.repetition > 1:  # earlier tests still count
            entry.findings = tuple(each for each in entry.findings if each.status is not Status.SKIP)
        self._entries[entry.planned.number] = entry
        for result in entry.results():
            self.tell(self._as_wished(result))

    def passed(self, device: Device) -> bool:
        """Whether no probe of a device found anything wrong."""
        of = (each for each in self._entries.values() if device in each.planned.probe.devices)
        return all(one.status in (Status.PASS, Status.SKIP) for each in of for one in each.standing)

    def count(self, outcome: ProbeOutcome) -> None:
        """Count a probe as a test, unless it was stopped or had nothing to test."""
        blamed = outcome.roles[outcome.blamed] if outcome.blamed else None
        unfit = blamed is not None and blamed.ending is Ending.UNFIT
        self.probes_run += not (outcome.stopped or unfit)

    def loaded_in_ranks(self) -> frozenset[str] | None:
        """Fabric libraries that ranks had loaded; None if no rank recorded them."""
        told = [
            role.loaded
            for entry in self._entries.values()
            if entry.outcome and entry.planned.probe.launch
            for role in entry.outcome.roles.values()
            if role.loaded is not None
        ]
        return frozenset(name for names in told for name in names) if told else None

    def with_tested_collectives(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        """The facts with the versions of NCCL and RCCL that ranks reported, instead of those that only lie on
        the node."""
        tested = {
            library: version
            for entry in self._entries.values()
            if entry.outcome
            for role in entry.outcome.roles.values()
            for library, version in role.tested.items()
        }
        return (
            *(fact for fact in facts if fact.name not in tested),
            *(Fact(name, version, "the library that was tested") for name, version in tested.items()),
        )

    @property
    def entries(self) -> list[Entry]:
        """The probes that ended or were not run."""
        return list(self._entries.values())

    def of(self, check: str) -> list[Entry]:
        """The finished probes of a check."""
        return [entry for entry in self._entries.values() if entry.planned.check.id == check]

    def unsuccessful(self) -> list[Entry]:
        """The probes with a FAIL or an ERROR."""
        bad = (Status.FAIL, Status.ERROR)
        return [e for e in self._entries.values() if any(finding.status in bad for finding in e.standing)]

    def failures(self) -> list[Entry]:
        """The failed probes, in report order."""
        return [entry for entry in self.to_cure() if entry.failed]

    def to_cure(self) -> list[Entry]:
        """Probes that failed or have a curable warning, in report order."""
        found = [entry for entry in self._entries.values() if entry.outcome and entry.to_cure]
        return sorted(found, key=self._place)

    def results(self) -> tuple[Result, ...]:
        """All results by check and device, with the site's suppressions applied."""
        found = [*self._said, *(result for entry in self._entries.values() for result in entry.results())]
        order = {check: number for number, check in enumerate(self.checks)}
        found.sort(key=lambda r: (order[r.check], r.devices, r.probe, r.repetition))
        return tuple(map(self._recognised, map(self._as_wished, found)))

    def _recognised(self, result: Result) -> Result:
        shown = self.recognised.get(kind_of_failure(result))
        return replace(result, finding=shown.beside(result.finding)) if shown else result

    def _as_wished(self, result: Result) -> Result:
        return suppress(require(demand(result, self.gpus), self.required), self.suppressed, date.today())

    def _place(self, entry: Entry) -> tuple[object, ...]:
        planned = entry.planned
        order = list(self.checks).index(planned.check.id) if planned.check.id in self.checks else -1
        return order, planned.probe.subject, planned.probe.name, planned.repetition


def kind_of_failure(result: Result) -> object:
    """Equal for failures that are looked up together."""
    return result.check, result.finding.identity


def is_of_data(finding: Finding) -> bool:
    """Whether a check found wrong or old data, not a leak or a counter that cannot be trusted."""
    return finding.key.startswith(("wrong", "stale", "writes-lost", "overwrote"))


def blamed_first(outcome: ProbeOutcome) -> tuple[RoleOutcome, ...]:
    return tuple(sorted(outcome.roles.values(), key=lambda role: role.role != outcome.blamed))


def demand(result: Result, gpus: ExpectedGpus) -> Result:
    """Give a SKIP for a missing capability the status that the site config states for it."""
    finding = result.finding
    lacking = [name for name in finding.values.get("lacking", ()) if name in gpus.capabilities]
    if finding.status is not Status.SKIP or not lacking:
        return result
    status = max((gpus.capabilities[name] for name in lacking), key=lambda status: status.severity)
    says = "{where} demands {lacking} of this node's GPUs"
    demanded = Evidence.seen(says, where=gpus.where, lacking=lacking)
    remedy = f"give the jobs whole GPUs that have {', '.join(lacking)}, or correct {gpus.where}"
    evidence = (*finding.evidence, demanded)
    return replace(result, finding=replace(finding, status=status, evidence=evidence, remedy=remedy))


def require(result: Result, required: Mapping[str, str]) -> Result:
    """Turn a SKIP of a required check into an ERROR: it was not tested."""
    finding, where = result.finding, required.get(result.check)
    if finding.status is not Status.SKIP or where is None:
        return result
    demanded = Evidence.seen("{where} requires this check", where=where)
    remedy = finding.remedy or f"remove the cause, or the check at {where}"
    finding = replace(finding, status=Status.ERROR, evidence=(*finding.evidence, demanded), remedy=remedy)
    return replace(result, finding=finding)


def suppress(result: Result, suppressed: Mapping[str, Waiver], today: date) -> Result:
    """Turn a suppressed result into a SKIP.

    After the suppression expires, return it unchanged plus a note.
    """
    finding, wish = result.finding, suppressed.get(result.key)
    if wish is None or finding.status in (Status.PASS, Status.SKIP):
        return result
    values = {"where": wish.where, "reason": wish.reason}
    if wish.has_expired(today):
        says = "the suppression at {where} ended on {until} ({reason})"
        ended = Evidence(EvidenceKind.SEEN, says, {"until": str(wish.until), **values})
        return replace(result, finding=replace(finding, evidence=(*finding.evidence, ended)))
    skipped = Finding.skip(
        "suppressed",
        "{status} {key} is suppressed at {where}: {reason}",
        Evidence(EvidenceKind.SEEN, finding.says, finding.values),
        *finding.evidence,
        status=finding.status.value,
        key=result.key,
        **values,
    )
    return replace(result, finding=skipped)
