"""The report as JSON for programs, and its parser.

``report.schema.json`` describes the document. A field may be added, and earlier reports are read with that
field's default, so that reports can be compared across an upgrade of this tool; any other change raises the
number at the end of `SCHEMA`. Beside the fields of `Report`, the document has derived ones (`HEAD`)
for scripts, which the parser ignores.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Status, Subject
from gpuipc_doctor.report import acceptance, exits, json_documents, merged_results
from gpuipc_doctor.report.json_documents import BadDocument, ForeignDocument
from gpuipc_doctor.report_types import Report, Result

SCHEMA = "gpuipc-doctor/report/2"
HEAD: dict[str, Any] = {
    "exit_code": int,
    "totals": dict[Status, int],
    "matrix": dict[str, dict[str, Status]],
    "untested": dict[Subject, str],
}
"""Derived fields: exit code of the run, number of checks by worst status, worst status of each check on each
device or pair; what of `Subject` was not tested, and why."""

_LABEL = re.compile(r"[a-z]+:[0-9]{1,9}")


KIND = json_documents.Kind(SCHEMA, Report, "The results of one run on one node.", HEAD)


def dumps(report: Report, *, exit_code: int | None = None) -> str:
    """``report`` as a JSON document in ASCII, ending in a newline.

    ``exit_code`` is the run's exit code; if it is not given, it is that of the default style.
    """
    totals = merged_results.totals(report)
    return KIND.dumps(
        report,
        exit_code=exits.code(report) if exit_code is None else exit_code,
        totals={status: totals[status] for status in Status},
        untested=acceptance.untested(report.checks, report.results),
        matrix={check: _row(results) for check, results in merged_results.by_check(report).items()},
    )


def _row(results: list[Result]) -> dict[str, Status]:
    subjects = by_key((result.subject, result) for result in results)
    return {subject: status for subject, of in subjects.items() if (status := merged_results.worst(of))}


def loads(text: str | bytes) -> Report:
    """Parse a report. Raises `BadDocument` for anything else."""
    document = json_documents.parse(text)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        is_report = isinstance(found, str) and found.startswith(SCHEMA.rpartition("/")[0])
        what = "report was written by another version of gpuipc-doctor" if is_report else "is not a report"
        kind = BadDocument if is_report else ForeignDocument
        raise kind(f'this {what}: "schema" is {json.dumps(found)[:80]}, not "{SCHEMA}"')
    report = json_documents.load(Report, document, ("schema", *HEAD))
    labels = [device.label for device in report.devices]
    for label in (*labels, *(label for result in report.results for label in result.devices)):
        if not _LABEL.fullmatch(label):
            raise BadDocument(f"$: {label[:80]!r} is not a device such as 'cuda:0'")
    return report
