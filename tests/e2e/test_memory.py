"""``gpuipc-doctor memory`` on simulated nodes: its output, and every way in which watching ends."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest

from gpuipc_doctor.node import memory_content
from gpuipc_doctor.node import memory_watching as watching
from gpuipc_doctor.node.memory_usage import History, ProcessUse, Sample
from gpuipc_doctor.supervise import tree
from tests.conformance.conftest import simulated_node
from tests.conformance.remote import Remote
from tests.waiting import LIMIT_S, until

GIB, MIB = 1 << 30, 1 << 20
COMMAND = [sys.executable, "-m", "gpuipc_doctor.cli.main", "memory"]

Doctor = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.cuda
def test_processes_and_their_growth_are_shown() -> None:
    """Another process has 64 MiB, and allocates 8 MiB more whenever a sample shows its current total."""
    history, total, seen = History(), 64 * MIB, 0
    with simulated_node("healthy-cuda") as node:
        remote = Remote("cuda", env=node.env)
        remote.gpu.alloc(total)
        name = Path(f"/proc/{remote.pid}/comm").read_text().strip()

        def listen(sample: Sample) -> None:
            nonlocal total, seen
            history.add(sample)
            one, other = sample.gpus
            assert (other.used, other.processes) == (0, ())
            if one.processes == (ProcessUse(remote.pid, name, total),) and one.used == total:
                seen += 1
                remote.gpu.alloc(8 * MIB)
                total += 8 * MIB
            if seen == 10:
                os.kill(os.getpid(), signal.SIGINT)

        end = watching.watch(node, ("cuda", "hip"), 0.1, listen, start_up_s=60)
        remote.exit()
    assert end == watching.End()
    for key in ("cuda:0", 0), ("cuda:0", remote.pid):
        growth = history.growth(key)
        assert growth is not None
        assert growth > 0


def test_once(doctor: Doctor) -> None:
    ended = doctor("memory", "--simulate", "memory-lost", "--backend", "cuda")
    assert ended.stdout.splitlines() == [
        "SIMULATED (profile memory-lost): no real GPU was read",
        "GPU     what          used        of",
        "------  ------------  ----------  ----------",
        "cuda:0  NVIDIA H200   138.95 GiB  139.00 GiB",
        "        (no process)  138.95 GiB",
    ]
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_gpu_without_memory_figures_is_shown_with_what_is_known(doctor: Doctor) -> None:
    ended = doctor("memory", "--simulate", "gb10", "--backend", "cuda")
    assert ended.stdout.splitlines() == [
        "SIMULATED (profile gb10): no real GPU was read",
        "GPU     what                   used     of",
        "------  ---------------------  -------  -------",
        "cuda:0  NVIDIA GB10            unknown  unknown",
        "        (not counted by NVML)",
    ]
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_one_sample_tells_who_uses_gpus_in_json(doctor: Doctor) -> None:
    ended = doctor("memory", "--simulate", "gpu-users", "--json")
    told = json.loads(ended.stdout)
    jsonschema.validate(told, json.loads(memory_content.SCHEMA.read_text()))
    users = told["users"]
    assert [(holder["pid"], holder["user"], holder["has_parent"]) for holder in users["holders"]] == [
        (4711, "alice", False)
    ]
    assert [(each["process"]["pid"], each["files"]) for each in users["others"]] == [
        (4800, ["/dev/nvidia1", "/dev/nvidiactl"])
    ]
    assert [(left["name"], left["pid"]) for left in users["left"]] == [
        ("/dev/shm/cuda.shm.1000.3d0901.1", 4000001),
        ("/dev/shm/nccl-Ab12Cd", None),
        ("/dev/shm/torch_4000002_123_0", 4000002),
    ]
    refused = doctor("memory", "--simulate", "gpu-users", "--json", "--watch")
    assert (refused.returncode, "--json prints one sample" in refused.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watching_ends_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    lines = tmp_path / "memory.jsonl"
    tag = f"GPUIPC_TEST_RUN={tmp_path.name}-{number.name}"
    watching = subprocess.Popen(
        [*COMMAND, "--simulate", "healthy-cuda", "--watch", "--interval", "0.1", "--log", str(lines)],
        env={**os.environ, **dict([tag.split("=")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until("it has written", lambda: lines.exists() and len(lines.read_text().splitlines()) > 5)
    watching.send_signal(number)
    printed, complaints = watching.communicate(timeout=LIMIT_S)
    assert (complaints, watching.returncode) == ("", 0)
    heading, *told = printed.splitlines()
    assert heading == "SIMULATED (profile healthy-cuda): no real GPU was read"
    assert all(re.fullmatch(r"\S+ cuda:[01] NVIDIA H200: 0 MiB of 139\.00 GiB.*", line) for line in told)
    schema = json.loads(memory_content.SCHEMA.read_text())
    for line in lines.read_text().splitlines():
        jsonschema.validate(json.loads(line), schema)
    assert [path for path in Path("/proc").glob("[0-9]*/environ") if tag in readable(path)] == []


def test_on_a_terminal_the_table_is_redrawn_in_place() -> None:
    with watching_on_a_terminal() as (watching, screen):
        drawn = read_until(screen, lambda text: text.count("growth a minute") > 5 and "level" in text)
        watching.send_signal(signal.SIGINT)
        drawn += read_until(screen, lambda _: False)
        _, complaints = watching.communicate(timeout=LIMIT_S)
    assert (complaints, watching.returncode) == (b"", 0)
    assert "\x1b[1A" in drawn  # the cursor moves up again
    assert "SIMULATED (profile healthy-cuda)" in drawn
    assert "Ctrl-C ends" in drawn


@pytest.mark.cuda
def test_documented_screen_equals_the_output() -> None:
    """Two applications on the command's node; one of them allocates 1 MiB five times a second."""
    with watching_on_a_terminal() as (watching, screen):
        read_until(screen, lambda text: "139.00 GiB" in text)
        node = environment_of_worker(watching.pid)
        with application(node, "serve", 520 * MIB):
            read_until(screen, lambda text: "520 MiB" in text)
            with application(node, "solve", 40 * GIB, *[MIB] * 16):
                drawn = read_until(screen, lambda text: "40.02 GiB" in text)
                watching.send_signal(signal.SIGINT)
                drawn += read_until(screen, lambda _: False)
        watching.communicate(timeout=LIMIT_S)
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", drawn)
    last = "SIMULATED" + plain.rstrip("\n").rpartition("SIMULATED")[2]
    for pattern, instead in PASSING:
        last = pattern.sub(instead, last)
    shown = "".join(f"    {line}".rstrip() + "\n" for line in last.splitlines())
    text = PAGE.read_text()
    (written,) = SHOWN.findall(text)
    if shown != written and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        PAGE.write_text(text.replace(written, shown))
        pytest.fail("docs/memory.md was updated; look at it with git diff", pytrace=False)
    assert shown == written


