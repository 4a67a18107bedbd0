"""The MPI checks on real MPI libraries and simulated devices, healthy and faulty."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import FEW_MESSAGES, SMALL_SHARE, UCX_SETTINGS, Command, cuda_ucx, evidence, full

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]

LIBRARIES = {
    "impi": "lib/libmpi.so.12",
    "mpich43": "lib/libmpi.so.12",
    "mpich50": "lib/libmpi.so.12",
    "openmpi": "lib/libmpi.so.40",
}

SLOW_EVERY_SECOND_OPEN = "{call: ipc-open, every: 2, do: delay, ms: 1000}"
"""The sizes alternate, so these are the handles of odd buffers. A later message that waits as long for a
processor excuses the delay; on a busy machine, a wait is shorter than 1 s."""

OLD_MAPPING = "{call: ipc-open, from: 2, do: stale}"
"""A mapping shows the data that was at its address before, as a stale entry in a library's cache does."""


@pytest.fixture(scope="module")
def findings(doctor: Command) -> Any:
    """``findings(library, node, check…)`` runs the checks; returns their findings by (check, subject).

    The checks may include options, such as `ONE_DEVICE`.
    """

    def run(library: str, node: str, *checks: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
        path = Path(os.environ["GPUIPC_TEST_MPI"], library, LIBRARIES[library])
        ended = doctor(
            *("check", *checks, "--simulate", node, "--mpi-lib", str(path)),
            *("--config", SMALL_SHARE if (library, node) == ALL_SIZES else FEW_MESSAGES),
            *("--no-workarounds", "--json"),
            env={**os.environ, "I_MPI_OFFLOAD": "0" if node == "healthy-hip" else "1"},  # CUDA's only
        )
        assert ended.stderr == ""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for result in json.loads(ended.stdout)["results"]:
            if result["check"] in checks:
                place = result["check"], " > ".join(result["devices"])
                found.setdefault(place, []).append(result["finding"])
        return found

    return run


@pytest.fixture(scope="module")
def healthy(findings: Any) -> Any:
    """``healthy(library, node)`` returns the findings of all `CHECKS`, which run once for several tests."""

    @functools.cache
    def run(library: str, node: str) -> Any:
        return findings(library, node, *CHECKS, *(() if (library, node) in TWO_DEVICES else ONE_DEVICE))

    return run


ONE_DEVICE = ("--device", "0")

TWO_DEVICES = (("mpich43", "healthy-cuda"), ("impi", "healthy-cuda"))
"""Libraries, marked `full`, on which healthy devices also send to each other. Intel MPI recognises them as
devices; the other libraries treat their memory as the host's, so one of them is enough. In every run,
test_mpi_start.py has a pair of healthy devices."""

ALL_SIZES = ("mpich50", "healthy-hip")
"""Messages of all sizes on one device; the other combinations use few small ones."""

CHECKS = ("mpi-stale-buffer", "mpi-first-touch", "mpi-small-message", "mpi-cache-growth")
INTEL_HAS_FLAWS = ("mpi-small-message", "mpi-cache-growth")
"""Intel MPI's own faults on CUDA; see below."""


def of(check: str, found: dict[tuple[str, str], list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The findings of one check, by subject."""
    return {subject: concluded for (name, subject), concluded in found.items() if name == check}


def not_passed(found: dict[tuple[str, str], list[dict[str, Any]]]) -> list[tuple[tuple[str, str], Any]]:
    return [(at, finding) for at, concluded in found.items() for finding in concluded if is_bad(finding)]


def is_bad(finding: dict[str, Any]) -> bool:
    """Whether a healthy node must not have this finding; slow latencies only show a busy machine."""
    return finding["status"] != "PASS" and finding["key"] != "out-of-line"


@pytest.fixture
def node_with(tmp_path: Path) -> Any:
    """``node_with(kind, fault)`` writes a profile with two GPUs and this fault, and returns its path."""

    def write(kind: str, fault: str) -> str:
        path = tmp_path / "faulty.yaml"
        path.write_text(
            f"description: Two GPUs and a fault.\nextends: healthy-cuda\n{kind}:\n  - {fault}\n"
            "expect:\n  exit: 12\n  findings: []\n"
        )
        return str(path)

    return write


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("mpich50", "healthy-cuda"),
        *(full(*run) for run in (ALL_SIZES, *TWO_DEVICES, ("openmpi", "healthy-hip"))),
    ],
)
def test_healthy_node_passes(healthy: Any, name: str, node: str) -> None:
    found = healthy(name, node)
    assert {check for check, _ in found} == set(CHECKS)
    flawed = INTEL_HAS_FLAWS if (name, node) == ("impi", "healthy-cuda") else ()
    assert not_passed({at: concluded for at, concluded in found.items() if at[0] not in flawed}) == []
    sent = (finding for concluded in of("mpi-small-message", found).values() for finding in concluded)
    assert all(finding["measured"] for finding in sent if finding["status"] == "PASS")


@pytest.mark.full  # about a library, on a node that only it needs
def test_intel_mpi_fails_from_one_device_to_the_others_host(healthy: Any) -> None:
    """Seen on two H200s: it opens a handle for the host that it still has open for the device."""
    found = of("mpi-small-message", healthy("impi", "healthy-cuda"))
    last = {subject: concluded[-1] for subject, concluded in found.items()}
    assert {subject: finding["status"] for subject, finding in last.items()} == {
        "cuda:0": "PASS",
        "cuda:1": "PASS",
        "cuda:0 > cuda:1": "FAIL",
    }
    lines = evidence(last["cuda:0 > cuda:1"])
    assert lines
    assert all(line.startswith("device to host, ") for line in lines), lines


@pytest.mark.full  # likewise
def test_intel_mpi_keeps_the_senders_memory_when_buffers_grow(healthy: Any) -> None:
    """The growth comes from the library, also on a real GPU; not with its IPC off or in other controls."""
    ((subject, concluded),) = of("mpi-cache-growth", healthy("impi", "healthy-cuda")).items()
    assert subject == "cuda:0 > cuda:1"
    (bad,) = (finding for finding in concluded if finding["status"] != "PASS")
    assert "on the sender's device grows" in bad["summary"]
    assert "(growing)" in bad["summary"]
    assert bad["status"] == "FAIL"
    unbounded = "used memory still rose after 47 iterations: at least 46 freed buffers are kept"
    assert evidence(bad)[1] == unbounded  # its limit is 256
    assert evidence(bad)[3].startswith("the receiver's process holds ")
    assert "I_MPI_OFFLOAD_CACHE_MAX_SIZE" in bad["remedy"]
    assert len(concluded) == 3


@pytest.mark.full  # likewise; a bound is also found by test_mpi_faults.py
def test_intel_mpi_bound_to_16_buffers_is_a_warning(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("I_MPI_OFFLOAD_CACHE_MAX_SIZE", "16")
    (concluded,) = findings("impi", "healthy-cuda", "mpi-cache-growth").values()
    (bad,) = (finding for finding in concluded if finding["status"] != "PASS")
    assert (bad["status"], bad["key"]) == ("WARN", "keeps-many")
    assert bad["summary"] == (
        "about 16 freed buffers are kept on the sender's device (growing), and used memory levels off"
    )
    assert "I_MPI_OFFLOAD_CACHE_MAX_SIZE" in bad["remedy"]


@pytest.mark.cuda
@pytest.mark.full  # test_mpi_faults.py tries workarounds of another issue
def test_growth_over_ucx_is_found_with_its_workaround(doctor: Command) -> None:
    """The growth comes from the library itself. Two H200s show it as well, in the sender's memory."""
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], "mpich50", LIBRARIES["mpich50"]))
    checks = ("mpi-gpu-aware", "mpi-cache-growth")
    ended = doctor(
        *("check", *checks, "--simulate", "healthy-cuda", "--mpi-lib", library),
        *("--config", FEW_MESSAGES, "--json"),
        env={**os.environ, **cuda_ucx(), **UCX_SETTINGS["mpich50"]},
    )
    assert ended.stderr == ""
    report = json.loads(ended.stdout)
    aware, *found = [result["finding"] for result in report["results"] if result["check"] in checks]
    assert (aware["status"], "through UCX 1.22.0" in aware["summary"]) == ("PASS", True)
    [finding] = filter(is_bad, found)
    assert len(found) == 3, found
    assert re.match(
        r"used memory on the (sender|receiver)'s device grows by \d+(\.\d)? MiB", finding["summary"]
    )
    assert "(growing)" in finding["summary"]
    tried = [line for line in evidence(finding) if line.startswith("Tried ")]
    assert tried[0].startswith("Tried UCX_CUDA_IPC_CACHE=n: helps, "), tried
    confirmed = [join["issue"] for join in report["joins"] if join["relation"] == "confirmed"]
    assert confirmed == ["ucx-cuda-ipc-cache-growth"]


