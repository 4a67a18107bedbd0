"""Send the messages of `mpi-small-message` without MPI, through libfabric and UCX.

Libfabric sends from host memory, UCX also from device memory. UCX's program sends all sizes in one run. Only
if that fails, and with libfabric's program, each size is a separate run, so that the failed size is named and
the others are still tried after a hang or crash. ``fi_pingpong`` verifies data; ``ucx_perftest`` only shows
that messages arrive. This check is a control: if it passes and MPI fails, the fabric is not the cause.

The provider is the one that MPI would use: that of the adapter, or tcp and shm on a node without an adapter.
If the site config sets ``fabric``, that fabric's provider is used. With ``--nodes 2``, messages are also sent
between two nodes.

Options: ``sizes`` (a list of bytes), instead of those of `mpi-small-message`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Control,
    Device,
    Evidence,
    Finding,
    Json,
    Launch,
    Measurement,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    misplaced,
)
from gpuipc_doctor.api.messages import ENOUGH, LARGE_MESSAGES, SIZES_OPTION, SMALL_MESSAGES

SIZES = (*SMALL_MESSAGES, *LARGE_MESSAGES)

DEVICE_SIZES = (1, 16, 256, 4096, 65536, *LARGE_MESSAGES)
"""Bytes of messages in device memory: fewer sizes than `SIZES`, because each run initialises the driver."""

ROUNDS = 2
"""Round trips per size; more would only take longer."""

ACROSS, REST, ONE_BY_ONE = "between nodes", "the rest", "one by one"

ALL = "all sizes"
"""In place of a message's size, while one run sends them all."""

COME_FROM = {
    "fi_pingpong": "fi_pingpong comes with libfabric (Debian: libfabric-bin; HPE: /opt/cray/libfabric)",
    "ucx_perftest": "ucx_perftest comes with UCX; `pip install libucx-cu12` has one with CUDA",
}
"""Program → the package that contains it."""


class FabricSmallMessage(Check):
    id = "fabric-small-message"
    title = "small messages arrive without MPI"
    uses_fabric = True
    across = True
    options: ClassVar = {"sizes": SIZES_OPTION}
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
        starts = [("", None), *([(ACROSS, ctx.across)] if ctx.across else [])]
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
                yield probe(named("libfabric", where), (), params, launch)
            if "ucx_perftest" in programs:
                params = {**common, "program": programs["ucx_perftest"], "memory": "host", "at_once": True}
                yield probe(named("UCX", where), (), params, launch)
                sizes = ctx.options.get("sizes", DEVICE_SIZES)
                for devices in [(device,) for device in ctx.devices[:1]] if launch else on_devices(ctx):
                    in_device = {**params, "memory": devices[0].backend, "sizes": sizes}
                    yield probe(named("UCX", where), devices, in_device, launch)

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
        elif not bad:
            yield Finding.ok(
                "arrived",
                "messages of {count} sizes {checked} over {routes}",
                *latencies(right),
                *chosen(right, done.params["stated"]),
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


def named(library: str, where: str) -> str:
    return f"{library}, {where}" if where else library


def mapped(failed: list[Json]) -> Iterator[Evidence]:
    """One line for each route: the failed sizes, and the reason of the first failure."""
    for route in dict.fromkeys(attempt["route"] for attempt in failed):
        first, *others = (attempt for attempt in failed if attempt["route"] == route)
        sizes = [f"{message['size']} B" for message in (first, *others)]
        more = "" if len(sizes) < ENOUGH else "; further sizes were not tried"
        says = f"{{route}}: {{sizes}}: {{said}}{more}"
        yield Evidence.seen(says, route=route, sizes=sizes, said=first["said"])


def timed(tries: list[Json]) -> list[Json]:
    """The timed attempts with messages of 1 byte and of the last size in `SMALL_MESSAGES`."""
    return [
        attempt
        for attempt in tries
        if attempt.get("us") is not None and attempt["size"] in (1, SMALL_MESSAGES[-1])
    ]


def measured(program: str, tries: list[Json]) -> Iterator[Measurement]:
    for timing in timed(tries):
        yield Measurement(
            f"{program} over {timing['route']}, latency, {timing['size']} B", timing["us"], "µs"
        )


def latencies(tries: list[Json]) -> Iterator[Evidence]:
    for timing in timed(tries):
        says = "{route}, {size} B: {latency:us}"
        yield Evidence.measured(says, route=timing["route"], size=timing["size"], latency=timing["us"] / 1e6)


def offers_none(stated: Json) -> str:
    if stated is None:
        return "fi_info lists no provider that an MPI would use"
    name, where = stated
    return f"fi_info lists no provider of {name}, which {where} says this node has; see fabric-info"


def chosen(tries: list[Json], stated: Json) -> Iterator[str]:
    """Settings that make UCX use the site config's fabric."""
    told = {f"{name}={value}" for attempt in tries for name, value in attempt.get("chosen", {}).items()}
    yield from (f"{setting}, for {stated[1]} says {stated[0]}" for setting in sorted(told))


def exchange(w: Worker) -> None:
    w.record(node=w.node)
    failed, tries = w.params["failed"], list[Json]()
    stated, _ = w.params["stated"] or (None, None)
    for route in routes(w):
        if w.params["at_once"] and (sent := all_at_once(w, route)):
            tries += sent
            continue
        for size in w.params["sizes"]:
            bad = [
                attempt
                for attempt in (*failed, *tries)
                if attempt["route"] == route and attempt["ended"] != "right"
            ]
            if any(message["ended"] == "cannot start" for message in bad):
                break
            if len(bad) >= ENOUGH or size in [message["size"] for message in bad]:
                continue
            w.record(message=[route, size])
            with w.step(f"{size} B over {route}"):
                told = w.fabric.ping_pong(w.params["program"], route, [size], ROUNDS, stated)
            tries.append({"route": route, "size": size, **told})
    w.record(message=None, tries=tries)


def all_at_once(w: Worker, route: str) -> list[Json]:
    """Send messages of all sizes in one run; empty if the sizes must be tried one by one."""
    sizes = w.params["sizes"]
    stated, _ = w.params["stated"] or (None, None)
    if len(sizes) == 1:
        return []
    w.record(message=[route, ALL])
    with w.step(f"{len(sizes)} sizes over {route}"):
        told = w.fabric.ping_pong(w.params["program"], route, sizes, ROUNDS, stated)
    if told["ended"] == "right":
        times = told.pop("each")
        return [
            {"route": route, "size": size, **told, "us": us} for size, us in zip(sizes, times, strict=True)
        ]
    if told["ended"] in ("cannot start", "unable"):
        return [{"route": route, "size": sizes[0], **told}]
    w.record(at_once=told["said"])
    return []


def routes(w: Worker) -> list[str]:
    """Names of the messages' routes, which the server chooses and sends to the client."""
    if memory := w.params.get("memory"):
        return [memory]
    if w.role == SERVER:
        stated, _ = w.params["stated"] or (None, None)
        offered = w.fabric.routes(w.params["fi_info"], across=w.params["across"], stated=stated)
        w.peer.send(offered)
        return offered
    return list(w.peer.recv())


SERVER, CLIENT = "server", "client"

ROLES = {SERVER: exchange, CLIENT: exchange}

CHECK = FabricSmallMessage()
