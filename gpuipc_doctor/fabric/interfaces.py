"""What ``fi_info`` and ``ucx_info`` print: what libfabric and UCX offer, and the state of libfabric's links.

libfabric, util/info.c prints ``provider: cxi`` and, indented, the other lines; with ``-v`` (src/fi_tostr.c)
whole structures, in which the same names stand below ``fi_fabric_attr:``, ``fi_domain_attr:`` and
``fi_link_attr:``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HARDWARE = ("cxi", "efa", "opx", "psm2", "verbs;ofi_rxm")
"""Providers of adapters that MPI libraries choose before any other; psm3 also runs over plain Ethernet."""

OF_FABRIC = {"opx": "opa", "psm2": "opa"}
"""By provider, the fabric of another name."""

HOST = ("tcp", "shm")
"""Those that are left without such an adapter, or where a site says tcp."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One way out of the node. ``state`` is ``up``, ``down`` or empty where it is not told."""

    provider: str
    domain: str
    kind: str
    """The endpoint's type: ``FI_EP_RDM``."""
    state: str = ""


def offered(text: str) -> list[Interface]:
    """The interfaces in what ``fi_info`` or ``fi_info -v`` printed; without a provider's name it is none."""
    verbose = text.startswith("---") or "\nfi_info:" in f"\n{text}"
    return [one for one in (_verbose(text) if verbose else _brief(text)) if one.provider]


def _brief(text: str) -> Iterator[Interface]:
    for block in re.split(r"^(?=provider:)", text, flags=re.MULTILINE):
        if block.startswith("provider:"):
            yield Interface(_value("provider", block), _value("domain", block), _value("type", block))


def _verbose(text: str) -> Iterator[Interface]:
    for block in re.split(r"^fi_info:", text, flags=re.MULTILINE)[1:]:
        endpoint = block.partition("fi_ep_attr:")[2]
        domain = block.partition("fi_domain_attr:")[2]
        fabric = block.partition("fi_fabric_attr:")[2]
        state = re.search(r"state: FI_LINK_(UP|DOWN)", block)
        yield Interface(
            _value("prov_name", fabric),
            _value("name", domain),
            _value("type", endpoint),
            state[1].lower() if state else "",
        )


def _value(name: str, text: str) -> str:
    found = re.search(rf"^\s*{name}: *(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def transports(text: str) -> list[str]:
    """UCX's, each once, in what ``ucx_info -d`` printed (src/tools/info/tl_info.c)."""
    return list(dict.fromkeys(re.findall(r"^# +Transport: (\S+)", text, re.MULTILINE)))


def routes(interfaces: list[Interface], *, across: bool, stated: str | None = None) -> list[str]:
    """The providers that an MPI library would send small messages through: an adapter's, else the host's.

    ``across``: to another node, which shared memory does not reach. ``stated``: the fabric that the site says
    its nodes have, and then no other's.
    """
    providers = {one.provider for one in interfaces if one.kind == "FI_EP_RDM"}
    adapters = [
        name
        for name in HARDWARE
        if name in providers and stated in (None, OF_FABRIC.get(name, name.partition(";")[0]))
    ]
    if adapters or stated not in (None, "tcp"):
        return adapters[:1]
    return [name for name in HOST if _offers(name, providers) and not (across and name == "shm")]


def _offers(name: str, providers: set[str]) -> bool:
    """Older releases offer tcp for such endpoints through a utility provider alone: ``tcp;ofi_rxm``."""
    return any(provider.partition(";")[0] == name for provider in providers)
