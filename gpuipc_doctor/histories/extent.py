"""How much the checks of histories do in each tier, and what their options and results have in common."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from gpuipc_doctor.api import Context, Json, Tier, Worker

SEED = 6
"""Seed of the acceptance tier, so that every node performs the same operations."""

TIME_S, SOAK_S = 20.0, 600.0
"""Maximum seconds of a run. A slow node performs fewer operations; its PASS reports how many."""

UNBOUNDED = 10**9
"""Operations of a run that ends by time."""

OPTIONS: Mapping[str, Json] = {
    "seed": {"type": "integer", "minimum": 0},
    "operations": {"type": "integer", "minimum": 1},
    "seconds": {"type": "number", "exclusiveMinimum": 0},
    "history": {"type": "object"},  # of a history file: `gpuipc-doctor replay`
}

REPLAY = (
    "repeat only these steps, also with another driver or on another node: "
    "rerun with --output r.json, then gpuipc-doctor replay r.json"
)


def extent(ctx: Context, operations: int, runs: int = 1, seed: int = SEED) -> dict[str, Json]:
    """Parameters of a probe: the seed (None if each run makes its own), and each run's number of operations
    and seconds. ``operations`` and ``seed`` are those of the acceptance tier."""
    soak = ctx.tier is Tier.SOAK
    chosen, number, time_s = (None, UNBOUNDED, SOAK_S) if soak else (seed, operations, TIME_S)
    return {
        "seed": ctx.options.get("seed", chosen),
        "operations": ctx.options.get("operations", number),
        "time_s": ctx.within_budget(ctx.options.get("seconds", time_s)) / runs,
    }


def own_seed(w: Worker) -> int:
    """A seed that differs between nodes and runs."""
    return crc32(f"{w.node} {w.clock()!r}".encode())


def is_complete(figures: Mapping[str, Json]) -> bool:
    """Whether a run performed all planned operations, or was planned to end by time."""
    return bool(figures["operations"] >= figures["wanted"] or figures["wanted"] == UNBOUNDED)
