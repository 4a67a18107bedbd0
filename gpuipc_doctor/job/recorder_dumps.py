"""What PyTorch's and TorchComms' recorders of collectives have written for the ranks of a running job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gpuipc_doctor.diagnose import pickles
from gpuipc_doctor.diagnose.flight_recorder import Dump, differences, dump
from gpuipc_doctor.files import foreign, reading
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.stacks.proc_files import Gone, Reader, environment
from gpuipc_doctor.stacks.process_list import PROC

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCHCOMM_FR_DUMP_TEMP_FILE")
"""Variables with the beginning of the files' names, which end with the rank."""

MOST_BYTES = 64 << 20
MOST_LINES = 4
PARSE_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def lines(ranks: Mapping[int, Process]) -> tuple[str, ...]:
    """The ranks that the dumps name, and how old the dumps are; empty without two dumps of these processes.

    A job may have gone on since: the verdict does not rely on them.
    """
    found = [read for rank, process in ranks.items() for read in _dumps(rank, process)]
    says = [each.says for each in differences(written for _, written in found) if each.blames]
    if len(found) < 2 or not says:
        return ()
    ages = sorted(int(time.time() - at) for at, _ in found)
    return (
        f"dumps of the recorder of collectives, written {ages[0]} to {ages[-1]} s ago, say:",
        *says[:MOST_LINES],
    )


def _dumps(rank: int, process: Process) -> Iterator[tuple[float, Dump]]:
    """When a rank's dump was written, and the dump, if the process itself can have written it."""
    root = PROC / str(process.pid) / "root"
    with suppress(Gone, OSError, reading.Unreadable, foreign.Refused):
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started / _TICKS_PER_S
        environ = environment(Reader(process.pid))
        places = {environ[name] for name in VARIABLES if environ.get(name, "").startswith("/")}
        for place in places:
            fd = reading.open_below(root, f"{place}{rank}".lstrip("/"))  # of the process's own file system
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if status.st_mtime < started or status.st_uid not in (0, process.uid):
                    continue
                content = file.read(MOST_BYTES)
            if read := foreign.parsed(lambda data: _dump(data, str(rank)), content, limit_s=PARSE_S):
                yield status.st_mtime, read


def _dump(content: bytes, rank: str) -> Dump | None:
    value = pickles.plain(content) if pickles.is_pickle(content) else json.loads(content)
    return dump(value, f"rank {rank}", rank)
