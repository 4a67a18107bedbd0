"""Look up the versions found on this node in the database of known issues; probes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Evidence, EvidenceKind, Finding, Tier


class KnownVersions(Check):
    id = "known-versions"
    title = "no version on this node is known to be bad"
    tier = Tier.PROLOG

    def probes(self, ctx: Context) -> Iterable[Finding]:
        for match in ctx.version_matches:
            told = Evidence(EvidenceKind.ISSUE, match.title, {"issue": match.issue})
            yield Finding.warn(
                "known-bad",
                "{issue}: {reason}",
                told,
                remedy=match.remedy,
                issue=match.issue,
                reason=match.reason,
            )
        for one in ctx.unexpected:
            yield Finding.warn(
                "unexpected",
                "{name} is {found}, and {where} expects {wanted}",
                *([one.why] if one.why else []),
                remedy="install what the site expects, or correct that line",
                name=one.name,
                found=one.found,
                where=one.where,
                wanted=one.wanted,
            )
        if not (ctx.version_matches or ctx.unexpected):
            known = [f"{fact.name} {fact.value}" for fact in ctx.inventory if fact.value]
            yield Finding.ok("not-known-bad", "no known issue has these versions", *known)


CHECK = KnownVersions()
