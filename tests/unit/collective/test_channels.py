"""Transports in NCCL's log."""

from __future__ import annotations

from gpuipc_doctor.collective import channels

LOG = """\
node:1:1 [0] NCCL INFO Channel 00/24 :    0   1   2   3
node:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 3[3] via P2P/CUMEM
node:1:1 [0] NCCL INFO Channel 00 : 0[1a000] -> 2[3b000] via SHM/direct/direct
node:1:1 [0] NCCL INFO Channel 02/0 : 0[0] -> 4[4] [send] via NET/IB/0/GDRDMA
"""


def test_channels_are_counted_by_transport() -> None:
    found = channels.by_transport(LOG)
    assert found == {"P2P/CUMEM": 2, "SHM/direct/direct": 1, "NET/IB/0/GDRDMA": 1}
    assert (
        channels.in_words(found)
        == "1 channel NET/IB/0/GDRDMA and 2 channels P2P/CUMEM and 1 channel SHM/direct/direct"
    )


def test_channels_of_ranks_are_combined() -> None:
    assert channels.most([{"P2P/IPC": 2}, {"P2P/IPC": 4, "NET/Socket/0": 1}]) == {
        "P2P/IPC": 4,
        "NET/Socket/0": 1,
    }
