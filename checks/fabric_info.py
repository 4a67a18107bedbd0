"""Find libfabric, UCX and network adapters, and compare the fabric with the site config.

No MPI can use an adapter that the kernel lists but libfabric does not. The check then reports why libfabric
ignores the adapter, such as a missing retry handler. HPE recommends ``fi_info`` as the first tool (shs-docs,
troubleshoot/cassini/RDMA_interface_troubleshooting.md). If the site config names a fabric with adapters
(``cxi``, ``verbs``, ``efa``, ``opa``), the kernel must list an adapter of it. For all of these but cxi, a
port must be active.

Options: ``status_dir``, the directory of ``cxi_healthcheck --status_dir`` (HPE). The check reports the
results in this directory and does not rerun the health check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Worker,
)
from gpuipc_doctor.api.fabrics import FABRICS

from ._fabric_info_adapters import (
    BY_ADAPTER,
    EACH,
    describe,
    judge_adapters,
    judge_stated,
    without_adapter,
)

SHOWN_FACTS = ("libfabric", "shs-libfabric", "libfabric-providers", "ucx", "cxi-driver", "shs")
"""Inventory facts shown as evidence."""


class FabricInfo(Check):
    id = "fabric-info"
    title = "libfabric and UCX are found and list each adapter"
    subject = None
    uses_fabric = True
    options: ClassVar = {"status_dir": {"type": "string", "minLength": 1}}

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        known = [
            f"{fact.name} {fact.value} ({fact.source})"
            for fact in ctx.inventory
            if fact.name in SHOWN_FACTS and fact.value
        ]
        adapters = any(fact.name == "cxi-devices" and fact.value for fact in ctx.inventory)
        stated = ctx.fabric.stated
        here = ctx.fabric.adapters.get(stated.name) if stated else None
        if stated and here == ():
            yield without_adapter(ctx.fabric, stated)
        if not (known or adapters or here or ctx.fabric.programs):
            yield Finding.skip(
                "no-fabric",
                f"found no {EACH.title} adapter, no libfabric and no UCX{{why_not:aside}}",
                remedy="if jobs use libfabric or UCX, load MPI's module, or name its library with --mpi-lib",
                why_not=ctx.fabric.why_not,
            )
            return
        params = {
            "programs": {name: [program.file, program.via] for name, program in ctx.fabric.programs.items()},
            "known": known,
            "status_dir": ctx.options.get("status_dir"),
            "stated": [stated.name, stated.where, here] if stated and here != () else None,
        }
        yield Probe("", {"fabric": look}, params=params, env=ctx.fabric.env)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen, programs = done.records["fabric"], done.params["programs"]
        problems = [
            *judge_programs(seen["broken"], programs),
            *judge_adapters(seen),
            *judge_libraries(seen, programs),
            *judge_stated(seen, done.params["stated"]),
            *judge_health(seen, done.params["status_dir"]),
        ]
        adapters = [describe(adapter) for adapter in seen["adapters"]]
        found = [f"{name}: {file} ({via})" for name, (file, via) in programs.items()]
        providers = list(dict.fromkeys(interface["provider"] for interface in seen.get("interfaces", ())))
        yield from problems or [
            Finding.ok(
                "offered",
                "{what}",
                *(["fi_info lists " + ", ".join(providers)] if providers else []),
                *adapters,
                *(f"{port} is {state}" for port, state in seen["ports"].items()),
                *found,
                *done.params["known"],
                what=summary(seen, done.params["known"], done.params["stated"]),
            )
        ]


def summary(seen: Json, known: list[str], stated: Json = None) -> str:
    """The versions found, and the number of adapters, in one line."""
    parts = [f"libfabric {seen['libfabric']}"] if seen.get("libfabric") else []
    parts += [f"UCX {seen['ucx']}"] if seen.get("ucx") else []
    parts = parts or [line.partition(" (")[0] for line in known]
    if count := len(seen["adapters"]):
        parts.append(f"{count} adapter{'s' * (count != 1)}, all listed")
    if stated and stated[0] != BY_ADAPTER and stated[2]:
        parts.append(f"{stated[0]} on {', '.join(stated[2])}")
    return ", ".join(parts) or "no version found"


def judge_programs(failed: Json, programs: Json) -> Iterator[Finding]:
    """Findings on programs that failed to list providers and transports."""
    for program, bad in failed.items():
        file, via = programs[program]
        values = {"program": program, "ended": bad["ended"], "said": bad["said"]}
        if bad["ended"] in ("crashed", "failed"):
            yield Finding.fail(
                "program-failed",
                "{program} {ended}: {said}",
                f"{program}: {file} ({via})",
                remedy=f"run `{file}` by hand; then reinstall the program, or take it out of PATH",
                **values,
            )
        else:
            yield Finding.error(
                "program-unusable",
                "{program} cannot start: {said}" if bad["ended"] == "cannot start" else "{program}: {said}",
                f"{program}: {file} ({via})",
                remedy=f"see `ldd {file}` for missing libraries, and load their module",
                **values,
            )


def judge_libraries(seen: Json, programs: Json) -> Iterator[Finding]:
    """Findings on libfabric: where its programs are, and what they list."""
    file, via = programs.get("fi_info", ("", ""))
    if via == "not on PATH":
        prefix = PurePath(file).parents[1]
        yield Finding.warn(
            "outside-path",
            "libfabric's programs are in {directory}, which is not on PATH",
            remedy=f"export PATH={prefix}/bin:$PATH LD_LIBRARY_PATH={prefix}/lib64:$LD_LIBRARY_PATH, or load "
            + EACH.remedies["outside-path"],
            directory=str(PurePath(file).parent),
        )
    if seen.get("interfaces") == [] and not seen["adapters"]:
        yield Finding.warn(
            "offers-nothing",
            "libfabric has no usable provider: {program} lists none",
            remedy="unset FI_PROVIDER and FI_PROVIDER_PATH, if set; `FI_LOG_LEVEL=warn fi_info` says why",
            program=file,
        )
    if seen["adapters"] and "interfaces" not in seen and "fi_info" not in seen["broken"]:
        yield Finding.warn(
            "cannot-ask",
            "adapters found, but no fi_info to show whether libfabric lists them",
            *map(describe, seen["adapters"]),
            remedy="install libfabric's programs, or put them on PATH",
        )


def judge_health(seen: Json, status_dir: str | None) -> Iterator[Finding]:
    """Findings from the results of the vendor's own check."""
    bad = [result for result in seen["health"] if result["result"].lower() not in ("pass", "skip")]
    if bad:
        yield Finding.fail(
            "healthcheck",
            f"{EACH.healthcheck} reports: {{checks}}",
            *("{check}: {result} ({file}, {when})".format(**result) for result in bad),
            remedy=EACH.remedies["healthcheck"],
            checks=sorted({result["check"] for result in bad}),
        )
    if status_dir and not seen["health"]:
        yield Finding.warn(
            "no-results",
            "{directory} has no cxi_healthcheck result",
            remedy="run cxi_healthcheck with --status_dir, or remove status_dir from the check's options",
            directory=status_dir,
        )


def look(w: Worker) -> None:
    programs = {name: file for name, (file, _) in w.params["programs"].items()}
    is_needed = bool(w.params["stated"]) and bool(FABRICS[w.params["stated"][0]].offered_as)
    w.record(**w.fabric.look(programs, w.params["status_dir"], transports=is_needed))


CHECK = FabricInfo()
