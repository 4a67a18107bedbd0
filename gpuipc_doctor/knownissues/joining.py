"""Join the known issues with a node's versions and its probes' results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from gpuipc_doctor.knownissues import affected, cures, finding_evidence, relevance
from gpuipc_doctor.knownissues.conditions import NamedFacts
from gpuipc_doctor.knownissues.entry import KnownIssue, Suppression
from gpuipc_doctor.knownissues.relation import relation
from gpuipc_doctor.knownissues.signatures import Confidence, result_text
from gpuipc_doctor.model import Device, Evidence, EvidenceKind, Fact, Finding, Status
from gpuipc_doctor.report_types import Join, Relation, Result
from gpuipc_doctor.versions import Verdict, all_of, any_of

_LASTING = frozenset({"exports VMM memory"})
"""Steps after which memory may be missing until a hard reboot. These steps are omitted even if it is unknown
whether the version is affected."""


PAIRS = ("ipc-peer",)
"""The check of two GPUs: what only it can show does not concern a node with one."""


@dataclass(frozen=True, slots=True)
class Harm:
    """A step of our own probes (`probe_types.Probe.harms`) that must not run on a device, and why."""

    step: str
    device: str
    """Label of the device."""
    issue: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Part:
    """The facts of a node that concern one of its devices."""

    label: str
    facts: Sequence[Fact]
    backend: str

    @staticmethod
    def of(device: Device, facts: Iterable[Fact]) -> _Part:
        others = relevance.foreign_to(device.backend) | {"gpu-model"}
        own = [fact for fact in facts if fact.name not in others]
        model = Fact("gpu-model", device.name, device.label)
        return _Part(device.label, NamedFacts((*own, model)), device.backend)

    def may_have(self, issue: KnownIssue) -> bool:
        """Whether the issue may concern this device: it is not about another vendor's devices."""
        return relevance.concerns(issue, self.backend)


def match_versions(
    issues: Iterable[KnownIssue], facts: Sequence[Fact], devices: Sequence[Device] = ()
) -> tuple[Join, ...]:
    """Known issues that the versions alone suggest, before any probe has run: all are `Relation.LATENT`."""
    return join(issues, facts, (), devices)


def join(
    issues: Iterable[KnownIssue],
    facts: Sequence[Fact],
    results: Sequence[Result],
    devices: Sequence[Device] = (),
    today: date | None = None,
) -> tuple[Join, ...]:
    """Each known issue's relation to this node; unrelated issues are omitted.

    With ``devices``, facts are combined per device: on a node with two kinds of GPU, an issue that needs a
    model and a version is expected only on GPUs that have both.
    """
    today = today or date.today()
    facts = NamedFacts.of(facts)
    each = [_Part.of(device, facts) for device in devices]
    issues = [issue for issue in issues if not issue.withdrawn]
    evidence = _Evidence(issues, results)
    return tuple(
        told
        for issue in issues
        for join in _join(issue, facts, results, each, evidence)
        for told in _apply_suppression(join, issue.suppression, today)
    )


def _join(
    issue: KnownIssue,
    facts: Sequence[Fact],
    results: Sequence[Result],
    parts: Sequence[_Part],
    texts: _Evidence,
) -> Iterator[Join]:
    verdict, reason, facts, concerned = _judge(issue, facts, parts)
    is_foreign = bool(parts) and not any(part.may_have(issue) for part in parts)
    asked = [
        result
        for result in results
        if finding_evidence.shows(issue, result) and _is_on(result, concerned)
        if not (is_foreign and result.devices)
    ]
    tried = _trials(asked)

    def with_trials(result: Result) -> Finding:
        trials = tried[result.check, result.finding.identity]
        return replace(result.finding, evidence=(*result.finding.evidence, *trials))

    least = Confidence.LOW if verdict is Verdict.BAD else Confidence.MEDIUM
    against, failed, telling = list[str](), list[Result](), list[Result]()
    for result in asked:
        if result.finding.status not in (Status.WARN, Status.FAIL):
            continue
        if contradiction := finding_evidence.contradiction(issue, with_trials(result)):
            against.append(contradiction)
            continue
        if result.finding.status is Status.FAIL:
            failed.append(result)
        if texts.confidence(issue, result, facts) >= least:
            telling.append(result)
    is_bad = verdict is Verdict.BAD
    # A warning shows an issue only through a signature.
    guilty = failed if is_bad and not issue.signatures else telling
    related = relation(verdict, bool(guilty))
    if related is None:
        return
    speaking = guilty or asked
    if related is Relation.CONFIRMED and not any(texts.is_told(issue, result) for result in guilty):
        is_cured = any(finding_evidence.is_cured(issue, with_trials(result)) for result in guilty)
        compared = "and that its workaround helps" if is_cured else "no text or call"
        reason += f"; compared: the version, and which finding it is; {compared}"
        if not is_cured and not any(texts.is_certain(issue, result) for result in guilty):
            related = Relation.UNKNOWN
    if not guilty and asked:
        reason += f"; {'; '.join(dict.fromkeys(against)) or _not_seen(asked)}"
    where = dict.fromkeys(result.subject for result in speaking)
    if not where and len(concerned) < len(parts):
        where = dict.fromkeys(concerned)
    yield Join(
        issue=issue.id,
        title=issue.title,
        relation=related,
        reason=reason,
        remedy=cures.remedy(issue, facts),
        checks=tuple(dict.fromkeys(result.check for result in speaking)),
        subjects=tuple(where),
        component=issue.component,
        findings=() if related is Relation.LATENT else tuple(dict.fromkeys(r.ref for r in speaking)),
    )


