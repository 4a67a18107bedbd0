"""Intel's own user-mode driver over an emulated kernel driver: what it does with handles and descriptors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S
from tests.xe import emulated
from tests.xe.emulated import REPOSITORY, ROOT, EmulatedNode

LEAKING = {"26.27.39122.14-1": True}
"""Debian's version → whether its zeMemOpenIpcHandle leaks a descriptor (intel/compute-runtime#974)."""

ASK = """
import errno, fcntl, os, sys
request = int(sys.argv[1], 16)
try:
    fcntl.ioctl(os.open("/dev/dri/renderD128", os.O_RDWR), request, bytearray(request >> 16 & 0x3fff))
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("played")
"""

pytestmark = [
    pytest.mark.kfd,
    pytest.mark.xdist_group("xe"),
    pytest.mark.skipif(bool(emulated.why_not()), reason=emulated.why_not()),
]


@pytest.fixture(scope="module")
def node() -> Iterator[EmulatedNode]:
    with emulated.node() as found:
        yield found


@pytest.fixture(scope="module")
def program(node: EmulatedNode) -> str:
    """`benchmarks/stale_import.c`, compiled."""
    built = str(Path(node.env["XE_EMULATOR"], "stale_import"))
    (loader,) = ROOT.glob("usr/lib/*/libze_loader.so.1")
    flags = f"-Wall -Wextra -Werror -Wl,--allow-shlib-undefined -idirafter {ROOT}/usr/include -o {built}"
    source = str(REPOSITORY / "benchmarks/stale_import.c")
    subprocess.run(["cc", *flags.split(), source, str(loader)], check=True)
    return built


@pytest.mark.parametrize(
    ("request_code", "answer", "reported"),
    [
        ("0xc0406400", "played", ""),  # VERSION
        ("0xc03864ca", "ENOTTY", "ioctl 0xca is not played"),  # SYNCOBJ_TIMELINE_WAIT
        ("0x40386449", "EIO", "a command is submitted: none is executed here"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(
    node: EmulatedNode, request_code: str, answer: str, reported: str
) -> None:
    done = node.run(sys.executable, "-c", ASK, request_code)
    assert done.stdout.strip() == answer
    assert reported in done.stderr
    assert bool(reported) is bool(done.stderr)


def imports(done: subprocess.CompletedProcess[str]) -> tuple[str, set[int]]:
    """What each import read, as letters, and by how many descriptors each later one made the process grow."""
    found = re.findall(r"^import \d: data of buffer (.), .* (\d+) descriptors$", done.stdout, re.MULTILINE)
    counts = [int(count) for _, count in found]
    return "".join(data for data, _ in found), {later - count for count, later in pairwise(counts)}


def test_importer_with_its_own_descriptor_opens_each_buffer_and_keeps_nothing(
    node: EmulatedNode, program: str
) -> None:
    done = node.run(program, "descriptor")
    assert imports(done) == ("ABCDE", {0}), done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="pidfd"),
        pytest.param({"XE_EMULATOR_YAMA": ""}, id="sockets", marks=pytest.mark.full),
        pytest.param({"ExperimentalEnableDeviceAllocationCache": "0"}, id="no-reuse", marks=pytest.mark.full),
    ],
)
def test_handle_as_it_is_leaks_a_descriptor_and_opens_a_freed_buffer(
    node: EmulatedNode, program: str, env: dict[str, str]
) -> None:
    """The stale import is a candidate: no hardware has shown it (`benchmarks/stale_import.md`)."""
    done = node.run(program, **env)
    data, growth = imports(done)
    version = emulated.version()
    if version not in LEAKING:
        pytest.skip(f"libze-intel-gpu1 {version} is not in LEAKING; data {data}, descriptors +{growth}")
    assert (data, growth) == (("AAAAA", {1}) if LEAKING[version] else ("ABCDE", {0})), done.stdout
    assert done.returncode == (1 if LEAKING[version] else 0)


def test_program_cannot_tell_without_a_driver(program: str, node: EmulatedNode) -> None:
    done = node.run("env", "-u", "XE_EMULATOR", program)
    assert done.returncode == 2
    assert "cannot tell: zeInit returned 0x78000001" in done.stdout


@pytest.mark.parametrize(("key", "code"), [("1", 12), ("0", 0)], ids=["as-they-are", "own-descriptor"])
def test_replay_opens_a_freed_buffer(node: EmulatedNode, key: str, code: int) -> None:
    if code and not LEAKING.get(emulated.version()):
        pytest.skip(f"libze-intel-gpu1 {emulated.version()} is not known to leak")
    history = str(REPOSITORY / "benchmarks/stale_import.json")
    done = node.run(sys.executable, "-m", "gpuipc_doctor", "replay", history, EnablePidFdOrSocketsForIpc=key)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("the memory is wrong from byte 0 on" in done.stdout) is bool(code)


@pytest.mark.parametrize(
    ("check", "found"),
    [
        ("ipc-concurrent", {"descriptors-left", "wrong-data"}),
        pytest.param("ipc-release", {"descriptors-left", "not-returned"}, marks=pytest.mark.full),
        pytest.param("ipc-stale", {"crashed"}, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("opaque", [True, False], ids=["as-they-are", "own-descriptor"])
def test_check_finds_the_leak_and_passes_with_own_descriptors(
    node: EmulatedNode, check: str, found: set[str], opaque: bool
) -> None:
    """With that key the driver's handles need a descriptor, which the tool fetches."""
    if opaque and not LEAKING.get(emulated.version()):
        pytest.skip(f"libze-intel-gpu1 {emulated.version()} is not known to leak")
    env = {} if opaque else {"EnablePidFdOrSocketsForIpc": "0"}
    command = [sys.executable, "-m", "gpuipc_doctor", "check", check, "--backend", "ze", "--json"]
    report = json.loads(node.run(*command, "--no-workarounds", limit_s=LIMIT_S, **env).stdout)
    findings = [result["finding"] for result in report["results"] if result["check"] == check]
    seen = {join["issue"] for join in report["joins"] if join["relation"] == "confirmed"}
    assert {finding["key"] for finding in findings if finding["status"] != "PASS"} == (
        found if opaque else set()
    )
    assert ("intel-ze-ipc-fd-leak" in seen) is ("descriptors-left" in found and opaque)
