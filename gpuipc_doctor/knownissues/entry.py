"""One known issue: component, symptom, affected versions and workarounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gpuipc_doctor.knownissues import vendors
from gpuipc_doctor.knownissues.conditions import ENV, NamedFacts, Need, is_same_setting
from gpuipc_doctor.knownissues.releases import LONG, released
from gpuipc_doctor.knownissues.signatures import Signature
from gpuipc_doctor.model import EvidenceKind, Fact, Finding, Json, Result, Trial
from gpuipc_doctor.versions import Range, Verdict, all_of, any_of, parse


@dataclass(frozen=True, slots=True)
class Workaround:
    """A workaround: text for the reader, an environment for a program, or both."""

    do: str
    env: Mapping[str, str] = field(default_factory=dict)
    when: Range | None = None
    """Versions of the component to which this workaround applies; None: all versions."""
    cost: str = ""
    risk: str = ""
    """The workaround's risk: wrong results, a hang or a crash."""
    risk_source: str = ""
    """URL of the source for the risk."""
    conflicts: tuple[str, ...] = ()
    """Known issues that this workaround triggers."""
    without: tuple[str, ...] = ()
    """Operations that a program with this workaround leaves out of its history."""
    upgrade: str = ""
    """First version of the component to which the workaround upgrades."""


def _is_done(workaround: Workaround, component: str, versions: Collection[str]) -> bool:
    """Whether the workaround is an upgrade that has already been installed."""
    if not workaround.upgrade:
        return False
    older = Range(component, introduced="0", fixed=workaround.upgrade)
    return bool(versions) and all(older.judge(version) is Verdict.FINE for version in versions)


@dataclass(frozen=True, slots=True)
class Reference:
    type: str
    url: str


@dataclass(frozen=True, slots=True)
class Lookalike:
    """Another issue that causes the same lines in logs."""

    id: str
    decide: str
    """How to distinguish the two issues: by a command, a variable, or a word of the log."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """A site's decision to hide a latent issue until a date."""

    reason: str
    until: date
    """The last day of the suppression."""
    where: str
    """The suppression's place, as ``file:line``."""

    def holds(self, today: date) -> bool:
        return today <= self.until


