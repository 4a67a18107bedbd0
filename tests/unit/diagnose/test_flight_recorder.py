"""Dumps of PyTorch's Flight Recorder: read without executing anything, and compared between ranks."""

import json
import os
import pickle
import struct
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.diagnose import exits, pickles
from gpuipc_doctor.diagnose.decompress import Unreadable
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.flight_recorder import Dump, Operation, differences
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.model import Exit

FRAMES = [
    {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3},
    {"name": "step", "filename": "/home/u/train.py", "line": 42},
]


def entry(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "frames": FRAMES,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[1024, 8]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "is_p2p": False,
        **changes,
    }


def recorded(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"version": "2.5", "pg_config": {"0": {"desc": "default_pg"}}, "entries": list(entries)}


HUNG = [
    recorded(entry(1), entry(2, state="started")),
    recorded(entry(1)),
    recorded(entry(1), entry(2, state="started")),
]


def read(dumps: list[dict[str, Any]], tmp_path: Path, protocol: int | None) -> Diagnosis:
    for rank, dump in enumerate(dumps):
        data = json.dumps(dump).encode() if protocol is None else pickle.dumps(dump, protocol)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    return diagnose([str(tmp_path)], Examination([]))


def test_rank_without_a_dump_is_named_if_the_group_is_known(tmp_path: Path) -> None:
    dumps = [{**dump, "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}} for dump in HUNG]
    absent, *others = read(dumps, tmp_path, None).flights
    assert absent.ranks == ("3",)
    assert "no dump of this rank" in absent.says
    assert [difference.ranks for difference in others] == [("1",), ("0", "2")]


@pytest.mark.parametrize("protocol", [None, 2, 3, 4, 5])
def test_rank_that_stopped_early_is_named(protocol: int | None, tmp_path: Path) -> None:
    diagnosis = read(HUNG, tmp_path, protocol)
    behind, waiting = diagnosis.flights
    assert behind.ranks == ("1",)
    assert behind.says == (
        "rank 1 did not call all_reduce (operation 2) of 0 (default_pg), in which ranks 0,2 wait; "
        "last seen in all_reduce 1, at step (train.py:42)"
    )
    assert behind.quote.endswith(
        "_rank_1: collective 1: all_reduce of 1024×8 Float, completed, at step (train.py:42)"
    )
    assert "gpuipc-doctor job" in behind.do
    assert waiting.ranks == ("0", "2")
    assert (
        "collective 2 of 0 (default_pg) (all_reduce of 1024×8 Float) started but did not end" in waiting.says
    )
    assert not any(log.trouble for log in diagnosis.logs)
    assert exits.code(diagnosis) == Exit.FAIL


def test_ranks_in_different_collectives_are_named(tmp_path: Path) -> None:
    other = entry(2, profiling_name="nccl:broadcast", input_sizes=[[1]], state="scheduled")
    dumps = [recorded(entry(1), entry(2, state="started")) for _ in range(3)]
    diagnosis = read([*dumps, recorded(entry(1), other)], tmp_path, 2)
    (one,) = diagnosis.flights
    assert one.ranks == ("3",)
    assert one.says == (
        "rank 3 called broadcast, at step (train.py:42), where ranks 0-2 called all_reduce (operation 2) of "
        "0 (default_pg)"
    )
    assert one.quote.endswith("collective 2: broadcast of 1 Float, scheduled, at step (train.py:42)")


def test_rank_with_another_size_is_named(tmp_path: Path) -> None:
    dumps = [recorded(entry(1, input_sizes=[[8 - (rank == 2)]], state="started")) for rank in range(4)]
    (one,) = read(dumps, tmp_path, 2).flights
    assert one.ranks == ("2",)
    assert "rank 2 called all_reduce of 7 Float" in one.says
    assert "ranks 0-1,3 called all_reduce of 8 Float" in one.says


def test_groups_called_in_another_order_are_named(tmp_path: Path) -> None:
    def waits_in(*groups: str) -> dict[str, Any]:
        return recorded(*(entry(1, process_group=(group, "undefined"), state="started") for group in groups))

    members = {"1": {"desc": "undefined", "ranks": "[0, 1]"}, "2": {"desc": "undefined", "ranks": "[0, 1]"}}
    dumps = [{**waits_in(group), "pg_config": members} for group in ("1", "2")]
    flights = read(dumps, tmp_path, 2).flights
    assert "which waits in all_reduce of 1 for them" in flights[0].says


def test_rank_without_a_dump_is_at_fault_if_all_others_wait(tmp_path: Path) -> None:
    config = {"0": {"desc": "default_pg", "ranks": "[0, 1, 2]"}}
    dumps = [{**recorded(entry(1, state="started")), "pg_config": config}] * 2
    missing, waiting = read(dumps, tmp_path, 2).flights
    assert (missing.ranks, waiting.ranks) == (("2",), ("0", "1"))
    assert missing.says.startswith("rank 2 did not call all_reduce (operation 1) of 0 (default_pg)")
    assert missing.says.endswith("in which ranks 0-1 wait; there is no dump of it")


def test_dumps_of_unknown_ranks_are_not_compared_in_silence() -> None:
    one, other = (
        Dump(log, log, (Operation("0", 1, name, "", "completed", ""),)) for log, name in ("ab", "cd")
    )
    (said,) = differences([one, other])
    assert "the rank of this dump is unknown" in said.says


def test_healthy_ranks_have_no_difference(tmp_path: Path) -> None:
    assert read([recorded(entry(1), entry(2))] * 4, tmp_path, 2).flights == ()


def test_uneven_sizes_and_messages_between_two_are_no_difference(tmp_path: Path) -> None:
    dumps = [
        recorded(
            entry(1, profiling_name="nccl:all_to_all", input_sizes=[[rank]]),
            entry(9, is_p2p=True, profiling_name="nccl:send 0->1", state="started"),
        )
        for rank in (1, 2, 3)
    ]
    assert read(dumps, tmp_path, 2).flights == ()


def test_groups_are_compared_separately() -> None:
    def one(rank: str, group: str, number: int, state: str = "completed") -> Dump:
        return Dump(f"log{rank}", rank, (Operation(group, number, "all_reduce", "", state, ""),))

    assert list(differences([one("0", "tp0", 5), one("1", "tp0", 5), one("2", "tp1", 9)])) == []
    assert list(differences([one("0", "tp0", 5), one("1", "tp0", 4)])) == []  # of different moments
    found, _ = differences([one("0", "tp0", 5, "started"), one("1", "tp0", 4), one("10", "tp0", 4)])
    assert found.ranks == ("1", "10")


def test_dumps_in_an_archive_are_read(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    read(HUNG, tmp_path / "dumps", 2)
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "dumps", "dumps")
    diagnosis = diagnose([str(tmp_path / "dumps.tar.gz")], Examination([]))
    assert [difference.ranks for difference in diagnosis.flights] == [("1",), ("0", "2")]


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickle_that_would_execute_is_refused(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    diagnosis = read([recorded(entry(1)), {"entries": [Hostile()], "version": "2.5"}], tmp_path, protocol)
    (trouble,) = (log.trouble for log in diagnosis.logs if log.trouble)
    assert trouble.startswith("is a pickle that would run code when loaded (")
    assert not Path("executed").exists()
    assert exits.code(diagnosis) == Exit.ERROR


def refusal(data: bytes) -> str:
    with pytest.raises(Unreadable) as refused:
        pickles.plain(data)
    return str(refused.value)


@pytest.mark.parametrize(
    "tail",
    [
        b"0",
        b"r\xff\xff\xff\xff",
        b"a.",
        b"t.",
        b"j\xff\xff\xff\x7f.",
        b"X\xff\xff\xff\x7fabc",
        b"]]a" * 9,
        b"(",
        b"\xff",
    ],
)
def test_damaged_pickle_is_one_line(tail: bytes) -> None:
    assert "\n" not in refusal(b"\x80\x02" + tail)


def test_memo_of_any_number_takes_no_memory() -> None:
    assert pickles.plain(b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".") == []


def test_endless_pickle_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_STEPS", 100)
    assert "more than 100 steps" in refusal(b"\x80\x02]" + b"]a" * 1000)


def test_references_that_multiply_are_not_walked(tmp_path: Path) -> None:
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    dump = recorded(entry(1, input_sizes=bomb, frames=bomb), entry(2, process_group=bomb))
    assert all("[" not in difference.says for difference in read([dump] * 3, tmp_path, 2).flights)


DOUBLING = b"K\x01" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))
"""Steps for a tuple that holds a tuple twice, and so on, sixty times."""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x04}" + DOUBLING + b"K\x02s.", "a tuple as a key"),
        (b"\x80\x04}K\x02" + DOUBLING + b"s.", "more than 20000000 values"),
        (b"\x80\x04]q\x00h\x00a.", "nested deeper than 100 levels"),
        (b"\x80\x04}K\x02\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b"s.", "an integer of"),
    ],
    ids=["hash of doubling tuples", "doubling tuples", "list in itself", "integer"],
)  # fmt: skip
def test_pickle_that_never_ends_is_refused_at_once(data: bytes, says: str) -> None:
    began = time.monotonic()
    with pytest.raises(Unreadable) as refused:
        pickles.plain(data)
    assert (says in str(refused.value), time.monotonic() - began < 5) == (True, True)


