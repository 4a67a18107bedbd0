"""A node's report for programs and browsers: HTML page, JUnit XML, Prometheus metrics."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from xml.etree import ElementTree

from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.present.blocks import EMPTY
from gpuipc_doctor.present.html import page
from gpuipc_doctor.present.junit import case, document
from gpuipc_doctor.present.metrics import SEVERITIES, Metric, by, exposition, moment
from gpuipc_doctor.present.text import device_key, sanitise
from gpuipc_doctor.report import acceptance, exits, merged_results, node_content, p2p, sentences
from gpuipc_doctor.report_types import Report, Result

# -- HTML -------------------------------------------------------------------------------------------------


def html(report: Report) -> str:
    """The page, ending in a newline."""
    counts, checks = merged_results.totals(report), merged_results.by_check(report)
    verdict = acceptance.verdict(report)
    look = acceptance.LOOKS[verdict]
    word = verdict.value if acceptance.applies(report) else look
    names = Counter(device.name for device in report.devices)
    singles = {result.devices[0] for result in report.results if len(result.devices) == 1}
    labels = sorted(singles | {device.label for device in report.devices}, key=device_key)
    columns = (*node_content.device_columns(checks, labels), *node_content.other_columns(checks))
    shown = [column for column in columns if any(cell != EMPTY for cell in column.cells)]
    return page(
        "node.html",
        title=f"{report.host}: {word}",
        simulated=report.simulated,
        experimental=report.untried,
        report=report,
        worst=word,
        look=look,
        reason=acceptance.reason(report),
        software=" · ".join(node_content.software(report)),
        devices=" + ".join(f"{n} × {name}" for name, n in names.items()) or "no GPU found",
        totals=", ".join(f"{counts[s]} {s.value}" for s in reversed(Status) if counts[s]),
        exit_code=exits.code(report),
        columns=[column.title for column in shown],
        rows=[(check, [column.cells[row] for column in shown]) for row, check in enumerate(checks)],
        findings=list(node_content.described(merged_results.paragraphs(report))),
        content=node_content,
        pairs=p2p.rows(report),
        summary=sentences.headline,
        folded=_folded,
        pictures=list(_pictures(report)),
        facts=[fact for fact in report.inventory if fact.value is not None],
    )


def _folded(result: Result) -> Iterator[tuple[str, Sequence[str]]]:
    for role in result.roles:
        kinds = {
            "native stack": role.native_stack,
            "Python stack": role.python_stack,
            "kernel": role.kernel,
            "end of the output": role.log_tail,
        }
        for kind, lines in kinds.items():
            if lines:
                yield f"{role.role}: {kind}", [sanitise(line) for line in lines]


def _pictures(report: Report) -> Iterator[tuple[str, str]]:
    if find_spec("matplotlib") is None:
        return
    from gpuipc_doctor.report import plots

    failed = tuple(one for one in report.results if one.finding.status not in (Status.PASS, Status.SKIP))
    of_run = plots.of_run(report)
    for picture in (*plots.pictures(replace(report, results=failed)), *([of_run] if of_run else [])):
        name = "when each check ran" if picture is of_run else picture.name
        yield name, f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"


# -- JUnit ------------------------------------------------------------------------------------------------


def junit(report: Report) -> str:
    """A test case for each probe, and for each check that the run did not reach."""
    probes: dict[object, list[Result]] = {}
    for result in report.results:
        probe = (result.check, result.devices, result.probe, result.repetition)
        probes.setdefault(probe, []).append(result)
    missing = merged_results.not_reached(report)
    cases = [*map(_case, probes.values())]
    cases += [case(check, "node", 0, Status.SKIP, "the run ended before this check") for check in missing]
    facts = {fact.name: fact.value for fact in report.inventory if fact.value is not None}
    where = {"timestamp": report.started, "hostname": report.host}
    return document(cases, facts.items(), where, report.elapsed_s, report.simulated, report.untried)


def _case(results: Sequence[Result]) -> ElementTree.Element:
    first, worst = results[0], merged_results.worst(results)
    words = [first.subject, first.probe, f"#{first.repetition}" if first.repetition > 1 else ""]
    told = [result.finding for result in results if result.finding.status is worst]
    lines = [line for finding in told for line in _lines(finding)]
    name, message = " ".join(filter(None, words)), sentences.headline(told[0])
    return case(first.check, name, first.elapsed_s, worst, message, lines)


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.status.value} {sentences.summary(finding)}"
    yield from sentences.evidence(finding)
    if finding.remedy:
        yield f"Do: {finding.remedy}"


# -- Prometheus -------------------------------------------------------------------------------------------


def prometheus(report: Report) -> str:
    """A node's report in Prometheus' text format."""
    return exposition(_metrics(report), report.simulated, report.untried)


def _metrics(report: Report) -> Iterator[Metric]:
    totals = merged_results.totals(report)
    models = Counter((device.backend, sanitise(device.name)) for device in report.devices)
    labels = {"version": report.tool_version, "tier": report.tier.label, "simulated": report.simulated}
    yield "run_info", "What ran; simulated is empty on a real node.", [(labels, 1)]
    yield "run_start_timestamp_seconds", "When the run began.", moment(report.started)
    yield "run_duration_seconds", "How long the run took.", [({}, report.elapsed_s)]
    yield "run_exit_code", "Exit code of the run, by the default style.", [({}, exits.code(report))]
    yield "run_interrupted", "Whether the run was interrupted.", [({}, report.interrupted)]
    yield "probes", "Probes that ran; with 0, nothing was tested.", [({}, report.probes_run)]
    yield "devices", "GPUs that were tested.", by(models, "backend", "model")
    yield "checks", "Checks by their worst status.", by({s.value: totals[s] for s in Status}, "status")
    severities: dict[tuple[str, str], int] = {}
    for result in report.results:
        cell = result.check, result.subject
        severities[cell] = max(severities.get(cell, 0), result.finding.status.severity)
    about = f"Worst status of a check on a subject: {SEVERITIES}."
    yield "check_severity", about, by(severities, "check", "subject")
    known = {(join.issue, join.relation.value): 1 for join in report.joins}
    yield "known_issue", "Known issues related to this node.", by(known, "issue", "relation")
