"""Send what `mpi-small-message` sends without MPI: through libfabric, and through UCX in device memory, too.

Each size is a run of its own of two programs that come with these libraries, so that one which hangs or
crashes is named and the others are tried all the same. ``fi_pingpong`` compares what arrives with what was
sent, in host memory; ``ucx_perftest`` compares nothing, and tells that messages arrive. It is a control:
what is right here and wrong through MPI is not the fabric's doing.

The provider is the one that MPI would use: an adapter's, or tcp and shm where there is none; where the site
config says which ``fabric`` its nodes have, that one's, whatever else is here. With ``--nodes 2`` messages go
between two nodes, too.

Options: ``sizes`` (a list of bytes), in place of those of `mpi-small-message`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import ClassVar

from gpuipc_doctor.api import (
    ENOUGH,
    LARGE_MESSAGES,
    SIZES_OPTION,
    SMALL_MESSAGES,
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
    Worker,
    misplaced,
)

SIZES = (*SMALL_MESSAGES, *LARGE_MESSAGES)

DEVICE_SIZES = (1, 16, 256, 4096, 65536, *LARGE_MESSAGES)
"""Fewer, for each run initialises the driver anew."""

ROUNDS = 2
"""Messages of one size there and back: more only makes the control slow."""

ACROSS, REST = "between nodes", "the rest"

COME_FROM = {
    "fi_pingpong": "fi_pingpong comes with libfabric (Debian: libfabric-bin; HPE: /opt/cray/libfabric)",
    "ucx_perftest": "ucx_perftest comes with UCX; that of `pip install libucx-cu12` has CUDA",
}
"""By program, what would bring it."""


class FabricSmallMessage(Check):
    id = "fabric-small-message"
    title = "small messages arrive without MPI, too"
    uses_fabric = True
    across = True
    options: ClassVar = {"sizes": SIZES_OPTION}
    control = Control(
        of="mpi-small-message",
        right="works without MPI ({check}): suspect MPI, or how it moves device memory",
        wrong="fails without MPI too ({check}): suspect the fabric first",
    )

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        programs = {name: one.file for name, one in ctx.fabric.programs.items()}
        missing = [program for program in COME_FROM if program not in programs]
        if len(missing) == len(COME_FROM):
            yield Finding.skip(
                "no-program",
                "there is neither {programs}{why_not:aside}",
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
                "missing": missing,
                "env": dict(ctx.fabric.env),
                "stated": [stated.name, stated.where] if stated else None,
            }
            if "fi_pingpong" in programs:
                params = {**common, "program": programs["fi_pingpong"], "fi_info": programs.get("fi_info")}
                yield probe(named("libfabric", where), (), params, launch)
            if "ucx_perftest" in programs:
                params = {**common, "program": programs["ucx_perftest"], "memory": "host"}
                yield probe(named("UCX", where), (), params, launch)
                sizes = ctx.options.get("sizes", DEVICE_SIZES)
                for devices in ctx.subjects if launch is None else [(one,) for one in ctx.devices[:1]]:
                    in_device = {**params, "memory": devices[0].backend, "sizes": sizes}
                    yield probe(named("UCX", where), devices, in_device, launch)

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        if not failed.blamed or failed.roles[failed.blamed].ending.value != "hung":
            return
        if message := failed.records[failed.blamed].get("message"):
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
        if unstarted := [one["said"] for one in tries if one["ended"] == "cannot start"]:
            yield Finding.error(
                "cannot-start",
                "{program} cannot start: {said}",
                remedy=f"see `ldd {done.params['program']}` and LD_LIBRARY_PATH, or load its module",
                program=program,
                said=unstarted[0],
            )
            return
        unable = [one["said"] for one in tries if one["ended"] == "unable"]
        if unable or not tries:
            yield Finding.skip(
                "cannot-send",
                "{program} has no usable transport here{why:aside}",
                program=program,
                why=unable[0] if unable else offers_none(done.params["stated"]),
                remedy=COME_FROM[program],
            )
            return
        right = [one for one in tries if one["ended"] == "right"]
        bad = False
        for ended, (key, says) in ENDINGS.items():
            if evidence := list(mapped([one for one in tries if one["ended"] == ended])):
                bad = True
                yield Finding.fail(key, says, *evidence, program=program, right=len(right))
        if not bad:
            yield Finding.ok(
                "arrived",
                "{count} sizes {checked} over {routes}",
                *latencies(right),
                *chosen(right, done.params["stated"]),
                *(f"not tried without {other}: {COME_FROM[other]}" for other in done.params["missing"]),
                measured=measured(program, right),
                count=len(done.params["sizes"]),
                checked="right" if program == "fi_pingpong" else "delivered",
                routes=list(dict.fromkeys(one["route"] for one in right)),
            )


ENDINGS = {
    "wrong": ("wrong-data", "{program}: messages arrived wrong without MPI; {right} sizes were right"),
    "crashed": ("crashed", "{program} crashed over messages without MPI; {right} sizes were right"),
    "failed": ("failed", "{program} could not send messages without MPI; {right} sizes were right"),
    "hung": ("map", "map of what hung in {program}; {right} sizes were right"),
}
"""What a message may come to, and what is then said: the finding's key, and its sentence."""


