"""The tries of `fabric-small-message`, of one size over one route: how they are made, and what they show."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.api import Evidence, Json, Measurement, Worker
from gpuipc_doctor.api.carriers import record_carriers
from gpuipc_doctor.api.message_sizes import ENOUGH, LARGE_MESSAGES, SMALL_MESSAGES

LARGE = LARGE_MESSAGES[0]
"""Bytes from which what carries a message decides its speed. Smaller ones go through the host by design."""

ROUNDS = 2
"""Round trips per size; more would only take longer."""

ALL = "all sizes"
"""In place of a message's size, while one run sends them all."""

SERVER, CLIENT = "server", "client"


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
    if w.params.get("pair"):
        tell_carriers(w, tries)


def tell_carriers(w: Worker, tries: list[Json]) -> None:
    """Record what carried large messages between two GPUs, what carries puts and gets, and both speeds if
    messages go through the host."""
    last = max(tries, key=lambda attempt: attempt["size"], default=None)
    if not last or last["size"] < LARGE or last["ended"] != "right" or "message" not in last["carried"]:
        return
    size, route = last["size"], last["route"]
    with w.step(f"put and get {size} B"):
        other = w.fabric.ping_pong(w.params["program"], route, [size], ROUNDS, None, ("put", "get"))
    carried = {**other["carried"], "message": last["carried"]["message"]}
    if w.role == CLIENT and last["us"]:
        record_carriers(w, carried, size, last["us"] / 1e6)
    if why_not := w.fabric.why_not_apart():
        w.record(apart={"ended": "not tried", "said": why_not})
        return
    with w.step(f"{size} B, in PID namespaces of their own"):
        w.record(apart=w.fabric.ping_pong(w.params["program"], route, [size], ROUNDS, None, apart=True))


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


def apart(told: Json) -> Iterator[Evidence]:
    """What carried the largest message between programs with a PID namespace each."""
    if not told:
        return
    by, speed = told.get("carried", {}).get("message"), LARGE / told["us"] / 1e3 if told.get("us") else None
    if told["ended"] != "right":
        says = "in PID namespaces of their own: {ended} ({said})"
        yield Evidence.seen(says, ended=told["ended"], said=told["said"])
    elif speed:
        says = "in PID namespaces of their own, as in containers: {by}, {speed} GB/s"
        unsaid = "UCX names several transports or none"
        yield Evidence.measured(says, by=by[1] if by else unsaid, speed=float(f"{speed:.3g}"))


def chosen(tries: list[Json], stated: Json) -> Iterator[str]:
    """Settings that make UCX use the site config's fabric."""
    told = {f"{name}={value}" for attempt in tries for name, value in attempt.get("chosen", {}).items()}
    yield from (f"{setting}, for {stated[1]} says {stated[0]}" for setting in sorted(told))