PAGE = Path(__file__).parent.parent.parent / "docs/memory.md"

SHOWN = re.compile(r"^    SIMULATED \(profile healthy-cuda\).*\n(?:    .*\n|\n(?=    ))*", re.MULTILINE)

PASSING = (
    (re.compile(r"\S+ · Ctrl-C"), "2026-11-20T12:00:00+00:00 · Ctrl-C"),
    (re.compile(r"\d+ serve *  "), f"{'41213 serve':13}  "),  # as wide as the line below
    (re.compile(r"\d+ solve *  "), f"{'41377 solve':13}  "),
    (re.compile(r"\+\S+ [MG]iB"), "+300 MiB"),
)
"""Text that differs between runs, and its replacement in the page."""

APPLICATION = """
import ctypes, sys, time
with open("/proc/self/comm", "w") as comm:
    comm.write(sys.argv[1])
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
for nbytes in map(int, sys.argv[2:]):
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0
    time.sleep(0.2)
time.sleep(600)
"""


@contextmanager
def application(environment: dict[str, str], name: str, *sizes: int) -> Iterator[None]:
    """Allocate these sizes on the first GPU in turn, and keep them."""
    command = [sys.executable, "-c", APPLICATION, name, *map(str, sizes)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield
        finally:
            process.kill()


def environment_of_worker(pid: int) -> dict[str, str]:
    """The environment of the processes below ``pid`` that run on a simulated node: a worker, its server."""
    environments = [readable(Path(f"/proc/{process.pid}/environ")) for process in tree.descendants(pid)]
    found, *_ = (text for text in environments if "GPUIPC_SIM_STATE=" in text)
    return dict(variable.split("=", 1) for variable in found.split("\0") if "=" in variable)


@contextmanager
def watching_on_a_terminal() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    screen, end = pty.openpty()
    watching = subprocess.Popen(
        [*COMMAND, "--simulate", "healthy-cuda", "--watch", "--interval", "0.1"],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdout=end,
        stderr=subprocess.PIPE,
    )
    os.close(end)
    try:
        yield watching, screen
    finally:
        watching.kill()
        watching.wait()
        os.close(screen)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "{call: nvml-device-memory, nth: 3, do: lose-device}",
            "FAIL sampler: nvmlDeviceGetMemoryInfo #3 returned GPU is lost (15)",
        ),
        (
            "{call: nvml-device-processes, nth: 2, do: segv}",
            "FAIL sampler: nvmlDeviceGetComputeRunningProcesses #2 ended the process by SIGSEGV",
        ),
        ("{call: nvml-init, do: hang}", "FAIL sampler: nvmlInit #1 hung (10.1 s)"),
    ],
)
def test_lost_driver_is_one_clear_line(doctor: Doctor, tmp_path: Path, fault: str, says: str) -> None:
    profile = tmp_path / "ours.yaml"
    profile.write_text(
        "description: ours\n"
        "devices: [{backend: cuda, name: NVIDIA H200, memory: 139 GiB}]\n"
        "versions: {nvidia-driver: 580.159.04, cuda-driver: '13.0'}\n"
        f"faults: [{fault}]\n"
    )
    ended = doctor("memory", "--simulate", str(profile), "--watch", "--interval", "0.1")
    assert (ended.stderr, ended.returncode) == (f"gpuipc-doctor: {says}\n", 12)