def test_other_pickles_are_named(tmp_path: Path) -> None:
    log = tmp_path / "state.pkl"
    log.write_bytes(pickle.dumps({"step": 4711}, 2))
    diagnosis = diagnose([str(log)], Examination([]))
    assert "not a dump of PyTorch's Flight Recorder" in diagnosis.logs[0].trouble


@pytest.mark.parametrize("field", sorted(entry(1)))
@pytest.mark.parametrize("value", [None, 7, "x", [], [[]], {}, -1.5, [None, {}]], ids=repr)
def test_fields_of_any_kind_do_no_harm(field: str, value: Any, tmp_path: Path) -> None:
    read([recorded(entry(1, **{field: value})), recorded(entry(1))], tmp_path, 2)


def message(operation: str, **changes: Any) -> dict[str, Any]:
    return entry(1, profiling_name=f"nccl:{operation}", is_p2p=True, state="started", **changes)


@pytest.mark.parametrize(
    ("dumps", "ranks"),
    [
        ([[], [message("recv 1<-2")], []], [("2",)]),
        ([[message("send 0->1")], [message("recv 1<-0")], []], []),  # the network, or the GPUs
        ([[message("send 0->1")], [], []], [("1",)]),
        ([[], [message("recv 1<-0")], [message("recv 2<-1")]], [("0",)]),  # a pipeline
        ([[message("recv 0<-1")], [message("recv 1<-0")], []], [("1",)]),  # each waits for the other
        ([[], [message("recv 1<-2")]], []),  # no dump of rank 2
        ([[message("recv 0<-1", process_group=("7", "pp"))], [], []], [("2",)]),  # ranks of the group
    ],
)
def test_message_without_its_partner_names_who_did_not_call_it(
    dumps: list[list[dict[str, Any]]], ranks: list[tuple[str, ...]], tmp_path: Path
) -> None:
    config = {"7": {"desc": "pp", "ranks": "[0, 2]"}}
    made = [{**recorded(entry(1), *own), "pg_config": config} for own in dumps]
    found = [difference for difference in read(made, tmp_path, 2).flights if difference.blames]
    assert [difference.ranks for difference in found] == ranks


