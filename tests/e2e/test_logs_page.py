"""The screens of docs/logs.md equal the command's output; GPUIPC_UPDATE_GOLDEN=1 redraws them."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from tests.unit.diagnose.test_flight_recorder import HUNG

PAGE = Path(__file__).parents[2] / "docs/logs.md"
BLOCK = re.compile(r"```console\n\$ gpuipc-doctor (diagnose (\w+))\n((?:.*\n)*?)```")

KERNEL = (
    "2026-11-24T01:02:03+00:00 n17 kernel: NVRM: Xid (PCI:0000:44:00): 79, pid=4711, name=python3, "
    "GPU has fallen off the bus.\n"
)
WATCHDOG = (
    "[rank{0}]:[E1124 01:12:03.005 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=47, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600061 milliseconds before timing out.\n"
)
CLOSED = (
    "n{0}:7{0}:9 [0] misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer "
    "n17<40218>\n"
)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("job", "ranks", "dumps"):
        Path(name).mkdir()
    Path("job/n17.journal").write_text(KERNEL, encoding="utf-8")
    Path("job/train.out").write_text("".join(map(WATCHDOG.format, range(8))), encoding="utf-8")
    for rank in range(8):
        text = "[n4:1] Signal: Segmentation fault (11)\n" if rank == 4 else CLOSED.format(rank)
        Path(f"ranks/out.rank{rank}.log").write_text(text, encoding="utf-8")
        os.utime(f"ranks/out.rank{rank}.log", (rank, rank))
    for rank, dump in enumerate(HUNG):
        Path(f"dumps/nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))
        os.utime(f"dumps/nccl_trace_rank_{rank}", (rank, rank))
    os.utime("job/train.out", (1, 1))


@pytest.mark.parametrize(("command", "shown"), [(m[1], m[3]) for m in BLOCK.finditer(PAGE.read_text())])
def test_screen_of_the_page_equals_the_output(command: str, shown: str, logs: None) -> None:
    now = CliRunner().invoke(cli, command.split()).output
    if now != shown and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        head = f"$ gpuipc-doctor {command}\n"
        PAGE.write_text(PAGE.read_text().replace(f"{head}{shown}```", f"{head}{now}```"), encoding="utf-8")
        pytest.fail("logs.md was updated; look at it with git diff", pytrace=False)
    assert now == shown


def test_page_has_its_screens() -> None:
    assert [match[2] for match in BLOCK.finditer(PAGE.read_text())] == ["job", "ranks", "dumps"]
