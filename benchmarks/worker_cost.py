"""Measure the cost of starting workers, forked from a stem and spawned, in one run; prints Markdown.

    python benchmarks/worker_cost.py [--simulate PROFILE] [--workers N] [--rounds N]

Processor seconds of this process's ended children: for each set of installed imports, the cost of an idle
worker after the first one of its run; and `check --all`. Forking and spawning alternate.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from gpuipc_doctor.api import loader
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.model import Node, Probe
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.stems import Stem

CHECK = Path(__file__).absolute().with_name("import_check.py")

SETS = ((), ("cuda",), ("hip",), ("cuda", "cupy"), ("cuda", "torch"))


@contextmanager
def spawned() -> Iterator[None]:
    """Inside the block, all workers are spawned instead of forked from a stem."""
    fork = Stem.fork
    Stem.fork = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Stem.fork = fork  # type: ignore[method-assign]


def processor_s(run: Callable[[], object]) -> tuple[float, float]:
    """User and system seconds of this process's children that ended during ``run``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def workers(imports: tuple[str, ...], count: int) -> None:
    roles = {"worker": loader.role(CHECK, "load")}
    probe = Probe("", roles, params={"imports": imports}, deadline_s=60.0, imports=imports)
    with Session(Node(), Limits()) as session:
        for _ in range(count):
            outcome = session.run("import", CHECK, probe, until=math.inf)
            assert outcome.completed, outcome


def further(imports: tuple[str, ...], count: int) -> float:
    """Seconds per worker after the first."""
    return (
        sum(processor_s(lambda: workers(imports, 1 + count))) - sum(processor_s(lambda: workers(imports, 1)))
    ) / count


def check_all(simulate: str | None) -> None:
    command = ["check", "--all", *(("--simulate", simulate) if simulate else ())]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        cli.main(command, standalone_mode=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulate", metavar="PROFILE", help="a simulated node instead of this one's GPUs")
    parser.add_argument("--workers", type=int, default=10, help="of each set of imports  [default: 10]")
    parser.add_argument("--rounds", type=int, default=3, help="of each way  [default: 3]")
    options = parser.parse_args()
    print("| a further worker with | forked, s | spawned, s | ratio |\n|---|---|---|---|")
    for imports in SETS:
        if all(find_spec(name) for name in imports):
            pairs = []
            for _ in range(options.rounds):
                forked = further(imports, options.workers)
                with spawned():
                    pairs.append((forked, further(imports, options.workers)))
            ours, theirs = map(statistics.median, zip(*pairs, strict=True))
            print(
                f"| {', '.join(imports) or 'ours alone'} | {ours:.3f} | {theirs:.3f} | {ours / theirs:.2f} |"
            )
    rows = []
    for _ in range(options.rounds):
        forked_all = processor_s(lambda: check_all(options.simulate))
        with spawned():
            rows.append((*forked_all, *processor_s(lambda: check_all(options.simulate))))
    user, kernel, user_spawned, kernel_spawned = map(statistics.median, zip(*rows, strict=True))
    ratio = (user + kernel) / (user_spawned + kernel_spawned)
    print(
        f"| `check --all`, all its workers: user and kernel | {user:.1f} + {kernel:.1f} "
        f"| {user_spawned:.1f} + {kernel_spawned:.1f} | {ratio:.2f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
