"""The report of `fleet collectives`: a `Report`, as of one node, so that every format and `compare` take it.

Beside it, ``rounds.jsonl`` has what each rank did in each round, from which ``--resume`` goes on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec  # noqa: TID253 - who imports this module reads rounds

from gpuipc_doctor import __version__
from gpuipc_doctor.files import reading, writing
from gpuipc_doctor.fleet.collective_types import Joined, RoundResult
from gpuipc_doctor.fleet.collectives import CHECK, TITLE
from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.model import Device, Finding, Subject, Tier
from gpuipc_doctor.present.blocks import Group, Lines, Parts
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.report import acceptance, node_content, sentences
from gpuipc_doctor.report_types import CheckInfo, Report, Result
from gpuipc_doctor.vendors import SUPPORTED

REPORT, ROUNDS = "collectives.json", "rounds.jsonl"
MOST_BYTES = 1 << 30
"""Maximum bytes of an earlier run's rounds; those of 1,000 nodes of 8 GPUs take 46 MiB."""

INFO = CheckInfo(CHECK, TITLE, Tier.ACCEPTANCE, Subject.COLLECTIVES)


def report(
    nodes: Sequence[str],
    joined: Mapping[str, Joined],
    findings: Sequence[Finding],
    rounds: Sequence[RoundResult],
    began: datetime,
    *,
    simulated: str = "",
    interrupted: bool = False,
) -> Report:
    """The report over ``nodes``. Its devices are the GPUs that most of the nodes have."""
    kinds = Counter((one.library.partition(" ")[0], one.gpus) for one in joined.values() if one.gpus)
    (library, gpus), _ = kinds.most_common(1)[0] if kinds else (("", ()), 0)
    backend = next((each.backend for each in SUPPORTED.values() if each.collectives.name == library), "")
    elapsed_s = (datetime.now().astimezone() - began).total_seconds()
    return Report(
        host=f"{NodeSetFormatter(nodes).brief(nodes)} ({counted(len(nodes), 'node')})",
        started=began.isoformat(timespec="seconds"),
        elapsed_s=round(elapsed_s, 1),
        tier=Tier.ACCEPTANCE,
        tool_version=__version__,
        devices=tuple(Device(backend, place, "", "", name, 0) for place, name in enumerate(gpus)),
        inventory=(),
        checks=(INFO,),
        results=tuple(Result(CHECK, found) for found in findings),
        simulated=simulated,
        interrupted=interrupted,
        probes_run=len(rounds),
        needs_gpu=False,  # nodes that did not come are the worst finding, not the absence of any
    )


def screen(found: Report, exit_code: int, *, width: int = 80, color: bool = False) -> str:
    """The verdict, what did not pass, and the number of rounds."""
    verdict = acceptance.verdict(found)
    passed = [one.finding for one in found.results if one.finding.key == "passed"]
    if verdict is acceptance.Verdict.ACCEPT and passed:
        why = sentences.summary(passed[0])
    else:
        why = acceptance.reason(found)
    figures = [
        f"{one.name} {float(f'{one.value:.3g}'):g} {one.unit}"
        for finding in passed
        for one in finding.measured
    ]
    carried = [sentences.summary(one.finding) for one in found.results if one.finding.key == "carried"]
    size = Parts((counted(found.probes_run, "round"), f"each is in {ROUNDS}"))
    told = (Parts(tuple(figures)),) * bool(figures) + (Lines(tuple(carried)),) * bool(carried)
    news = [Group((acceptance.heading(verdict, why), *told, size))]
    return node_content.screen(found, width=width, color=color, exit_code=exit_code, news=news)


class Log:
    """The rounds in a directory: those of an earlier run, and new ones, as they end."""

    def __init__(self, directory: Path) -> None:
        """Raises `OSError`."""
        file = directory / ROUNDS
        try:
            self.earlier = iter([*_rounds(reading.read(file, MOST_BYTES))]) if file.exists() else iter(())
        except reading.Unreadable as why:
            raise OSError(0, str(why)) from why
        writing.write(file, b"")
        self._fd = writing.open_to_append(file)

    def add(self, done: RoundResult) -> None:
        """Write a round; if the disk is full, a later run repeats it."""
        with suppress(OSError):
            os.write(self._fd, msgspec.json.encode(done) + b"\n")


def _rounds(text: bytes) -> Iterator[RoundResult]:
    """What follows a damaged line is not used."""
    decoder = msgspec.json.Decoder(RoundResult)
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        for line in text.splitlines():
            yield decoder.decode(line)