def test_dump_older_than_what_others_have_completed_names_nobody(tmp_path: Path) -> None:
    """A running job: each rank is further than the one before."""
    dumps = [recorded(*map(entry, range(1, last)), entry(last, state="started")) for last in (90, 91, 92, 99)]
    assert not any(difference.blames for difference in read(dumps, tmp_path, 2).flights)


@pytest.mark.parametrize("how", ["retired", "status"])
def test_state_of_recorders_that_mark_no_entry_as_completed(how: str, tmp_path: Path) -> None:
    """TorchComms retires entries; gloo's recorder (PyTorch 2.14.1) has the last number of the group."""

    def one(calls: int) -> dict[str, Any]:
        retired = how == "retired"
        entries = [
            entry(n, state="scheduled", retired=retired and n < 6, pg_id=0) for n in range(1, calls + 1)
        ]
        status = {"0": {"last_completed_collective": "-1" if retired else "5"}}
        return {**recorded(*entries), "pg_status": status, "pg_config": {"": {"ranks": "[0, 1, 2]"}}}

    behind, waits = read([one(6), one(5), one(6)], tmp_path, None).flights
    assert (behind.ranks, behind.blames) == (("1",), True)
    assert "collective 6 of 0 (default_pg)" in waits.says


def test_call_that_pytorch_retires_after_its_timeout_has_not_ended(tmp_path: Path) -> None:
    dumps = [
        recorded(entry(1), *(entry(2, state="started", retired=True) for _ in range(n))) for n in (1, 0, 1)
    ]
    assert read(dumps, tmp_path, 2).flights[0].ranks == ("1",)


@pytest.mark.parametrize("first", [0, 70])
def test_calls_that_torchcomms_counts_together_are_numbered_by_communicator(
    first: int, tmp_path: Path
) -> None:
    """Its recorder (comms/torchcomms/hooks/fr/FlightRecorder.cpp) was read and not tried."""

    def of(rank: int, *last: str) -> dict[str, Any]:
        calls = [("tp", "all_reduce")] * rank + [
            ("world", "send"),
            ("world", "all_gather"),
            *((each, "barrier") for each in last),
        ]
        entries = [
            entry(
                first + n,
                process_group=(group, "ncclx"),
                profiling_name=f"nccl:{name}",
                retired=name != "barrier",
                state="scheduled",
            )
            for n, (group, name) in enumerate(calls)
        ]
        return {**recorded(*entries), "pg_config": {"world": {"desc": "ncclx", "ranks": "[0,1,2]"}}}

    diagnosis = read([of(0, "world"), of(1), of(2, "world")], tmp_path, 2)
    if first:
        assert "recorder was full" in diagnosis.flights[0].says
        assert exits.code(diagnosis) == Exit.OK
    else:
        assert [found.ranks for found in diagnosis.flights if found.blames] == [("1",)]
        assert "barrier (operation 1) of world (ncclx)" in diagnosis.flights[0].says
