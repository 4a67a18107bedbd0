"""Look up this node's versions in the database of known issues; tests nothing.

``gpuipc-doctor known-issues list`` prints the database. A version that differs from what the site config
expects gets the status that the config states. The database has read each component's notes until
a version (``knownissues/read_until.yaml``): a newer one passes, and is named as newer than the data.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Evidence, EvidenceKind, Finding, Tier


class KnownVersions(Check):
    id = "known-versions"
    title = "no version on this node has a known issue"
    subject = None
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
        for version in ctx.unexpected:
            yield Finding.of(
                version.status,
                "unexpected",
                "{name} is {found}; {where} expects {wanted}",
                *([version.why] if version.why else []),
                remedy=f"install the expected version, or correct {version.where}",
                name=version.name,
                found=version.found,
                where=version.where,
                wanted=version.wanted,
            )
        if ctx.unread:
            newer = (f"{fact.name} {fact.value} is {fact.source}" for fact in ctx.unread)
            yield Finding.ok("newer-than-data", "{versions}", versions="; ".join(newer))
        elif not (ctx.version_matches or ctx.unexpected):
            known = [f"{fact.name} {fact.value}" for fact in ctx.inventory if fact.value]
            yield Finding.ok("not-known-bad", "no known issue affects these versions", *known)


CHECK = KnownVersions()