def _trials(results: Iterable[Result]) -> Mapping[tuple[str, tuple[str, ...]], Sequence[Evidence]]:
    """(check, finding's identity) → workarounds tried.

    They are tried on one of a check's equal failures; the effect is evidence about all of these.
    """
    tried = defaultdict[tuple[str, tuple[str, ...]], list[Evidence]](list)
    for result in results:
        trials = (item for item in result.finding.evidence if item.kind is EvidenceKind.TRIAL)
        tried[result.check, result.finding.identity] += trials
    return tried


class _Evidence:
    """Which signatures the results show. Their texts are read once, for all issues."""

    def __init__(self, issues: Iterable[KnownIssue], results: Iterable[Result]) -> None:
        bad = [result for result in results if result.finding.status in (Status.WARN, Status.FAIL)]
        asked = [issue for issue in issues if any(finding_evidence.shows(issue, result) for result in bad)]
        signatures = [signature for issue in asked for signature in issue.signatures]
        self._shown: dict[int, set[int]] = {}
        if not signatures:
            return
        from gpuipc_doctor.knownissues.scanner import Search  # a prolog of a healthy node needs no search

        search = Search(signatures)
        self._shown = {
            id(result): {
                *(id(signatures[number]) for number in search.shown(result_text(result))),
                *(id(signature) for signature in signatures if signature.is_shown_by(result)),
            }
            for result in bad
        }

    def is_told(self, issue: KnownIssue, result: Result) -> bool:
        """Whether a text or call of the result shows the issue, and not only the key of its finding."""
        shown = self._shown.get(id(result), ())
        return any(id(signature) in shown and not signature.finding for signature in issue.signatures)

    def is_certain(self, issue: KnownIssue, result: Result) -> bool:
        """Whether the finding itself shows this issue and no other: ``detected_by`` alone names it, or a
        signature of high confidence."""
        shown = self._shown.get(id(result), ())
        sure = (s.confidence is Confidence.HIGH for s in issue.signatures if id(s) in shown)
        return not issue.signatures or any(sure)

    def confidence(self, issue: KnownIssue, result: Result, facts: Iterable[Fact]) -> int:
        """The confidence with which a result shows an issue; 0 if it does not."""
        shown = self._shown.get(id(result), ())
        sure = (s.confidence for s in issue.signatures if id(s) in shown and s.applies(facts) is Verdict.BAD)
        return max(sure, default=0)


def _judge(
    issue: KnownIssue, facts: Sequence[Fact], parts: Sequence[_Part]
) -> tuple[Verdict, str, Sequence[Fact], list[str]]:
    """(verdict on an issue, reason, facts that decided, labels of the affected devices).

    If the verdict differs between devices, the worst verdict counts, and the devices with this verdict are
    affected.
    """
    if len(parts) == 1 and issue.checks == PAIRS:
        return Verdict.FINE, "one GPU has no peer", facts, []
    judged = [(*affected.judge(issue, part.facts), part) for part in parts if part.may_have(issue)]
    if not judged:
        if parts and not any(relevance.concerns(issue, backend) for backend in relevance.with_driver(facts)):
            return Verdict.FINE, "neither a GPU nor a driver of its vendor was found", facts, []
        return (*affected.judge(issue, facts), facts, [])
    worst = any_of(verdict for verdict, *_ in judged)
    chosen = [verdict for verdict in judged if verdict[0] is worst]
    _, reason, first = chosen[0]
    return worst, reason, first.facts, [part.label for *_, part in chosen]


def harms(issues: Iterable[KnownIssue], facts: Sequence[Fact], devices: Sequence[Device]) -> Iterator[Harm]:
    """Steps of our own probes that must not run on these devices with the versions found."""
    each = [_Part.of(device, facts) for device in devices]
    for issue in issues:
        if not issue.harms or issue.withdrawn:
            continue
        for part in (part for part in each if part.may_have(issue)):
            verdict, reason = affected.judge(issue, part.facts)
            # If the affected versions are unknown, the issue's other conditions decide.
            expected = bool(issue.needs) and all_of(n.judge(part.facts) for n in issue.needs) is Verdict.BAD
            for step in issue.harms:
                unsure = verdict is Verdict.UNKNOWN and (expected or step in _LASTING)
                if verdict is Verdict.BAD or unsure:
                    yield Harm(step, part.label, issue.id, issue.title, reason)


def _is_on(result: Result, labels: Sequence[str]) -> bool:
    """Whether a result is about one of these devices, or about the node."""
    return not labels or not result.devices or not set(labels).isdisjoint(result.devices)


def _apply_suppression(one: Join, suppression: Suppression | None, today: date) -> Iterator[Join]:
    """Apply a site's suppression: drop a latent issue, annotate any other."""
    if suppression is None:
        yield one
        return
    wish = f"({suppression.reason}; {suppression.where})"
    if not suppression.holds(today):
        said = f"the site's suppression of the issue expired on {suppression.until} {wish}"
        yield replace(one, reason=f"{one.reason}; {said}")
    elif one.relation is not Relation.LATENT:
        said = f"suppressed until {suppression.until} only while no probe shows the issue {wish}"
        yield replace(one, reason=f"{one.reason}; {said}")


def _not_seen(asked: Sequence[Result]) -> str:
    """Results of an issue's checks if none of them showed the issue."""
    said = {
        Status.FAIL: "failed differently",
        Status.ERROR: "could not tell",
        Status.SKIP: "did not run",
    }
    worst = max((result.finding.status for result in asked), key=lambda status: status.severity)
    if worst is Status.SKIP and any(r.finding.status is not Status.SKIP for r in asked):
        worst = Status.PASS
    checks = ", ".join(dict.fromkeys(result.check for result in asked))
    return f"{checks} {said.get(worst, 'did not show the issue')}"
