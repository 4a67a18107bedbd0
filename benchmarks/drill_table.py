"""Markdown table of every simulated fault: driver, checks that make the call, result.

    python benchmarks/drill_table.py --log FILE [--mpi-lib FILE] [--backend cuda|hip] [PROFILE]...

For a driver's fault, run the checks that make the faulty call and the checks that must report it; for a fault
of MPI or libfabric, only the latter; for an odd node, or one without expected findings, all checks. MPI's
faults use the memory share or message sizes of tests/e2e/test_mpi_faults.py. Each result is written to the
log at once, and a kind found there is not rerun; the table has the whole log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from gpuipc_doctor.report import exits, report_json
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.simulator import drill, profile
from gpuipc_doctor.simulator.drilling import COLLECTIVES
from gpuipc_doctor.simulator.profile import Profile

FIXTURES = Path(__file__).parents[1] / "tests/fixtures"

OUTCOMES = ("caught", "missed", "given_up", "invented", "let_off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    parser.add_argument("--mpi-lib", metavar="FILE", help="for faults of MPI, which are left out without it")
    parser.add_argument("--backend", choices=["cuda", "hip"])
    parser.add_argument("profiles", nargs="*", metavar="PROFILE")
    options = parser.parse_args()
    told: dict[tuple[str, str], dict[str, Any]] = {}
    if options.log.exists():
        for line in options.log.read_text().splitlines():
            told[tuple(json.loads(line)["kind"])] = json.loads(line)
    stated = [profile.load(name) for name in options.profiles or profile.names()]
    todo = [
        (profile, backend)
        for profile in stated
        for backend in profile.expect
        if (profile.name, backend) not in told and options.backend in (None, backend)
        if options.mpi_lib or not profile.needs_mpi
    ]
    makers = callers(options.log) if todo else {}
    for one, backend in todo:
        told[one.name, backend] = outcome(one, backend, makers, options.mpi_lib)
        with options.log.open("a") as log:
            log.write(json.dumps(told[one.name, backend]) + "\n")
    total = {key: sum(len(row[key]) for row in told.values()) for key in OUTCOMES}
    print(f"{len(told)} kinds: {', '.join(f'{total[key]} {in_words(key)}' for key in OUTCOMES)}\n")
    print("| kind | CUDA | s | HIP | s |\n|---|---|---|---|---|")
    for name in sorted({name for name, _ in told}):
        print(f"| {name} | {cells(told.get((name, 'cuda')))} | {cells(told.get((name, 'hip')))} |")


def callers(log: Path) -> Mapping[str, frozenset[str]]:
    """Call → checks that make it, from a report that is kept beside the log."""
    kept = log.with_suffix(".healthy.json")
    if not kept.exists():
        kept.write_text(report_json.dumps(check("--all", "--simulate", "healthy-single")))
    return drill.callers(report_json.loads(kept.read_text()))


def outcome(
    stated: Profile, backend: str, makers: Mapping[str, frozenset[str]], mpi_lib: str | None
) -> dict[str, Any]:
    with asked(stated, backend, makers, mpi_lib) as arguments:
        started = time.monotonic()
        report = check(*arguments)
    found = drill.judge(stated.expect[backend], drill.rows(report), exits.code(drill.of_the_profile(report)))
    return {
        "kind": [stated.name, backend],
        "s": time.monotonic() - started,
        "load": os.getloadavg()[0],
        **asdict(found),
    }


@contextmanager
def asked(
    stated: Profile,
    backend: str,
    makers: Mapping[str, frozenset[str]],
    mpi_lib: str | None,
    others: int | None = None,
) -> Iterator[list[str]]:
    """Arguments of ``check`` for a kind. ``others``: how many checks to run that need not find anything."""
    expected = stated.expect[backend]
    meet = sorted(frozenset().union(*(makers.get(str(fault["call"]), ()) for fault in stated.faults)))
    if others is not None:
        more = [check for check in meet if check not in expected.checks]
        meet = Random(stated.name).sample(more, min(others, len(more)))
    checks: Iterable[str] = sorted({*meet, *expected.checks})
    if not checks or (others is None and not (expected.findings and has_faults(stated))):
        checks = ["mpi-cache-growth"] if stated.needs_mpi else ["--all"]
    if stated.has_collectives:
        checks = COLLECTIVES
    arguments = [*checks, "--simulate", stated.name]
    arguments += ["--backend", backend]
    arguments += ["--deadline", str(stated.deadline_s)] if stated.deadline_s else []
    arguments += ["--no-workarounds", "--mpi-lib", str(mpi_lib)] if stated.needs_mpi else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write(config_of(stated, checks))
        config.flush()
        yield [*arguments, "--config", config.name]


def has_faults(stated: Profile) -> bool:
    return bool(stated.faults) or stated.needs_mpi or stated.needs_fabric


def config_of(stated: Profile, checks: Iterable[str]) -> str:
    if not stated.needs_mpi:
        return f"memory: {{most_gib: {stated.memory.most_gib}}}\n"
    is_large = bool({stated.name, *checks} & {"mpi-cache-growth", "mpi-wrong-large"})
    return (FIXTURES / ("small-share.yaml" if is_large else "small-messages.yaml")).read_text()


def check(*arguments: str) -> Report:
    command = [sys.executable, "-m", "gpuipc_doctor", "check", "--json", *arguments]
    return report_json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)


def cells(one: Mapping[str, Any] | None) -> str:
    if not one:
        return "| "
    parts = [f"{len(one[key])} {in_words(key)}" for key in OUTCOMES if one[key]]
    return f"{', '.join(parts) or 'nothing invented'} | {one['s']:.1f}"


def in_words(outcome: str) -> str:
    return outcome.replace("_", " ")


if __name__ == "__main__":
    main()
