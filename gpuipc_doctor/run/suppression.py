"""What a site does not want to hear of, by the key of a finding: it is a SKIP then, never silently gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Result, Status
from gpuipc_doctor.site.config import Waiver


def apply(result: Result, suppressed: Mapping[str, Waiver], today: date) -> Result:
    """The result as the site wishes to see it; after the last day of that, as it is, and it says so."""
    finding, wish = result.finding, suppressed.get(result.key)
    if wish is None or finding.status in (Status.PASS, Status.SKIP):
        return result
    values = {"where": wish.where, "reason": wish.reason}
    if wish.has_expired(today):
        says = "counts again: it was suppressed until {until} at {where}: {reason}"
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
