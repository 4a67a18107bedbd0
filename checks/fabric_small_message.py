"""Send the messages of `mpi-small-message` without MPI, through libfabric and UCX.

Libfabric sends from host memory, UCX also from device memory: of one pair, in ``soak`` of all devices and
pairs. UCX's program sends all sizes in one run. Only if that fails, and with libfabric's program, each size
is a separate run, so that the failed size is named and the others are still tried after a hang or crash.
``fi_pingpong`` verifies data; ``ucx_perftest`` only shows that messages arrive. This check is a control: if
it passes and MPI fails, the fabric is not the cause.

The provider is the one that MPI would use: that of the adapter, or tcp and shm on a node without an adapter.
Of device memory on two GPUs, the transport is reported that UCX chose for the largest message, for puts and
for gets (``UCX_PROTO_INFO``, UCX 1.14 and newer). It is a WARN if messages go through sockets or the host's
memory although the driver grants peer access: an engine then runs a hundred times slower without an error
(vLLM's issue 52607: 0.5 instead of 49 GB/s). Puts and gets are not judged: UCX 1.22 emulates gets on CUDA.
Where `unshare` may, the largest message is also sent between programs with a PID namespace each, as between
two containers; what carries it is reported and not judged.

If the site config sets ``fabric``, that fabric's provider is used. With ``--nodes 2``, messages are also sent
between two nodes.

Options: ``sizes`` (a list of bytes), instead of those of `mpi-small-message`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Control,
    Device,
    Finding,
    Json,
    Launch,
    Probe,
    ProbeOutcome,
    Subject,
    Tier,
    misplaced,
)
from gpuipc_doctor.api.carriers import carriers, through_host
from gpuipc_doctor.api.fabrics import UCX_DEFAULTS
from gpuipc_doctor.api.message_sizes import LARGE_MESSAGES, SIZES_OPTION, SMALL_MESSAGES

from ._fabric_small_message_tries import (
    ALL,
    CLIENT,
    SERVER,
    apart,
    chosen,
    exchange,
    latencies,
    mapped,
    measured,
)

SIZES = (*SMALL_MESSAGES, *LARGE_MESSAGES)

DEVICE_SIZES = (1, 16, 256, 4096, 65536, *LARGE_MESSAGES)
"""Bytes of messages in device memory: fewer sizes than `SIZES`, because each run initialises the driver."""

ACROSS, REST, ONE_BY_ONE = "between nodes", "the rest", "one by one"

COME_FROM = {
    "fi_pingpong": "fi_pingpong comes with libfabric (Debian: libfabric-bin; HPE: /opt/cray/libfabric)",
    "ucx_perftest": "ucx_perftest comes with UCX; `pip install libucx-cu12` has one with CUDA",
}
"""Program → the package that contains it."""


class FabricSmallMessage(Check):
    id = "fabric-small-message"
    title = "small messages arrive without MPI"
    subject = Subject.FABRIC
    uses_fabric = True
    across = True
    options: ClassVar = {"sizes": SIZES_OPTION}
    curable_warnings = frozenset({"through-host"})
    workarounds = UCX_DEFAULTS
    control = Control(
        of="mpi-small-message",
        right="messages arrive without MPI ({check}): suspect MPI, or how MPI moves device memory",
        wrong="messages also fail without MPI ({check}): suspect the fabric first",
    )

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        programs = {name: one.file for name, one in ctx.fabric.programs.items()}
        missing = [program for program in COME_FROM if program not in programs]
        if len(missing) == len(COME_FROM):
            yield Finding.skip(
                "no-program",
                "this node has neither {programs}{why_not:aside}",
                remedy="; ".join(COME_FROM.values()),
                programs=" nor ".join(missing),
                why_not=ctx.fabric.why_not,
            )
        stated = ctx.fabric.stated
        starts = [("", None), *([(f", {ACROSS}", ctx.across)] if ctx.across else [])]
        for where, launch in starts:
            common = {
                "sizes": ctx.options.get("sizes", SIZES),
                "failed": [],
                "across": launch is not None,
                "at_once": False,
                "missing": missing,
                "env": dict(ctx.fabric.env),
                "stated": [stated.name, stated.where] if stated else None,
            }
            if "fi_pingpong" in programs:
                params = {**common, "program": programs["fi_pingpong"], "fi_info": programs.get("fi_info")}
                yield probe(f"libfabric{where}", (), params, launch)
            if "ucx_perftest" in programs:
                params = {**common, "program": programs["ucx_perftest"], "memory": "host", "at_once": True}
                yield probe(f"UCX{where}", (), params, launch)
                sizes = ctx.options.get("sizes", DEVICE_SIZES)
                for devices in [(device,) for device in ctx.devices[:1]] if launch else on_devices(ctx):
                    in_device = {**params, "memory": devices[0].backend, "sizes": sizes}
                    in_device["pair"] = len(devices) > 1
                    yield probe(f"UCX{where}", devices, in_device, launch)

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        if not failed.blamed or failed.roles[failed.blamed].ending.value != "hung":
            return
        message = failed.records[failed.blamed].get("message")
        if message and message[1] == ALL:
            params = {**failed.params, "at_once": False}
            yield probe(f"{failed.probe}, {ONE_BY_ONE}", failed.devices, params, failed.launch)
        elif message:
            ended = {"route": message[0], "size": message[1], "ended": "hung", "said": failed.blamed}
            params = {**failed.params, "failed": [*failed.params["failed"], ended]}
            name = failed.probe if failed.probe.endswith(REST) else f"{failed.probe}, {REST}"
            yield probe(name, failed.devices, params, failed.launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        nodes = [record["node"] for record in done.records.values()]
        if astray := misplaced(nodes, across=done.params["across"]):
            yield astray
            return
        program = PurePath(done.params["program"]).name
        tries = [*done.params["failed"], *done.records[CLIENT]["tries"]]
        if unstarted := [attempt["said"] for attempt in tries if attempt["ended"] == "cannot start"]:
            yield Finding.error(
                "cannot-start",
                "{program} cannot start: {said}",
                remedy=f"see `ldd {done.params['program']}` for missing libraries, and load their module",
                program=program,
                said=unstarted[0],
            )
            return
        unable = [attempt["said"] for attempt in tries if attempt["ended"] == "unable"]
        if unable or not tries:
            yield Finding.skip(
                "cannot-send",
                "{program} has no usable transport here{why:aside}",
                program=program,
                why=unable[0] if unable else offers_none(done.params["stated"]),
                remedy=COME_FROM[program],
            )
            return
        right = [attempt for attempt in tries if attempt["ended"] == "right"]
        bad = False
        for ended, (key, says) in ENDINGS.items():
            if evidence := list(mapped([attempt for attempt in tries if attempt["ended"] == ended])):
                bad = True
                yield Finding.fail(key, says, *evidence, program=program, right=len(right))
        if not bad and (said := done.records[CLIENT].get("at_once")):
            says = "{program} failed with all sizes in one run ({said}); each size alone passed"
            yield Finding.warn("failed-at-once", says, program=program, said=said)
        elif not bad and (slow := through_host(done, CLIENT)):
            yield slow
        elif not bad:
            yield Finding.ok(
                "arrived",
                "messages of {count} sizes {checked} over {routes}",
                *latencies(right),
                *chosen(right, done.params["stated"]),
                *carriers(done.records[CLIENT]),
                *apart(done.records[CLIENT].get("apart")),
                *(f"{other} was not found ({COME_FROM[other]})" for other in done.params["missing"]),
                measured=measured(program, right),
                count=len(done.params["sizes"]),
                checked="arrived correct" if program == "fi_pingpong" else "were delivered",
                routes=list(dict.fromkeys(message["route"] for message in right)),
            )


ENDINGS = {
    "wrong": ("wrong-data", "{program}: messages without MPI had wrong data; {right} sizes passed"),
    "crashed": ("crashed", "{program} crashed sending messages without MPI; {right} sizes passed"),
    "failed": ("failed", "{program} could not send messages without MPI; {right} sizes passed"),
    "hung": ("map", "{program} hung at the sizes below; {right} sizes passed"),
}
"""Result of a message → key and summary of its finding."""


def probe(name: str, devices: tuple[Device, ...], params: dict[str, Json], launch: Launch | None) -> Probe:
    return Probe(name, ROLES, devices, params, together=True, launch=launch, env=params["env"])


def on_devices(ctx: Context) -> Iterable[tuple[Device, ...]]:
    """In ``soak`` all devices and pairs; else one of each backend, since each message initialises the driver
    twice."""
    return ctx.subjects if ctx.tier is Tier.SOAK else ctx.a_pair_or_device_of_each_backend


def offers_none(stated: Json) -> str:
    if stated is None:
        return "fi_info lists no provider that an MPI would use"
    name, where = stated
    return f"fi_info lists no provider of {name}, which {where} says this node has; see fabric-info"


ROLES = {SERVER: exchange, CLIENT: exchange}

CHECK = FabricSmallMessage()
