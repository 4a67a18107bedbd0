"""Programs of libfabric and UCX that crash, cannot start or print nothing useful are never a PASS."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, full

ROW = "provider: tcp\n    domain: lo\n    version: 1.0\n    type: FI_EP_RDM\n    protocol: FI_PROTO_XNET\n"
VERSION = '[ "$1" = -v ] || exec echo "libfabric: 2.1.0"'
ENODATA = f'{VERSION}; echo "fi_getinfo: -61 (No data available)" >&2; exit 61'
LOADER = 'echo "$0: error while loading shared libraries: libfabric.so.1: cannot open" >&2; exit 127'
CRASH = "kill -SEGV $$"
GOOD_INFO = f'case "$1" in --version) echo "libfabric: 2.1.0";; *) printf "{ROW}";; esac'.replace("\n", "\\n")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(doctor: Command, tmp_path: Path) -> Run:
    """Run a check with stand-ins for programs: name → shell script, or bytes of a file."""

    def check(id_: str, /, **programs: str | bytes) -> dict[str, Any]:
        for name, script in programs.items():
            file = tmp_path / name
            file.write_bytes(script if isinstance(script, bytes) else f"#!/bin/sh\n{script}\n".encode())
            file.chmod(0o755)
        config = tmp_path / "site.yaml"
        config.write_text("options: {fabric-small-message: {sizes: [1, 16]}}\n")
        ended = doctor(
            *("check", id_, "--config", str(config), "--deadline", "5", "--json"),
            env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        )
        found = [
            result["finding"] for result in json.loads(ended.stdout)["results"] if result["check"] == id_
        ]
        return max(found, key=lambda one: ["PASS", "SKIP", "WARN", "ERROR", "FAIL"].index(one["status"]))

    return check


@pytest.mark.parametrize(
    ("fi_info", "status", "words"),
    [
        (f'echo "libfabric:1:core: a warning" >&2; {GOOD_INFO}', "PASS", "libfabric 2.1.0"),
        ("exit 5", "FAIL", "fi_info failed: exit code 5: no output"),
        full(ENODATA, "WARN", "libfabric has no usable provider"),
        full("exit 0", "ERROR", "fi_info: exit code 0, but unreadable output: no output"),
        full("echo Kauderwelsch", "ERROR", "unreadable output: Kauderwelsch"),
        full(LOADER, "ERROR", "error while loading shared libraries"),
        full(b"\x7fELF nonsense", "ERROR", "fi_info cannot start: Exec format error"),
        full(f"[ $1 = -v ] || kill -SEGV $$; {GOOD_INFO}", "FAIL", "fi_info crashed: SIGSEGV"),
        full(f"[ $1 = -v ] || exec echo 2.1; {GOOD_INFO}", "ERROR", "unreadable output: 2.1"),
    ],
)
def test_useless_fi_info_is_no_pass(run: Run, fi_info: str | bytes, status: str, words: str) -> None:
    finding = run("fabric-info", fi_info=fi_info, ucx_info="echo '# Library version: 1.20.0'")
    assert finding["status"] == status, finding
    assert words in finding["summary"]


@pytest.mark.parametrize(
    ("ucx_info", "status"), [(CRASH, "FAIL"), full("exit 0", "ERROR"), full(LOADER, "ERROR")]
)
def test_useless_ucx_info_is_no_pass(run: Run, ucx_info: str, status: str) -> None:
    finding = run("fabric-info", fi_info=GOOD_INFO, ucx_info=ucx_info)
    assert (finding["status"], "ucx_info" in finding["summary"]) == (status, True), finding


MEETS = """python3 - "$@" <<'END'
import socket, sys
at = sys.argv
if "-B" in at:
    with socket.create_server(("", int(at[at.index("-B") + 1]))) as server:
        server.accept()
else:
    socket.create_connection((at[-1], int(at[at.index("-P") + 1])))
END
"""
"""A pair that connects and sends nothing; both end with exit code 0."""


@pytest.mark.parametrize(
    ("pingpong", "status", "words"),
    [
        (MEETS, "FAIL", "no result for 2 messages"),
        full(LOADER, "ERROR", "fi_pingpong cannot start"),
        full(b"\x7fELF nonsense", "ERROR", "fi_pingpong cannot start: Exec format error"),
        full(CRASH, "FAIL", "fi_pingpong crashed"),
    ],
)
def test_fi_pingpong_that_sends_nothing_is_no_pass(
    run: Run, pingpong: str | bytes, status: str, words: str
) -> None:
    finding = run("fabric-small-message", fi_info=GOOD_INFO, fi_pingpong=pingpong)
    evidence = " ".join(item["line"] for item in finding["evidence"])
    assert finding["status"] == status, finding
    assert "hung" not in finding["summary"]
    assert words in f"{finding['summary']} {evidence}"


@pytest.mark.full
def test_failed_role_is_reported_instead_of_the_one_without_a_listener(run: Run) -> None:
    finding = run("fabric-small-message", ucx_perftest="echo broken; exit 3")
    (line,) = [item["line"] for item in finding["evidence"] if "host: " in item["line"]]
    assert line == "host: 1 B, 16 B: exit code 3: broken"
