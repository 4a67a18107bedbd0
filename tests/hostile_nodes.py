"""Hostile nodes on which the prolog must end in time with the correct answer, and leave nothing behind.

Each run has its own node, site config and mount namespace. Afterwards there must be none of its processes, no
files in /dev/shm and the directories for temporary files, no draft or torn line in its state and log, and no
held lock. `tests.e2e.test_prolog_reliability` runs each once, benchmarks/reliability.py hundreds; as root.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gpuipc_doctor
from gpuipc_doctor.supervise import tree

BUDGET_S, DEADLINE_S = 15.0, 2.0
LATE_S = 1.0
"""The prolog must end this long after its budget."""

VANISH_S = 5.0
"""The keeper must end the processes of a killed tool within this time."""

POLICY = "on_fail: drain, on_error: log, on_budget: log, on_unkillable: log"
PASSES, SAYS_ERROR, DRAINS = (0, " PASS "), (0, " ERROR "), (12, " FAIL ")

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

PLACES = [Path(name) for name in ("/dev/shm", "/tmp", "/var/tmp", "/run")]
"""Directories for temporary files. Each run has its own, so that leftovers belong to that run."""

NEEDED = [
    path
    for path in dict.fromkeys((Path(sys.prefix), Path(gpuipc_doctor.__file__).parent.parent))
    if any(path.is_relative_to(place) for place in PLACES)
]
"""Paths below `PLACES` that must stay visible."""

FORK_BOMB = '''
import os, signal, time
from gpuipc_doctor.api import Check, Finding, Probe, Tier

class ForkBomb(Check):
    id = "fork-bomb"
    title = "forks"
    tier = Tier.PROLOG
    def probes(self, ctx):
        yield Probe("", {"one": bomb})
    def judge(self, done):
        yield Finding.ok("", "survived")

def bomb(w):
    """200 processes in sessions of their own that ignore TERM, started by each other."""
    with w.armed("fork"):
        for n in range(200):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if n % 2:  # half of them are orphans at once
                    if os.fork():
                        os._exit(0)
                time.sleep(600)
                os._exit(0)
        time.sleep(600)

CHECK = ForkBomb()
'''

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

/* CLOCK_REALTIME as each process of this namespace has it from the C library: once the process is half a
 * second old, it is an hour earlier. */
static int (*real)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static struct timespec first;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    struct timespec uptime;
    real(CLOCK_MONOTONIC, &uptime);
    if (!first.tv_sec)
        first = uptime;
    int code = real(clock, now);
    double age = (double)(uptime.tv_sec - first.tv_sec) + (double)(uptime.tv_nsec - first.tv_nsec) / 1e9;
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && age > 0.5)
        now->tv_sec -= 3600;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec precise;
    int code = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return code;
}

time_t time(time_t *result)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result)
        *result = precise.tv_sec;
    return precise.tv_sec;
}
"""


@dataclass
class Site:
    """One run's own directory: site config, state, log, and the files of its kind of node."""

    directory: Path
    lines: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    """Shell commands that set up the mount namespace."""
    before: Callable[[], None] | None = None
    """Called after the config was written."""
    disturb: Callable[[subprocess.Popen[bytes], random.Random], None] | None = None
    """Called while the prolog runs."""

    @property
    def config(self) -> Path:
        return self.directory / "site.yaml"

    @property
    def state(self) -> Path:
        return self.directory / "var" / "state"

    @property
    def log(self) -> Path:
        return self.directory / "var" / "log.jsonl"

    def node(self, profile: str, *faults: str) -> None:
        """Write a simulated node with these faults."""
        text = f"description: hostile\nextends: {profile}\nfaults: [{', '.join(faults)}]\n"
        (self.directory / "node.yaml").write_text(text)

    def write(self) -> None:
        (self.directory / "var").mkdir(exist_ok=True)
        remembered = f"fresh_for_s: 60, state_dir: {self.state}, log: {self.log}, syslog: false"
        simulate = f"simulate: {self.directory / 'node.yaml'}"
        section = f"prolog: {{{POLICY}, deadline_s: {DEADLINE_S}, {remembered}, {simulate}}}"
        self.config.write_text("\n".join([section, *self.lines]) + "\n")


# -- kinds of nodes ---------------------------------------------------------------------------------------


def healthy(site: Site) -> None:
    site.node("healthy-cuda")


def fault(text: str, profile: str = "healthy-cuda") -> Callable[[Site], None]:
    return lambda site: site.node(profile, text)


def fork_bomb(site: Site) -> None:
    healthy(site)
    (site.directory / "checks").mkdir()
    (site.directory / "checks" / "fork_bomb.py").write_text(FORK_BOMB)
    site.lines.append("checks_dirs: [checks]")


def full_state(site: Site) -> None:
    healthy(site)
    site.mounts.append(full(site.directory / "var"))


def full_everywhere(site: Site) -> None:
    full_state(site)
    site.mounts += [full(place, "-o remount,size=16k") for place in PLACES]


def full(place: Path, how: str = "-t tmpfs -o size=16k,mode=755 none") -> str:
    return f"mount {how} {place}; head -c 16k /dev/zero >{place}/filler || true"


