"""The prolog runs as root before another user's job. Each test tries to make it run foreign code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuipc_doctor.prolog import isolation
from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.supervise import tree
from tests.waiting import LIMIT_S

MODULES = (
    "click",
    "ctypes",
    "gpuipc_doctor",
    "json",
    "os",
    "sitecustomize",
    "tempfile",
    "usercustomize",
    "yaml",
)

ISOLATED = (sys.executable, "-I", "-m", "gpuipc_doctor")
AS_INSTALLED = (str(Path(sys.executable).with_name("gpuipc-doctor")),)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory of modules that record their import in the file ``sprung``."""
    directory = tmp_path / "trap"
    directory.mkdir()
    for name in MODULES:
        (directory / f"{name}.py").write_text(
            f"open({str(directory / 'sprung')!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
        )
    return directory


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    actions = "on_fail: drain, on_error: log, on_budget: log, on_unkillable: log"
    path.write_text(f"prolog: {{{actions}, state_dir: state, simulate: healthy-cuda}}\n")
    return path


def prolog(start: tuple[str, ...], config: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*start, "prolog", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)  # type: ignore[call-overload, no-any-return]


def sprung(trap: Path) -> list[str]:
    mark = trap / "sprung"
    return mark.read_text().split() if mark.exists() else []


def passed(ended: subprocess.CompletedProcess[str]) -> bool:
    return (ended.returncode, ended.stderr) == (0, "") and " PASS " in ended.stdout


@pytest.mark.full
@pytest.mark.cuda
def test_interpreter_that_sets_a_loader_variable_at_each_start(tmp_path: Path, config: Path) -> None:
    """A wrapper that sets a loader variable at each start must not cause endless restarts."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/bash\nLD_BIND_NOW=1 exec -a "$0" {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "lib").symlink_to(Path(sys.prefix, "lib"))
    (tmp_path / "pyvenv.cfg").symlink_to(Path(sys.prefix, "pyvenv.cfg"))
    assert passed(prolog((str(python), "-I", "-m", "gpuipc_doctor"), config, env={}))


def test_interpreter_that_never_starts_isolated_is_an_error(tmp_path: Path, config: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nexec -a "$0" {sys.executable} "${{@/#-I/-E}}"\n')
    python.chmod(0o755)
    ended = prolog((str(python), "-I", "-m", "gpuipc_doctor"), config, env={})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("gpuipc-doctor: ERROR cannot start: ")


@pytest.mark.full
@pytest.mark.cuda
def test_pythonpath_affects_only_the_first_start(trap: Path, config: Path) -> None:
    """Without -I, PYTHONPATH affects Python's own imports at the first start, and nothing later."""
    for name in ("os", "sitecustomize", "usercustomize"):
        (trap / f"{name}.py").unlink()
    (trap / "gpuipc_doctor.py").unlink()  # it would replace the program, which cannot be prevented either
    assert passed(prolog(AS_INSTALLED, config, env={"PYTHONPATH": str(trap)}))
    assert sprung(trap) == []


@pytest.mark.full
@pytest.mark.cuda
def test_ld_preload(tmp_path: Path, config: Path) -> None:
    """LD_PRELOAD is loaded into the first process before our code runs, but into no later process."""
    source, library, mark = tmp_path / "x.c", tmp_path / "libhostile.so", tmp_path / "loaded"
    source.write_text(
        "#include <fcntl.h>\n#include <string.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void loaded(void)\n{\n"
        "    char text[4096];\n"
        '    int in = open("/proc/self/cmdline", O_RDONLY);\n'
        "    int out = open(MARK, O_WRONLY | O_APPEND | O_CREAT, 0600);\n"
        "    ssize_t n = read(in, text, sizeof text - 1);\n"
        "    for (ssize_t i = 0; i < n; i++)\n        if (!text[i]) text[i] = 32;\n"
        "    text[n] = 10;\n"
        "    if (write(out, text, (size_t)n + 1) < 0) _exit(9);\n}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", f'-DMARK="{mark}"', "-o", library, source], check=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libyaml-0.so.2"):
        (tmp_path / name).symlink_to(library)
    hostile = {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(tmp_path)}
    assert passed(prolog(ISOLATED, config, env=hostile))
    processes = mark.read_text().splitlines()
    assert len(processes) == 1, processes  # our process as started; not the worker, the keeper or a debugger
    assert " prolog " in processes[0]


@pytest.fixture
def hung(config: Path) -> tuple[Path, Path]:
    """A config whose prolog hangs for a while, and an empty directory."""
    text = config.read_text().replace("healthy-cuda", str(config.with_name("hangs.yaml")))
    config.write_text(text)
    profile = "description: hangs\nextends: healthy-cuda\nfaults: [{call: init, do: hang}]\n"
    config.with_name("hangs.yaml").write_text(profile)
    aside = config.with_name("aside")
    aside.mkdir()
    return config, aside


