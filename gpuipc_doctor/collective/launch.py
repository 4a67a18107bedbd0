"""The one launch of all collective checks: a rank for each GPU of a vendor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from gpuipc_doctor.api import (
    Check,
    Collectives,
    Communicator,
    Context,
    Finding,
    Json,
    Meter,
    Observed,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
)
from gpuipc_doctor.collective import as_used, bandwidth, channels, communicators, data
from gpuipc_doctor.collective.all_ranks import AllRanks
from gpuipc_doctor.collective.transport_switches import PEER_DEFAULTS

DEADLINE_S = 30.0
"""Limit of one call. On eight H200s the first communicator takes 2.4 s."""

CYCLES, SOAK_CYCLES = 3, 15
"""Communicators after the first one."""

MIG = "MIG-"
"""Prefix of the uuid of a GPU instance."""


class CollectiveCheck(Check):
    """A check that judges the launch which all collective checks share."""

    requires = frozenset({"multi-process"})
    uses_collectives = True

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        return launches(ctx)


def by_rank(done: ProbeOutcome) -> dict[str, Mapping[str, Json]]:
    """The records of each device's rank, by its name as ``rank 0 (cuda:0)``, in the order of ranks."""
    of_devices = zip(done.records.items(), done.devices, strict=False)  # a further role is no rank of its own
    return {f"{role} ({device.label})": records for (role, records), device in of_devices}


def launches(ctx: Context) -> Iterator[Probe | Finding]:
    """A probe for each vendor's GPUs, equal for all collective checks, or the reason why there is none."""
    for vendor in {device.backend: device.vendor for device in ctx.devices}.values():
        backend, name = vendor.backend, vendor.collectives.name
        devices = tuple(device for device in ctx.devices if device.backend == backend)
        found = ctx.collectives.of(backend)
        if any(device.uuid.startswith(MIG) for device in devices):
            says = "{name} does not work between the instances of a GPU (MIG)"
            remedy = "switch MIG off (nvidia-smi -mig 0) on nodes whose jobs use several GPUs"
            yield Finding.skip("mig", says, remedy=remedy, name=name)
        elif vendor.experimental:
            says = "{name} is not tested: its calls are not those of NCCL"
            yield Finding.skip("no-library", says, name=name)
        elif not found:
            says = "no {name} found on this node"
            searched = f"searched: {ctx.collectives.searched}"
            remedy = "name your jobs' library with --nccl-lib, or as collectives.library in the site config"
            yield Finding.skip("no-library", says, searched, remedy=remedy, name=name)
        else:
            chosen, *others = found
            roles = {f"rank {rank}": take_part for rank in range(len(devices))}
            params = {
                "name": name,
                "library": chosen.path,
                "file": chosen.file,
                "via": chosen.via,
                "others": [str(other) for other in others],
                "ranks": len(devices),
                "room": ctx.room(devices) // 3,
                "cycles": SOAK_CYCLES if ctx.tier is Tier.SOAK else CYCLES,
                "least": dict(ctx.collectives.least),
                "least_where": ctx.collectives.least_where,
                "soak": ctx.tier is Tier.SOAK,
                "gpus": [[device.label, device.backend, device.uuid, device.pci] for device in devices],
            }
            yield Probe(
                "",
                roles,
                devices,
                params,
                deadline_s=DEADLINE_S,
                exclusive=True,
                by_process=True,
                alone_at_first=True,
                together=True,
                concurrent=frozenset(roles),
            )


def take_part(w: Worker) -> None:
    """A rank's part in all collective checks. First comes what is measured, on GPUs without other probes."""
    ranks, room = AllRanks(w), w.params["room"]
    w.act_for("collective-start")
    library = w.collectives(w.params["library"])
    version = library.version
    w.record(version=version)
    w.tested(w.params["name"].lower(), version)
    if ranks.rank == 0:
        w.observe(Observed.LIBRARY, f"{w.params['name']} {version}, {w.params['file']}")
    w.gpu.primary_context()
    if w.by_process:
        Meter(w)  # not all drivers tell what this process holds
    began = w.clock()
    with w.step("first communicator"):
        comm = ranks.begin(library)
    first_s = w.clock() - began

    w.act_for("collective-data")
    results = data.Results()
    began = w.clock()
    data.run(w, library, comm, [data.first_case(ranks.size)], results)
    w.record(first=[first_s, w.clock() - began])
    _tell_transports(w, ranks, library)
    small, rest = data.parts(data.cases(ranks.size, room))
    data.run(w, library, comm, small, results)

    w.act_for("collective-speed")
    figures = bandwidth.measure(w, ranks, comm, room)
    if "seconds" in figures:
        rate = bandwidth.bus(ranks.size, figures["nbytes"], figures["seconds"])
        w.price(rate / 1e9, "GB/s bus bandwidth")
    w.record(speed=figures)
    if ranks.rank == 0:
        gpus = w.gpu_health(w.params["gpus"])["gpus"].values()
        w.record(linked=[[gpu.get("name"), gpu.get("links"), gpu.get("switched")] for gpu in gpus])
    w.share_devices()

    w.act_for("collective-data")
    data.run(w, library, comm, rest, results)
    data.run_on_two_streams(w, library, comm, room, results)
    lacks = as_used.run(w, library, comm, room, results, soak=w.params["soak"])
    if missing := library.lacks("ncclCommSplit"):
        lacks += missing
    elif ranks.size > 1:
        _split(w, ranks, library, comm, room, results)
    w.record(**results.record, lacks=lacks)
    w.record(needs=as_used.needs(w, ranks, library, comm, results))
    _tell_transports(w, ranks, library)

    w.act_for("collective-start")
    w.record(registered=communicators.registered(w, library, comm))
    with w.step("end of the first communicator"):
        comm.destroy()
    ranks.all_say(None)
    w.record(**communicators.cycles(w, ranks, library, w.params["cycles"]))


def _split(
    w: Worker, ranks: AllRanks, library: Collectives, comm: Communicator, room: int, results: data.Results
) -> None:
    """Split the ranks into two communicators, and run operations in both at the same time. Of less than four
    ranks all are in one."""
    colors = [rank % 2 if ranks.size > 3 else 0 for rank in range(ranks.size)]
    color = colors[ranks.rank]
    members = [rank for rank in range(ranks.size) if colors[rank] == color]
    with w.step("split communicator"):
        part = comm.split(color, ranks.rank, len(members), members.index(ranks.rank))
    data.run(w, library, part, data.cases_of_split(part.size, room), results)
    as_used.run_beside(w, library, comm, part, room, results)
    with w.step("end of the split communicator"):
        part.destroy()


def _tell_transports(w: Worker, ranks: AllRanks, library: Collectives) -> None:
    found = channels.by_transport(library.log())
    names = [name for each in PEER_DEFAULTS for name in each.env]
    w.record(channels=found, chosen={name: os.environ[name] for name in names if name in os.environ})
    if ranks.rank == 0 and found:
        w.observe(Observed.TRANSPORTS, channels.in_words(found))