def read_only_state(site: Site) -> None:
    healthy(site)
    site.mounts.append(f"mount -t tmpfs -o ro,size=16k,mode=755 none {site.directory / 'var'}")


def no_shared_memory(site: Site) -> None:
    healthy(site)
    numbers = {"null": "1 3", "zero": "1 5", "random": "1 8", "urandom": "1 9"}
    made = [f"mknod -m 666 /dev/{name} c {number}" for name, number in numbers.items()]
    site.mounts += ["mount -t tmpfs -o size=16k none /dev", *made, "ln -s /proc/self/fd /dev/fd"]


def clock_steps_back(site: Site) -> None:
    healthy(site)
    library = site.directory / "libclock.so"
    (site.directory / "clock.c").write_text(CLOCK)
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", library, site.directory / "clock.c", "-ldl"]
    subprocess.run(command, check=True)
    shutil.copytree("/etc", site.directory / "etc", symlinks=True, ignore_dangling_symlinks=True)
    (site.directory / "etc" / "ld.so.preload").write_text(f"{library}\n")  # a variable would be dropped
    site.mounts.append(f"mount --bind {site.directory / 'etc'} /etc")


def killed(whom: Callable[[int, random.Random], list[int]], within_s: float) -> Callable[[Site], None]:
    def arrange(site: Site) -> None:
        healthy(site)

        def disturb(process: subprocess.Popen[bytes], chance: random.Random) -> None:
            time.sleep(chance.uniform(0.0, within_s))
            for pid in whom(process.pid, chance):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        site.disturb = disturb

    return arrange


def itself(pid: int, _: random.Random) -> list[int]:
    return [pid]


def all_of_ours_but_workers(pid: int, _: random.Random) -> list[int]:
    """The guard and its child, all at once, but not the keeper."""
    return [pid, *(child for child in below(pid) if b" prolog " in command_line(child))]


def any_below(pid: int, chance: random.Random) -> list[int]:
    """A random process below the tool."""
    there = below(pid)
    return [chance.choice(there)] if there else []


def torn_state(site: Site) -> None:
    healthy(site)

    def before() -> None:
        site.state.mkdir(mode=0o700, parents=True)
        (site.state / "state.json").write_bytes(b'{"format": 1, "identity": {"boot": "4')
        (site.state / "state.json.draft").write_bytes(b'{"form')
        for file in site.state.iterdir():
            file.chmod(0o600)

    site.before = before


@dataclass(frozen=True)
class Kind:
    """A kind of node, and the answers that the prolog may give: exit code and a word of the line."""

    arrange: Callable[[Site], None]
    answers: tuple[tuple[int, str], ...]


KINDS: Mapping[str, Kind] = {
    "healthy (control)": Kind(healthy, (PASSES,)),
    "cuInit hangs": Kind(fault("{call: init, do: hang}"), (DRAINS,)),
    "a context hangs on one GPU": Kind(fault("{call: context-create, device: 1, do: hang}"), (DRAINS,)),
    "an IPC open hangs, TERM ignored": Kind(
        fault("{call: ipc-open, nth: 2, do: hang-ignore-term}"), (DRAINS,)
    ),
    "an IPC open crashes": Kind(fault("{call: ipc-open, nth: 2, do: segv}"), (DRAINS,)),
    "an IPC close aborts": Kind(fault("{call: ipc-close, nth: 1, do: abort}"), (DRAINS,)),
    "a process is left in a session of its own": Kind(fault("{call: init, nth: 1, do: orphan}"), (PASSES,)),
    "a driver that floods stderr": Kind(fault("{call: ipc-open, do: chatter, bytes: 4 MiB}"), (PASSES,)),
    "fork bomb of 200": Kind(fork_bomb, (DRAINS,)),
    "full disk under state and log": Kind(full_state, (PASSES,)),
    "full disk everywhere": Kind(full_everywhere, (SAYS_ERROR, PASSES)),
    "read-only state directory": Kind(read_only_state, (PASSES,)),
    "no /dev/shm": Kind(no_shared_memory, (PASSES,)),
    "clock steps back by an hour": Kind(clock_steps_back, (PASSES,)),
    "torn state files": Kind(torn_state, (PASSES,)),
    "SIGKILL of the prolog": Kind(killed(itself, 4.0), ((-9, ""), PASSES)),
    "SIGKILL of the prolog and its child": Kind(killed(all_of_ours_but_workers, 4.0), ((-9, ""), PASSES)),
    "SIGKILL of any process below it": Kind(killed(any_below, 4.0), (SAYS_ERROR, PASSES)),
}


# -- one run ----------------------------------------------------------------------------------------------


