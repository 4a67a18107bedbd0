"""SIGKILL one process of a run, of each kind and at random moments, and report what is left 5 s later.

    python -m benchmarks.kills --mpi-lib FILE ... [--kills 70] [--only COMMAND]... [--seed N]     # as root

The commands are all `check`s that share memory, `check` with ranks of each MPI library, and `prolog`. Each
run has its own simulated node and mount namespace (see `reliability`). After the tool has ended, killed or
not, there must be none of its processes and no files in /dev/shm and the directories for temporary files.
Prints a table in Markdown; exits with 1 if anything was left or an answer was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuipc_doctor.stacks import process_list
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.tree import carried
from tests.hostile_nodes import (
    BUDGET_S,
    PATH,
    VANISH_S,
    Site,
    await_nothing,
    below,
    command_line,
    left_in,
    left_running,
    namespace,
    torn,
)

IPC_CHECKS = ["ipc-handles", "ipc-reopen"]
MPI_CHECKS = ["mpi-first-touch"]

END_S = 300.0
"""Time limit of a check whose worker was killed."""

FOUND_NOTHING_BAD = (0, 3, 11)
"""Exit codes on a healthy node: the killed process was not needed, or the check could not tell (ERROR)."""


# -- processes to kill ------------------------------------------------------------------------------------


def marker(pid: int) -> str:
    with contextlib.suppress(OSError):
        return carried(Path(f"/proc/{pid}/environ").read_bytes())
    return ""


def is_worker(pid: int) -> bool:
    return b"gpuipc_doctor.worker" in command_line(pid) and bool(re.search(r"/\d+\W*$", marker(pid)))


def is_launcher(pid: int) -> bool:
    program = os.fsdecode(command_line(pid).partition(b" ")[0])
    return Path(program).name in ("mpiexec", "mpiexec.hydra", "prterun")


THE_TOOL = "the tool"

VICTIMS: Mapping[str, Callable[[int], bool]] = {
    "its child that does the work": lambda pid: b" prolog " in command_line(pid),
    "a keeper": lambda pid: tree.name_of(pid) == process_list.KEEPER,
    "a fork server": lambda pid: "/fork-server" in marker(pid),
    "a worker": is_worker,
    "the launcher": is_launcher,
    "a rank": is_worker,
}

OF_CHECK = (THE_TOOL, "a keeper", "a fork server", "a worker")
OF_MPI = (THE_TOOL, "a keeper", "a fork server", "the launcher", "a rank")
OF_PROLOG = (THE_TOOL, "its child that does the work", "a keeper", "a fork server", "a worker")


# -- one run ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """Arguments (without the node's), the node's profile and faults, and the kinds of process to kill."""

    arguments: Sequence[str]
    profile: str
    victims: Sequence[str]
    faults: Sequence[str] = ()

    @property
    def is_prolog(self) -> bool:
        return self.arguments[0] == "prolog"

    def of(self, site: Site) -> list[str]:
        node = ["--config", str(site.config)]
        if not self.is_prolog:
            node = ["--simulate", str(site.directory / "node.yaml")]
        return [sys.executable, "-I", "-m", "gpuipc_doctor", *self.arguments, *node]


@dataclass
class Tried:
    """The result of one run."""

    killed: bool
    gone_s: float = 0.0
    """Seconds from the end of the tool until nothing was left."""
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def run(command: Command, victim: str, after_s: float, tag: str) -> Tried:
    """Kill one process of kind ``victim`` at ``after_s`` or its first appearance; none if it is ""."""
    site = Site(Path(tempfile.mkdtemp(prefix="kills-", dir=Path.home())))
    site.node(command.profile, *command.faults)
    site.write()
    try:
        with namespace(site) as holder:
            tried = run_within(holder, command.of(site), command.is_prolog, victim, after_s, tag)
        tried.wrong += torn(site)
        return tried
    finally:
        shutil.rmtree(site.directory, ignore_errors=True)


def run_within(
    holder: int, arguments: Sequence[str], is_prolog: bool, victim: str, after_s: float, tag: str
) -> Tried:
    name = "SLURM_JOB_ID" if is_prolog else "GPUIPC_KILLS"  # the prolog would drop the latter
    there_before = left_in(holder)
    started = time.monotonic()
    process = subprocess.Popen(
        ["nsenter", "-m", "-t", str(holder), "--", *arguments],  # noqa: S607 - of root's own PATH
        env={"PATH": PATH, name: tag},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    killed = bool(victim) and kill_one(process, lambda pid: those(pid, victim), started + after_s)
    tried = Tried(killed)
    ended = time.monotonic()
    try:
        said, complained = process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, complained = process.communicate()
        tried.wrong.append("did not end")
        ended = time.monotonic()
    if process.returncode != -signal.SIGKILL:
        ended = time.monotonic()
    tried.took_s = ended - started
    if process.returncode not in (*FOUND_NOTHING_BAD, -signal.SIGKILL):
        tried.wrong.append(f"exit code {process.returncode}: {said[-2000:].decode(errors='replace')}")
    if is_prolog and tried.took_s > BUDGET_S + 1:
        tried.wrong.append(f"took {tried.took_s:.1f} s")
    if b"Traceback" in complained:
        tried.wrong.append(f"a traceback: {complained[-500:].decode(errors='replace')}")
    for left in (lambda: left_running(tag, name), lambda: sorted(left_in(holder) - there_before)):
        tried.wrong += await_nothing(left, max(0.0, ended + VANISH_S - time.monotonic()))
    tried.gone_s = time.monotonic() - ended
    return tried


def those(pid: int, victim: str) -> list[int]:
    """The processes of kind ``victim`` in the run of the tool with this pid."""
    return [pid] if victim == THE_TOOL else list(filter(VICTIMS[victim], below(pid)))


def role_of(pid: int) -> str:
    """The role of a worker, from its open journal; empty for other processes."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            name, _, kind = link.readlink().name.partition(".")
            if kind.startswith("journal"):
                return name
    return ""


def kill_one(process: subprocess.Popen[bytes], find: Callable[[int], Sequence[int]], at: float) -> bool:
    """Kill a random one of ``find(tool's pid)`` at that time or later; returns whether it killed one."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, at - time.monotonic()))
    while process.poll() is None:
        if found := find(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(found), signal.SIGKILL)
                return True
        time.sleep(0.01)
    return False


# -- all runs ---------------------------------------------------------------------------------------------


def commands(mpi_libraries: Sequence[Path]) -> dict[str, Command]:
    check = ["check", "--backend", "cuda", "--no-workarounds"]
    asked = {"check, IPC": Command([*check, *IPC_CHECKS], "healthy-single", OF_CHECK)}
    for file in mpi_libraries:
        arguments = [*check, *MPI_CHECKS, "--mpi-lib", str(file.absolute())]
        asked[f"check, {file.absolute().parent.parent.name}"] = Command(arguments, "healthy-single", OF_MPI)
    return asked | {"prolog": Command(["prolog", "--budget", str(BUDGET_S)], "healthy-cuda", OF_PROLOG)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=70, help="of each command")
    parser.add_argument("--mpi-lib", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--only", action="append", metavar="COMMAND", help="as the table names it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    missed = 0
    print("| command | killed | kills | longest until all was gone, s | missed |\n|---|---|---|---|---|")
    for name, command in commands(options.mpi_lib).items():
        if options.only and name not in options.only:
            continue
        control = run(command, "", 0.0, f"{os.getpid()}0")
        for text in control.wrong:
            print(f"{name}, nothing killed: {text}", file=sys.stderr, flush=True)
        missed += len(control.wrong)
        for place, victim in enumerate(command.victims):
            kills = len(range(place, options.kills, len(command.victims)))
            tries: list[Tried] = []
            while len(tries) < kills:
                tag = f"{os.getpid()}{random.getrandbits(30)}"
                tried = run(command, victim, random.uniform(0.0, control.took_s), tag)
                for text in tried.wrong:
                    print(f"{name}, {victim}: {text}", file=sys.stderr, flush=True)
                if tried.killed or tried.wrong:
                    tries.append(tried)
            bad = sum(bool(tried.wrong) for tried in tries)
            missed += bad
            gone_s = max((tried.gone_s for tried in tries), default=0.0)
            print(f"| `{name}` | {victim} | {kills} | {gone_s:.1f} | {bad} |", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
