"""NCCL's RAS service, simulated with its output."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.collective import ras_counts
from gpuipc_doctor.collective.judge import judge
from gpuipc_doctor.job import loaded, ras
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.ras import NotAnswered
from gpuipc_doctor.knownissues import affected
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Range, Verdict
from tests import nccl_recordings

TEXT = """\
NCCL version 2.28.3 compiled with CUDA 12.9

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
========================

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
"""
"""From the format strings of NCCL's src/ras/client_support.cc and the example in its user guide."""


def rank(number: int, count: int, error: int = 0) -> dict[str, object]:
    return {
        "rank": number,
        "host": "10.0.0.1",
        "pid": 100 + number,
        "status": {"init_state": 0, "async_error": error, "abort_flag": False},
        "collective_counts": {"AllReduce": count, "Broadcast": 2},
    }


MISSING = {
    "rank": 3,
    "host": "10.0.0.2",
    "pid": 9,
    "status": {"unresponsive": True, "considered_dead": False},
}
COMMUNICATORS = [{"ranks": [rank(0, 6), rank(1, 6), rank(2, 5, error=6)], "missing_ranks": [MISSING]}]
JSON = json.dumps({"nccl_version": "2.29.2", "communicators": COMMUNICATORS, "ras": {"timeouts_count": 0}})


@contextmanager
def service(answer: str) -> Iterator[tuple[int, list[str]]]:
    """The port on which one client is answered, and its requests."""
    asked: list[str] = []
    with socket.create_server(("localhost", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rw") as file:
                for line in file:
                    asked.append(line.strip())
                    if line.startswith("CLIENT PROTOCOL"):
                        file.write("SERVER PROTOCOL 2\n")
                    elif line.startswith("SET FORMAT"):
                        file.write("OK\n")
                    else:
                        file.write(answer)
                        break
                    file.flush()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], asked
        thread.join()


def test_text_is_parsed_for_errors_and_warnings() -> None:
    with service(TEXT) as (port, asked):
        found = ras._asked(port, as_json=False)[0]
    assert found[:2] == ("INCOMPLETE", "Missing communicator data from 1 job process")
    assert found[-1] == "6 ranks have launched up to operation 6649"
    assert len(found) == 6
    assert asked == ["CLIENT PROTOCOL 2", "VERBOSE STATUS"]


def test_json_is_parsed_for_lagging_or_missing_ranks() -> None:
    with service(JSON) as (port, asked):
        found = ras._asked(port, as_json=True)[0]
    assert found == (
        "communicator 0 of 3 ranks: rank 2 has asynchronous error 6",
        "communicator 0 of 3 ranks: AllReduce started: 5 on ranks 2; 6 on ranks 0-1",
        "communicator 0 of 3 ranks: rank 3 on 10.0.0.2, pid 9 does not respond",
    )
    assert asked == ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]


@pytest.mark.parametrize(("answer", "as_json"), [("", False), ("{", True), ('{"communicators": [7]}', True)])
def test_answer_that_cannot_be_read_is_one_line(answer: str, as_json: bool) -> None:
    with service(answer) as (port, _), pytest.raises(NotAnswered) as caught:
        ras._asked(port, as_json=as_json)
    assert "\n" not in str(caught.value)


def test_healthy_job_has_no_trouble() -> None:
    with service(json.dumps({"communicators": [{"ranks": [rank(0, 6), rank(1, 6)]}]})) as (port, _):
        assert ras._asked(port, as_json=True)[0] == ("no communicator reports an error",)


LISTENS = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
listening.settimeout(600)
listening.accept()
print("asked", flush=True)
"""


@pytest.mark.parametrize(
    ("version", "ask", "said"),
    [
        ("2.28.9", False, "was not queried: a query can crash a job; affected: NCCL 2.26 to before 2.31"),
        ("2.28.9", True, "did not answer"),
        ("2.31.2", False, "did not answer"),
        ("2.25.1", False, "did not answer"),
    ],
)
def test_ras_is_queried_only_if_the_known_issue_clears_it_or_on_request(
    monkeypatch: pytest.MonkeyPatch, version: str, ask: bool, said: str
) -> None:
    """The service here closes the connection at once."""
    issue = next(issue for issue in knownissues.load() if issue.id == "nccl-ras-crash")
    issue = replace(issue, affected=(Range("nccl", "2.26", fixed="2.31"),))
    monkeypatch.setattr(knownissues, "load", lambda: (issue,))
    monkeypatch.setattr(ras, "versions", lambda process: {"nccl": version})
    with subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        try:
            monkeypatch.setattr(ras, "PORT", int(child.stdout.readline()))
            process = Process(pid=child.pid, parent=1, uid=0, program="python3")
            (line,) = ras.query([process], ask=ask).lines
            if said == "did not answer":
                assert child.stdout.readline() == "asked\n"
        finally:
            child.kill()
        assert child.stdout.read() == ""
    assert said in line


def test_no_version_of_nccl_is_known_to_be_safe() -> None:
    """A source that names the first safe version changes this, in the known issue only."""
    [issue] = (issue for issue in knownissues.load() if issue.id == "nccl-ras-crash")
    for version in ("2.26.2", "2.29.7", "2.30.3"):
        assert affected.judge(issue, [Fact("nccl", version, "loaded")])[0] is not Verdict.FINE


def test_job_without_nccl_or_a_listener_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(pid=1, parent=0, uid=0, program="init")
    assert ras.query([process], ask=True).lines == ()
    monkeypatch.setattr(ras, "versions", lambda process: {"nccl": "2.30.3"})
    assert ras.query([process], ask=True).lines == ()


@pytest.mark.parametrize(
    ("file", "info", "version"),
    [
        ("nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_cu13-2.28.9.dist-info", "2.28.9"),
        ("nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_cu12-2.30.3.dist-info", "2.30.3"),
        ("nvidia/nccl/lib/libnccl.so.2", "nvidia_cublas-13.0.0.dist-info", None),
    ],
)
def test_version_of_nccl_in_a_wheel_is_that_of_its_metadata(
    tmp_path: Path, file: str, info: str, version: str | None
) -> None:
    """PyTorch's wheels bring libnccl.so.2, whose name has no version, so that RAS was never asked."""
    library = tmp_path / file
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    (tmp_path / info).mkdir()
    process = Process(pid=os.getpid(), parent=1, uid=0, program="python3", libraries=(str(library),))
    assert loaded.versions(process).get("nccl") == version


