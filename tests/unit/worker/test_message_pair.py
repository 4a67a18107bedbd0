"""Results parsed from real output of ``fi_pingpong`` and ``ucx_perftest``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuipc_doctor.worker import cxi_healthcheck, message_pair

PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
16      10      =10      320         0.09s      0.00    4740.55       0.00
"""
PERFTEST = """\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                    10      4.151     4.699     4.699        0.00       0.00         213         213
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
        (0, f"libfabric:1:core: a warning\n{PINGPONG}", {"ended": "right", "said": "", "us": 4740.55}),
        (0, PERFTEST, {"ended": "right", "said": "", "us": 4.699}),
        (
            255,
            "Error at iteration=1 size=16 byte=8\n",
            {"ended": "wrong", "said": "byte 8 of a message is wrong"},
        ),
        (-6, "", {"ended": "crashed", "said": "SIGABRT"}),
        (
            -6,
            "| Test: tag match latency |\n"
            "[vm:7:0:7]      ucp_mm.c:1012 Assertion `mem_type == memh->mem_type' failed: mem_type=host\n",
            {
                "ended": "crashed",
                "said": "SIGABRT: [vm:7:0:7]      ucp_mm.c:1012 "
                "Assertion `mem_type == memh->mem_type' failed: "
                "mem_type=host",
            },
        ),
        (-13, "", {"ended": "failed", "said": "SIGPIPE"}),
        (1, PSM2, {"ended": "crashed", "said": "SIGSEGV"}),
        (1, REFUSED, {"ended": "failed", "said": f"exit code 1: {REFUSED.strip()}"}),
        (3, "", {"ended": "failed", "said": "exit code 3: no output"}),
    ],
)
def test_results_of_a_program(code: int, text: str, told: dict[str, object]) -> None:
    assert message_pair.judge(code, text, 10) == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Waiting for connection...\n",
        PINGPONG.splitlines()[0],
        PINGPONG.replace("10      =10 ", "9       =9  "),
        PINGPONG.replace("=10", "8"),
        PINGPONG.replace("4740.55", "nan"),
        PINGPONG.replace("4740.55", "-1.00"),
        PINGPONG[: PINGPONG.index("4740")],
        PERFTEST.replace("4.699", "inf"),
        PERFTEST.replace("  10 ", "   5 "),
    ],
)
def test_exit_code_0_without_a_result_is_a_failure(text: str) -> None:
    told = message_pair.judge(0, text, 10)
    assert told["ended"] == "failed"
    assert told["said"].startswith("exit code 0, but no result for 10 messages: ")


def test_server_of_ucx_perftest_prints_no_result() -> None:
    ends = [(name, serves) for name in ("fi_pingpong", "ucx_perftest") for serves in (True, False)]
    silent = [end for end in ends if not message_pair.has_result(f"/bin/{end[0]}", serves=end[1])]
    assert silent == [("ucx_perftest", True)]
    assert message_pair.judge(0, "Waiting for connection...\n", 10, has_result=False)["ended"] == "right"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            127,
            "fi_pingpong: error while loading shared libraries: libfabric.so.1: cannot open\n",
        ),
        (127, "fi_pingpong: symbol lookup error: undefined symbol: fi_x\n"),
        (127, "sh: 1: exec: fi_pingpong: not found\n"),
        (126, "Exec format error"),
        (126, "Permission denied"),
        (1, "fi_pingpong: /lib/libc.so.6: version `GLIBC_2.38' not found (required by fi_pingpong)\n"),
    ],
)
def test_program_that_cannot_start_is_reported_with_its_message(code: int, text: str) -> None:
    cannot_start = {"ended": "cannot start", "said": text.strip()}
    assert message_pair.judge(code, text, 10) == cannot_start
    assert message_pair.worse_of(message_pair.no_listener(), cannot_start)["ended"] == "cannot start"


def test_unsupported_memory_is_no_failure() -> None:
    told = message_pair.judge(255, NO_ROCM, 10)
    assert told["ended"] == "unable"
    assert told["said"] == (
        "exit code 255: Unsupported memory types rocm<->rocm | Failed to run test: Unsupported operation"
    )


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
def test_ucx_uses_the_stated_fabric(
    program: str, route: str, stated: str | None, transports: str | None
) -> None:
    told = message_pair.transports(program, route, stated)
    assert told == ({"UCX_TLS": transports} if transports else {})


def test_more_informative_result_of_both_roles_is_used() -> None:
    crashed, failed = {"ended": "crashed", "said": "SIGSEGV"}, {"ended": "failed", "said": "exit code 1"}
    assert message_pair.worse_of(crashed, failed) == message_pair.worse_of(failed, crashed) == crashed
    ended_by_us = {"ended": "crashed", "said": "SIGTERM"}
    assert (
        message_pair.worse_of(ended_by_us, crashed) == message_pair.worse_of(crashed, ended_by_us) == crashed
    )
    wrote_to_nobody = message_pair.judge(-signal.SIGPIPE, "", 10)
    assert (
        message_pair.worse_of(wrote_to_nobody, crashed)
        == message_pair.worse_of(crashed, wrote_to_nobody)
        == crashed
    )
    server, client = message_pair.judge(0, "", 10, has_result=False), message_pair.judge(0, PINGPONG, 10)
    assert message_pair.worse_of(server, client) == message_pair.worse_of(client, server) == client


def test_commands_of_client_and_server() -> None:
    command = message_pair.command("/usr/bin/fi_pingpong", "cxi", 16, 2)
    assert command[:3] == ["/usr/bin/fi_pingpong", "-p", "cxi"]
    assert {"-c", "16"} <= set(command)  # data is compared
    assert message_pair.serve(command[0], 5) == ["-B", "5"]
    assert message_pair.call(command[0], "n2", 5) == ["-P", "5", "n2"]
    assert "rocm" in message_pair.command("/usr/bin/ucx_perftest", "hip", 16, 2)


SUMMARY = """\
---------- Health Check Summary ----------
Check: pci_check  Result: Pass
Check: mac_check  Result: Skip
Check: link_flap_check  Result: Fail
"""
"""shs-docs (ef07c6c), troubleshoot/cxi/CXI_Healthcheck.md, with one result changed."""


def test_results_of_hpes_check(tmp_path: Path) -> None:
    (tmp_path / "cxi0").write_text(SUMMARY)
    (tmp_path / "else").write_bytes(b"\xff\n")
    found = cxi_healthcheck.results(tmp_path)
    assert [(result["check"], result["result"]) for result in found] == [
        ("pci_check", "Pass"),
        ("mac_check", "Skip"),
        ("link_flap_check", "Fail"),
    ]
    assert {result["file"] for result in found} == {str(tmp_path / "cxi0")}
