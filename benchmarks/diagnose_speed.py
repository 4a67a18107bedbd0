"""Measure how fast `diagnose` reads logs, with and without Hyperscan; prints Markdown.

    python benchmarks/diagnose_speed.py [--megabytes N] [--rounds N]

Every figure is processor time of one core in the best of the rounds: other load only makes a round slower.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose

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
ERRORS = """\
[{t}.{l}] [nid{n}:{pid}:0]     ib_md.c:{l}  UCX  ERROR cuIpcOpenMemHandle() failed: invalid device context
libfabric:{pid}:{t}::cxi:mr:cxip_do_map():{l}<warn> nid{n}: cxil_map() failed: -22
nid{n}:{pid}:{pid} [{s}] transport/p2p.cc:{l} NCCL WARN Cuda failure {s} 'invalid argument'
srun: error: nid{n}: task {s}: Exited with exit code {s}
"""


def lines(forms: str, count: int) -> Iterator[bytes]:
    """``count`` lines, each in a random one of these forms."""
    rng = random.Random(1)
    for _ in range(count):
        line = rng.choice(forms.splitlines(keepends=True)).format(
            pid=rng.randrange(1000, 99999),
            t=rng.randrange(1_700_000_000, 1_800_000_000),
            l=rng.randrange(1, 4000),
            n=rng.randrange(100000, 999999),
            s=rng.randrange(64),
            p=hex(rng.randrange(1 << 46)),
            z=rng.randrange(1 << 33),
        )
        yield line.encode()


def quiet_lines(count: int) -> Iterator[bytes]:
    """Lines of jobs with all debug output enabled, without any known issue."""
    return lines(DEBUG, count)


def mixed_lines(count: int) -> Iterator[bytes]:
    """Two quiet lines, then one that reports an error, and so on."""
    errors = lines(ERRORS, count // 3)
    for number, line in enumerate(quiet_lines(count - count // 3)):
        yield line
        if number % 2:
            yield next(errors, b"")


WORDS = """\
[{t}.{l}] [nid{n}:{pid}:0]     ib_md.c:{l}  UCX  ERROR {words} failed: {more}
libfabric:{pid}:{t}::cxi:mr:cxip_do_map():{l}<warn> nid{n}: {words} failed: {more}
nid{n}:{pid}:{pid} [{s}] transport/p2p.cc:{l} NCCL WARN {words} '{more}'
[rank{s}]: RuntimeError: {words}: {more}
srun: error: nid{n}: task {s}: {words} {more}
{words}: Permission denied ({more})
"""


def worded_lines(count: int) -> Iterator[bytes]:
    """Two quiet lines, then an error in random words, so that nearly every error has its own form."""
    rng = random.Random(2)
    words = sorted({w.decode() for line in prose() for w in re.findall(rb"[a-z]{4,12}", line)})[:5000]
    quiet = quiet_lines(count - count // 3)
    for number, line in enumerate(quiet):
        yield line
        if number % 2:
            some, more = (" ".join(rng.choices(words, k=rng.randrange(2, 7))) for _ in range(2))
            numbers = {"pid": rng.randrange(99999), "t": rng.randrange(2 * 10**9), "l": rng.randrange(4000)}
            numbers |= {"n": rng.randrange(999999), "s": rng.randrange(64)}
            yield (
                rng.choice(WORDS.splitlines(keepends=True)).format(words=some, more=more, **numbers).encode()
            )


def calls(count: int) -> Iterator[bytes]:
    """Calls of eight ranks in turn, as of NCCL_DEBUG_SUBSYS=COLL."""
    for rank in range(8):
        yield (
            f"n1:10{rank}:20{rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 8 "
            f"cudaDev {rank} nvmlDev {rank} busId 1000 commId 0xabc - Init COMPLETE\n"
        ).encode()
    for number in range(count):
        rank = number % 8
        yield (
            f"n1:10{rank}:10{rank} [{rank}] NCCL INFO AllReduce: opCount {number // 8:x} sendbuff 0x7f "
            "recvbuff 0x7e count 1024 datatype 7 op 0 root 0 comm 0x55 [nranks=8] stream 0x5\n"
        ).encode()


def known_lines() -> list[bytes]:
    """The lines of a seed log that libfabric wrote; each contains a known issue."""
    seed = (LOGS / "faulty" / "seed-001-cxi-device-memory.log").read_bytes().splitlines(keepends=True)
    return [line for line in seed if line.startswith(b"libfabric:")]


def prose() -> list[bytes]:
    """Mostly distinct lines: the source files of Python's standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return [line for file in files for line in file.read_bytes().splitlines(keepends=True)]


def write(path: Path, part: Iterable[bytes], size: int) -> None:
    """Repeat the lines until the log has about ``size`` bytes."""
    block = b"".join(part)
    with path.open("wb") as file:
        for _ in range(max(1, size // len(block))):
            file.write(block)


def seconds(prepare: Callable[[], Callable[[], object]], rounds: int) -> float:
    """Processor seconds of this process and its ended children in the best of the rounds.

    Preparing the work is not counted: expressions are compiled once for all logs, in 0.1 s.
    """
    return min(_spent(prepare()) for _ in range(rounds))


def _spent(work: Callable[[], object]) -> float:
    started = _used()
    work()
    return _used() - started


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_memory(log: Path) -> int:
    """Peak memory in MB of a process that diagnoses a log."""
    program = (
        "import re, sys; from gpuipc_doctor import knownissues;"
        "from gpuipc_doctor.diagnose.examination import Examination;"
        "from gpuipc_doctor.diagnose.readers import diagnose;"
        "diagnose([sys.argv[1]], Examination([*knownissues.load(), *knownissues.load_messages()]));"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(log)], capture_output=True, check=True)
    return int(ran.stdout) // 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    size, rounds = arguments.megabytes * MB, arguments.rounds
    issues = [*knownissues.load(), *knownissues.load_messages()]
    with tempfile.TemporaryDirectory() as directory:
        print("| MB a processor-second | diagnose | without hyperscan |\n|---|---|---|")
        for name, part in (
            ("debug log, nothing known", quiet_lines(100_000)),
            ("every line a call of NCCL_DEBUG", calls(100_000)),
            ("every third line an error", mixed_lines(100_000)),
            ("every third line an error in other words", worded_lines(1_000_000)),
            ("every line of a known issue", known_lines()),
            ("few lines alike", prose()),
        ):
            log = Path(directory, "some.log")
            write(log, part, size)

            def read(log: Path = log) -> Callable[[], object]:
                return partial(diagnose, [str(log)], Examination(issues))

            spent = [seconds(read, rounds)]
            with patch.dict(sys.modules, {"hyperscan": None}):
                spent.append(seconds(read, rounds))
            figures = " | ".join(f"{log.stat().st_size / seconds / MB:.0f}" for seconds in spent)
            print(f"| {name} | {figures} |", flush=True)
        print("\n| peak memory | MB |\n|---|---|")
        for megabytes in (10, size // MB):
            write(log, quiet_lines(100_000), megabytes * MB)
            print(f"| log of {megabytes} MB | {peak_memory(log)} |", flush=True)


if __name__ == "__main__":
    main()
