"""The collective checks on this machine's GPUs, repeatedly, and PyTorch's all-reduce beside them.

    python benchmarks/collectives_gpu.py --times 10 [--without-pytorch] [argument of check …]

Prints a table of statuses, seconds and figures. It exits with 1 if a run did not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CHECKS = ("collective-data", "collective-start", "collective-speed")

TORCH = """
import os, time, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
for nbytes in (8, 16 << 20, 256 << 20, 1 << 30):
    data = torch.zeros(nbytes // 4, device="cuda")
    times = 100 if nbytes < 1 << 20 else 10
    best = 1e9
    for _ in range(6):
        torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / times)
    if rank == 0:
        rate = 2 * (size - 1) / size * nbytes / best / 1e9
        figures = f"{nbytes} B: {best * 1e6:.1f} us, {rate:.1f} GB/s bus"
        print(f"pytorch {torch.__version__} nccl {torch.cuda.nccl.version()} {figures}", flush=True)
dist.destroy_process_group()
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--without-pytorch", action="store_true")
    options, arguments = parser.parse_known_args()
    passed = [run(number, arguments) for number in range(1, options.times + 1)]
    print(f"\n{sum(ok for ok, _ in passed)} of {len(passed)} runs passed")
    print(f"seconds: median {median(s for _, s in passed):.1f}, longest {max(s for _, s in passed):.1f}")
    if not options.without_pytorch:
        with_pytorch()
    return 0 if all(ok for ok, _ in passed) else 1


def run(number: int, arguments: list[str]) -> tuple[bool, float]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = [
            sys.executable,
            "-m",
            "gpuipc_doctor",
            "check",
            *CHECKS,
            "--output",
            str(report),
            *arguments,
        ]
        began = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if not report.exists():
            print(f"{number}: exit {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
            return False, seconds
        read = json.loads(report.read_text())["results"]
        results = [{**each["finding"], "check": each["check"]} for each in read if each["check"] in CHECKS]
    print(f"{number}: exit {ended.returncode}, {seconds:.1f} s")
    for result in results:
        figures = ", ".join(f"{m['name']} {m['value']:.4g} {m['unit']}" for m in result.get("measured", ()))
        print(f"   {result['status']:5} {result['check']}: {result['summary']}  [{figures}]")
        if number == 1 or result["status"] != "PASS":
            for line in result.get("evidence", ()):
                print(f"         {line['line']}")
    return ended.returncode == 0 and all(each["status"] == "PASS" for each in results), seconds


def with_pytorch() -> None:
    listed = subprocess.run(["/usr/bin/nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    size = len(listed.splitlines())
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": str(size)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", TORCH], env={**os.environ, **shared, "RANK": str(rank)})
        for rank in range(size)
    ]
    for rank in ranks:
        rank.wait()


if __name__ == "__main__":
    sys.exit(main())
