"""Fold the recorded stacks of 10,000 ranks: from the nodes' JSON to one screen. Prints seconds and memory."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

from gpuipc_doctor.job import document, job_content
from gpuipc_doctor.job.activity import Kind
from gpuipc_doctor.job.document import Cause, JobReport, Rank, Verdict
from gpuipc_doctor.job.merging import merge

RANKS, ON_A_NODE, DEPTH = 10_000, 8, 24


def main() -> None:
    texts = [recorded(node) for node in range(RANKS // ON_A_NODE)]
    before, began = peak_bytes(), time.process_time()
    merged = merge([document.loads(text) for text in texts], {})
    lines = job_content.screen(merged, width=80, color=False).splitlines()
    seconds, grown = time.process_time() - began, peak_bytes() - before
    verdict = merged.verdict
    print(f"{len(merged.ranks)} ranks, {len(texts)} documents of {len(texts[0]) / 1000:.0f} kB")
    print(f"{seconds:.2f} processor seconds, {grown / 2**20:.0f} of {peak_bytes() / 2**20:.0f} MiB for it")
    print(f"{len(lines)} lines, {verdict.cause.value}, blamed {verdict.blamed}")


def recorded(node: int) -> str:
    ranks = tuple(rank(number, f"n{node}") for number in range(node * ON_A_NODE, (node + 1) * ON_A_NODE))
    report = JobReport(
        taken=1.0, seconds=5.0, looks=4, size=RANKS, ranks=ranks, verdict=Verdict(cause=Cause.UNKNOWN)
    )
    return document.dumps(report)


def rank(number: int, host: str) -> Rank:
    shared = tuple(f"frame_{depth} (solver)" for depth in range(DEPTH))
    waits = Rank(
        rank=number, host=host, pid=1000 + number, program="solver", doing=Kind.COLLECTIVE.value,
        operation="MPI_Allreduce", reason="native stacks",
        path=(*shared, "PMPI_Allreduce (libmpi.so.12)", f"phase_{number % 40} (libmpi.so.12)"),
        settings={"UCX_TLS": "rc,cuda"}, versions={"ucx": "1.17.0"},
    )  # fmt: skip
    if number != RANKS // 3:
        return waits
    return replace(waits, doing=Kind.SLEEPS.value, operation="nap (solver)", path=(*shared, "nap (solver)"))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    main()