def probe(name: str, devices: tuple[Device, ...], params: dict[str, Json], launch: Launch | None) -> Probe:
    return Probe(name, ROLES, devices, params, together=True, launch=launch, env=params["env"])


def named(library: str, where: str) -> str:
    return f"{library}, {where}" if where else library


def mapped(failed: list[Json]) -> Iterator[Evidence]:
    """A line for each route: which sizes, and how the first of them failed."""
    for route in dict.fromkeys(one["route"] for one in failed):
        first, *others = (one for one in failed if one["route"] == route)
        sizes = [f"{one['size']} B" for one in (first, *others)]
        more = "" if len(sizes) < ENOUGH else ", and no more sizes tried"
        says = f"{{route}}: {{sizes}}{more}: {{said}}"
        yield Evidence.seen(says, route=route, sizes=sizes, said=first["said"])


def timed(tries: list[Json]) -> list[Json]:
    """The smallest message and the largest small one, by route, where the program tells their latency."""
    return [one for one in tries if one.get("us") is not None and one["size"] in (1, SMALL_MESSAGES[-1])]


def measured(program: str, tries: list[Json]) -> Iterator[Measurement]:
    for one in timed(tries):
        yield Measurement(f"{program} over {one['route']}, latency, {one['size']} B", one["us"], "µs")


def latencies(tries: list[Json]) -> Iterator[Evidence]:
    for one in timed(tries):
        says = "{route}, {size:bytes}: {latency:us}"
        yield Evidence.measured(says, route=one["route"], size=one["size"], latency=one["us"] / 1e6)


def offers_none(stated: Json) -> str:
    if stated is None:
        return "fi_info offers no provider that MPI would use"
    name, where = stated
    return f"fi_info offers no provider of {name}, which {where} says that this node has; see fabric-info"


def chosen(tries: list[Json], stated: Json) -> Iterator[str]:
    """What told UCX which fabric."""
    told = {f"{name}={value}" for one in tries for name, value in one.get("chosen", {}).items()}
    yield from (f"{one}, for {stated[1]} says {stated[0]}" for one in sorted(told))


def exchange(w: Worker) -> None:
    w.record(node=w.node)
    failed, tries = w.params["failed"], list[Json]()
    stated, _ = w.params["stated"] or (None, None)
    for route in routes(w):
        for size in w.params["sizes"]:
            bad = [one for one in (*failed, *tries) if one["route"] == route and one["ended"] != "right"]
            if any(one["ended"] == "cannot start" for one in bad):
                break
            if len(bad) >= ENOUGH or size in [one["size"] for one in bad]:
                continue
            w.record(message=[route, size])
            with w.step(f"{size} B over {route}"):
                told = w.fabric.ping_pong(w.params["program"], route, size, ROUNDS, stated)
            tries.append({"route": route, "size": size, **told})
    w.record(message=None, tries=tries)


def routes(w: Worker) -> list[str]:
    """What messages go through, of which both ends must have the same idea."""
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