@pytest.mark.cuda
def test_mapping_of_freed_memory_is_stale_data(findings: Any, node_with: Any) -> None:
    found = findings("impi", node_with("faults", OLD_MAPPING), "mpi-stale-buffer", *ONE_DEVICE)
    [((_, subject), [finding])] = found.items()
    assert (subject, finding["status"]) == ("cuda:0", "FAIL")
    assert finding["summary"] == "126 of 128 messages delivered data of a freed buffer"
    assert evidence(finding)[0] == (
        "round 2, 65536 B after 65536 B, from rank 1: the message had the data of round 1"
    )


@pytest.mark.cuda
def test_slow_first_message_from_odd_sizes_is_a_warning(findings: Any, node_with: Any) -> None:
    found = findings("impi", node_with("faults", SLOW_EVERY_SECOND_OPEN), "mpi-first-touch")
    ((finding,),) = found.values()
    assert finding["status"] == "WARN"
    assert re.search(r"the first message from a buffer of \d+ B takes", finding["summary"])


# -- many pairs in one launch -----------------------------------------------------------------------------

MANY = """
description: Several H200.
extends: healthy-cuda
devices:
  - {{backend: cuda, name: NVIDIA H200, memory: 139 GiB, count: {count}}}
faults: [{faults}]
"""