@pytest.mark.cuda
def test_processes_have_only_our_variables(hung: tuple[Path, Path]) -> None:
    config, aside = hung
    hostile = dict.fromkeys(
        (
            "HOME",
            "TMPDIR",
            "TEMP",
            "TMP",
            "XDG_CACHE_HOME",
            "CDPATH",
            "PYTHONPATH",
            "LD_AUDIT_",
            "GCONV_PATH",
        ),
        str(aside),
    )
    hostile |= {
        "PATH": str(aside),
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "9",
        "GPUIPC_SIM_NODE": str(aside / "node.sim"),
        "CUDA_CACHE_PATH": str(aside),
        "CUDA_MPS_PIPE_DIRECTORY": str(aside),
        "SLURM_JOB_GPUS": "1",
        "SLURM_JOB_COMMENT": "$(reboot)",
    }
    own = {*isolation.OWN, *isolation.KEPT, MARKER, "CUDA_VISIBLE_DEVICES", "OPENBLAS_NUM_THREADS"}
    of_simulator = {
        "LD_LIBRARY_PATH",
        "GPUIPC_SIM_NODE",
        "GPUIPC_SIM_STATE",
        "ROCM_PATH",
        "I_MPI_OFFLOAD_MODE",
        "ZE_ENABLE_ALT_DRIVERS",
    }
    command = [*ISOLATED, "prolog", "--config", str(config), "--budget", "30"]
    with subprocess.Popen(command, env=hostile, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        seen: dict[str, set[str]] = {}
        while started.poll() is None:
            for process in tree.descendants(started.pid):
                seen.update(environment(process.pid))
            time.sleep(0.05)
        answer, said = started.communicate(timeout=LIMIT_S)
    workers = [names for command, names in seen.items() if "gpuipc_doctor.worker" in command]
    assert workers
    assert all("CUDA_MPS_PIPE_DIRECTORY" in names for names in workers)  # see `isolation.OWN`
    for command_line, names in seen.items():
        if " prolog " not in command_line:  # a forked process shows its parent's environment
            assert names <= own | of_simulator, command_line
    assert list(aside.iterdir()) == []  # TMPDIR, the simulator's cache
    assert b"cuda:1" in answer  # the GPU comes from the whitelisted variable, not from another one
    assert said == b""


def environment(pid: int) -> dict[str, set[str]]:
    """{command line: names of the process's variables}; empty if it has ended."""
    try:
        command = (tree.PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        variables = (tree.PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return (
        {command: {variable.partition(b"=")[0].decode() for variable in variables if variable}}
        if command
        else {}
    )


@pytest.mark.cuda
def test_escape_sequences_in_slurms_variables(config: Path) -> None:
    hostile = {"SLURM_JOB_GPUS": "0,\x1b]0;owned\x07\x1b[2J\u202e1", "SLURMD_NODENAME": "n\x1b[31m1"}
    ended = prolog(ISOLATED, config, env=hostile)
    assert ended.returncode == 0
    assert "ERROR driver-init: this node has no GPU" in ended.stdout
    assert all(char.isprintable() for char in (ended.stdout + ended.stderr).replace("\n", ""))


def test_escape_sequences_in_findings(config: Path, tmp_path: Path) -> None:
    text = "a name\x1b]0;owned\x07\x1b[2J\u202e\x9b31m from a log"
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "loud.py").write_text(
        "from gpuipc_doctor.api import Check, Finding, Tier\n"
        "class Loud(Check):\n"
        "    id, title, tier = 'loud', 'loud', Tier.PROLOG\n"
        "    def probes(self, ctx):\n"
        f"        yield Finding.fail('loud', {text!r}, {text!r}, remedy={text!r})\n"
        "CHECK = Loud()\n"
    )
    log = tmp_path / "log.jsonl"
    config.write_text(config.read_text().replace("simulate:", f"log: {log}, checks: [loud], simulate:"))
    config.write_text(config.read_text() + "checks_dirs: [checks]\n")
    ended = prolog(ISOLATED, config, env={})
    assert ended.returncode == 12
    assert "FAIL loud: a name" in ended.stdout
    assert (ended.stdout.removesuffix("\n")).isprintable()
    assert log.read_bytes().removesuffix(b"\n").decode("ascii").isprintable()


def test_package_found_only_through_the_environment(tmp_path: Path) -> None:
    """Isolated mode would not find the package, Python would exit with 1, and the node would be drained."""
    copy = tmp_path / "site"
    copy.mkdir()
    (copy / "gpuipc_doctor").symlink_to(Path(isolation.__file__).parent.parent)
    python = Path(os.path.realpath(sys.executable))  # the interpreter of the virtual environment
    environment = {"PYTHONPATH": os.pathsep.join([str(copy), *filter(os.path.isdir, sys.path)])}
    ended = prolog((str(python), "-m", "gpuipc_doctor"), tmp_path, env=environment, cwd="/")
    assert ended.returncode == 0
    assert "ERROR cannot start" in ended.stdout
    assert "install it into that Python's site-packages" in ended.stdout
