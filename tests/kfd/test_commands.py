"""Commands other than `check` on an emulated node: they find AMD's GPUs, versions and used memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kfd import emulated
from tests.kfd.emulated import REPOSITORY, EmulatedNode, Runtime
from tests.waiting import LIMIT_S

DOCTOR = (sys.executable, "-m", "gpuipc_doctor")

HOLD = """
import ctypes, sys
hip, buffer = ctypes.CDLL("libamdhip64.so"), ctypes.c_void_p()
assert hip.hipMalloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 30)) == 0
print("held", flush=True)
sys.stdin.read()
"""
"""A program that allocates 1 GiB on the first GPU."""

SSH = '#!/bin/sh\nfor word; do :; done\nexec sh -c "$word"\n'
"""A stand-in for ssh that runs its last argument on this node."""

pytestmark = [pytest.mark.kfd, pytest.mark.hip]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(runtime, id=runtime.name, marks=pytest.mark.xdist_group(f"kfd-{runtime.name}"))
        for runtime in emulated.chosen_runtimes()
    ],
)
def node(request: pytest.FixtureRequest) -> Iterator[EmulatedNode]:
    runtime: Runtime = request.param
    with emulated.node(runtime) as found:
        yield found


def run(node: EmulatedNode, *command: str, enter: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(enter or node.enter), *command],
        env={**os.environ, **node.env},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.full
def test_prolog_passes_without_the_variables_that_it_clears(node: EmulatedNode) -> None:
    outside = [part for part in node.enter if part != "--root"]
    installed = ("unshare", "--mount", "--propagation", "unchanged", "sh", "tests/kfd/installed.sh")
    command = (*DOCTOR, "prolog", "--budget", "90")  # AMD's runtime starts slowly on a busy machine
    ended = run(node, *installed, str(node.runtime.root), *command, enter=outside)
    assert ended.returncode == 0
    is_known_bad = node.runtime.generation == 7  # known-versions: ROCm/hip#3886 and others
    counts = "PASS 1 check, 1 WARN" if is_known_bad else "PASS 2 checks"
    assert ended.stdout.startswith(f"gpuipc-doctor: {counts} on hip:0-1"), ended.stdout + ended.stderr


@pytest.mark.full
def test_inventory_has_the_version_of_the_runtime(node: EmulatedNode) -> None:
    ended = run(node, *DOCTOR, "inventory", "--json")
    facts = {fact["name"]: fact["value"] for fact in json.loads(ended.stdout)["facts"]}
    assert facts["gpu-model"] == "2 × AMD Instinct MI210"
    assert facts["rocm"].partition(".")[0] == str(node.runtime.generation)
    assert facts["hip-runtime"].startswith(f"{facts['rocm']}.")


def test_memory_has_what_another_process_holds(node: EmulatedNode) -> None:
    holder = subprocess.Popen(
        [*node.enter, sys.executable, "-c", HOLD],
        env={**os.environ, **node.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        ended = run(node, *DOCTOR, "memory")
        holder.communicate()
    used = re.findall(r"^(hip:\d) .* (\d\.\d\d) GiB +3.00 GiB$", ended.stdout, re.MULTILINE)
    assert [(gpu, float(gib) >= 1) for gpu, gib in used] == [("hip:0", True)], ended.stdout


@pytest.mark.full  # test_prolog_passes… starts checks as well; fleets are tested on simulated nodes
def test_fleet_check_merges_two_nodes(node: EmulatedNode, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    path = f"PATH={tmp_path}:{os.environ['PATH']}"
    fleet = (*DOCTOR, "fleet", "check", "--via", "ssh", "-w", "n[1-2]", "--into", str(tmp_path / "out"))
    ended = run(node, "env", path, *fleet, "--", "driver-init", "ipc-reopen", "--backend", "hip")
    assert ended.returncode == 0, ended.stdout + ended.stderr
