"""A real Slurm for one test: munged, slurmctld and one slurmd per node, on loopback, in a private directory.

All its nodes are this machine; `hostname` prints the same on each, ``SLURMD_NODENAME`` does not. The daemons,
and every command that `Cluster.run` starts, run in a PID namespace that ends with the cluster: leftovers of a
job or a Prolog are visible while the cluster runs, and gone afterwards, even if the tests are killed. Its
shared memory is also private, so a Prolog that ends with the namespace leaves nothing behind.
"""

from __future__ import annotations

import os
import random
import re
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.waiting import LIMIT_S, until

_CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={port}
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldDebug=debug
SlurmdDebug=debug2
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
TmpFS={directory}/tmp/%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ReturnToService=2
# More CPUs than the machine may have.
SlurmdParameters=config_overrides
LogTimeFormat=iso8601_ms
# Batch jobs start within a second, not three.
SchedulerParameters=batch_sched_delay=0
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=slurm
"""

_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={directory}/munge/socket
AccountingStorageEnforce=associations,limits,qos
"""


class Cluster:
    """A cluster of ``nodes`` nodes, n1, n2, …, each with ``gpus`` GPUs to allocate.

    Its nodes are idle on entry, and it is gone on exit. ``settings`` are lines of slurm.conf, such as
    ``Prolog="{directory}/prolog"``, in the directory of the cluster. The GPUs' device files are dummies,
    shared by all nodes. ``accounting``: with its own slurmdbd and database, in which root has the account
    `site` and the QOS `normal`; see `limit`.
    """

    def __init__(
        self, directory: Path, nodes: int = 1, gpus: int = 0, accounting: bool = False, **settings: str
    ) -> None:
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(directory / "slurm.conf")}
        self._accounting = accounting
        self._write_files(gpus, settings)
        # Its init ignores ended children, so that no zombies remain. It ends, together with the namespace,
        # when its standard input is closed.
        inside = "mount -t tmpfs shm /dev/shm; hostname localhost; exec env --ignore-signal=CHLD cat"
        self._namespace = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--mount-proc", "--uts", "sh", "-c", inside],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill every process of the cluster."""
        self._namespace.communicate()
        for daemon in self._daemons.values():
            daemon.wait()

    def run(
        self, *command: str | Path, timeout_s: float = LIMIT_S, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``srun …``, ``scontrol …`` or any other command, with ``env`` added to the environment.

        Raises `subprocess.TimeoutExpired`.
        """
        return subprocess.run(
            self._inside(command),
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def ask(self, *command: str, timeout_s: float = LIMIT_S) -> str:
        """The output of a command that must succeed."""
        ended = self.run(*command, timeout_s=timeout_s)
        assert ended.returncode == 0, ended
        return ended.stdout

    def node(self, name: str) -> tuple[str, str]:
        """State (``idle``, ``drained``, …) and reason of a node."""
        state, _, reason = self.ask("sinfo", "-h", "-N", "-n", name, "-o", "%T|%E").partition("|")
        return state, reason.rstrip("\n")

    def limit(self, of: str, *limits: str) -> None:
        """Set limits, such as ``MaxJobsPU=1`` of ``qos normal``; slurmctld knows them on return."""
        self.ask("sacctmgr", "--immediate", "modify", *of.split(), "set", *limits)

    def rest(self) -> None:
        """Wait until the cluster is as at its start: no job, no process except Slurm's, each node idle."""
        until("no job is left", lambda: self.ask("squeue", "-h") == "")
        until("no step is left", lambda: not self.left())
        idle = re.compile(r"State=IDLE\*?\s")
        for name in self.nodes:  # sinfo may show "mixed" after the last job until the next one begins
            until(f"{name} idle", lambda name=name: idle.search(self.ask("scontrol", "show", "node", name)))

    def job(self, number: str) -> dict[str, str]:
        """The fields of ``scontrol show job``."""
        shown = self.ask("scontrol", "--oneliner", "show", "job", number)
        return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|$)", shown))

    def await_node(self, name: str, state: str) -> str:
        """Wait until a node is in a state; returns the node's reason."""
        until(f"{name} {state}", lambda: self.node(name)[0] == state)
        return self.node(name)[1]

    def processes(self) -> Iterator[str]:
        """The command lines of all running processes of this cluster."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == self._pid_namespace:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if any(words):  # a process that has ended has none; its parent has yet to reap it
                        yield b" ".join(words).decode(errors="replace").strip()
            except OSError:
                continue  # the process has just ended

    def left(self) -> list[str]:
        """Command lines of processes in the cluster other than Slurm's."""
        mine = ("cat", "munged ", "slurmctld ", ": slurmscriptd", "slurmd ", "slurmdbd ", "mariadbd ")
        return [words for words in self.processes() if not words.startswith(mine)]

    def log(self, daemon: str) -> str:
        """The log of a daemon (``slurmctld``, ``n1``, …)."""
        return (self.directory / f"{daemon}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"== {name}\n{self.log(name)}" for name in self._daemons)

    def _write_files(self, gpus: int, settings: Mapping[str, str]) -> None:
        port, dbd, self._database, *ports = _free_ports(3 + len(self.nodes))
        lines = [_CONF.format(directory=self.directory, port=port)]
        if self._accounting:
            lines.append(_ACCOUNTING.format(directory=self.directory, dbd=dbd))
            conf = _DBD_CONF.format(directory=self.directory, dbd=dbd, database=self._database)
            (self.directory / "slurmdbd.conf").write_text(conf)
            (self.directory / "slurmdbd.conf").chmod(0o600)
        lines += [f"{key}={value}\n".format(directory=self.directory) for key, value in settings.items()]
        gres = ""
        if gpus:
            lines.append("GresTypes=gpu\n")
            gres = f" Gres=gpu:{gpus}"
            for index in range(gpus):  # Slurm requires device files; these are copies of /dev/null
                os.mknod(self.directory / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            files = f"{self.directory}/gpu[0-{gpus - 1}]"
            (self.directory / "gres.conf").write_text(f"Name=gpu File={files}\n")
        for name, port in zip(self.nodes, ports, strict=True):
            address = f"NodeHostname=localhost NodeAddr=127.0.0.1 Port={port}"
            lines.append(f"NodeName={name} {address} CPUs=8{gres} State=UNKNOWN\n")
            (self.directory / "tmp" / name).mkdir(parents=True)
        (self.directory / "slurm.conf").write_text("".join(lines))
        for name, mode in {"state": 0o700, "spool": 0o755, "munge": 0o711}.items():
            (self.directory / name).mkdir(mode=mode)
        self.directory.chmod(0o755)
        (self.directory / "key").touch(mode=0o600)
        (self.directory / "key").write_bytes(os.urandom(128))

    def _start(self) -> None:
        assert self._namespace.stdin
        assert self._namespace.stdout
        self._namespace.stdin.write(b"ready\n")
        self._namespace.stdin.flush()
        assert self._namespace.stdout.readline(), "there is no namespace to be had"
        self._pid_namespace = Path(f"/proc/{self._namespace.pid}/ns/pid_for_children").readlink()
        munge = self.directory / "munge"
        files = {"key": self.directory / "key", "seed": self.directory / "seed"}
        files |= {"pid": munge / "pid", "log": munge / "log"}
        options = (f"--{name}-file={path}" for name, path in files.items())
        self._daemon("munged", "munged", "--foreground", f"--socket={munge}/socket", *options)
        until("munged has its socket", (munge / "socket").exists)
        if self._accounting:
            self._start_accounting()
        conf = self.environment["SLURM_CONF"]
        self._daemon("slurmctld", "slurmctld", "-D", "-f", conf)
        until("slurmctld answers", lambda: self.run("scontrol", "ping").returncode == 0)
        for name in self.nodes:
            self._daemon(name, "slurmd", "-D", "-f", conf, "-N", name)
        for name in self.nodes:  # a HealthCheckProgram may have drained it
            until(f"{name} up", lambda name=name: self.node(name)[0] in ("idle", "drained"))

    def _start_accounting(self) -> None:
        """Start a database and slurmdbd; root has one account."""
        data = self.directory / "database"
        install = (
            "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            "--skip-test-db",
            f"--datadir={data}",
        )
        assert self.run(*install).returncode == 0
        where = (f"--datadir={data}", f"--socket={data}/socket", f"--pid-file={data}/pid")
        port = ("--bind-address=127.0.0.1", f"--port={self._database}", "--innodb-flush-method=nosync")
        self._daemon(
            "mariadbd", "mariadbd", "--no-defaults", "--user=root", "--skip-grant-tables", *where, *port
        )
        until("the database listens", lambda: (data / "socket").exists())
        self._daemon("slurmdbd", "slurmdbd", "-D")

        def told(*words: str) -> bool:
            return self.run("sacctmgr", "--immediate", *words).returncode == 0

        until("slurmdbd answers", lambda: told("show", "cluster"))
        told("add", "cluster", "test")
        told("add", "account", "site")
        assert told("add", "user", "root", "account=site", "defaultaccount=site")

    def _daemon(self, name: str, *command: str) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                self._inside(command),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _inside(self, command: tuple[str | Path, ...]) -> list[str]:
        """The command line that runs ``command`` in the cluster's namespaces; killed with its parent."""
        of = self._namespace.pid
        enter = ["nsenter", f"--target={of}", f"--pid=/proc/{of}/ns/pid_for_children", "--mount", "--uts"]
        return [*enter, "setpriv", "--pdeathsig=KILL", "env", f"--chdir={Path.cwd()}", *map(str, command)]


def _path() -> str:
    """PATH with the directories of the daemons added."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    """Unused ports below the kernel's range of ephemeral ports."""
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        while len(sockets) < count:
            with suppress(OSError):
                one = stack.enter_context(socket.socket())
                one.bind(("127.0.0.1", random.randrange(10000, 32768)))
                sockets.append(one)
        return [socket_.getsockname()[1] for socket_ in sockets]