def run(kind: Kind, seed: int, keep: Path | None = None) -> tuple[float, list[str]]:
    """Seconds that one prolog on such a node took, and all its problems."""
    site = Site(Path(tempfile.mkdtemp(prefix="reliability-", dir=keep or Path.home())))
    kind.arrange(site)
    site.write()
    if site.before:
        site.before()
    try:
        with namespace(site) as holder:
            took, wrong = run_within(holder, site, kind.answers, seed)
            if site.disturb:  # the next run must cope with what a kill left half done, and remove it
                site.disturb = None
                wrong += run_within(holder, site, (PASSES,), seed)[1]
        wrong += torn(site)
    finally:
        if not (keep and wrong):
            shutil.rmtree(site.directory, ignore_errors=True)
    return took, wrong


@contextlib.contextmanager
def namespace(site: Site) -> Iterator[int]:
    """The pid of a process that holds the run's mounts: its own directories for temporary files, and more."""
    script = ["set -e", "mount --make-rprivate /"]
    for number, path in enumerate(NEEDED):  # keep these paths visible below the new mounts
        aside = site.directory / f"needed-{number}"
        aside.mkdir()
        script.append(f"mount --rbind {path} {aside}")
    script += [f"mount -t tmpfs -o size=1g,mode=1777 none {place}" for place in PLACES]
    for number, path in enumerate(NEEDED):
        script.append(f"mkdir -p {path}; mount --rbind {site.directory / f'needed-{number}'} {path}")
    script += [*site.mounts, "echo ready", "exec sleep 600"]
    command = ["unshare", "-m", "sh", "-c", "\n".join(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": PATH}, cwd="/") as holder:
        assert holder.stdout
        try:
            if holder.stdout.readline() != b"ready\n":
                sys.exit("cannot set up mounts; run as root where mount namespaces are allowed")
            yield holder.pid
        finally:
            holder.kill()


def run_within(
    holder: int, site: Site, answers: Iterable[tuple[int, str]], seed: int
) -> tuple[float, list[str]]:
    tag = f"{os.getpid()}{seed}"
    there_before = left_in(holder)
    command = [sys.executable, "-I", "-m", "gpuipc_doctor", "prolog"]
    command += ["--config", str(site.config), "--budget", str(BUDGET_S)]
    started = time.monotonic()
    process = subprocess.Popen(
        ["nsenter", "-m", "-t", str(holder), "--", *command],
        env={"PATH": PATH, "SLURM_JOB_ID": tag},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if site.disturb:
        disturb = (process, random.Random(seed))
        threading.Thread(target=site.disturb, args=disturb, daemon=True).start()
    wrong = []
    try:
        said, complained = process.communicate(timeout=BUDGET_S + 30)
    except subprocess.TimeoutExpired:
        process.kill()
        said, complained = process.communicate()
        wrong.append("did not end")
    took = time.monotonic() - started
    if took > BUDGET_S + LATE_S:
        wrong.append(f"took {took:.2f} s")
    lines = said.decode(errors="replace").splitlines()
    line = lines[-1] if lines else ""
    if not any(process.returncode == code and word in f"{line} " for code, word in answers):
        wrong.append(f"exit code {process.returncode}, said {line!r}, {complained[-300:]!r}")
    if len(lines) != (process.returncode != -signal.SIGKILL):
        wrong.append(f"{len(lines)} lines")
    if b"Traceback" in complained:
        wrong.append(f"a traceback: {complained[-300:]!r}")
    limit_s = VANISH_S if site.disturb else 0.0
    wrong += await_nothing(lambda: left_running(tag), limit_s)
    wrong += await_nothing(lambda: sorted(left_in(holder) - there_before), limit_s)
    return took, wrong


def await_nothing(find: Callable[[], list[str]], limit_s: float) -> list[str]:
    until = time.monotonic() + limit_s
    while (found := find()) and time.monotonic() < until:
        time.sleep(0.05)
    return [f"left: {', '.join(found)}"] if found else []


def left_running(tag: str, name: str = "SLURM_JOB_ID") -> list[str]:
    """Processes that inherited this run's job id, or another variable that marks the run."""
    wanted = f"{name}={tag}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"{entry.name} {command_line(int(entry.name)).decode()}")
    return found


def left_in(holder: int) -> set[str]:
    """Paths in the run's own directories for temporary files."""
    found = set()
    for place in PLACES:
        with contextlib.suppress(OSError):
            found |= {str(place / path.name) for path in Path(f"/proc/{holder}/root{place}").iterdir()}
    return found


def torn(site: Site) -> list[str]:
    """Problems of the files left in the site's directory."""
    wrong = []
    for path in (site.directory / "var").rglob("*"):
        if not path.is_file() or path.name == "filler":
            continue
        if path.suffix in (".draft", ".tmp", ".part"):
            wrong.append(f"a draft: {path.name}")
        text = path.read_bytes()
        if path.name.startswith("log.jsonl"):
            if text and not text.endswith(b"\n"):
                wrong.append(f"a torn last line in {path.name}")
            for line in text.splitlines():
                json.loads(line)
        elif path.suffix == ".json":
            try:
                json.loads(text)
            except ValueError:
                wrong.append(f"{path.name} is torn: {text[:60]!r}")
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                wrong.append(f"{path.name} is locked")
    return wrong


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    return b""


def below(pid: int) -> list[int]:
    return [process.pid for process in tree.descendants(pid) if process.state != "Z"]
