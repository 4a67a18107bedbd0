"""Parsing the output of ``fi_info``."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gpuipc_doctor.worker.fabric_interfaces import Interface, offered, routes, transports

CXI = """\
provider: cxi
    fabric: cxi
    domain: cxi0
    version: 0.0
    type: FI_EP_RDM
    protocol: FI_PROTO_CXI
"""
"""shs-docs (ef07c6c), troubleshoot/cassini/RDMA_interface_troubleshooting.md."""

VERBOSE = """\
---
fi_info:
    caps: [ FI_MSG, FI_TAGGED ]
    fi_ep_attr:
        type: FI_EP_RDM
        protocol: FI_PROTO_CXI
    fi_domain_attr:
        domain: 0x0
        name: cxi0
        threading: FI_THREAD_SAFE
    fi_fabric_attr:
        name: cxi
        prov_name: cxi
        prov_version: 0.1
    nic:
        fi_link_attr:
            speed: 200000000000
            state: FI_LINK_UP
---
fi_info:
    fi_ep_attr:
        type: FI_EP_MSG
    fi_domain_attr:
        domain: 0x0
        name: eth0
    fi_fabric_attr:
        name: 192.0.2.0/24
        prov_name: tcp
    nic: (nil)
"""
"""The format of libfabric's src/fi_tostr.c; HPE's guide searches ``state`` with grep."""


def test_short_form() -> None:
    assert offered(CXI) == [Interface("cxi", "cxi0", "FI_EP_RDM")]


def test_long_form_has_links() -> None:
    assert offered(VERBOSE) == [
        Interface("cxi", "cxi0", "FI_EP_RDM", "up"),
        Interface("tcp", "eth0", "FI_EP_MSG"),
    ]


@pytest.mark.skipif(shutil.which("fi_info") is None, reason="libfabric's programs are not on PATH")
def test_both_forms_of_the_real_program_agree() -> None:
    def asked(*options: str) -> set[tuple[str, str, str]]:
        text = subprocess.run(["fi_info", *options], capture_output=True, text=True, check=True).stdout
        return {(interface.provider, interface.domain, interface.kind) for interface in offered(text)}

    assert asked("-v") == asked() != set()


def rdm(*providers: str) -> list[Interface]:
    return [Interface(provider, "a", "FI_EP_RDM") for provider in providers]


@pytest.mark.parametrize(
    ("providers", "across", "stated", "expected"),
    [
        (("shm", "tcp", "cxi"), False, None, ["cxi"]),
        (("verbs;ofi_rxm", "tcp", "shm"), True, None, ["verbs;ofi_rxm"]),
        (("udp;ofi_rxd", "tcp;ofi_rxm", "shm", "psm3"), False, None, ["tcp", "shm"]),
        (("tcp", "shm"), True, None, ["tcp"]),
        (("sockets",), False, None, []),
        (("tcp", "shm", "cxi", "verbs;ofi_rxm"), False, "tcp", ["tcp", "shm"]),
        (("tcp", "shm", "cxi", "verbs;ofi_rxm"), True, "tcp", ["tcp"]),
        (("tcp", "shm", "cxi", "verbs;ofi_rxm"), True, "verbs", ["verbs;ofi_rxm"]),
        (("tcp", "shm", "verbs;ofi_rxm"), True, "cxi", []),
        (("tcp", "shm", "efa", "verbs;ofi_rxm"), True, "efa", ["efa"]),
        (("tcp", "shm", "psm2", "verbs;ofi_rxm"), True, "opa", ["psm2"]),
        (("tcp", "shm", "psm2", "opx"), False, "opa", ["opx"]),
        (("tcp", "shm", "verbs;ofi_rxm"), True, "efa", []),
    ],
)
def test_providers_that_an_mpi_would_use_or_the_site_states(
    providers: tuple[str, ...], across: bool, stated: str | None, expected: list[str]
) -> None:
    assert routes(rdm(*providers), across=across, stated=stated) == expected


UCX_INFO = """\
# Memory domain: tcp
#     Component: tcp
#      Transport: tcp
#         Device: eth0
#      Transport: tcp
#         Device: lo
#      Transport: rc_mlx5
"""


def test_each_ucx_transport_is_listed_once() -> None:
    assert transports(UCX_INFO) == ["tcp", "rc_mlx5"]
