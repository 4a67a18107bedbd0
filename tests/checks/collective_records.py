"""Records of a healthy launch of collectives, for the tests of the three checks that judge it."""

from __future__ import annotations

from typing import Any

from gpuipc_doctor.api import Json
from tests.checks.judging import gpu

PARAMS: dict[str, Json] = {
    "name": "NCCL",
    "file": "/usr/lib64/libnccl.so.2",
    "via": "PyTorch's wheel",
    "others": [],
    "ranks": 4,
    "least": {},
    "least_where": "",
}

FOUR = tuple(gpu(index) for index in range(4))


def rank(**changed: Any) -> dict[str, Json]:
    """The records of one rank. ``changed``: other values."""
    return {
        "version": "2.28.9",
        "cases": 137,
        "compared": 198 << 20,
        "failed": [],
        "failures": 0,
        "needs": None,
        "lacks": [],
        "channels": {"P2P/CUMEM": 24},
        "first": [0.6, 0.3],
        "cycles": [0.38, 0.36, 0.37],
        "usage": {name: [7, 7, 7, 7] for name in ("device", "descriptors", "threads", "shared")},
        "wrong_starts": 0,
        "registered": "",
        "speed": {
            "latency": 34e-6,
            "nbytes": 256 << 20,
            "seconds": 1.2e-3,
            "pair_bytes": 64 << 20,
            "pairs": [[a, b, 200e9] for a in range(4) for b in range(a + 1, 4)],
        },
        **changed,
    }


def ranks(*changed: dict[str, Any], number: int = 4) -> dict[str, dict[str, Json]]:
    """The records of all ranks; ``changed`` applies to the first ranks, one after the other."""
    more = [*changed, *({} for _ in range(number - len(changed)))]
    return {f"rank {place}": rank(**values) for place, values in enumerate(more)}
