"""Content of a node's screen: header, an entry for each bad finding, health matrix, SKIPs, totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.log_lines import by_shape, most_telling, shape
from gpuipc_doctor.model import EvidenceKind, Status
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import (
    EMPTY,
    Block,
    Cell,
    Chain,
    Closing,
    Column,
    Entry,
    Grid,
    Group,
    Item,
    Lines,
    Notice,
    Parts,
    Table,
    do,
)
from gpuipc_doctor.present.text import counted, device_key, fold_devices, sanitise, shorten
from gpuipc_doctor.probe_types import RoleOutcome
from gpuipc_doctor.report import acceptance, advice, exits, first_aid, merged_results, p2p, sentences
from gpuipc_doctor.report.merged_results import Paragraph, by_check, culprits
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.vendors import VENDORS

# Maximum items shown; the JSON report has all.
FRAMES = 6
PROCESSES = 2
LOG_LINES = 4
LOG_COLUMNS = 240
EVIDENCE_LINES = 9
MOST_ALIKE = 2
BAD_PAIRS = 2
LONGEST = 6
WRITTEN_BY = "--output r.json"

OUTERMOST = ("_call (running.py:", "run_role (worker.py:")
"""The frame that calls the role function, in current and older reports; frames outside it never differ."""

_FACTS = {
    "kernel": "Linux {}",
    "nvidia-driver": "NVIDIA {}",
    "nvidia-module": "{} module",
    "cuda-driver": "CUDA {}",
    "rocm": "ROCm {}",
    "hip-runtime": "HIP {}",
    "ze-driver": "Level Zero driver {}",
    "gpu-model": "the kernel lists {}",
}
"""Facts in the header, with their format; `gpuipc-doctor inventory` shows all."""

_STACK = {
    "mpich": "MPICH {}",
    "cray-mpich": "Cray MPICH {}",
    "openmpi": "Open MPI {}",
    "intel-mpi": "Intel MPI {}",
    "mvapich": "MVAPICH {}",
    "ucx": "UCX {}",
    "libfabric": "libfabric {}",
    "shs-libfabric": "libfabric of SHS {}",
}
"""Message library → its name and version in the header."""


def screen(
    report: Report,
    *,
    width: int = 80,
    color: bool = False,
    exit_code: int | None = None,
    verbose: bool = False,
    pairs: bool = False,
    news: Sequence[Block] = (),
    file: str = "",
) -> str:
    """The screen in lines of at most ``width`` columns, ending in a newline.

    ``exit_code`` is the run's exit code; if it is not given, it is that of the default style. Of a whole run,
    the checks that passed or were skipped are numbers. ``verbose``: each of them, how each GPU reaches the
    others, and what the run waited for. ``pairs``: the verdict on each pair of GPUs, which ``verbose`` has if
    pairs were tested. ``news``: what is new since an earlier report, for the top. ``file``: the JSON report's
    path, if it was written.
    """
    code = exits.code(report) if exit_code is None else exit_code
    shown = [*blocks(report, code, news, verbose or not report.whole, file)]
    if verbose:
        shown[-1:-1] = [*(Table(tuple(rows)) for rows in gpu_ways(report)), *_waits(report)]
    if pairs or (verbose and p2p.rows(report)):
        shown[-1:-1] = p2p.blocks(report)
    return terminal.screen(shown, width=width, color=color)


def _waits(report: Report) -> Iterator[Block]:
    """The seconds of the checks that the run waited for, one after the other."""
    from gpuipc_doctor.report import run_times

    seconds: dict[str, float] = {}
    for ran in run_times.waited_for(report):
        seconds[ran.check] = seconds.get(ran.check, 0.0) + ran.end - ran.start
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:LONGEST]
    if longest:
        named = ", ".join(f"{check} {took:.1f} s" for check, took in longest)
        yield Lines((f"Of {report.elapsed_s:.1f} s the run waited for: {named}",))


def gpu_ways(report: Report) -> Iterator[list[tuple[str, ...]]]:
    """How each GPU reaches the others, as ``nvidia-smi topo -m`` shows it: a table for each driver.

    The first row has the titles. A way is ``NV18``, ``SYS`` …, ``P2P`` for peer access by an unknown way, or
    ``-`` without peer access.
    """
    for result in report.results:
        lines = [item.values for item in result.finding.evidence if "ways" in item.values]
        if lines:
            numbers = (str(label).partition(":")[2] for label in lines[0]["others"])
            yield [("", *numbers), *((str(line["device"]), *map(str, line["ways"])) for line in lines)]


def ticket(report: Report) -> str:
    """The screen as Markdown, ending in a newline."""
    code = exits.code(report)
    return markdown.render(f"{report.host} (exit {code})", blocks(report, code))


def nagios(report: Report, *, width: int = 80) -> str:
    """The output of ``--exit-style nagios``: state and figures in one line, then the screen.

    A bar begins performance data (https://nagios-plugins.org/doc/guidelines.html), so bars in all other text
    are replaced.
    """
    state, counts = exits.nagios_state(report), merged_results.totals(report)
    simulated = f"{report.untried}; " * bool(report.untried) + "SIMULATED " * bool(report.simulated)
    first = sanitise(f"GPUIPC {state.name} - {simulated}{_reason(report, counts)}")
    figures = [*(f"{s.value.lower()}={counts[s]}" for s in Status), f"time={report.elapsed_s:.1f}s"]
    first, page = (text.replace("|", "¦") for text in (first, screen(report, width=width, exit_code=state)))
    return f"{first} | {' '.join(figures)}\n{page}"


def _reason(report: Report, counts: Counter[Status]) -> str:
    if shown := [p for p in merged_results.paragraphs(report) if p.status is not Status.SKIP]:
        where = f" on {shown[0].where}" if shown[0].where else ""
        return f"{', '.join(shown[0].checks)}{where}: {sentences.headline(shown[0].finding)}"
    if report.interrupted:
        return "interrupted"
    return "nothing was tested" if report.nothing_tested else f"{counts[Status.PASS]} checks passed"


def blocks(
    report: Report, exit_code: int, news: Sequence[Block] = (), full: bool = True, file: str = ""
) -> Iterator[Block]:
    """The screen's blocks, in order; ``news`` follow the verdict. ``full``: with all checks and reasons."""
    top = [*_simulated(report)]
    if acceptance.applies(report):
        yield Group((*top, acceptance.heading(acceptance.verdict(report), acceptance.reason(report))))
        top = []
    yield from news
    yield Group((*top, *_header(report)))
    shown = merged_results.paragraphs(report)
    yield from _findings(report, shown, file)
    yield from _matrix(report, full=full)
    if full:
        yield from _skips(report, [paragraph for paragraph in shown if paragraph.status is Status.SKIP])
    else:
        yield Group(tuple(_counted(report)))
    yield Group(tuple(_totals(report, exit_code)))


def _simulated(report: Report) -> Iterator[Block]:
    if report.untried:
        yield Notice(report.untried, "WARN")
    if report.simulated:
        yield Notice(f"SIMULATED (profile {report.simulated}): no real GPU was tested", "WARN")


def software(report: Report) -> list[str]:
    """Kernel, driver and message libraries, with their versions."""
    left_out = set[str]()
    if report.devices:
        left_out.add("gpu-model")
        found = {fact.name for fact in report.inventory if fact.value}
        found |= {device.backend for device in report.devices}
        others = (vendor for vendor in VENDORS if not found & {vendor.backend, *vendor.drivers})
        left_out.update(*(vendor.facts for vendor in others))  # of libraries, which lie on any node
    facts = [
        _FACTS[fact.name].format(fact.value)
        for fact in report.inventory
        if fact.value and fact.name in _FACTS.keys() - left_out
    ]
    return facts + [_STACK[fact.name].format(fact.value) for fact in report.stack if fact.name in _STACK]


def _header(report: Report) -> Iterator[Block]:
    names = Counter(device.name for device in report.devices)
    devices = " + ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items())
    yield Parts((report.host, devices or "no GPU found", *software(report)))
    times = merged_results.repetitions(report)
    size = f"{report.tier.label} tier, {counted(len(by_check(report)), 'check')}"
    size += f" {times} times" * (times > 1) + f", {report.elapsed_s:.1f} s"
    yield Parts((size, report.started.replace("T", " ")[:19], f"gpuipc-doctor {report.tool_version}"))


def _totals(report: Report, exit_code: int) -> Iterator[Block]:
    if report.interrupted:
        yield Notice("INTERRUPTED: only the results before the interruption.", "FAIL")
    if report.nothing_tested:
        yield Notice("NOTHING WAS TESTED: no probe ran on a GPU.", "FAIL")
    newer = (result.finding for result in report.results if result.finding.key == "newer-than-data")
    yield Lines(tuple(map(sentences.summary, newer)))
    counts = merged_results.totals(report)
    words = [f"{counts[status]} {status.value}" for status in sorted(counts, key=lambda s: -s.severity)]
    if missing := len(merged_results.not_reached(report)):
        words.append(f"{missing} not run")
    if report.simulated:
        words.insert(0, f"SIMULATED ({report.simulated})")
    yield Closing(words or ["no findings"], f"exit {exit_code}", report.worst().value)


# -- the matrix: checks by devices, and columns for pairs and the node if checks have such results -----------


def _counted(report: Report) -> Iterator[Entry]:
    """A line each on the checks that passed and that were skipped."""
    counts = merged_results.totals(report)
    for status, says in ((Status.PASS, "passed; -v shows each"), (Status.SKIP, "not tested; -v says why")):
        if counts[status]:
            yield Entry(status.value, f"{counted(counts[status], 'check')} {says}")


def _matrix(report: Report, *, full: bool = True) -> Iterator[Grid]:
    """The matrix of results; unless ``full``, of the checks that neither passed nor were skipped.

    On a narrow page, devices with equal results share a column (``cuda:0-2,4-7``). A few pairs that failed
    have columns of their own.
    """
    checks = {
        check: found
        for check, found in by_check(report).items()
        if not _is_not_begun(found)
        and (full or merged_results.worst(found) not in (Status.PASS, Status.SKIP))
    }
    if not checks:
        return
    labels = [device.label for device in report.devices]
    labels += [result.devices[0] for result in report.results if len(result.devices) == 1]
    devices = device_columns(checks, dict.fromkeys(labels))
    others = tuple(column for column in other_columns(checks) if set(column.cells) != {EMPTY})
    pairs = pair_columns(checks)
    alike = by_key(((device_key(column.title)[0], column.cells), column.title) for column in devices)
    folded = (Column(fold_devices(titles), cells) for (_, cells), titles in alike.items())
    yield Grid("check", tuple(checks), (*devices, *pairs, *others), (*folded, *pairs, *others))


def _is_not_begun(results: Sequence[Result]) -> bool:
    """Whether a check was not begun because no GPU has room: a paragraph lists all such checks."""
    return bool(results) and all(result.finding.key == merged_results.NOT_BEGUN for result in results)


def device_columns(checks: Mapping[str, Sequence[Result]], labels: Iterable[str]) -> tuple[Column, ...]:
    """The worst status of each check on each device and on the groups that contain it."""
    return tuple(
        # Pairs have columns of their own.
        Column(
            label,
            tuple(_cell(r for r in c if label in r.devices and len(r.devices) != 2) for c in checks.values()),
        )
        for label in labels
    )


def pair_columns(checks: Mapping[str, Sequence[Result]]) -> tuple[Column, ...]:
    """The worst status of each check on each pair that failed, if there are at most `BAD_PAIRS` of many."""
    results = [result for each in checks.values() for result in each if len(result.devices) == 2]
    bad = sorted({r.devices for r in results if r.finding.status.severity > Status.SKIP.severity})
    if len(bad) > BAD_PAIRS or len({result.devices for result in results}) <= BAD_PAIRS:
        return ()
    return tuple(
        Column(" > ".join(pair), tuple(_cell(r for r in c if r.devices == pair) for c in checks.values()))
        for pair in bad
    )


def other_columns(checks: Mapping[str, Sequence[Result]]) -> tuple[Column, Column]:
    node = tuple(_cell(r for r in results if not r.devices) for results in checks.values())
    return Column("pairs", tuple(map(_pairs_cell, checks.values()))), Column("node", node)


def _cell(results: Iterable[Result]) -> Cell:
    status = merged_results.worst(results)
    return (status.value, status.value) if status else EMPTY


def _pairs_cell(results: Sequence[Result]) -> Cell:
    """The cell for pairs: their status if it is the same (``PASS``), else how many have the worst
    (``FAIL 2/12``)."""
    pairs = by_key((result.devices, result) for result in results if len(result.devices) == 2)
    statuses = Counter(status for status in map(merged_results.worst, pairs.values()) if status)
    if not statuses:
        return EMPTY
    bad = max(statuses, key=lambda status: status.severity)
    is_of_all = statuses[bad] == len(pairs)
    return bad.value if is_of_all else f"{bad.value} {statuses[bad]}/{len(pairs)}", bad.value


# -- findings: what failed, at which call, which known issue it is, what to do -------------------------------


def _findings(report: Report, shown: Sequence[Paragraph], file: str) -> Iterator[Block]:
    """Entries, worst first; then first aid and known issues without an entry."""
    for paragraph, told in described(shown):
        if paragraph.status is not Status.SKIP:
            body = tuple(_body(report, paragraph, told, file))
            yield Entry(paragraph.status.value, title(report, paragraph), body)
    if report.whole and (aid := first_aid.of_report(report)):
        yield aid
    for join in merged_results.loose_joins(report, shown):
        about = Item("; ".join(filter(None, (join.title, join.reason))), hang=0)
        yield Entry(join.relation.value.upper(), join.issue, (about, do(join.remedy)))


def _skips(report: Report, shown: Sequence[Paragraph]) -> Iterator[Block]:
    """What was not tested. In a whole run, one paragraph without remedies; who names a check gets these."""
    reasons = [
        f"{title(report, paragraph)}: {sentences.summary(paragraph.finding)}"
        + "; likewise for the others" * paragraph.figures_differ
        for paragraph in shown
    ]
    if report.whole and len(reasons) > 1:
        hint = "To see what would make one run: gpuipc-doctor check NAME"
        yield Entry(Status.SKIP.value, "not tested, because:", (*map(Item, reasons), Item(hint)))
    else:
        remedies = (do(paragraph.finding.remedy) for paragraph in shown)
        entries = zip(reasons, remedies, strict=True)
        yield Group(tuple(Entry(Status.SKIP.value, why, (remedy,)) for why, remedy in entries))


def described(shown: Iterable[Paragraph]) -> Iterator[tuple[Paragraph, Container[str]]]:
    """Each paragraph, with the ids of the known issues that earlier paragraphs describe."""
    told: frozenset[str] = frozenset()
    for paragraph in shown:
        yield paragraph, told
        told |= {join.issue for join in paragraph.joins}


def title(report: Report, paragraph: Paragraph) -> str:
    """A title as ``ipc-reopen (destroy-context) on cuda:0-3``; it names probes if not all have the
    finding."""
    names = []
    for check in paragraph.checks:
        here = paragraph.probes(check)
        everywhere = {r.probe for r in report.results if r.check == check and r.probe}
        names.append(f"{check} ({', '.join(here)})" if here and set(here) != everywhere else check)
    where = f" on {paragraph.where}" if paragraph.where else ""
    probes = {(result.check, result.probe) for result in paragraph.results}
    ran = {result.repetition for result in report.results if (result.check, result.probe) in probes}
    how_often = f", {paragraph.times} of {len(ran)} times" if paragraph.times < len(ran) else ""
    return ", ".join(names) + where + how_often


def _body(report: Report, paragraph: Paragraph, told: Container[str], file: str) -> Iterator[Item | Chain]:
    first, lines = paragraph.results[0], evidence(paragraph, told)
    headline = sentences.headline(paragraph.finding)
    yield Item(headline, hang=0)
    lines = _without_repetition(headline, lines)
    yield from map(Item, lines[:EVIDENCE_LINES])
    if len(lines) > EVIDENCE_LINES:
        yield Item(f"… and {len(lines) - EVIDENCE_LINES} more in the JSON report ({file or WRITTEN_BY})")
    if paragraph.figures_differ:
        of = f"figures of {first.subject}" if first.devices else "the first of several"
        yield Item(f"({of}; for the others, see the JSON report: {file or WRITTEN_BY})")
    for role in culprits(first):
        yield from _remains(role, first)
    if paragraph.passed_beside:
        yield Item(f"Passed on this node: {', '.join(paragraph.passed_beside)}.")
    yield from known_issues(report, paragraph, told)
    yield from advice.items(report, paragraph, remedy(paragraph, told), file)
    if logs := tuple(dict.fromkeys(result.logs for result in paragraph.results if result.logs)):
        yield Item(f"Logs: {logs[0]}" + (f" (and {len(logs) - 1} more)" if logs[1:] else ""))


def _remains(role: RoleOutcome, result: Result) -> Iterator[Item | Chain]:
    python = tuple(takewhile(lambda frame: not frame.startswith(OUTERMOST), role.python_stack))
    yield from _stack("native", role, role.native_stack)
    said = "\n".join((sentences.summary(result.finding), *sentences.evidence(result.finding)))
    if not role.native_stack:
        yield from (Item(f"kernel: {line}") for line in role.kernel[:PROCESSES] if line not in said)
    times = by_shape(line for line in role.log_tail if line.strip())
    log = list(times)
    half = LOG_LINES // 2
    before, end = log[:-half], log[-half:]
    log = [*(most_telling(before, half) or before[:half]), *end]
    if log and log[-1] not in said:
        yield Item(f"{role.role} printed, among other lines:")
        for line in log:
            often = f" ×{times[line]}" if times[line] > 1 else ""
            yield Item(f"{shorten(sanitise(line), LOG_COLUMNS)}{often}", depth=2)
    yield from _stack("python", role, python)  # the checks' own code


def _stack(kind: str, role: RoleOutcome, frames: Sequence[str]) -> Iterator[Chain]:
    if frames:
        more = ["…"] if len(frames) > FRAMES else []
        yield Chain((f"{kind} stack of {role.role}: {frames[0]}", *frames[1:FRAMES], *more))


def _without_repetition(headline: str, lines: Iterable[str]) -> list[str]:
    """The first of the lines that differ only in numbers and their number, without an error that the
    headline names; steps of a history stay."""
    lines = [line for line in lines if not headline.startswith(line.rpartition(" (")[0] or "\n")]
    times = by_shape(line for line in lines if not line[:1].isdigit())
    often = {line: number for line, number in times.items() if number > MOST_ALIKE}
    shown = [line for line in lines if line in often or shape(line) not in {*map(shape, often)}]
    return [f"{line} (and {often[line] - 1} lines like it)" if line in often else line for line in shown]


def evidence(paragraph: Paragraph, told: Container[str]) -> list[str]:
    """The evidence lines, without known issues described in an earlier entry."""
    items = [item for item in paragraph.finding.evidence if item.kind is not EvidenceKind.CAUSE]
    return [*sentences.place(paragraph.finding)] + [
        sentences.line(item)
        for item in items
        if item.kind is not EvidenceKind.ISSUE or str(item.values.get("issue")) not in told
    ]


def remedy(paragraph: Paragraph, told: Container[str]) -> str:
    """The remedy, unless an earlier entry shows it with a known issue."""
    stale = {join.remedy for join in paragraph.joins if join.issue in told}
    return "" if paragraph.finding.remedy in stale else paragraph.finding.remedy


def known_issues(report: Report, paragraph: Paragraph, told: Container[str]) -> Iterator[Item]:
    """The known issues, without text that the finding repeats. If only some of the results show an issue, its
    line names them."""
    finding = paragraph.finding
    for join in paragraph.joins:
        head = f"Known issue {join.issue} {join.relation.value.upper()}"
        shown_by = merged_results.showing(join, paragraph.results)
        if 0 < len(shown_by) < len(paragraph.results):
            head += f" ({title(report, replace(paragraph, results=shown_by))})"
        if join.issue in told:
            yield Item(f"{head}, see above.")
            continue
        about = "" if join.issue in finding.issues else join.title
        reason = "" if join.reason == finding.values.get("reason") else join.reason
        news = "; ".join(filter(None, (about, reason)))
        yield Item(f"{head}: {news}" if news else head)
        yield do("" if join.remedy == finding.remedy else join.remedy)
