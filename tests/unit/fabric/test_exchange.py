"""What is concluded from what ``fi_pingpong`` and ``ucx_perftest`` print. The texts are theirs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuipc_doctor.fabric import exchange, healthcheck

PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
16      10      =10      320         0.09s      0.00    4740.55       0.00
"""
PERFTEST = """\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                   100      4.151     4.699     4.699        0.00       0.00         213         213
"""
NO_ROCM = """\
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
[1795343035.116870] [vm:15017:0]         libperf.c:2178 UCX  ERROR Unsupported memory types rocm<->rocm
[1795343035.116898] [vm:15017:0]    perftest_run.c:363  UCX  ERROR Failed to run test: Unsupported operation
"""
REFUSED = "[error] fabtests:util/pingpong.c:411: failed to connect: Connection refused\n"
PSM2 = "\nfi_pingpong:26476 terminated with signal 11 at PC=7f9a50c85487 SP=7ffcf3025e60.  Backtrace:\n"


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        (0, PINGPONG, {"ended": "right", "said": "", "us": 4740.55}),
        (0, PERFTEST, {"ended": "right", "said": "", "us": 4.699}),
        (0, "Waiting for connection...\n", {"ended": "right", "said": "", "us": None}),
        (
            255,
            "Error at iteration=1 size=16 byte=8\n",
            {"ended": "wrong", "said": "byte 8 of a message is wrong"},
        ),
        (-6, "", {"ended": "crashed", "said": "SIGABRT"}),
        (-13, "", {"ended": "failed", "said": "SIGPIPE"}),
        (1, PSM2, {"ended": "crashed", "said": "SIGSEGV"}),
        (1, REFUSED, {"ended": "failed", "said": f"exit code 1: {REFUSED.strip()}"}),
        (3, "", {"ended": "failed", "said": "exit code 3: it said nothing"}),
    ],
)
def test_how_a_program_ended(code: int, text: str, told: dict[str, object]) -> None:
    assert exchange.judge(code, text) == told


def test_memory_that_a_build_does_not_know_is_no_failure() -> None:
    told = exchange.judge(255, NO_ROCM)
    assert told["ended"] == "unable"
    assert told["said"] == (
        "exit code 255: Unsupported memory types rocm<->rocm | Failed to run test: Unsupported operation"
    )


def test_a_line_of_ucxs_log_loses_its_head_whatever_the_length_of_a_process_id() -> None:
    log = "[1795358814.885] [vm:775  :0]  perftest_run.c:363 UCX  ERROR Failed to run test: No such device\n"
    assert exchange.judge(255, log)["said"] == "exit code 255: Failed to run test: No such device"


@pytest.mark.parametrize(
    ("program", "route", "stated", "transports"),
    [
        ("/a/ucx_perftest", "host", None, None),
        ("/a/ucx_perftest", "host", "cxi", None),
        ("/a/ucx_perftest", "host", "tcp", "tcp,sm,self"),
        ("/a/ucx_perftest", "hip", "tcp", "tcp,sm,self,rocm"),
        ("/a/ucx_perftest", "cuda", "verbs", "ib,cuda"),
        ("/a/fi_pingpong", "tcp", "tcp", None),
    ],
)
def test_ucx_is_told_the_fabric_that_the_site_states(
    program: str, route: str, stated: str | None, transports: str | None
) -> None:
    told = exchange.transports(program, route, stated)
    assert told == ({"UCX_TLS": transports} if transports else {})


def test_of_both_ends_the_one_that_tells_more() -> None:
    crashed, failed = {"ended": "crashed", "said": "SIGSEGV"}, {"ended": "failed", "said": "exit code 1"}
    assert exchange.of_both(crashed, failed) == exchange.of_both(failed, crashed) == crashed
    wrote_to_nobody = exchange.judge(-signal.SIGPIPE, "")
    assert exchange.of_both(wrote_to_nobody, crashed) == exchange.of_both(crashed, wrote_to_nobody) == crashed
    server, client = exchange.judge(0, ""), exchange.judge(0, PINGPONG)
    assert exchange.of_both(server, client) == exchange.of_both(client, server) == client


def test_both_ends_of_a_command() -> None:
    command = exchange.command("/usr/bin/fi_pingpong", "cxi", 16, 2)
    assert command[:3] == ["/usr/bin/fi_pingpong", "-p", "cxi"]
    assert {"-c", "16"} <= set(command)  # data are compared
    assert exchange.serve(command[0], 5) == ["-B", "5"]
    assert exchange.call(command[0], "n2", 5) == ["-P", "5", "n2"]
    assert "rocm" in exchange.command("/usr/bin/ucx_perftest", "hip", 16, 2)


SUMMARY = """\
---------- Health Check Summary ----------
Check: pci_check  Result: Pass
Check: mac_check  Result: Skip
Check: link_flap_check  Result: Fail
"""
"""shs-docs (ef07c6c), troubleshoot/cxi/CXI_Healthcheck.md, with one result changed."""


def test_results_of_hpes_own_check(tmp_path: Path) -> None:
    (tmp_path / "cxi0").write_text(SUMMARY)
    (tmp_path / "else").write_bytes(b"\xff\n")
    found = healthcheck.results(tmp_path)
    assert [(one["check"], one["result"]) for one in found] == [
        ("pci_check", "Pass"),
        ("mac_check", "Skip"),
        ("link_flap_check", "Fail"),
    ]
    assert {one["file"] for one in found} == {str(tmp_path / "cxi0")}


def test_no_such_directory(tmp_path: Path) -> None:
    assert healthcheck.results(tmp_path / "nowhere") == []
