"""Measure how fast `diagnose` reads, beside the engines it could have and beside grep; prints Markdown.

    python benchmarks/diagnose_speed.py [--megabytes N]

Every figure is CPU time of one core, so that a busy machine does not change it. Engines that are not
installed are left out: ``pip install hyperscan google-re2 ahocorasick-rs pyahocorasick``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.finder import HyperscanFinder, ReFinder
from gpuipc_doctor.diagnose.literals import fixed_text, squeeze
from gpuipc_doctor.diagnose.reading import diagnose
from gpuipc_doctor.diagnose.scanner import BLOCK

LOGS = Path(__file__).parents[1] / "tests" / "logs"
MB = 1_000_000

DEBUG = """\
libfabric:{pid}:{t}::core:mr:ofi_mr_cache_search():{l}<debug> search {p} (len: {z})
libfabric:{pid}:{t}::cxi:mr:cxip_do_map():{l}<debug> nid{n}: base:{p} len:{z} addr:{p}
libfabric:{pid}:{t}::cxi:cq:cxip_cq_eq_progress():{l}<debug> nid{n}: event type LINK, return code OK
libfabric:{pid}:{t}::core:core:fi_param_get_():{l}<info> variable hmem_cuda_use_gdrcopy=<not set>
[{t}.{l}] [nid{n}:{pid}:0]     ucp_worker.c:{l}  UCX  DEBUG added interface {z} of cuda_ipc/cuda
nid{n}:{pid}:{pid} [{s}] NCCL INFO Channel {s}/0 : 0[0] -> 1[1] via P2P/CUMEM
rank: {s}, iteration {l}, cuda_free: {z}
step {l} loss {s}.{pid} lr 1.0e-4 tokens/s {z}
"""


def debug_log(path: Path, size: int) -> None:
    """A log as jobs write it with all debug output on, and nothing in it that is known."""
    rng = random.Random(1)
    forms = DEBUG.splitlines()
    part = "".join(
        rng.choice(forms).format(
            pid=rng.randrange(1000, 99999),
            t=rng.randrange(1_700_000_000, 1_800_000_000),
            l=rng.randrange(1, 4000),
            n=rng.randrange(100000, 999999),
            s=rng.randrange(64),
            p=hex(rng.randrange(1 << 46)),
            z=rng.randrange(1 << 33),
        )
        + "\n"
        for _ in range(100_000)
    ).encode()
    repeated(path, part, size)


def repeated(path: Path, part: bytes, size: int) -> None:
    with path.open("wb") as file:
        for _ in range(max(1, size // len(part))):
            file.write(part)


def rate(size: int, work: Callable[[], object]) -> float:
    """MB per second of CPU time, the best of three."""
    best = min(_cpu(work) for _ in range(3))
    return size / best / MB


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def engines(texts: list[bytes]) -> Iterator[tuple[str, Callable[[bytes], object], float]]:
    """What could find every place of the fixed texts in a squeezed block, as far as it is installed.

    With the part of the log that it is tried on.
    """
    with contextlib.suppress(ImportError):
        yield "hyperscan (chosen)", HyperscanFinder(texts).find, 1
    either = b"|".join(map(re.escape, texts))
    with contextlib.suppress(ImportError):
        import re2

        alternation: Any = re2.compile(either)
        yield "google-re2, one alternation", lambda block: list(alternation.finditer(block)), 1
    with contextlib.suppress(ImportError):
        import ahocorasick_rs

        dfa = ahocorasick_rs.Implementation.DFA
        automaton: Any = ahocorasick_rs.BytesAhoCorasick(texts, implementation=dfa)
        yield (
            "ahocorasick-rs, DFA",
            lambda block: automaton.find_matches_as_indexes(block, overlapping=True),
            1,
        )
    with contextlib.suppress(ImportError):
        import ahocorasick

        trie: Any = ahocorasick.Automaton()
        for number, text in enumerate(texts):
            trie.add_word(text.decode(), number)
        trie.make_automaton()
        yield "pyahocorasick", lambda block: list(trie.iter(block.decode("latin-1"))), 0.25
    yield "re, a trie (the fallback)", ReFinder(texts).find, 0.1
    yield "re, one alternation", lambda block: list(re.finditer(either, block)), 0.02


def extended(pattern: str) -> str | None:
    """A signature's expression as `grep -E` writes it; None where it has no such words."""
    if re.search(r"\(\?(?!:)|[*+?}]\?|\\[AZ]|\\[sSd][^\]\[]*\]", pattern):
        return None
    for ours, theirs in ((r"\s", "[[:space:]]"), (r"\S", "[^[:space:]]"), (r"\d", "[0-9]"), ("(?:", "(")):
        pattern = pattern.replace(ours, theirs)
    return pattern