KINDS = (
    "hardware",
    "elsewhere",
    "corruption",
    "crash",
    "hang",
    "error",
    "leak",
    "config",
    "limitation",
    "perf",
    "probe-harms",
)
"""Classes of issues, most severe first. ``elsewhere``: neither a GPU nor its software is the cause."""


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """An entry of the database, with the fields of its file; ``schema.json`` describes them."""

    id: str
    title: str
    component: str
    kind: str
    """The file's ``class``, one of `KINDS`."""
    status: str
    symptom: str
    references: tuple[Reference, ...]
    affected: tuple[Range, ...] = ()
    """Affected ranges: a version in any of them is affected. Empty if versions do not matter; then ``needs``
    decide."""
    needs: tuple[Need, ...] = ()
    """Further conditions, which must all hold."""
    signatures: tuple[Signature, ...] = ()
    """How the issue appears in logs and stacks; one matching signature is enough."""
    silent: str = ""
    """Why no log can show the issue, although the symptom quotes a message."""
    harms: tuple[str, ...] = ()
    """Steps of probes that must not run with this issue; see `Probe.harms`."""
    detected_by: tuple[str, ...] = ()
    """Checks that show the issue, or keys of their findings."""
    history: tuple[str, ...] = ()
    """The operations of the failing history, in order; the last one fails. For ipc-histories, these are only
    the operations of the failing process; for mpi-histories, those of all ranks."""
    workarounds: tuple[Workaround, ...] = ()
    resembles: tuple[Lookalike, ...] = ()
    """Issues with similar symptoms. Of two such issues, only one has to name the other."""
    trigger: str = ""
    fallback: bool = False
    """Whether the entry only names what failed. It is shown if its components have no other match."""
    secondary: bool = False
    """Whether another fault usually causes the message. Such issues are listed after primary ones."""
    also: tuple[str, ...] = ()
    evidence: str = ""
    inferred: tuple[str, ...] = ()
    """Our own conclusions, not stated by any source."""
    notes: str = ""
    withdrawn: str = ""
    """Why this entry no longer counts; the entry stays so that its id is not reused."""
    overrides: str = ""
    """A site's reason for replacing the shipped entry."""
    suppression: Suppression | None = None
    where: str = ""
    """The entry's place, as ``file:line``."""

    @property
    def order(self) -> int:
        """Place among other entries: 0 is the most severe."""
        return KINDS.index(self.kind)

    @property
    def bad_versions(self) -> str:
        return ", ".join(map(str, self.affected)) or "any, as far as is known"

    @property
    def is_bound(self) -> bool:
        """Whether the issue is tied to a version, a condition or a check; else it is a message."""
        return bool(self.affected or self.needs or self.detected_by or self.harms)

    @property
    def checks(self) -> tuple[str, ...]:
        """Checks that show the issue, named directly or through keys of their findings."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.detected_by))

    @property
    def harmless_first(self) -> tuple[Workaround, ...]:
        """The workarounds; harmful ones last."""
        return tuple(sorted(self.workarounds, key=lambda one: bool(one.risk)))

    def judge(self, facts: Iterable[Fact]) -> tuple[Verdict, str]:
        """Whether the fault is to be expected on this node, and why."""
        facts = NamedFacts.of(facts)
        verdict, reason = self._judge_versions(facts)
        if verdict is Verdict.BAD and (done := self._worked_around(facts)):
            verdict, reason = Verdict.FINE, f"{reason}, but its workaround {done} is set"
        held, lacking = [], ""
        for need in self.needs:
            holds = need.judge(facts)
            verdict = all_of((verdict, holds))
            if holds is not Verdict.BAD:
                why = "not met" if holds is Verdict.FINE else "unknown"
                lacking += f"; the issue also needs {need}: {why}"
            elif not need.is_mere_presence:
                held.append(need.found(facts))
        return verdict, reason + (f" with {', '.join(dict.fromkeys(held))}" if held else "") + lacking

    def _worked_around(self, facts: NamedFacts) -> str:
        """The environment of a workaround for this version that is set on the node; empty if none is."""
        for workaround in self.settings(facts):
            set_to = {name: _value(facts, name) for name in workaround.env}
            if all(is_same_setting(set_to[name], value) for name, value in workaround.env.items()):
                return _in_words(set_to)
        return ""

    @property
    def has_cure(self) -> bool:
        """Whether the issue is known to be fixed in later versions."""
        return any(range_.fixed not in ("", "unknown", None) for range_ in self.affected)

    def cured_before(self, day: date) -> str:
        """The release that fixed the issue, and its date, if that date is at least `LONG` before ``day``.

        Empty unless every affected range has such a release.
        """
        days = released().get(self.component, {})
        cures = [(days.get(range_.fixed or ""), range_.fixed) for range_ in self.affected]
        dates = [(when, version) for when, version in cures if when]
        if not dates or len(dates) < len(cures) or day - max(dates)[0] < LONG:
            return ""
        when, version = max(dates)
        return f"{self.component} {version}, which fixes the issue, was released in {when:%Y-%m}"

    def is_looked_for_by(self, result: Result) -> bool:
        """Whether this finding shows the issue: ``detected_by`` names its check or its key."""
        named = result.check in self.detected_by or result.key in self.detected_by
        did = result.finding.values.get("did")
        return named and (not self.history or not isinstance(did, list) or self._is_history(did))

    def _is_history(self, did: Sequence[Json]) -> bool:
        left = iter(did)
        return did[-1:] == [self.history[-1]] and all(operation in left for operation in self.history)

    def contradicted_by(self, finding: Finding) -> str:
        """Evidence against this issue as the cause; empty if there is none.

        The evidence is a workaround that did not help, or a control that also failed.
        """
        if self.is_cured_in(finding):
            return ""
        for env, do, outcome in self._trials(finding):
            if outcome == Trial.DOES_NOT_HELP.value and isinstance(env, dict):
                return f"but {do or _in_words(env)} does not help"
        cures = [workaround.env for workaround in self.workarounds if workaround.env]
        for item in finding.evidence:
            if item.kind is EvidenceKind.CONTROL and item.values.get("failed"):
                env = item.values.get("env")
                if env is None:
                    return "but the probe's control also failed"
                if any(cure.items() <= env.items() for cure in cures):
                    return f"but the result with {_in_words(env)} is the same"
        return ""

    def is_cured_in(self, finding: Finding) -> bool:
        """Whether a workaround of this issue was tried on the finding, and helps."""
        return any(outcome == Trial.HELPS.value for *_, outcome in self._trials(finding))

    def _trials(self, finding: Finding) -> Iterator[tuple[Json, Json, Json]]:
        """(environment, omitted operation in words, outcome) of each of this issue's workarounds that was
        tried."""
        cures = [workaround.env for workaround in self.workarounds if workaround.env]
        omissions = [list(workaround.without) for workaround in self.workarounds if workaround.without]
        for item in finding.evidence:
            values = item.values
            if item.kind is EvidenceKind.TRIAL and (
                values.get("env") in cures or values.get("without") in omissions
            ):
                yield values.get("env"), values.get("do"), values.get("outcome")

    def remedies(self, facts: Iterable[Fact]) -> tuple[str, ...]:
        """The workarounds for the version found, harmful ones last with a warning.

        If the version is unknown, each workaround is followed by the versions that it is for.
        """
        said = []
        for workaround, right in self._fitting(facts):
            unsure = "" if right else f" ({self.component} {workaround.when})"
            risk = f" (can cause {workaround.risk})" if workaround.risk else ""
            said.append(f"{workaround.do}{unsure}{risk}")
        return tuple(said)

    def remedy(self, facts: Iterable[Fact]) -> str:
        """The `remedies` in one sentence."""
        return "; or ".join(self.remedies(facts))

    def settings(self, facts: Iterable[Fact]) -> tuple[Workaround, ...]:
        """Workarounds that set environment variables, and that are known to apply to the version found."""
        return tuple(workaround for workaround, right in self._fitting(facts) if right and workaround.env)

    def omissions(self, facts: Iterable[Fact]) -> tuple[Workaround, ...]:
        """Workarounds that leave out operations, and that are known to apply to the version found."""
        return tuple(workaround for workaround, right in self._fitting(facts) if right and workaround.without)

    def _fitting(self, facts: Iterable[Fact]) -> Iterator[tuple[Workaround, bool]]:
        """(workaround, whether it certainly applies) for each workaround that may apply to the version
        found."""
        facts = NamedFacts.of(facts)
        versions = [fact.value for fact in facts.named(self.component) if fact.value is not None]
        for workaround in self.harmless_first:
            if vendors.is_for_another(workaround.env, facts) or _is_done(
                workaround, self.component, versions
            ):
                continue
            when = workaround.when
            right = any_of(when.judge(v) for v in versions) if when and versions else Verdict.UNKNOWN
            if when is None or right is not Verdict.FINE:
                yield workaround, when is None or right is Verdict.BAD

    def _judge_versions(self, facts: NamedFacts) -> tuple[Verdict, str]:
        versions = facts.named(self.component)
        found = [(fact.value, self._judge_version(fact.value)) for fact in versions if fact.value is not None]
        if not found:
            looked = "; ".join(fact.source for fact in versions)
            known = f"the version of {self.component} is not known" + (f" ({looked})" if looked else "")
            return Verdict.UNKNOWN, known
        worst = any_of(verdict for _, verdict in found)
        reasons = (self._reason(version, verdict) for version, verdict in found if verdict is worst)
        return worst, "; ".join(dict.fromkeys(reasons))

    def _judge_version(self, version: str) -> Verdict:
        if self.affected:
            return any_of(range_.judge(version) for range_ in self.affected)
        # Every node has this component: the other conditions must be met, or the issue is not reported.
        return Verdict.BAD if self.needs else Verdict.UNKNOWN

    def _reason(self, version: str, verdict: Verdict) -> str:
        what = f"{self.component} {version}"
        if not self.affected:
            return f"{what} (any version)"
        if verdict is Verdict.BAD:
            bad = ", ".join(str(range_) for range_ in self.affected if range_.judge(version) is Verdict.BAD)
            return f"{what} is affected ({bad})"
        if verdict is Verdict.FINE:
            return f"{what} is not affected; affected: {self.bad_versions}"
        if parse(self.component, version) is None:
            return f"{what} is not a comparable version; affected: {self.bad_versions}"
        if cures := [range_.fixed for range_ in self.affected if range_.lacks_cure(version)]:
            return f"{what} is older than {cures[0]}, which fixes the issue; first affected version unknown"
        return f"unknown whether {what} is affected; affected: {self.bad_versions}"


def _value(facts: NamedFacts, name: str) -> str:
    return next((fact.value for fact in facts.named(f"{ENV}{name}") if fact.value is not None), "")


def _in_words(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in env.items())
