"""Join the known issues with the versions of a node and with what the probes saw there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from gpuipc_doctor.knownissues.entry import KnownIssue, Suppression
from gpuipc_doctor.knownissues.signatures import Confidence
from gpuipc_doctor.model import Device, Fact, Join, Relation, Result, Status
from gpuipc_doctor.versions import Verdict, all_of, any_of

_AGAINST = {Verdict.FINE: Relation.NEW, Verdict.UNKNOWN: Relation.UNKNOWN}

_OF_BACKEND = {
    "cuda": frozenset(
        [
            "nvidia-driver",
            "nvidia-module",
            "nvidia-peermem",
            "mlnx-ofed",
            "libcuda",
            "cuda-driver",
            "cuda-runtime",
            "gdrcopy",
            "mig",
            "nccl",
        ]
    ),
    "hip": frozenset(["amdgpu", "rocm", "hip-driver", "hip-runtime", "rccl"]),
}
"""Facts that concern the devices of one backend only."""


_LASTING = frozenset({"exports VMM memory"})
"""Steps that may cost a node its memory until a hard reboot: they are left out, too, where it is not known
whether the version found is bad."""


@dataclass(frozen=True, slots=True)
class Harm:
    """A step of our own probes (`model.Probe.harms`) that must not run on a device, and why."""

    step: str
    device: str
    """Its label."""
    issue: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Part:
    """A node as far as one of its devices is concerned."""

    label: str
    facts: Sequence[Fact]
    foreign: frozenset[str]
    """Names of facts that concern the devices of other vendors only."""

    @staticmethod
    def of(device: Device, facts: Iterable[Fact]) -> _Part:
        foreign = frozenset().union(*(of for backend, of in _OF_BACKEND.items() if backend != device.backend))
        others = foreign | {"gpu-model"}
        own = [fact for fact in facts if fact.name not in others]
        model = Fact("gpu-model", device.name, device.label)
        return _Part(device.label, (*own, model), foreign)

    def may_have(self, issue: KnownIssue) -> bool:
        """Whether the issue is not about another vendor's devices."""
        return self.foreign.isdisjoint((issue.component, *(need.fact for need in issue.needs)))


def match_versions(
    issues: Iterable[KnownIssue], facts: Sequence[Fact], devices: Sequence[Device] = ()
) -> tuple[Join, ...]:
    """The known issues to be expected of the versions alone, before any probe ran: all `Relation.LATENT`."""
    return join(issues, facts, (), devices)


def join(
    issues: Iterable[KnownIssue],
    facts: Sequence[Fact],
    results: Sequence[Result],
    devices: Sequence[Device] = (),
    today: date | None = None,
) -> tuple[Join, ...]:
    """What each known issue has to do with this node; one that has nothing to do with it is left out.

    With ``devices``, the facts are put together for each of them: on a node with two kinds of GPU, an issue
    that takes a model and a version is expected of those GPUs only on which both are found.
    """
    today = today or date.today()
    each = [_Part.of(device, facts) for device in devices]
    return tuple(
        told
        for issue in issues
        if not issue.withdrawn
        for one in _join(issue, facts, results, each)
        for told in _apply_suppression(one, issue.suppression, today)
    )


def _join(
    issue: KnownIssue, facts: Sequence[Fact], results: Sequence[Result], parts: Sequence[_Part]
) -> Iterator[Join]:
    verdict, reason, facts, concerned = _judge(issue, facts, parts)
    asked = [r for r in results if issue.is_looked_for_by(r) and _is_on(r, concerned)]
    least = Confidence.LOW if verdict is Verdict.BAD else Confidence.MEDIUM
    against, failed, telling = list[str](), list[Result](), list[Result]()
    for result in asked:
        if result.finding.status not in (Status.WARN, Status.FAIL):
            continue
        if contradiction := issue.contradicted_by(result.finding):
            against.append(contradiction)
            continue
        if result.finding.status is Status.FAIL:
            failed.append(result)
        if (issue.recognises(result, facts) or 0) >= least:
            telling.append(result)
    if verdict is Verdict.BAD:
        guilty = telling if issue.signatures else failed  # a warning shows an issue only by a signature
        relation = Relation.CONFIRMED if guilty else Relation.LATENT
        speaking = guilty or asked
        if not guilty and asked:
            reason += f"; {'; '.join(dict.fromkeys(against)) or _not_seen(asked)}"
    elif telling:
        relation, speaking = _AGAINST[verdict], telling
    else:
        return
    where = dict.fromkeys(result.subject for result in speaking)
    if not where and len(concerned) < len(parts):
        where = dict.fromkeys(concerned)
    yield Join(
        issue=issue.id,
        title=issue.title,
        relation=relation,
        reason=reason,
        remedy=issue.remedy(facts),
        checks=tuple(dict.fromkeys(result.check for result in speaking)),
        subjects=tuple(where),
        component=issue.component,
    )


def _judge(
    issue: KnownIssue, facts: Sequence[Fact], parts: Sequence[_Part]
) -> tuple[Verdict, str, Sequence[Fact], list[str]]:
    """What the facts say of an issue, why, which facts these are, and the labels of the devices they concern.

    The devices are those for which the facts say the worst.
    """
    judged = [(*issue.judge(part.facts), part) for part in parts if part.may_have(issue)]
    if not judged:
        return (*issue.judge(facts), facts, [])
    worst = any_of(verdict for verdict, *_ in judged)
    chosen = [one for one in judged if one[0] is worst]
    _, reason, first = chosen[0]
    return worst, reason, first.facts, [part.label for *_, part in chosen]


def harms(issues: Iterable[KnownIssue], facts: Sequence[Fact], devices: Sequence[Device]) -> Iterator[Harm]:
    """The steps of our own probes that must not run on these devices, for the versions found there."""
    each = [_Part.of(device, facts) for device in devices]
    for issue in issues:
        if not issue.harms or issue.withdrawn:
            continue
        for part in (part for part in each if part.may_have(issue)):
            verdict, reason = issue.judge(part.facts)
            # Where nobody can say which versions are bad, what else the issue asks for decides.
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
        said = f"its suppression expired on {suppression.until} {wish}"
        yield replace(one, reason=f"{one.reason}; {said}")
    elif one.relation is not Relation.LATENT:
        said = f"suppressed until {suppression.until} where versions alone suggest it {wish}"
        yield replace(one, reason=f"{one.reason}; {said}")


def _not_seen(asked: Sequence[Result]) -> str:
    """What the checks that look for an issue said, when none of them saw it."""
    said = {
        Status.FAIL: "failed in another way",
        Status.ERROR: "could not tell",
        Status.SKIP: "did not run",
    }
    worst = max((result.finding.status for result in asked), key=lambda status: status.severity)
    if worst is Status.SKIP and any(r.finding.status is not Status.SKIP for r in asked):
        worst = Status.PASS
    checks = ", ".join(dict.fromkeys(result.check for result in asked))
    return f"{checks} {said.get(worst, 'did not see it here')}"