def test_lost_gpu_is_reported_and_the_other_watched_on(doctor: Doctor, tmp_path: Path) -> None:
    profile = tmp_path / "ours.yaml"
    profile.write_text(
        "description: ours\nextends: healthy-cuda\n"
        "faults: [{call: nvml-device-memory, nth: 3, do: lose-device}]\n"  # at the third query
    )
    ended = doctor("memory", "--simulate", str(profile))
    shown = " ".join(ended.stdout.split())
    assert "cuda:0 nvmlDeviceGetMemoryInfo returned GPU is lost (15)" in shown
    assert "cuda:1 NVIDIA H200 0 MiB 139.00 GiB" in shown
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_missing_gpu_is_reported(doctor: Doctor) -> None:
    ended = doctor("memory", "--simulate", "healthy-hip")
    assert ended.stderr.startswith(
        "gpuipc-doctor: no GPU whose memory can be read: NVIDIA: nvmlInit returned Driver Not Loaded (9); "
        "AMD: /sys/bus/pci/devices/"
    )
    assert ended.stderr.endswith("/mem_info_vram_used: No such file or directory\n")
    assert ended.returncode == 3


def test_driver_without_a_gpu_is_reported(doctor: Doctor) -> None:
    ended = doctor("memory", "--simulate", "no-devices", "--backend", "cuda")
    says = "gpuipc-doctor: no GPU whose memory can be read: NVIDIA: NVML lists no GPU\n"
    assert (ended.stderr, ended.returncode) == (says, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--interval", "1"), "--interval and --log need --watch"),
        (("--log", "x"), "--interval and --log need --watch"),
        (("--watch", "--log", "/nowhere/x"), "cannot write /nowhere/x: No such file or directory"),
        (("--watch", "--interval", "0"), "'0' is not a number of seconds above 0"),
        (("--simulate", "healthy-cuad"), "did you mean 'healthy-cuda'?"),
    ],
)
def test_mistakes_are_one_line(doctor: Doctor, arguments: tuple[str, ...], says: str) -> None:
    ended = doctor("memory", *arguments)
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 2


def readable(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_until(screen: int, condition: Callable[[str], bool]) -> str:
    """Output to a terminal until ``condition`` holds for it or the writer has closed it."""
    text, until = "", time.monotonic() + 60
    while not condition(text) and time.monotonic() < until:
        if select.select([screen], [], [], 1.0)[0]:
            try:
                data = os.read(screen, 65536)
            except OSError:  # Linux: the other end was closed
                break
            text += data.decode(errors="replace")
    return text


def test_missing_nvidia_ml_py_is_one_clear_line(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'pynvml'\", name='pynvml')"
    (tmp_path / "pynvml.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = doctor("memory", "--simulate", "healthy-cuda", "--backend", "cuda")
    says = "NVIDIA: NVML needs the Python package nvidia-ml-py (No module named 'pynvml')"
    assert (ended.stderr, ended.returncode) == (
        f"gpuipc-doctor: no GPU whose memory can be read: {says}\n",
        3,
    )
