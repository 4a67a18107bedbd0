"""What carried device memory, from tables of UCX 1.22.0 on two simulated GPUs, with fewer blanks."""

from __future__ import annotations

import pytest

from gpuipc_doctor.worker import message_pair, ucx_protocols

SELF = """\
[1795946624.239887] [vm:17758:0]   +---------------+-------------+----------------------------+
[1795946624.239887] [vm:17758:0]   | perftest self cfg#2                                      |
[1795946624.239887] [vm:17758:0]   | remote memory write by ucp_put* from cuda/GPU0 to cuda/dev[0] |
[1795946624.239887] [vm:17758:0]   | 0..4294967295 | short       | cuda_copy/cuda             |
[1795946624.239887] [vm:17758:0]   +---------------+-------------+----------------------------+
"""
PEERS = """\
[1795946629.049586] [v:7:0]   +--------+--------------------------------------------------+---------------+
[1795946629.049586] [v:7:0]   | perftest intra-node cfg#1                                                 |
[1795946629.049586] [v:7:0]   | tagged message by ucp_tag_send* from cuda/GPU1                            |
[1795946629.049586] [v:7:0]   +--------+--------------------------------------------------+---------------+
[1795946629.049586] [v:7:0]   | Range  |                   Description                    |    Config     |
[1795946629.049586] [v:7:0]   +--------+--------------------------------------------------+---------------+
[1795946629.049586] [v:7:0]   |      0 | eager short                                      | sysv/memory   |
[1795946629.049586] [v:7:0]   | 1..inf | (?) rendezvous zero-copy flushed write to remote | cuda_ipc/cuda |
[1795946629.049586] [v:7:0]   +--------+--------------------------------------------------+---------------+
[1795946629.049586] [v:7:0]   | perftest intra-node cfg#1                                                 |
[1795946629.049586] [v:7:0]   | rendezvous data fetch into cuda/GPU1 from cuda/dev[0]                     |
[1795946629.049586] [v:7:0]   |      0 | no data fetch                                    |               |
[1795946629.049586] [v:7:0]   | 1..inf | (?) zero-copy flushed write to remote            | cuda_ipc/cuda |
[1795946629.049586] [v:7:0]   +--------+--------------------------------------------------+---------------+
"""
HEAD = """\
| perftest intra-node cfg#1                                                                                  |
| tagged message by ucp_tag_send* from cuda/GPU1                                                             |
"""
TCP = f"""\
{HEAD}|     1..8184 | eager copy-in copy-out                                 | tcp/lo                        |
|  8363..512K | (?) rendezvous cuda_copy, fenced write to remote, frag host | tcp/lo |
| 524289..inf | (?) rendezvous pipeline cuda_copy, frag host, cuda_copy | 52% on tcp/lo and 48% on tcp/eth0 |
+-------------+---------------------------------------------------------+-----------------------------------+
| perftest intra-node cfg#1                                                                                  |
| rendezvous data send(multi) from cuda/GPU1 to host                                                         |
| 524289..inf | pipeline cuda_copy, write to remote, frag host           | 52% on tcp/lo and 48% on tcp/eth0 |
"""
EAGER = f"{HEAD}| 8249..inf | multi-frag eager copy-in copy-out | sysv/memory |\n"
ATTACHED = (
    f"{HEAD}| 524289..inf | (?) rendezvous pipeline cuda_copy, copy to attached, frag host |             |\n"
)
ADAPTER = f"{HEAD}| 1..inf | rendezvous zero-copy read from remote | rc_mlx5/mlx5_0:1/path0 |\n"
PUT_AND_GET = """\
| perftest intra-node cfg#1                                             |
| remote memory write by ucp_put*(multi) from cuda/GPU0 to cuda/dev[1]  |
| 0..inf | zero-copy   | cuda_ipc/cuda                                  |
| perftest intra-node cfg#1                                             |
| remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[1] |
| 0..inf | software emulation | sysv/memory                             |
"""
SIZE = 4 << 20


