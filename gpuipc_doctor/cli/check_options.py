"""The options of ``check``, which ``fleet`` also takes for its nodes, and the request that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.seconds import CHECK_ALL_S
from gpuipc_doctor.model import Subject, Tier
from gpuipc_doctor.report import p2p
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.config import SiteConfig

add = options.table(
    click.argument("checks", nargs=-1, metavar="[CHECK]...", shell_complete=options.complete("checks")),
    click.option("--all", "all_checks", is_flag=True, help="Run every check of the tier."),
    click.option("--p2p", is_flag=True,
                 help="Test the peer access of each pair of GPUs and print a verdict on each; with --json, "
                      "as a small document (`schema p2p`). Needs neither MPI nor NCCL."),
    click.option("--with-dcgm", is_flag=True,
                 help="Also run NVIDIA's `dcgmi diag -r 1`, if it is installed, and report its verdict."),
    click.option("--tier", type=options.Choice([tier.label for tier in Tier]),
                 help="Depth of the run: prolog (seconds), acceptance (on H200s {} s with one GPU, {} with "
                      "two, {} with four, {} with eight) or soak (long).  [default: acceptance]"
                      .format(*CHECK_ALL_S.values())),
    options.node_options,
    click.option("--device", "devices", multiple=True, metavar="NAME",
                 help="Probe only this device: cuda:0, a uuid, or an index if only one driver is found. "
                      "May be repeated."),
    click.option("--verbose", "-v", is_flag=True,
                 help="Also print the checks that passed or were skipped, how GPUs reach each other, the "
                      "verdict on each pair, and how many processes ran; with --dry-run, each probe."),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of the matrix."),
    click.option("--summary", is_flag=True,
                 help="Print the summary that `fleet` reads. On ERROR, FAIL or --json, the JSON report "
                      "precedes it."),
    click.option("--output", type=options.FilePath(), metavar="FILE",
                 help="Also write the JSON report to this file."),
    click.option("--since", type=options.FilePath(), metavar="REPORT",
                 help="Also print what is new since this JSON report of the node."),
    options.seconds("--deadline", "Time limit per operation."),
    options.seconds("--budget", "Time limit of the whole run."),
    click.option("--keep-logs", type=options.FilePath(), metavar="DIR",
                 help="Keep each probe's logs and stacks in this directory."),
    click.option("--plots", type=options.FilePath(), metavar="DIR",
                 help="Plot the checks' time series into this directory, as SVG and PNG."),
    options.mpi_library("MPI library for the MPI checks."),
    click.option("--nccl-lib", type=options.LibraryName(), metavar="FILE",
                 help="NCCL or RCCL library for the collective checks."),
    click.option("--repeat", type=click.IntRange(1, 1000), default=1, metavar="TIMES",
                 help="Repeat every probe, to find intermittent faults and to make `compare` reliable."),
    click.option("--nodes", type=click.IntRange(1, 4096), default=1, show_default=True, metavar="N",
                 help="Number of nodes of this allocation. From 2 on, also test messages and fabric handles "
                      "between two of them and, with --all, collectives over all of them."),
    click.option("--partner", metavar="NODE", help="Exchange messages only with NODE."),
    click.option("--seed", type=click.IntRange(0), metavar="N",
                 help="Seed of random histories  [default: fixed; in soak, from host and time], and of the "
                      "GPU that is tested first  [default: at random]."),
    click.option("--operations", type=click.IntRange(1), metavar="N",
                 help="Number of steps of random histories.  [default: depends on the check and the number "
                      "of devices; in soak, as many as 10 minutes allow]"),
    click.option("--no-workarounds", is_flag=True, help="Do not try workarounds for failed checks."),
    click.option("--isolate", is_flag=True,
                 help="Run every probe in processes of its own; slower. Without it, only probes that failed "
                      "are."),
    click.option("--accept-harm", is_flag=True,
                 help="Also run probes known to harm nodes with these versions."),
    options.require,
    click.option("--strict", is_flag=True, help="Exit with 10 when the worst finding is WARN."),
    click.option("--exit-style", type=options.Choice(["default", "nagios"]), default="default",
                 show_default=True, help="Exit codes: this tool's, or those of a Nagios plugin."),
    click.option("--dry-run", is_flag=True, help="List the devices and the planned probes, and stop."),
)  # fmt: skip
"""Adds the options, whose values are the fields of `CheckOptions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The values of the options."""

    checks: tuple[str, ...]
    all_checks: bool
    p2p: bool
    with_dcgm: bool
    tier: str | None
    config_file: Path | None
    simulate: str | None
    backend: str
    devices: tuple[str, ...]
    verbose: bool
    as_json: bool
    summary: bool
    output: Path | None
    since: Path | None
    deadline: float | None
    budget: float | None
    keep_logs: Path | None
    plots: Path | None
    mpi_lib: str | None
    nccl_lib: str | None
    repeat: int
    nodes: int
    partner: str | None
    seed: int | None
    operations: int | None
    no_workarounds: bool
    isolate: bool
    accept_harm: bool
    required: frozenset[Subject]
    strict: bool
    exit_style: str
    dry_run: bool

    def refuse_contradictions(self) -> None:
        """Raise `click.UsageError` for options that contradict each other."""
        ctx = click.get_current_context(silent=True)
        if self.checks and self.all_checks:
            raise click.UsageError("--all runs every check of the tier; omit --all, or the names", ctx)
        if self.p2p and (self.checks or self.all_checks):
            raise click.UsageError("--p2p chooses its checks; omit --all, or the names", ctx)
        if self.p2p and self.with_dcgm:
            raise click.UsageError("--p2p chooses its checks; omit --with-dcgm", ctx)
        if not (self.checks or self.all_checks or self.p2p):
            raise click.UsageError("name the checks to run, or give --all", ctx)
        if self.since and (self.for_programs or self.exit_style == "nagios" or self.dry_run):
            raise click.UsageError("--since is for the screen of a run; programs: `compare --json`", ctx)
        if self.operations is not None and self.checks:
            able = _having("operations")
            if not {*able} & {*self.checks}:
                raise click.UsageError(
                    f"--operations is for {' and '.join(able)}: also name one of them", ctx
                )

    @property
    def for_programs(self) -> bool:
        """Whether the output is JSON."""
        return self.as_json or self.summary

    def site_config(self) -> SiteConfig:
        """The site config, with the checks' options from the command line. Raises `BadFile`."""
        config = options.site_config(self.config_file)
        found = {check: dict(given) for check, given in config.options.items()}
        for option, value in (("seed", self.seed), ("operations", self.operations)):
            for check in _having(option) if value is not None else ():
                found.setdefault(check, {})[option] = value
                if option == "operations":  # the run must not end by time alone then
                    found[check].setdefault("seconds", 1e6)
        return replace(config, options=found)

    def request(self, config: SiteConfig) -> Request:
        return Request(
            checks=p2p.CHECKS if self.p2p else self.checks,
            also=("dcgm-diag",) if self.with_dcgm else (),
            asks_ways=self.p2p,
            tier=Tier[self.tier.upper()] if self.tier else config.tier,
            backend=self.backend,
            devices=self.devices,
            deadline_s=self.deadline,
            budget_s=self.budget,
            keep_logs=self.keep_logs,
            mpi_lib=self.mpi_lib,
            nccl_lib=self.nccl_lib,
            nodes=2 if self.partner else min(self.nodes, 2),
            partner=self.partner or "",
            workarounds=not self.no_workarounds,
            repeat=self.repeat,
            isolate=self.isolate,
            seed=self.seed,
            required=self.required,
            accept_harm=self.accept_harm,
        )


@click.command("check")
@add
def _parser(**given: Any) -> CheckOptions:
    """Options of `check`."""
    return CheckOptions(**given)


def parsed(words: Sequence[str]) -> CheckOptions:
    """The options in a command line of `check`. Raises `click.UsageError`; ends the process for --help."""
    found = _parser.main(list(words), "gpuipc-doctor check", standalone_mode=False)
    if not isinstance(found, CheckOptions):
        raise SystemExit(found)
    return found


def _having(option: str) -> list[str]:
    """Ids of the built-in checks with this option."""
    loaded = (item.check for item in loader.load() if isinstance(item, LoadedCheck))
    return [check.id for check in loaded if option in check.options]
