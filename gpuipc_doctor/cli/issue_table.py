"""All known issues as a Markdown document (docs/known-issues.md), by what is seen and by component."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from gpuipc_doctor.inventory import NAMES
from gpuipc_doctor.knownissues import KnownIssue, Workaround

_HEAD = """\
# Known issues

What gpuipc-doctor knows to be broken, [by what is seen](#by-what-is-seen) and by [component](#by-component).
This file is made from the database by `gpuipc-doctor known-issues list --markdown`; do not edit it.
`gpuipc-doctor explain ID` says all of an issue, and [its format](known-issues-format.md) is described
beside this file.

Versions: *unknown* stands where nobody has said; such an issue is reported when its signature is found in a
log or in what a check saw, and never because of a version. *Any* means that versions do not decide.

## By what is seen
"""

_SEEN = {
    "corruption": "Wrong results",
    "crash": "A crash",
    "hang": "A hang",
    "error": "An error",
    "leak": "Memory or handles that are not given back",
    "perf": "It is slow",
    "config": "Something is set up wrongly",
    "limitation": "Something that cannot be done",
    "probe-harms": "A node that a probe of gpuipc-doctor would harm",
}


def markdown(issues: Iterable[KnownIssue]) -> str:
    """The document; withdrawn issues are left out."""
    order = list(NAMES)
    known = sorted((issue for issue in issues if not issue.withdrawn), key=lambda i: order.index(i.component))
    lines = [_HEAD]
    for kind, seen in _SEEN.items():
        lines += [f"### {seen}", "", *(_entry(issue) for issue in known if issue.kind == kind), ""]
    lines += ["## By component", ""]
    for component, group in groupby(known, key=lambda issue: issue.component):
        members = list(group)
        lines += [f"### {component}", "", *_table(members), ""]
    lines.append(f"{len(known)} issues.\n")
    return "\n".join(lines)


def _entry(issue: KnownIssue) -> str:
    return f"- {issue.component}: [{_cell(issue.title)}](#{issue.id})"


def _table(issues: Sequence[KnownIssue]) -> Iterator[str]:
    yield "| issue | versions | what helps |"
    yield "|---|---|---|"
    for issue in issues:
        what = f'<a id="{issue.id}"></a>[{issue.id}]({issue.references[0].url}) ({issue.kind}): {issue.title}'
        where = issue.bad_versions.replace("any, as far as is known", "any")
        if issue.needs:
            where += f", with {', '.join(f'`{need}`' for need in issue.needs)}"
        helps = "; ".join(map(_help, issue.harmless_first)) or "–"
        yield f"| {_cell(what)} | {_cell(where)} | {_cell(helps)} |"


def _help(workaround: Workaround) -> str:
    settings = " ".join(f"{name}={value}" for name, value in workaround.env.items())
    do = workaround.do.replace(settings, f"`{settings}`") if settings else workaround.do
    when = f" ({workaround.when})" if workaround.when else ""
    return f"{do}{when}" + (f" (may give rise to {workaround.risk})" if workaround.risk else "")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())