def test_ras_of_an_nccl_of_unknown_version_is_asked_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "versions", lambda process: {})
    monkeypatch.setattr(ras, "_listens", lambda pid: True)
    process = Process(pid=1, parent=0, uid=0, program="python3", libraries=("/x/libnccl.so.2",))
    assert "was not queried" in ras.query([process], ask=False).lines[0]
    with service(nccl_recordings.ras("late")) as (port, asked):
        monkeypatch.setattr(ras, "PORT", port)
        question = ras.query([process], ask=True)
    assert asked[-1] == "VERBOSE STATUS"
    assert question.answer
    assert question.answer.communicators[0].counts == {"AllReduce": {n: 21 - (n == 5) for n in range(8)}}


def test_answer_in_other_json_is_asked_for_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "versions", lambda process: {"nccl": "2.30.3"})
    monkeypatch.setattr(ras, "_listens", lambda pid: True)
    texts = {True: '{"comms": []}', False: nccl_recordings.ras("late")}
    monkeypatch.setattr(ras, "answered", lambda port, as_json: texts[as_json])
    process = Process(pid=1, parent=0, uid=0, program="python3", libraries=("/x/libnccl.so.2",))
    assert ras.query([process], ask=True).answer


DIFFERENT = "Communicator ranks have different collective operation counts"
NINES = "9" * 5000


def text_of(sizes: list[int | str], *lines: str) -> str:
    """The text's table of communicators, and these lines on each communicator."""
    rows = [f"{number} 1 4 7-8 {size} {size} RUNNING MISMATCH" for number, size in enumerate(sizes)]
    details = [line for number in range(len(sizes)) for line in (f"#{number}-0 (a0) MISMATCH", *lines)]
    return "\n".join([*rows, *details])


def json_of(*ranks: object) -> str:
    return json.dumps({"communicators": [{"ranks": ranks}]})


LAST = "5 ranks have launched up to operation 7"
BEHIND = "Rank 3 has launched up to operation 6 -- process 1 on node 1"
KINDS = [line for n in range(4000) for line in (DIFFERENT.replace("collective", f"c{n}"), LAST)]


@pytest.mark.parametrize(
    "text",
    [
        text_of([10**10], DIFFERENT, LAST),
        text_of([10**8], DIFFERENT, LAST),
        text_of([NINES], DIFFERENT, LAST),
        text_of([8], DIFFERENT, f"5 ranks have launched up to operation {NINES}"),
        text_of([8], DIFFERENT, f"Rank {NINES} -- process {NINES} on node 1"),
        text_of([131072] * 8000, DIFFERENT, LAST),
        text_of([8] * 8000, DIFFERENT, LAST, BEHIND),
        text_of([131072], *KINDS),
        "Nodes x\nx\n " + NINES + " \n",
        "Errors\n======\n" + "x" * (4 << 20),
        json_of(rank(10**10, 1)),
        json_of(rank(-1, 1), rank(131071, 2)),
        json_of(rank(0, 10**4000)),
        json_of(rank(0, 1)).replace("100", NINES),
        json_of(rank(0, 17)).replace("17", "1e999"),
        json_of(rank(0, 17)).replace("17", "NaN"),
        json_of({**rank(0, 1), "collective_counts": {f"op{n}": n for n in range(100_000)}}, rank(131071, 1)),
        json_of(1, None, "x"),
        '{"communicators":' + "[" * 100_000,
    ],
    ids=range(19),
)  # fmt: skip
def test_hostile_answer_costs_neither_memory_nor_time_nor_the_report(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(ras, "versions", lambda process: {"nccl": "2.23.4"})
    monkeypatch.setattr(ras, "_listens", lambda pid: True)
    monkeypatch.setattr(ras, "answered", lambda port, as_json: text[: ras.MAX_BYTES])
    process = Process(pid=1, parent=0, uid=0, program="python3", libraries=("/x/libnccl.so.2",))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    question = ras.query([process], ask=True)
    calls = [*question.answer.calls({}, 8)] if question.answer else []
    judge(calls)
    assert question.lines[0].startswith("RAS of NCCL 2.23.4")
    assert len(question.lines) <= ras.MAX_LINES + 2
    assert max(map(len, question.lines)) < 400
    assert len(calls) <= ras_counts.MOST_COUNTS
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


@pytest.mark.parametrize("begin", ["", "SERVER PROTOCOL 2\n"], ids=["first line", "status"])
def test_answer_that_drips_ends_with_the_limit(monkeypatch: pytest.MonkeyPatch, begin: str) -> None:
    monkeypatch.setattr(ras, "LIMIT_S", 0.6)
    over = threading.Event()
    with socket.create_server(("localhost", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(begin.encode())
                while not over.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(NotAnswered, match="no answer within"):
                ras._asked(listening.getsockname()[1], as_json=False)
            began = time.monotonic()
        finally:
            over.set()
            thread.join()
    assert time.monotonic() - began < 5