def small_messages(doctor: Command, path: Path, count: int, faults: str, *arguments: str) -> dict[str, Any]:
    """The report of `mpi-small-message` on a simulated node of ``count`` GPUs with these faults."""
    node = path / "node.yaml"
    node.write_text(MANY.format(count=count, faults=faults))
    library = Path(os.environ["GPUIPC_TEST_MPI"], "mpich50", LIBRARIES["mpich50"])
    what = ("check", "mpi-small-message", "--simulate", str(node), "--backend", "cuda", "--json")
    ran = doctor(
        *what,
        "--mpi-lib",
        str(library),
        "--config",
        FEW_MESSAGES,
        "--no-workarounds",
        "--budget",
        "550",
        *arguments,
    )
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


@pytest.mark.full
def test_pairs_talk_in_one_launch_and_a_bad_gpu_is_the_only_one_blamed(
    doctor: Command, tmp_path: Path
) -> None:
    report = small_messages(
        doctor, tmp_path, 3, "{call: copy-from-device, device: 2, every: 2, do: corrupt-byte}"
    )
    row = report["matrix"]["mpi-small-message"]
    assert {subject for subject, status in row.items() if status == "FAIL"} == {
        subject for subject in row if "cuda:2" in subject
    }
    assert {"cuda:0", "cuda:1", "cuda:0 > cuda:1"} == {
        subject for subject, status in row.items() if status == "PASS"
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("", {"PASS"}),
        ("{call: copy-from-device, device: 1, from: 40, do: hang}", {"FAIL", "SKIP"}),
    ],
    ids=["healthy", "hang"],
)
def test_four_gpus_in_one_launch(doctor: Command, tmp_path: Path, fault: str, status: set[str]) -> None:
    report = small_messages(doctor, tmp_path, 4, fault, "--deadline", "5")
    row = report["matrix"]["mpi-small-message"]
    assert len(row) == 10
    assert {row[subject] for subject in row if "cuda:1" in subject} == status
    assert {row[subject] for subject in row if "cuda:1" not in subject} == {"PASS"}
    if not fault:
        alone = small_messages(doctor, tmp_path, 4, fault, "--isolate")
        assert alone["processes"] - report["processes"] == 2 * len(row) - 2 * 4  # two ranks for each GPU


def test_vmm_memory_through_the_host_warns_and_plain_memory_does_not(doctor: Command) -> None:
    """The real UCX under Open MPI stages what it cannot open by IPC; here in host memory."""
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], "openmpi", LIBRARIES["openmpi"]))
    setting = {"UCX_RNDV_FRAG_MEM_TYPES": "host"}
    ended = doctor(
        *("check", "mpi-small-message", "--simulate", "healthy-cuda", "--mpi-lib", library),
        *("--config", FEW_MESSAGES, "--json"),
        env={**os.environ, **cuda_ucx(), **UCX_SETTINGS["openmpi"], **setting},
    )
    found = {
        result["probe"]: result["finding"]
        for result in json.loads(ended.stdout)["results"]
        if result["check"] == "mpi-small-message" and result["probe"]
    }
    assert {kind: finding["key"] for kind, finding in found.items()} == {
        "device memory": "carried",
        "memory of a pool": "through-host",
        "VMM memory": "through-host",
    }
    assert "large messages between the GPUs: cuda_ipc" in evidence(found["device memory"])
    told = evidence(found["VMM memory"])
    assert "set here: UCX_RNDV_FRAG_MEM_TYPES=host" in told
    assert [line for line in told if line.startswith("Tried UCX_RNDV_FRAG_MEM_TYPES=host,cuda: helps, ")]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({}, ["large messages between the GPUs: cuda_ipc"]),
        pytest.param({"UCX_PROTO_ENABLE": "n"}, [], marks=pytest.mark.full),  # UCX then does not say
    ],
    ids=["told", "unknown"],
)
def test_first_messages_say_what_carried_them_if_ucx_does(
    doctor: Command, setting: dict[str, str], told: list[str]
) -> None:
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], "openmpi", LIBRARIES["openmpi"]))
    ended = doctor(
        *("check", "mpi-first-touch", "--simulate", "healthy-cuda", "--mpi-lib", library),
        *("--config", SMALL_SHARE, "--json"),
        env={**os.environ, **cuda_ucx(), **UCX_SETTINGS["openmpi"], **setting},
    )
    (finding,) = [
        result["finding"]
        for result in json.loads(ended.stdout)["results"]
        if result["check"] == "mpi-first-touch"
    ]
    assert [line for line in evidence(finding) if line.startswith("large ")] == told
