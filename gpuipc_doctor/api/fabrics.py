"""What vendors call their fabrics, how libraries list these, and what to do about their adapters.

Checks name no vendor: `FABRICS` has the vendors' words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuipc_doctor.probe_types import Workaround


@dataclass(frozen=True, slots=True)
class FabricKind:
    """A kind of fabric that a site config can state.

    ``remedies``: finding key → what to do. ``no-adapter``: the kernel lists none of the fabric's adapters;
    ``left-out``: libfabric does not list an adapter, for a known reason.
    """

    title: str = ""
    offered_as: tuple[str, ...] = ()
    """Prefixes of the fabric's names in libfabric and UCX (src/uct/ib); empty if libfabric must list each
    adapter by its own name."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    healthcheck: str = ""
    """The vendor's own test of the adapters."""


FABRICS = {
    "cxi": FabricKind(
        "HPE Slingshot",
        remedies={
            "no-adapter": "check `lspci -d 17db:` and dmesg, and that the driver cxi_ss1 is loaded",
            "left-out": "fix the cause named in brackets; if the retry handler crashed, reboot (HPE's guide)",
            "not-offered": "to see why, run `FI_LOG_LEVEL=warn fi_info -p cxi`",
            "link-down": "check the cable and the switch port (cxi_stat, fabric manager)",
            "no-link-retry": "ask the administrator who set the port's policy, or HPE, why retry is off",
            "outside-path": "libfabric's module (HPE's known issue 2874751, on RHEL)",
            "healthcheck": "look up the reported checks in HPE's troubleshooting guide; then rerun "
            "cxi_healthcheck",
        },
        healthcheck="HPE's cxi_healthcheck",
    ),
    "verbs": FabricKind(
        "InfiniBand or RoCE",
        ("verbs", "rc_", "ud_", "dc_"),
        {"no-adapter": "check lspci and dmesg, and that the driver (mlx5_ib, …) is loaded"},
    ),
    "efa": FabricKind(
        "AWS EFA",
        ("efa", "srd"),
        {"no-adapter": "check `lspci -d 1d0f:` and dmesg, and that the driver efa is loaded"},
    ),
    "opa": FabricKind(
        "Omni-Path",
        ("opx", "psm2"),
        {"no-adapter": "check lspci and dmesg, and that the driver hfi1 is loaded"},
    ),
    "tcp": FabricKind(offered_as=("tcp",)),
    "none": FabricKind(),
}
"""A site config's name of a fabric → the fabric."""

UCX_DEFAULTS = (
    Workaround({"UCX_TLS": "all"}, "UCX chooses among all transports"),
    Workaround({"UCX_RNDV_THRESH": "auto"}, "UCX chooses the rendezvous threshold"),
    Workaround({"UCX_RNDV_SCHEME": "auto"}, "UCX chooses the rendezvous scheme"),
    Workaround({"UCX_RNDV_FRAG_MEM_TYPES": "host,cuda"}, "UCX may stage in device memory"),
)
"""Variables that choose what carries large messages in UCX, with their defaults (ucx_info -c)."""