def grep(log: Path, patterns: list[str]) -> float:
    """CPU seconds of ``grep -c -E -f`` in the C locale."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(patterns) + "\n")
        file.flush()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = ["grep", "-c", "-a", "-E", "-f", file.name, str(log)]
        # Not to /dev/null: there, grep stops at the first line.
        ran = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=False)
        assert ran.returncode < 2, "grep refused an expression"
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_memory(log: Path) -> int:
    """MB that a process needs at most to diagnose a log."""
    program = (
        "import re, sys; from gpuipc_doctor import knownissues;"
        "from gpuipc_doctor.diagnose.examination import Examination;"
        "from gpuipc_doctor.diagnose.reading import diagnose;"
        "diagnose([sys.argv[1]], Examination(knownissues.load()));"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(log)], capture_output=True, check=True)
    return int(ran.stdout) // 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    size = parser.parse_args().megabytes * MB
    issues = knownissues.load()
    index = Examination(issues).index
    texts = sorted({text for one in index.patterns.patterns for text in fixed_text(one.regex.pattern)})
    print(f"{len(index.parts)} expressions of {len(issues)} known issues, {len(texts)} fixed texts\n")
    with tempfile.TemporaryDirectory() as directory:
        clean, faulty = Path(directory, "clean.log"), Path(directory, "faulty.log")
        debug_log(clean, size)
        seed = (LOGS / "faulty" / "seed-001-cxi-device-memory.log").read_bytes().splitlines(keepends=True)
        repeated(faulty, b"".join(line for line in seed if line.startswith(b"libfabric:")), size // 10)

        print("| fixed texts in a debug log, squeezed | MB/s |\n|---|---|")
        blocks = list(_blocks(clean, min(size, 40 * MB)))
        print(f"| squeezing itself | {rate(sum(map(len, blocks)), lambda: list(map(squeeze, blocks))):.0f} |")
        squeezed = list(map(squeeze, blocks))
        for name, find, share in engines(texts):
            some = squeezed[: max(1, int(len(squeezed) * share))]
            print(f"| {name} | {rate(sum(map(len, some)), lambda: list(map(find, some))):.0f} |")  # noqa: B023

        print("\n| whole | MB/s |\n|---|---|")
        for name, log in (("debug log, nothing known", clean), ("one known issue, every line", faulty)):
            speed = rate(log.stat().st_size, lambda: diagnose([str(log)], Examination(issues)))  # noqa: B023
            print(f"| diagnose, {name} | {speed:.0f} |")
        signatures = [text for one in issues for signature in one.signatures for text in signature.patterns]
        begin = b"".join(_blocks(clean, MB)).decode()
        patterns = [text for one in signatures if not re.search(one, begin) and (text := extended(one))]
        speed = clean.stat().st_size / grep(clean, patterns) / MB
        print(f"| grep -c -E -f, {len(patterns)} expressions, debug log | {speed:.0f} |")

        print("\n| peak memory | MB |\n|---|---|")
        small = Path(directory, "small.log")
        debug_log(small, 10 * MB)
        print(f"| log of 10 MB | {peak_memory(small)} |\n| log of {size // MB} MB | {peak_memory(clean)} |")


def _blocks(log: Path, size: int) -> Iterator[bytes]:
    with log.open("rb") as file:
        for _ in range(size // BLOCK):
            yield file.read(BLOCK)


if __name__ == "__main__":
    main()
