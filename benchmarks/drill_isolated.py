"""Findings on a fifth of the drill's kinds, with tours and with ``--isolate``.

    python benchmarks/drill_isolated.py --log FILE [--list] [KIND]...

A kind is a profile on one vendor's simulated driver, as ``wrong-byte/hip``. The fifth: for each effect of a
driver's fault that profiles state (and for no fault), the first profile by name with an effect not yet
chosen, on CUDA and HIP by turns where it runs on both; then every fifth of the other kinds, until a fifth is
chosen. Nodes with faults of MPI, libfabric or NCCL are left out: they have too few pairs for a shared
launch, and ranks of collectives share none. Each kind runs the checks that must find its fault, and others
that meet it, drawn by the profile's name, if these are fewer than four; first in tours, then isolated, in an
order drawn once. The log keeps both runs, and how the first does as a drill; a kind found there is not
rerun.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from drill_table import OUTCOMES, asked, callers, cells, check

from gpuipc_doctor.report import exits
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.simulator import drill, profile
from gpuipc_doctor.simulator.profile import Profile

CHECKS = 4
"""Number of checks to run on a kind: enough for a tour."""

Row = tuple[str, str, str, str, str, str]
"""Check, probe, subject, status, key and call of a finding."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the choice and stop")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    options = parser.parse_args()
    kinds = [tuple(kind.split("/")) for kind in options.kinds] or list(fifth())
    if options.list:
        print("\n".join(f"{name}/{backend}" for name, backend in kinds))
        return
    logged: dict[tuple[str, ...], dict[str, Any]] = {}
    if options.log.exists():
        logged = {tuple(row["kind"]): row for row in map(json.loads, options.log.read_text().splitlines())}
    makers = callers(options.log)
    for name, backend in kinds:
        stated = profile.load(name)
        if (name, backend) in logged:
            continue
        logged[name, backend] = row = both(stated, backend, makers)
        with options.log.open("a") as log:
            log.write(json.dumps(row) + "\n")
    print("| kind | with tours | processor s | isolated, s | only with tours | only isolated |")
    print("|---|---|---|---|---|---|")
    for kind in kinds:
        if row := logged.get(kind, {}):
            only = ("<br>".join(map(str, row[key])) for key in ("only_tours", "only_isolated"))
            print(f"| {'/'.join(kind)} {cells(row)} | {row['isolated_s']:.1f} | {' | '.join(only)} |")


def fifth() -> Iterator[tuple[str, str]]:
    """The chosen kinds, as the head of this file states."""
    stated = [
        each
        for each in map(profile.load, profile.names())
        if each.expect and not (each.needs_mpi or each.needs_fabric or each.has_collectives)
    ]
    kinds = [(each.name, backend) for each in stated for backend in each.expect]
    turn, met, chosen = cycle(("cuda", "hip")), set[str](), list[tuple[str, str]]()
    for each in stated:
        if effects_of(each) - met:
            met |= effects_of(each)
            backend = next(turn) if len(each.expect) > 1 else next(iter(each.expect))
            chosen.append((each.name, backend))
    rest = [kind for kind in kinds if kind not in chosen]
    chosen += rest[::5][: max(len(kinds) // 5 - len(chosen), 0)]
    yield from Random(0).sample(chosen, len(chosen))


def effects_of(stated: Profile) -> set[str]:
    return {str(fault["do"]) for fault in stated.faults} or {"none"}


def both(stated: Profile, backend: str, makers: Any) -> dict[str, Any]:
    others = max(CHECKS - len(stated.expect[backend].checks), 0)
    with asked(stated, backend, makers, None, others) as arguments:
        begun = processor_s()
        together = check(*arguments, "--seed", "45")
        half = processor_s()
        alone = check(*arguments, "--seed", "45", "--isolate")
    expected = stated.expect[backend]
    found = drill.judge(expected, drill.rows(together), exits.code(drill.of_the_profile(together)))
    return {
        "kind": [stated.name, backend],
        "arguments": arguments,
        "s": half - begun,
        "isolated_s": processor_s() - half,
        "only_tours": sorted(findings(together) - findings(alone)),
        "only_isolated": sorted(findings(alone) - findings(together)),
        **{key: getattr(found, key) for key in OUTCOMES},
    }


def findings(report: Report) -> set[Row]:
    return {
        (
            result.check,
            result.probe,
            " ".join(result.devices),
            result.finding.status.value,
            result.finding.key,
            str(result.finding.values.get("call", "")),
        )
        for result in report.results
    }


def processor_s() -> float:
    """Seconds of processor time of this program's ended children and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
