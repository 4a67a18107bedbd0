"""SIGKILL one process of a check on AMD's own runtime at random moments, and report what is left.

    python -m benchmarks.kfd_kills rocm-5 [rocm-6 …] [--mpi-lib FILE] [--kills 100] [--seed N]     # as root

Each runtime has one emulated node for all its runs (`tests.kfd.emulated`). Within 5 s after each run, no
process of the run may be left, no new file in the node's /dev/shm or directory for temporary files, and each
GPU must have as much free memory as before. With an MPICH library, launchers and ranks are also killed, on
runtimes whose UCX has ROCm: their ranks send device memory. Prints a table in Markdown; exits with 1 if
anything was left.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kills import FOUND_NOTHING_BAD, THE_TOOL, kill_one, role_of, those
from benchmarks.reliability import VANISH_S, await_nothing, left_running
from tests.kfd import emulated
from tests.kfd.emulated import REPOSITORY, EmulatedNode

MARK = "GPUIPC_KILLS"
END_S = 600.0

MPICH = {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}
"""Settings that make MPICH send device memory through UCX, also within a node."""

THE_RUNTIMES = ("hsakmt_shared_mem", "sem.hsakmt_semaphore", "comgr-*")
"""AMD's runtime itself leaves a segment and a semaphore of libhsakmt in /dev/shm (ROCm 5), and the temporary
directory of a process killed while compiling (libamd_comgr)."""

BUT = " ".join(f"--ignore='{name}'" for name in THE_RUNTIMES)
LOOK = f'stat -f -c "%a of %b blocks free" "$KFD_EMULATOR"/vram*; ls -A {BUT} /dev/shm "$TMPDIR"'


def victims(tool: int, kind: str) -> list[int]:
    if kind in ("exporter", "importer"):
        return [pid for pid in those(tool, "a worker") if role_of(pid) == kind]
    return those(tool, kind)


@dataclass(frozen=True)
class Command:
    """Arguments of `gpuipc-doctor check`, and the kinds of process to kill in turn."""

    arguments: Sequence[str]
    victims: Sequence[str]


def commands(mpi_library: Path | None) -> list[Command]:
    ipc = ("ipc-release", "ipc-reopen")
    found = [Command(ipc, (THE_TOOL, "exporter", "importer", "a stem", "a keeper"))]
    if mpi_library:
        mpi = ("mpi-start", "mpi-small-message", "--mpi-lib", str(mpi_library.absolute()))
        found.append(Command(mpi, ("the launcher", "a rank")))
    return found


class Ground:
    """One emulated node, on which repeated runs of a command are killed."""

    def __init__(self, node: EmulatedNode, command: Command) -> None:
        self._node, self._command = node, command
        temporary = Path(node.env["KFD_EMULATOR"], "temporary")
        temporary.mkdir(exist_ok=True)
        self._env = {**os.environ, **node.env_with_ucx, **MPICH, "TMPDIR": str(temporary)}
        self._clean = self._look()
        self._unharmed = set(FOUND_NOTHING_BAD)

    def _look(self) -> str:
        command = [*self._node.enter, "sh", "-c", LOOK]
        return subprocess.run(command, env=self._env, capture_output=True, text=True, check=True).stdout

    def _left(self) -> list[str]:
        now = self._look()
        return [] if now == self._clean else [f"was {self._clean!r}, is {now!r}"]

    def run(self, kind: str, after_s: float) -> tuple[bool, float, list[str]]:
        """Whether a process was killed; seconds that the run took; problems afterwards."""
        tag = f"{os.getpid()}-{random.getrandbits(30)}"
        command = [sys.executable, "-m", "gpuipc_doctor", "check", *self._command.arguments]
        began = time.monotonic()
        process = subprocess.Popen(
            [*self._node.enter, *command, "--backend", "hip", "--no-workarounds"],
            env={**self._env, MARK: tag},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        killed = bool(kind) and kill_one(process, lambda pid: victims(pid, kind), began + after_s)
        wrong = []
        try:
            said, complained = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, complained = process.communicate()
            wrong.append("did not end")
        took_s = time.monotonic() - began
        if b"Traceback" in complained:
            wrong.append(complained[-600:].decode(errors="replace"))
        if not kind:  # also the codes of findings that this runtime has without a kill
            self._unharmed.add(process.returncode)
        if not killed and process.returncode not in self._unharmed:
            wrong.append(f"exit code {process.returncode}: {said[-2000:].decode(errors='replace')}")
        wrong += await_nothing(lambda: left_running(tag, MARK), VANISH_S)
        wrong += await_nothing(self._left, VANISH_S)
        if wrong:
            self._clean = self._look()  # report leftovers once, not again in the next runs
        return killed, took_s, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runtime", nargs="+", choices=[runtime.name for runtime in emulated.runtimes()])
    parser.add_argument("--mpi-lib", type=Path, metavar="FILE", help="MPICH's, of which launchers are killed")
    parser.add_argument("--kills", type=int, default=100, help="of each runtime")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    missed = 0
    print("| runtime | killed | kills | something left |\n|---|---|---|---|")
    for runtime in (each for each in emulated.runtimes() if each.name in options.runtime):
        to_run = commands(options.mpi_lib if runtime.has_ucx_with_rocm else None)
        kinds = [kind for command in to_run for kind in command.victims]
        with emulated.node(runtime, gpus=1) as node:
            for command in to_run:
                ground = Ground(node, command)
                _, whole_s, wrong = ground.run("", 0.0)
                for text in wrong:
                    print(f"{runtime.name}, nothing killed: {text}", file=sys.stderr, flush=True)
                missed += len(wrong)
                for kind in command.victims:
                    kills = len(range(kinds.index(kind), options.kills, len(kinds)))
                    done, bad = 0, 0
                    while done < kills:
                        killed, _, wrong = ground.run(kind, random.uniform(0.0, whole_s))
                        for text in wrong:
                            print(f"{runtime.name}, {kind}: {text}", file=sys.stderr, flush=True)
                        done += killed
                        bad += bool(wrong)
                    missed += bad
                    print(f"| {runtime.name} | {kind} | {kills} | {bad} |", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
