"""Judge the adapters that libfabric must list by name, and those of the fabric that the site states."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.api import FabricStack, Finding, Json, StatedFabric
from gpuipc_doctor.api.fabrics import FABRICS

BY_ADAPTER = "cxi"
"""The fabric of which libfabric must list each adapter by its name."""
EACH = FABRICS[BY_ADAPTER]


def judge_adapters(seen: Json) -> Iterator[Finding]:
    """Findings on each adapter that libfabric must list by its name."""
    offered = {
        interface["domain"]: interface["state"]
        for interface in seen.get("interfaces", ())
        if interface["provider"] == BY_ADAPTER
    }
    for adapter in seen["adapters"]:
        name, shown = adapter["name"], describe(adapter)
        if "interfaces" in seen and name not in offered:
            yield Finding.fail(
                "not-offered",
                "libfabric does not list {adapter}{why:aside}",
                shown,
                remedy=EACH.remedies["left-out" if adapter["left_out"] else "not-offered"],
                adapter=name,
                why=adapter["left_out"],
            )
        elif offered.get(name) == "down" or adapter["link"] == "down":
            yield Finding.fail(
                "link-down",
                "the link of {adapter} is down",
                shown,
                remedy=EACH.remedies["link-down"],
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
                "link-layer retry is off on {adapter}: lost frames are not resent",
                shown,
                remedy=EACH.remedies["no-link-retry"],
                adapter=name,
            )


def describe(adapter: Json) -> str:
    """An adapter such as ``cxi0 (hsn0): link up, BS_200G, link layer retry on``, without unreadable
    attributes."""
    parts = [f"{word} {adapter[key]}" for key, word in WORDS.items() if adapter[key]]
    return (
        f"{adapter['name']} ({adapter['interface'] or 'no interface'}): {', '.join(parts) or 'no attributes'}"
    )


WORDS = {"link": "link", "speed": "speed", "retries": "link layer retry", "loopback": "loopback"}


def without_adapter(fabric: FabricStack, stated: StatedFabric) -> Finding:
    """The FAIL if the kernel lists no adapter of the site config's fabric; other adapters are its
    evidence."""
    kind = FABRICS[stated.name]
    return Finding.fail(
        "no-adapter",
        "no {what} adapter found; {where} says this node has {fabric}",
        *(f"the kernel lists {', '.join(names)} ({of})" for of, names in fabric.adapters.items() if names),
        remedy=f"{kind.remedies['no-adapter']}; if the node has no such adapter, correct {stated.where}",
        fabric=stated.name,
        what=kind.title,
        where=stated.where,
    )


def judge_stated(seen: Json, stated: Json) -> Iterator[Finding]:
    """The findings if an adapter of the stated fabric exists, but has no active port or no library lists
    it."""
    if not stated:
        return
    name, where, adapters = stated
    ports = {
        port: state for port, state in seen["ports"].items() if port.partition("/")[0] in (adapters or ())
    }
    if ports and "ACTIVE" not in ports.values():
        yield Finding.fail(
            "no-active-port",
            "no port of {adapters} is active; {where} says this node has {fabric}",
            *(f"{port} is {state}" for port, state in ports.items()),
            remedy="check the cable, the switch port and the subnet manager (ibstat, ibv_devinfo)",
            adapters=adapters,
            where=where,
            fabric=name,
        )
    offers = {
        "fi_info": [interface["provider"] for interface in seen.get("interfaces", ())],
        "ucx_info": seen.get("transports", []),
    }
    was_asked = "interfaces" in seen or "transports" in seen
    if was_asked and not is_offered(name, [*offers["fi_info"], *offers["ucx_info"]]):
        yield Finding.warn(
            "stated-not-offered",
            "neither libfabric nor UCX lists {fabric}, which this node has according to {where}",
            *(
                f"{program} lists {', '.join(dict.fromkeys(found))}"
                for program, found in offers.items()
                if found
            ),
            remedy="load the jobs' MPI module, or name the library with --mpi-lib: MPI may have its own UCX",
            fabric=name,
            where=where,
        )


def is_offered(fabric: str, offers: list[str]) -> bool:
    """Whether a library lists the fabric. A fabric whose adapters are judged one by one counts as listed."""
    names = FABRICS[fabric].offered_as
    return not names or any(offer.startswith(names) for offer in offers)
