"""Healthy jobs that look stuck, and stuck ones: the right answer, and that of `gpuipc-doctor job`.

``python -m benchmarks.planted_host_jobs [--out DIRECTORY] [NAME…]``; ``planted_host_jobs.yaml`` has the jobs.
It needs MPI libraries below GPUIPC_TEST_MPI (default: ``.prefix``) and, for gloo, Debian's python3-torch; no
GPU. This file is the ranks' program, too: ``planted_host_jobs.py OVER PLACE``.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

RANKS, FOR_EVER = 3, 3600
TORCH_PYTHON = "/usr/bin/python3"
PASS, OPEN, STUCK = 0, 11, 12

MODULES = (
    "asyncio copy fcntl gc hashlib json lzma math mmap multiprocessing os pickle queue re select signal "
    "socket sqlite3 subprocess sys threading time zlib"
)
READ = """
import socket, sys
to = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while to.recv(1 << 16): pass
"""
SERVE = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
to, _ = server.accept()
while True:
    to.sendall(bytes(1 << 18))
    time.sleep(0.25)
"""


# -- what the jobs' code may use -----------------------------------------------------------------------------


class Job:
    """One rank of a job over MPI or gloo."""

    def __init__(self, over: str, place: Path) -> None:
        self.place = place
        if over == "gloo":
            import torch

            self.torch, self.dist, self.rank = torch, torch.distributed, int(os.environ["RANK"])
        else:
            from mpi4py import MPI

            self.mpi, self.world, self.rank = MPI, MPI.COMM_WORLD, MPI.COMM_WORLD.rank

    def join(self) -> None:
        if hasattr(self, "dist"):
            self.dist.init_process_group("gloo")
            self.tensor = self.torch.ones(1 << 16)

    def reduce(self) -> None:
        self.dist.all_reduce(self.tensor) if hasattr(self, "dist") else self.world.allreduce(1)

    def ready(self) -> None:
        """Join, and say that this rank reaches its fault."""
        self.join()
        self.reduce()
        self.reached()

    def reached(self, what: str = "ready") -> None:
        (self.place / f"{what}.{self.rank}").touch()

    def store(self) -> Any:
        return self.dist.distributed_c10d._get_default_store()

    def loader(self, work: Any) -> Any:
        """A DataLoader whose two workers do this for each sample."""

        class Samples(self.torch.utils.data.Dataset):  # type: ignore[misc]
            __len__ = staticmethod(lambda: 8)
            __getitem__ = staticmethod(lambda number: work())

        return self.torch.utils.data.DataLoader(Samples(), num_workers=2)

    def file(self, name: str) -> str:
        (self.place / name).touch()
        return str(self.place / name)

    def save(self) -> None:
        """Write a checkpoint for ever."""
        with open(self.file("checkpoint"), "wb", buffering=0) as file:  # noqa: PTH123
            while True:
                file.seek(0)
                file.write(os.urandom(1 << 22))
                os.fsync(file.fileno())
                time.sleep(0.5)

    def python(self, code: str, *arguments: str) -> None:
        subprocess.run([sys.executable, "-c", code, *arguments], check=True)

    def shell(self, code: str) -> None:
        subprocess.run(["/bin/sh", "-c", code], check=True)

    def slow_server(self) -> int:
        """The port of a process, not of this job, that sends 1 MiB a second."""
        command = ["/usr/bin/setsid", "--fork", sys.executable, "-c", SERVE, str(self.place)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            return int(server.stdout.readline()) if server.stdout else 0

    def read(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as reader:
            while reader.recv(1 << 30, socket.MSG_WAITALL):
                pass

    def above(self, name: str) -> int:
        """The process of this name above the rank."""
        pid, found = os.getpid(), ""
        while not found.startswith(name):
            text = Path(f"/proc/{pid}/stat").read_text()
            pid = int(text.rpartition(")")[2].split()[1])
            found = Path(f"/proc/{pid}/comm").read_text()
        return pid


def drip(sender: socket.socket) -> None:
    while True:
        sender.sendall(bytes(1 << 18))
        time.sleep(0.25)


def be_rank(over: str, place: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    names: dict[str, Any] = {name: __import__(name) for name in MODULES.split()}
    names |= {"ThreadPoolExecutor": ThreadPoolExecutor, "FOR_EVER": FOR_EVER, "READ": READ, "drip": drip}
    job, program = Job(over, place), place / "program.py"
    names["ENDS"] = os.pipe()
    if over != "gloo":
        names["numpy"] = __import__("numpy")
    exec(compile(program.read_text(), program, "exec"), names)  # noqa: S102
    names["run"](job)


# -- the command ---------------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A planted job and the right answer."""

    name: str
    over: str
    program: str
    codes: tuple[int, ...]
    causes: tuple[str, ...]
    blamed: tuple[tuple[int, ...], ...]
    says: str
    after_min: float

    @classmethod
    def read(cls, section: str, name: str, row: dict[str, Any]) -> "Planted":
        body = row.get("all") or "j.ready()\nif j.rank == 1: work(j)\nj.reduce()"
        program = "".join(
            f"def {function}(j):\n{textwrap.indent(code.rstrip(), '    ')}\n"
            for function, code in (("work", row.get("one", "pass")), ("run", body))
        )
        is_healthy = section == "healthy"
        codes = (PASS, OPEN) if is_healthy else (STUCK, OPEN) if row.get("open") else (STUCK,)
        causes = {"healthy": ("runs", "unknown"), "late": ("host-late",)}.get(section) or tuple(row["causes"])
        blamed = row.get("blamed", [[], [1]] if is_healthy else [[1]])
        says, after_min = row.get("says", ""), row.get("after_min", 0)
        return cls(name, row["over"], program, codes, causes, tuple(map(tuple, blamed)), says, after_min)


def jobs() -> dict[str, Planted]:
    import yaml

    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    rows = [Planted.read(section, *row) for section, found in table.items() for row in found.items()]
    return {row.name: row for row in rows}


@contextmanager
def running(job: Planted, place: Path, limit_s: float = 120.0) -> Iterator[list[int]]:
    """The processes by which the job is selected, once every rank has reached its fault."""
    (place / "program.py").write_text(job.program)
    program = [str(Path(__file__).absolute()), job.over, str(place)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if job.over == "gloo":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
        commands = [([TORCH_PYTHON, *program], {**common, "RANK": str(rank)}) for rank in range(RANKS)]
    else:
        from tests.e2e import test_ranks

        test_ranks.PREFIXES = Path(os.environ.get("GPUIPC_TEST_MPI", ".prefix")).absolute()
        started = test_ranks.launch(job.over)
        words = [word.format(ranks=RANKS) for word in started.command]
        commands = [([*words, sys.executable, *program], dict(started.env))]
    with (place / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                command, env={**environ, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )
            for command, own in commands
        ]  # fmt: skip
    try:
        ends_at = time.monotonic() + limit_s
        while len([*place.glob("ready.*")]) < RANKS:
            if time.monotonic() > ends_at or all(each.poll() is not None for each in processes):
                raise TimeoutError(f"{job.name} was not ready: {(place / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        time.sleep(3)  # the others enter their wait
        yield [each.pid for each in processes]
    finally:
        end(processes, place)


def end(processes: Sequence[subprocess.Popen[bytes]], place: Path) -> None:
    """Kill the job's processes: they are below these, or have its directory in their arguments."""
    from gpuipc_doctor.stacks.process_list import descendants

    mapped: set[str] = set()
    for _ in range(3):
        pids = {child.pid for each in processes for child in descendants(each.pid)}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_of_job = str(place).encode() in (entry / "cmdline").read_bytes()
                pids |= {int(entry.name)} - {os.getpid()} if is_of_job else set()
        for pid in (*pids, *(each.pid for each in processes)):
            with suppress(OSError):
                mapped |= {*re.findall(r"/dev/[s]hm/\S+", Path(f"/proc/{pid}/maps").read_text())}
                os.kill(pid, signal.SIGKILL)
    for each in processes:
        each.wait()
    for file in mapped:
        Path(file).unlink(missing_ok=True)


class Answer(NamedTuple):
    code: int
    cause: str
    blamed: tuple[int, ...]
    screen: str
    seconds: float

    def is_right(self, job: Planted) -> bool:
        is_told = self.code in job.codes and self.cause in job.causes and self.blamed in job.blamed
        return is_told and re.search(job.says, re.sub(r"\s+", " ", self.screen)) is not None


def examine(job: Planted, pids: Sequence[int], place: Path) -> Answer:
    """The answer of the command; of a second look, the earlier report's time is put back."""
    saved, earlier, began = place / "report.json", place / "earlier.json", time.monotonic()
    command = [sys.executable, "-m", "gpuipc_doctor", "job", "--save", str(saved)]
    command += [word for pid in pids for word in ("--pid", str(pid))]
    if job.after_min:
        subprocess.run(command, capture_output=True, check=False, timeout=300)
        report = json.loads(saved.read_text())
        earlier.write_text(json.dumps({**report, "taken": report["taken"] - 60 * job.after_min}))
        command += ["--since", str(earlier)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL
    )
    verdict = json.loads(saved.read_text())["verdict"] if saved.exists() else {"cause": "-", "blamed": ()}
    seconds = time.monotonic() - began
    return Answer(
        done.returncode, verdict["cause"], tuple(verdict["blamed"]), done.stdout + done.stderr, seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="Directory for the screens.")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    table = jobs()
    print("| planted | over | said, exit code | blamed | seconds | right |\n|---|---|---|---|---|---|")
    right = 0
    names = given.names or list(table)
    for name in names:
        job = table[name]
        with tempfile.TemporaryDirectory(prefix="planted-") as place:
            try:
                with running(job, Path(place)) as pids:
                    answer = examine(job, pids, Path(place))
            except (TimeoutError, subprocess.TimeoutExpired) as late:
                answer = Answer(-1, "-", (), str(late), 0.0)
        right += answer.is_right(job)
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{name}.txt").write_text(answer.screen)
        says = "yes" if answer.is_right(job) else "**no**"
        blamed = ",".join(map(str, answer.blamed)) or "-"
        cells = f"{answer.cause}, {answer.code} | {blamed} | {answer.seconds:.1f}"
        print(f"| {name} | {job.over} | {cells} | {says} |", flush=True)
    print(f"\n{right} of {len(names)} right")


if __name__ == "__main__":
    if len(sys.argv) == 3 and Path(sys.argv[2], "program.py").exists():
        be_rank(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
