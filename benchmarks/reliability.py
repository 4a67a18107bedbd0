"""Run the prolog hundreds of times on the hostile nodes of `tests.hostile_nodes`.

    python -m benchmarks.reliability [--runs 500] [--jobs 2] [--only KIND]... [--seed N]     # as root

Prints a table in Markdown; exits with 1 if any run failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hostile_nodes import KINDS, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(KINDS), metavar="KIND")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the directory of each run that missed")
    options = parser.parse_args()
    names = options.only or list(KINDS)
    plan = [names[number % len(names)] for number in range(options.runs)]
    seconds: dict[str, list[float]] = defaultdict(list)
    missed: dict[str, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [
            (
                name,
                pool.submit(run, KINDS[name], options.seed + number, options.keep),
            )
            for number, name in enumerate(plan)
        ]
        for name, future in futures:
            took, wrong = future.result()
            seconds[name].append(took)
            missed[name] += wrong
            for text in wrong:
                print(f"{name}: {text}", file=sys.stderr, flush=True)
    print("| node | runs | longest, s | missed |\n|---|---|---|---|")
    for name in names:
        print(
            f"| {name} | {len(seconds[name])} | {max(seconds[name], default=0):.1f} | {len(missed[name])} |"
        )
    print(f"| all | {sum(map(len, seconds.values()))} | | {sum(map(len, missed.values()))} |")
    sys.exit(any(missed.values()))


if __name__ == "__main__":
    main()
