"""Look up the versions found on this node in the database of known issues; probes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Finding, Tier


class KnownVersions(Check):
    id = "known-versions"
    title = "no version on this node is known to be bad"
    tier = Tier.PROLOG

    def probes(self, ctx: Context) -> Iterable[Finding]:
        for match in ctx.version_matches:
            yield Finding.warn(f"{match.issue}: {match.reason}", match.title, remedy=match.remedy)
        if not ctx.version_matches:
            known = [f"{fact.name} {fact.value}" for fact in ctx.inventory if fact.value]
            yield Finding.ok("no known issue has these versions", *known)


CHECK = KnownVersions()
