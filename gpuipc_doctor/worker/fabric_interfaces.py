"""Parsers for ``fi_info`` and ``ucx_info``: providers, transports, and libfabric's link states.

libfabric (util/info.c) prints ``provider: cxi`` and indented lines. With ``-v`` (src/fi_tostr.c) it prints
whole structures, with the same names below ``fi_fabric_attr:``, ``fi_domain_attr:`` and ``fi_link_attr:``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HARDWARE = ("cxi", "efa", "opx", "psm2", "verbs;ofi_rxm")
"""Hardware providers that MPI libraries prefer; psm3 also runs over plain Ethernet."""

OF_FABRIC = {"opx": "opa", "psm2": "opa"}
"""Provider → fabric, if their names differ."""

HOST = ("tcp", "shm")
"""Providers used if no provider in `HARDWARE` is found, or if the site config sets the fabric to tcp."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface. ``state`` is ``up``, ``down`` or empty if unknown."""

    provider: str
    domain: str
    kind: str
    """Type of the endpoint, such as ``FI_EP_RDM``."""
    state: str = ""


def offered(text: str) -> list[Interface]:
    """Interfaces in the output of ``fi_info`` or ``fi_info -v``, each with its provider's name."""
    verbose = text.startswith("---") or "\nfi_info:" in f"\n{text}"
    return [interface for interface in (_verbose(text) if verbose else _brief(text)) if interface.provider]


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
    """UCX's transports in the output of ``ucx_info -d``, without duplicates (src/tools/info/tl_info.c)."""
    return list(dict.fromkeys(re.findall(r"^# +Transport: (\S+)", text, re.MULTILINE)))


def routes(interfaces: list[Interface], *, across: bool, stated: str | None = None) -> list[str]:
    """Providers that an MPI library would use for small messages: the adapter's, or those of the host.

    With ``across`` the other rank is on another node, which excludes shared memory. With ``stated``, the
    fabric in the site config, only providers of this fabric are returned.
    """
    providers = {interface.provider for interface in interfaces if interface.kind == "FI_EP_RDM"}
    adapters = [
        name
        for name in HARDWARE
        if name in providers and stated in (None, OF_FABRIC.get(name, name.partition(";")[0]))
    ]
    if adapters or stated not in (None, "tcp"):
        return adapters[:1]
    return [name for name in HOST if _offers(name, providers) and not (across and name == "shm")]


def _offers(name: str, providers: set[str]) -> bool:
    """Whether ``providers`` has ``name``, alone or with a utility provider, as in ``tcp;ofi_rxm``."""
    return any(provider.partition(";")[0] == name for provider in providers)
