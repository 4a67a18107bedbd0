"""See what libfabric and UCX are here, and whether libfabric offers each of the node's HPE adapters.

An adapter that the kernel has and libfabric does not offer is lost to every MPI; what stands against it is
read where libfabric reads it: a retry handler that does not run, an address that the fabric manager has not
set. HPE calls ``fi_info`` the first tool for that (shs-docs,
troubleshoot/cassini/RDMA_interface_troubleshooting.md).

Options: ``status_dir``, where HPE's ``cxi_healthcheck --status_dir`` leaves its results; they are told, never
repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath

from gpuipc_doctor.api import Check, Context, Finding, Json, Probe, ProbeOutcome, Worker

OF_INTEREST = ("libfabric", "shs-libfabric", "libfabric-providers", "ucx", "cxi-driver", "shs")
"""Facts of the inventory that are evidence here."""


class FabricInfo(Check):
    id = "fabric-info"
    title = "libfabric and UCX are here, and offer each adapter"
    uses_fabric = True

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        known = [
            f"{fact.name} {fact.value} ({fact.source})"
            for fact in ctx.inventory
            if fact.name in OF_INTEREST and fact.value
        ]
        adapters = any(fact.name == "cxi-devices" and fact.value for fact in ctx.inventory)
        if not (known or adapters or ctx.fabric.programs):
            yield Finding.skip(
                "no-fabric",
                "neither libfabric nor UCX was found, nor an adapter of HPE's{why_not:aside}",
                remedy="where MPI uses them, load its module, or name it with --mpi-lib",
                why_not=ctx.fabric.why_not,
            )
            return
        params = {
            "programs": {name: [one.file, one.via] for name, one in ctx.fabric.programs.items()},
            "known": known,
            "status_dir": ctx.options.get("status_dir"),
        }
        yield Probe("", {"fabric": look}, params=params, env=ctx.fabric.env)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen, programs = done.records["fabric"], done.params["programs"]
        told = [*problems(seen, programs), *health(seen, done.params["status_dir"])]
        adapters = [in_words(one) for one in seen["adapters"]]
        by_itself = [f"{name}: {file} ({via})" for name, (file, via) in programs.items()]
        providers = list(dict.fromkeys(one["provider"] for one in seen.get("interfaces", ())))
        yield from told or [
            Finding.ok(
                "offered",
                "{what}",
                *(["fi_info offers " + ", ".join(providers)] if providers else []),
                *adapters,
                *by_itself,
                *done.params["known"],
                what=summary(seen, done.params["known"]),
            )
        ]


def summary(seen: Json, known: list[str]) -> str:
    """What is here, in a few words."""
    parts = [f"libfabric {seen['libfabric']}"] if seen.get("libfabric") else []
    parts += [f"UCX {seen['ucx']}"] if seen.get("ucx") else []
    parts = parts or [line.partition(" (")[0] for line in known]
    if count := len(seen["adapters"]):
        parts.append(f"{count} adapter{'s' * (count != 1)}, all offered")
    return ", ".join(parts) or "nothing that tells its version"


def in_words(adapter: Json) -> str:
    """``cxi0 (hsn0): link up, BS_200G, link layer retry on``; what was not to be read is left out."""
    parts = [f"{word} {adapter[key]}" for key, word in WORDS.items() if adapter[key]]
    return (
        f"{adapter['name']} ({adapter['interface'] or 'no interface'}): {', '.join(parts) or 'nothing told'}"
    )


WORDS = {"link": "link", "speed": "speed", "retries": "link layer retry", "loopback": "loopback"}


def problems(seen: Json, programs: Json) -> Iterator[Finding]:
    offered = {one["domain"]: one["state"] for one in seen.get("interfaces", ()) if one["provider"] == "cxi"}
    for adapter in seen["adapters"]:
        name, shown = adapter["name"], in_words(adapter)
        if "interfaces" in seen and name not in offered:
            yield Finding.fail(
                "not-offered",
                "libfabric offers {adapter} to nobody{why:aside}",
                shown,
                remedy="cure that, or see `fi_info -p cxi` under FI_LOG_LEVEL=warn; a retry handler that has "
                "crashed takes a reboot (HPE's guide)",
                adapter=name,
                why=adapter["left_out"],
            )
        elif offered.get(name) == "down" or adapter["link"] == "down":
            yield Finding.fail(
                "link-down",
                "the link of {adapter} is down",
                shown,
                remedy="look at cable and switch port (cxi_stat, and the fabric manager)",
                adapter=name,
            )
        if adapter["loopback"] not in ("", "off"):
            yield Finding.warn(
                "loopback",
                "{adapter} is in loopback mode: nothing leaves the node through it",
                shown,
                remedy="ethtool --set-priv-flags {interface} internal-loopback off".format(**adapter),
                adapter=name,
            )
        if adapter["retries"] == "off":
            yield Finding.warn(
                "no-link-retry",
                "{adapter} does not repeat what its link loses (link layer retry is off)",
                shown,
                remedy="ask HPE, or whoever has set the port's policy",
                adapter=name,
            )
    file, via = programs.get("fi_info", ("", ""))
    if via == "not on PATH":
        prefix = PurePath(file).parents[1]
        yield Finding.warn(
            "outside-path",
            "libfabric's programs are in {directory}, which is not on PATH",
            remedy=f"export PATH={prefix}/bin:$PATH LD_LIBRARY_PATH={prefix}/lib64:$LD_LIBRARY_PATH, or load "
            "its module (HPE's known issue 2874751, on RHEL)",
            directory=str(PurePath(file).parent),
        )
    if seen["adapters"] and "interfaces" not in seen:
        yield Finding.warn(
            "cannot-ask",
            "there are adapters, and no fi_info to ask whether libfabric offers them",
            *map(in_words, seen["adapters"]),
            remedy="install libfabric's programs, or put them on PATH",
        )


def health(seen: Json, status_dir: str | None) -> Iterator[Finding]:
    """What HPE's own check has said."""
    bad = [one for one in seen["health"] if one["result"].lower() not in ("pass", "skip")]
    if bad:
        yield Finding.fail(
            "healthcheck",
            "HPE's cxi_healthcheck has found: {checks}",
            *("{check}: {result} ({file}, {when})".format(**one) for one in bad),
            remedy="see HPE's troubleshooting guide for these; run cxi_healthcheck again after the cure",
            checks=sorted({one["check"] for one in bad}),
        )
    if status_dir and not seen["health"]:
        yield Finding.warn(
            "no-results",
            "{directory} holds no result of cxi_healthcheck",
            remedy="let it be run with --status_dir, or take status_dir out of the options",
            directory=status_dir,
        )


def look(w: Worker) -> None:
    programs = {name: file for name, (file, _) in w.params["programs"].items()}
    w.record(**w.fabric.look(programs, w.params["status_dir"]))


CHECK = FabricInfo()