def carried(text: str, nbytes: int = SIZE) -> dict[str, list[str]]:
    return ucx_protocols.carried(ucx_protocols.rows(text, nbytes), "cuda_ipc")


@pytest.mark.parametrize(
    ("text", "kind", "by"),
    [
        (PEERS, "peer", "cuda_ipc"),
        (SELF + PEERS + SELF, "peer", "cuda_ipc"),
        (TCP, "host", "tcp"),
        (EAGER, "host", "sysv"),
        (ATTACHED, "host", "host memory"),
        (ADAPTER, "other", "rc_mlx5"),
    ],
)
def test_transport_of_a_large_message(text: str, kind: str, by: str) -> None:
    assert carried(text) == {"message": [kind, by]}


def test_receivers_choice_outweighs_the_senders_guess() -> None:
    """VMM memory in Open MPI over UCX 1.22.0 with UCX_RNDV_FRAG_MEM_TYPES=host, and without."""
    fetch = "| ucx_context_0 intra-node cfg#2 |\n| rendezvous data fetch into cuda/GPU1 from cuda/dev[0] |\n"
    row = "| 524289..inf | pipeline {} |\n"
    host = fetch + row.format("cuda_copy, copy to attached, frag host, cuda_copy, frag host |")
    assert carried(PEERS[: PEERS.index("| perftest intra-node", 300)] + host) == {
        "message": ["host", "host memory"]
    }
    peer = fetch + row.format("zero-copy flushed write to remote, cuda_copy, frag cuda | cuda_ipc/cuda")
    assert carried(PEERS + peer) == {"message": ["peer", "cuda_ipc"]}


def test_puts_and_gets_are_read_apart() -> None:
    assert carried(PUT_AND_GET) == {"put": ["peer", "cuda_ipc"], "get": ["host", "sysv"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1.0] [vm:1:0] parser.c:2036 UCX  WARN  unused env variable: UCX_PROTO_INFO\n",
        SELF,
        PEERS + TCP,  # tables disagree
        PEERS.replace("cuda/GPU1", "host memory"),
        PEERS.replace("cuda/GPU1", "cuda-managed/GPU1"),
        PEERS.replace("intra-node", "inter-node"),
        PEERS.replace("| cuda_ipc/cuda |", ""),
        PEERS.replace("1..inf", "1..\x00"),
        PEERS.replace("1..inf", "1..9999"),
        "| 1..inf | a | tcp/lo |\n" * 3,
        HEAD,
    ],
)
def test_nothing_is_said_of_other_tables(text: str) -> None:
    assert carried(text) == {}


def test_a_size_has_its_own_row() -> None:
    assert carried(PEERS, 0) == {"message": ["host", "sysv"]}
    assert ucx_protocols.rows(TCP, 512 << 10)[0][1].startswith("(?) rendezvous cuda_copy, fenced")


def test_tables_are_no_evidence_of_a_failure() -> None:
    told = message_pair.judge(1, f"{PEERS}[1795946629.1] [vm:1:0]  tcp_ep.c:1 UCX  ERROR refused\n", 2)
    assert told["said"] == "exit code 1: refused"


OPEN_MPI = """\
Host 0 [vm] ranks 0 - 1

 host | 0
======|=====
    0 : tcp

Connection summary: (pml)
  on-host:  all connections are {btl}
  off-host: all connections are n/a

"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OPEN_MPI.format(btl="tcp"), {"message": ["host", "tcp"], "mover": ["Open MPI"]}),
        (
            OPEN_MPI.format(btl="sm"),
            {"message": ["other", "sm"], "mover": ["Open MPI"]},
        ),  # may use peer access
        (OPEN_MPI.format(btl="ucx"), {}),  # UCX itself knows better
        (OPEN_MPI.replace("all", "some").format(btl="tcp"), {}),
        ("", {}),
    ],
)
def test_open_mpi_without_ucx_names_what_connects_ranks_of_a_node(
    text: str, told: dict[str, list[str]]
) -> None:
    assert ucx_protocols.of_open_mpi(text) == told
