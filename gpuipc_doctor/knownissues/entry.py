"""One known issue: where it is, how it shows, what is known to be bad, and what helps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.releases import LONG, RELEASED
from gpuipc_doctor.knownissues.signatures import Confidence, Signature
from gpuipc_doctor.model import EvidenceKind, Fact, Finding, Json, Result, Trial
from gpuipc_doctor.report import sentences
from gpuipc_doctor.versions import Range, Verdict, all_of, any_of, parse


@dataclass(frozen=True, slots=True)
class Workaround:
    """Something that helps: words for a person, an environment for a program, or both."""

    do: str
    env: Mapping[str, str] = field(default_factory=dict)
    when: Range | None = None
    """The versions of the component in which this is right; everywhere when None."""
    cost: str = ""
    risk: str = ""
    """What it may give rise to: wrong results, a hang or a crash."""
    risk_source: str = ""
    """The address of who says so."""
    conflicts: tuple[str, ...] = ()
    """Known issues that this workaround brings about."""
    without: tuple[str, ...] = ()
    """Operations of histories that a program leaves out which does so."""


_UPGRADE = re.compile(r"use ([A-Za-z ]+?) (\d[\d.]*) or newer")


def _is_done(workaround: Workaround, component: str, versions: Collection[str]) -> bool:
    """Whether it is an upgrade of the component to a version that all those found have already."""
    upgrade = _UPGRADE.match(workaround.do)
    if not upgrade or upgrade[1].lower().replace(" ", "-") not in (
        component,
        component.replace("mpi", "-mpi"),
    ):
        return False
    older = Range(component, introduced="0", fixed=upgrade[2])
    return bool(versions) and all(older.judge(version) is Verdict.FINE for version in versions)


_VENDORS = {"CUDA": ("nvidia-driver", "cuda-driver"), "ROC": ("amdgpu", "hip-driver")}
"""What stands in names of variables about one vendor's GPUs, and the facts of its drivers."""


def _is_of_another_vendor(env: Mapping[str, str], facts: Iterable[Fact]) -> bool:
    """Whether every variable is about GPUs of a vendor whose driver was not found, but another's was."""
    found = {fact.name for fact in facts if fact.value}
    here = {word for word, drivers in _VENDORS.items() if not found.isdisjoint(drivers)}
    others = _VENDORS.keys() - here
    return bool(env and here) and all(any(word in name for word in others) for name in env)


@dataclass(frozen=True, slots=True)
class Reference:
    type: str
    url: str


