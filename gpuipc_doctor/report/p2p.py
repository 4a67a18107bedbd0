"""One verdict for each pair of GPUs: is their peer access right? A view of the results of two checks."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpuipc_doctor.model import Device, Status
from gpuipc_doctor.present.blocks import Block, Lines, Table
from gpuipc_doctor.report import exits, json_documents, sentences
from gpuipc_doctor.report_types import Report, Result

COPIES, KERNELS = CHECKS = ("ipc-peer", "ipc-kernels")
"""The checks whose results count."""

ALONE = "wrong-alone"
"""Key of ipc-kernels: the same kernels are wrong without peer access."""

NO_ATOMICS = "no-native-atomics"

PATHS = {
    "PIX": "PCIe switch",
    "PXB": "PCIe switches",
    "PHB": "host bridge",
    "NODE": "host bridges",
    "SYS": "sockets",
}
"""Way of ``nvidia-smi topo -m`` → what is between the two GPUs."""


class Answer(enum.Enum):
    """What a test says of a pair, or all tests together."""

    WRONG = "wrong"
    CANNOT_TELL = "cannot tell"
    """It failed, but also without peer access, or it could not be made."""
    NO_PEER_ACCESS = "no peer access"
    """The driver does not grant it, in one direction or in both: to be used through the host."""
    NOT_TESTED = "not tested"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the pairs. ``name``: as its driver says."""

    label: str
    uuid: str
    pci: str
    name: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What was found of two GPUs, by their labels, in both directions.

    ``way``: as ``nvidia-smi topo -m``, such as ``NV18``, ``PIX`` or ``SYS``; empty: unknown. ``granted``:
    whether the driver grants peer access both ways. ``copies``, ``kernels``: the tests' answers.
    ``atomics``: whether the link has native atomics; null: unknown. ``why``: the sentence of the finding that
    decides, empty for ``right``. ``keys``: of all findings other than PASS.
    """

    gpus: tuple[str, str]
    verdict: Answer
    way: str
    granted: bool
    copies: Answer
    kernels: Answer
    atomics: bool | None
    why: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """``experimental``: which GPUs the tool was never run on. ``why_none``: why there is no pair.
    ``iommu``, ``acs``: their modes as read on this node, or null."""

    host: str
    started: str
    tool_version: str
    simulated: str
    experimental: str
    exit_code: int
    iommu: str | None
    acs: str | None
    gpus: tuple[Gpu, ...]
    pairs: tuple[Pair, ...]
    why_none: str


KIND = json_documents.Kind(
    "gpuipc-doctor/p2p/1", Content, "For each pair of GPUs, whether the data of their peer access are right."
)


def content(report: Report, exit_code: int | None = None) -> Content:
    facts = {fact.name: fact.value for fact in report.inventory if fact.value is not None}
    found = tuple(pairs(report))
    few = f"{len(report.devices)} GPU" + "s" * (len(report.devices) != 1)
    return Content(
        report.host,
        report.started,
        report.tool_version,
        report.simulated,
        report.untried,
        exits.code(report) if exit_code is None else exit_code,
        facts.get("iommu"),
        facts.get("acs"),
        tuple(Gpu(device.label, device.uuid, device.pci, device.name) for device in report.devices),
        found,
        "" if found else f"there is no pair: {few} to test",
    )


def pairs(report: Report) -> Iterator[Pair]:
    """Each pair of GPUs of a driver, once."""
    ways = _ways(report)
    for a, b in combinations(report.devices, 2):
        if a.backend == b.backend:
            results = [each for each in report.results if {*each.devices} == {a.label, b.label}]
            yield _pair(a, b, results, ways.get((a.label, b.label), ""))


def _pair(a: Device, b: Device, results: Sequence[Result], way: str) -> Pair:
    granted = b.label in a.peers and a.label in b.peers
    of = {check: [each for each in results if each.check == check] for check in CHECKS}
    copies, kernels = (_answer(of[check]) for check in CHECKS)
    has_atomics = any(each.finding.key == NO_ATOMICS for each in of[KERNELS])
    both = {copies, kernels}
    verdict = next(answer for answer in Answer if answer in both)
    if verdict is not Answer.WRONG and not granted:
        verdict = Answer.NO_PEER_ACCESS
    elif verdict is Answer.NOT_TESTED:
        verdict = Answer.CANNOT_TELL
    bad = sorted((each for each in results if _counts(each)), key=lambda each: -each.finding.status.severity)
    return Pair(
        (a.label, b.label),
        verdict,
        way,
        granted,
        copies,
        kernels,
        False if has_atomics else True if kernels is Answer.RIGHT else None,
        sentences.summary(bad[0].finding) if bad and verdict is not Answer.RIGHT else "",
        tuple(dict.fromkeys(each.key for each in bad)),
    )


def _counts(result: Result) -> bool:
    return result.finding.status is not Status.PASS and result.finding.key != NO_ATOMICS


def _answer(results: Sequence[Result]) -> Answer:
    """The answer of one check."""
    failed = [each.finding for each in results if each.finding.status is Status.FAIL]
    if any(not each.values.get("control") and each.key != ALONE for each in failed):
        return Answer.WRONG
    others = [each.finding.status for each in results if _counts(each)]
    if any(status is not Status.SKIP for status in others):
        return Answer.CANNOT_TELL
    passed = any(each.finding.status is Status.PASS for each in results)
    return Answer.RIGHT if passed and not others else Answer.NOT_TESTED


def _ways(report: Report) -> dict[tuple[str, str], str]:
    return {
        (str(line["device"]), str(other)): str(way)
        for result in report.results
        for line in (item.values for item in result.finding.evidence if "ways" in item.values)
        for other, way in zip(line["others"], line.get("paths") or line["ways"], strict=True)
        if way not in ("X", "-", "P2P")
    }


# -- the screen -------------------------------------------------------------------------------------------


TITLES = ("pair", "verdict", "between", "granted", "copies", "kernels", "atomics")


def rows(report: Report) -> list[tuple[str, ...]]:
    """The table of the pairs, with titles; empty if neither check ran on a pair."""
    if not any(each.check in CHECKS and len(each.devices) == 2 for each in report.results):
        return []
    told = {True: "yes", False: "no", None: "-"}
    return [
        TITLES,
        *(
            (
                " - ".join(each.gpus),
                each.verdict.value.upper() if each.verdict is not Answer.RIGHT else "right",
                between(each.way),
                told[each.granted],
                each.copies.value,
                each.kernels.value,
                told[each.atomics],
            )
            for each in pairs(report)
        ),
    ]


def between(way: str) -> str:
    """What is between two GPUs, in words."""
    return f"{way[2:]} NVLinks" if way[2:].isdigit() else PATHS.get(way, way or "-")


def blocks(report: Report) -> Iterator[Block]:
    """The table; with ``--p2p`` also without a pair."""
    if table := rows(report):
        yield Table(tuple(table))
        facts = [fact for fact in report.inventory if fact.name in ("iommu", "acs") and fact.value]
        yield Lines(tuple(f"{fact.name}: {fact.value}" for fact in facts))
    else:
        yield Lines((content(report).why_none or "no pair was tested",))
