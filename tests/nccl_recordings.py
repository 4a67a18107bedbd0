"""Recordings of stuck PyTorch jobs on eight H200s: their trimmed form, and the snapshots made from it.

``python -m tests.nccl_recordings RECORDING…`` trims recordings (a process's threads, Python frames, the
answer of NCCL's RAS, nvidia-smi) into ``tests/fixtures/nccl``: of threads, the main one; of pids, the rank's
number plus 100; of paths, the last two parts; of RAS's lines, at most two hundred; no addresses.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuipc_doctor.job.document import Process, Snapshot
from gpuipc_doctor.stacks.python_stacks import parsed
from gpuipc_doctor.stacks.thread import Thread

FIXTURES = Path(__file__).parent / "fixtures/nccl"
MODES = ("late", "dead", "mismatch", "absent", "kernel", "healthy")
SIZE = 8
_MOST_LINES = 200


def trim(recording: dict[str, Any]) -> dict[str, Any]:
    pids = {rank["pid"]: 100 + rank["rank"] for rank in recording["ranks"]}
    first = min(rank["pid"] - rank["rank"] for rank in recording["ranks"])
    pids |= {first + rank: 100 + rank for rank in range(SIZE)}
    ranks = []
    for rank in recording["ranks"]:
        main = next(thread for thread in rank["threads"] if thread["tid"] == rank["pid"])
        stack = next(thread for thread in rank["py"] if thread["os_thread_id"] == rank["pid"])
        frames = [
            {"name": frame["name"], "filename": _short(frame["filename"]), "line": frame["line"]}
            for frame in stack["frames"]
        ]
        ranks.append(
            {
                "rank": rank["rank"],
                "pid": pids[rank["pid"]],
                "parent": rank["ppid"],
                "state": main["state"],
                "wchan": main["wchan"],
                "syscall": main["syscall"].split()[0],
                "python": frames,
            }
        )
    ras = re.sub(
        r"(?i)(process )(\d+)",
        lambda found: f"{found[1]}{pids.get(int(found[2]), found[2])}",
        recording["ras"],
    )
    ras = re.sub(r"\b\d+\.\d+\.\d+\.\d+\b", "192.0.2.2", ras)
    lines = [line.split(", ") for line in recording["smi"].splitlines()]
    gpus = [
        {"index": int(index), "busy": int(busy.split()[0]), "watts": float(watts.split()[0])}
        for index, busy, watts, _ in lines
    ]
    return {"mode": recording["mode"], "ranks": ranks, "ras": ras.splitlines()[:_MOST_LINES], "gpus": gpus}


def _short(file: str) -> str:
    return file if "site-packages" in file else "/".join(file.split("/")[-2:])


def load(mode: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((FIXTURES / f"{mode}.json").read_text())
    return value


def ras(mode: str) -> str:
    return "\n".join(load(mode)["ras"]) + "\n"


def snapshots(mode: str, number: int = 4, *, gpus: bool = True) -> list[Snapshot]:
    """This many equal snapshots. Recorded were no native stacks: there was no perf.

    ``gpus``: with the utilisation and power of each rank's GPU.
    """
    recording = load(mode)
    loads = {gpu["index"]: (gpu["busy"], gpu["watts"]) for gpu in recording["gpus"]}
    processes = tuple(_process(rank, loads if gpus else {}) for rank in recording["ranks"])
    return [Snapshot(at=1000.0 + 1.2 * count, host="n1", processes=processes) for count in range(number)]


def _process(rank: dict[str, Any], loads: dict[int, tuple[int, float]]) -> Process:
    runs = rank["state"] == "R"
    main = Thread(
        tid=rank["pid"],
        name="python3",
        state=rank["state"],
        busy=float(runs),
        wchan="" if rank["wchan"] == "0" else rank["wchan"],
        syscall=rank["syscall"],
    )
    stack = parsed(rank["python"])
    process = Process(
        pid=rank["pid"],
        parent=rank["parent"],
        uid=0,
        program="python3",
        rank=rank["rank"],
        size=SIZE,
        threads=(main,),
        python=stack.frames,
        own=stack.own,
        libraries=("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/venv/nvidia/nccl/lib/libnccl.so.2"),
    )
    busy, watts = loads.get(rank["rank"], (None, None))
    return replace(process, gpu_busy=busy, gpu_watts=watts)


def main(paths: list[str]) -> None:
    FIXTURES.mkdir(exist_ok=True)
    for path in paths:
        recording = trim(json.loads(Path(path).read_text()))
        text = json.dumps(recording, indent=1)
        (FIXTURES / f"{recording['mode']}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