@dataclass(frozen=True, slots=True)
class Lookalike:
    """Another issue that leaves the same lines."""

    id: str
    decide: str
    """What to look at to tell the two apart: a command, a variable, a word of the log."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """A site's decision to hear nothing of an issue that its versions alone suggest, until a day."""

    reason: str
    until: date
    """The last day on which it holds."""
    where: str
    """``file:line``."""

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
"""What an issue can be, the gravest first: a GPU or a link that failed, then a node that killed the job."""


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """One entry of the database, in the words of its file; ``schema.json`` says what each may hold."""

    id: str
    title: str
    component: str
    kind: str
    """The file's ``class``, one of `KINDS`."""
    status: str
    symptom: str
    references: tuple[Reference, ...]
    affected: tuple[Range, ...] = ()
    """Bad when any of them is. Empty where versions do not decide: then ``needs`` do."""
    needs: tuple[Need, ...] = ()
    """All must hold."""
    signatures: tuple[Signature, ...] = ()
    """How it shows in logs and stacks; one of them is enough."""
    silent: str = ""
    """Why no log can show it, though the symptom speaks of a message."""
    harms: tuple[str, ...] = ()
    """The steps of our own probes (`harms` of a probe) that must not run where this issue is."""
    detected_by: tuple[str, ...] = ()
    """Checks, or keys of their findings."""
    history: tuple[str, ...] = ()
    """What the process does that fails in a history of ipc-histories: in this order, and the last fails."""
    workarounds: tuple[Workaround, ...] = ()
    resembles: tuple[Lookalike, ...] = ()
    """One of two that resemble each other names the other."""
    trigger: str = ""
    also: tuple[str, ...] = ()
    evidence: str = ""
    inferred: tuple[str, ...] = ()
    """What is our own conclusion and stands in no source."""
    notes: str = ""
    withdrawn: str = ""
    """Why this entry no longer counts; it stays so that its id is never used again."""
    overrides: str = ""
    """A site's reason for putting this entry in the place of the shipped one."""
    suppression: Suppression | None = None
    where: str = ""
    """``file:line``."""

    @property
    def severity(self) -> int:
        """The place in `KINDS`: 0 is the gravest."""
        return KINDS.index(self.kind)

    @property
    def bad_versions(self) -> str:
        return ", ".join(map(str, self.affected)) or "any, as far as is known"

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that show it, whether it names them or keys of their findings."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.detected_by))

    @property
    def harmless_first(self) -> tuple[Workaround, ...]:
        """The workarounds; those that may do harm come last."""
        return tuple(sorted(self.workarounds, key=lambda one: bool(one.risk)))

    def judge(self, facts: Iterable[Fact]) -> tuple[Verdict, str]:
        """Whether this node is one on which the fault is to be expected, and why that is so."""
        facts = tuple(facts)
        verdict, reason = self._judge_versions(facts)
        held, lacking = [], ""
        for need in self.needs:
            holds = need.judge(facts)
            verdict = all_of((verdict, holds))
            if holds is not Verdict.BAD:
                why = "does not fit" if holds is Verdict.FINE else "is not known"
                lacking += f"; also required: {need}, which {why}"
            elif not need.is_mere_presence:
                held.append(need.found(facts))
        return verdict, reason + (f" with {', '.join(held)}" if held else "") + lacking

    @property
    def has_cure(self) -> bool:
        """Whether newer versions are known to be without it."""
        return any(one.fixed not in ("", "unknown", None) for one in self.affected)

    def cured_before(self, day: date) -> str:
        """The release that cured it long before this day, with its date; empty unless all ranges have one."""
        released = RELEASED.get(self.component, {})
        cures = [(released.get(one.fixed or ""), one.fixed) for one in self.affected]
        dates = [(when, version) for when, version in cures if when]
        if not dates or len(dates) < len(cures) or day - max(dates)[0] < LONG:
            return ""
        when, version = max(dates)
        return f"{self.component} {version}, which mends this, is of {when:%Y-%m}"

    def is_looked_for_by(self, result: Result) -> bool:
        """Whether it is one of those that show this issue, which names checks, or keys of their findings."""
        named = result.check in self.detected_by or result.key in self.detected_by
        did = result.finding.values.get("did")
        return named and (not self.history or not isinstance(did, list) or self._is_history(did))

    def _is_history(self, did: Sequence[Json]) -> bool:
        left = iter(did)
        return did[-1:] == [self.history[-1]] and all(operation in left for operation in self.history)

    def contradicted_by(self, finding: Finding) -> str:
        """What the evidence says against this issue being the cause; empty if it says nothing.

        A setting that cures it was tried and did not help; or a control failed as well.
        """
        cures = [workaround.env for workaround in self.workarounds if workaround.env]
        omissions = [list(workaround.without) for workaround in self.workarounds if workaround.without]
        trials = [
            (item.values.get("env"), item.values.get("do"), item.values.get("outcome"))
            for item in finding.evidence
            if item.kind is EvidenceKind.TRIAL
            and (item.values.get("env") in cures or item.values.get("without") in omissions)
        ]
        if any(outcome == Trial.HELPS.value for *_, outcome in trials):
            return ""
        for env, do, outcome in trials:
            if outcome == Trial.DOES_NOT_HELP.value and isinstance(env, dict):
                return f"but {do or _in_words(env)} does not help"
        for item in finding.evidence:
            if item.kind is EvidenceKind.CONTROL and item.values.get("failed"):
                env = item.values.get("env")
                if env is None:
                    return "but the control failed, too"
                if any(cure.items() <= env.items() for cure in cures):
                    return f"but with {_in_words(env)} it is the same"
        return ""

    def recognises(self, result: Result, facts: Iterable[Fact]) -> Confidence | None:
        """How sure it is that this result, by its words and by what its roles left, shows this issue."""
        lines = [sentences.summary(result.finding), *sentences.evidence(result.finding)]
        for role in result.roles:
            lines += [str(role.fault or ""), role.exception]
            lines += [f"  {frame}" for frame in (*role.python_stack, *role.native_stack)]
            lines += [*role.kernel, *role.log_tail]
        text = "\n".join(lines)
        facts = tuple(facts)
        found = (
            signature.confidence
            for signature in self.signatures
            if signature.applies(facts) is Verdict.BAD and signature.found_in(text)
        )
        return max(found, default=None)

    def remedy(self, facts: Iterable[Fact]) -> str:
        """The workarounds that are right for the version found; those that may be, with their condition.

        What may do harm comes last and says so.
        """
        said = []
        for workaround, right in self._fitting(facts):
            unsure = "" if right else f" ({self.component} {workaround.when})"
            risk = f" (may give rise to {workaround.risk})" if workaround.risk else ""
            said.append(f"{workaround.do}{unsure}{risk}")
        return "; or ".join(said)

    def settings(self, facts: Iterable[Fact]) -> tuple[Workaround, ...]:
        """The workarounds that are an environment and known to be right for the version found."""
        return tuple(workaround for workaround, right in self._fitting(facts) if right and workaround.env)

    def omissions(self, facts: Iterable[Fact]) -> tuple[Workaround, ...]:
        """The workarounds that leave out operations, known to be right for the version found."""
        return tuple(workaround for workaround, right in self._fitting(facts) if right and workaround.without)

    def _fitting(self, facts: Iterable[Fact]) -> Iterator[tuple[Workaround, bool]]:
        """The workarounds that are not wrong for the version found, and whether each is known to be right."""
        facts = tuple(facts)
        versions = [fact.value for fact in facts if fact.name == self.component and fact.value is not None]
        for workaround in self.harmless_first:
            if _is_of_another_vendor(workaround.env, facts) or _is_done(workaround, self.component, versions):
                continue
            when = workaround.when
            right = any_of(when.judge(v) for v in versions) if when and versions else Verdict.UNKNOWN
            if when is None or right is not Verdict.FINE:
                yield workaround, when is None or right is Verdict.BAD

    def _judge_versions(self, facts: tuple[Fact, ...]) -> tuple[Verdict, str]:
        versions = [fact for fact in facts if fact.name == self.component]
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
            return any_of(one.judge(version) for one in self.affected)
        # Everybody has this: what it takes beside the component must be here, or nothing is said.
        return Verdict.BAD if self.needs else Verdict.UNKNOWN

    def _reason(self, version: str, verdict: Verdict) -> str:
        what = f"{self.component} {version}"
        if not self.affected:
            return f"{what} (no matter which version)"
        if verdict is Verdict.BAD:
            bad = ", ".join(str(one) for one in self.affected if one.judge(version) is Verdict.BAD)
            return f"{what} is among the versions known to be bad ({bad})"
        if verdict is Verdict.FINE:
            return f"{what} is not among the versions known to be bad ({self.bad_versions})"
        if parse(self.component, version) is None:
            return f"{what} cannot be compared; known to be bad: {self.bad_versions}"
        if cures := [one.fixed for one in self.affected if one.lacks_cure(version)]:
            return f"{what} is older than {cures[0]}, which mends this; since when it was there nobody said"
        return f"nobody has said whether {what} is affected; known to be bad: {self.bad_versions}"


def _in_words(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in env.items())


_NVIDIA = frozenset(
    ["nvidia-driver", "cuda-driver", "cuda-runtime", "nvidia-peermem", "nvidia-module", "gdrcopy", "mig"]
)
_AMD = frozenset(["rocm", "hip-driver", "hip-runtime", "amdgpu", "rccl"])


def may_concern(issue: KnownIssue, facts: Iterable[Fact]) -> bool:
    """Whether a node of these facts may have the issue: it is not one vendor's and the node the other's."""
    there = {fact.name for fact in facts if fact.value is not None}
    asked = {issue.component, *(need.fact for need in issue.needs if not need.absent)}
    return not any(
        own & asked and other & there and not own & there for own, other in ((_NVIDIA, _AMD), (_AMD, _NVIDIA))
    )
