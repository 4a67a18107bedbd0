"""What a node tells of its ranks: from their records, and from NCCL's log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.fleet.collective_node import NoHead, _Place, network, reach, results
from gpuipc_doctor.fleet.collective_types import Ending, RankResult
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.probe_types import Ending as RoleEnding
from gpuipc_doctor.probe_types import ProbeOutcome, RoleOutcome
from gpuipc_doctor.supervise import scratch

HOST = "n1:7:9 [0] "


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("NCCL INFO NET/Socket : Using [0]eno1:10.0.0.1<0>", "Socket: eno1:10.0.0.1"),
        (
            "NCCL INFO NET/Socket : Using [0]eno1:10.0.0.1<0> [1]eno2:10.0.1.1<0>",
            "Socket: eno1:10.0.0.1 eno2:10.0.1.1",
        ),
        (
            "NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB eth0:33.104.62.6<0>",
            "IB: mlx5_2:1/RoCE mlx5_3:1/RoCE [RO]",
        ),
        ("NCCL INFO NET/IB : No device found.", ""),
        ("NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", ""),
    ],
)
def test_what_carries_data_between_nodes_is_read_from_the_log(line: str, told: str) -> None:
    assert network(f"{HOST}NCCL INFO NET/IB : No device found.\n{HOST}{line}\n") == told


def _no_place() -> None:
    raise scratch.NoPlace("no directory for the run's files: /tmp is full")


ASKED = {"gpus": [0, 2], "first": 4}


def ended(directory: Path, log: str = "", **role: Any) -> RankResult:
    """The result of rank 4, beside a rank 5 that has completed."""
    (directory / "rank 4.log").write_text(log)
    roles = {"rank 4": RoleOutcome("rank 4", **role), "rank 5": RoleOutcome("rank 5", RoleEnding.COMPLETED)}
    outcome = ProbeOutcome("", (), {}, roles, None, 1.0, logs=str(directory))
    one, other = results(outcome, ASKED, "n1", "ended 5 s after another rank had failed")
    assert (other.rank, other.gpu, other.ending) == (5, 2, Ending.DONE)
    assert (one.node, one.rank, one.gpu) == ("n1", 4, 0)
    return one


def test_rank_that_made_all_calls(tmp_path: Path) -> None:
    log = f"{HOST}NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n"
    wrong = {"operation": "all-reduce", "kind": "float32", "nbytes": 8, "says": "x", "case": "y"}
    records = {
        "start_s": 1.5,
        "cases": 50,
        "wrong": [wrong],
        "wrong_cases": 3,
        "speeds": [["all-reduce", 8, 2e-6]],
    }
    found = ended(tmp_path, log, ending=RoleEnding.COMPLETED, step="", records=records)
    assert found.ending is Ending.DONE
    assert (found.start_s, found.cases, found.wrong_cases) == (1.5, 50, 3)
    assert (found.wrong[0].operation, found.speeds[0].seconds) == ("all-reduce", 2e-6)
    assert found.transports == {"NET/IB/0/GDRDMA": 1}


@pytest.mark.parametrize(
    ("code", "ending"), [(2, Ending.FAILED), (6, Ending.LOST)], ids=["its own", "another's"]
)
def test_failed_call_is_told_with_both_ends_of_the_connection(
    tmp_path: Path, code: int, ending: Ending
) -> None:
    log = f"{HOST}NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>\n"
    refused = "returned Connection refused, retrying (1/34) after sleep for 100 msec"
    log += f"{HOST}NCCL INFO socketPollConnect: connect to 10.0.0.9<1> {refused}\n"
    failed = "socketStartConnect: Connect to 10.0.0.2<41000> failed : No route"
    log += f"{HOST}misc/socket.cc:484 NCCL WARN {failed}\n"
    fault = DriverFault("ncclCommInitRank", code, "ncclX")
    found = ended(
        tmp_path, log, ending=RoleEnding.DRIVER_ERROR, step="start", fault=fault, observed={"warned": failed}
    )
    assert found.ending is ending
    assert found.operation == "start"
    assert found.failure == f"ncclCommInitRank returned ncclX ({code}): {failed}"
    assert found.ends == ("10.0.0.1", "10.0.0.2:41000")


def test_rank_that_waits_at_the_end_hung_in_its_operation(tmp_path: Path) -> None:
    found = ended(tmp_path, ending=RoleEnding.STOPPED, step="all-gather of 8 B, float32", operation="cuX")
    assert (found.ending, found.operation) == (Ending.HUNG, "all-gather of 8 B, float32")
    assert found.failure == "ended 5 s after another rank had failed"


def test_rank_that_was_killed_or_not_started(tmp_path: Path) -> None:
    found = ended(tmp_path, ending=RoleEnding.CRASHED, step="first all-reduce", signal="SIGSEGV")
    assert (found.ending, found.failure) == (Ending.FAILED, "crashed by SIGSEGV")
    outcome = ProbeOutcome("", (), {}, {}, None, 1.0, stopped="interrupted")
    assert {each.ending for each in results(outcome, ASKED, "n1", "")} == {Ending.FAILED}


class _Sent:
    """A line to the head that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ({"unkillable": "rank 0 (pid 7), which SIGKILL did not end"}, "not run after rank 0 (pid 7)"),
        ({"unkillable": "", "own_directory": _no_place}, "no directory for the run's files"),
    ],
)
def test_ranks_that_cannot_be_started_have_failed_at_once(session: dict[str, Any], why: str) -> None:
    line = _Sent()
    standing: Any = SimpleNamespace(session=SimpleNamespace(**session))
    with ThreadPoolExecutor(1) as thread:
        place = _Place(line, standing, "n1", thread)  # type: ignore[arg-type]
        place.take({"round": {**ASKED, "number": 3}})
        place.tell()
        assert not place.is_busy
    (sent,) = line.messages
    assert sent["number"] == 3
    assert [(rank["rank"], rank["ending"]) for rank in sent["ranks"]] == [(4, "failed"), (5, "failed")]
    assert sent["ranks"][0]["failure"].startswith(why)


def test_command_without_a_secret_says_who_starts_it() -> None:
    with pytest.raises(NoHead, match="fleet collectives"):
        reach(["127.0.0.1:1"], b"", "n1")
