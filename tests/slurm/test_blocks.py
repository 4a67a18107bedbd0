"""`fleet check` with one job and step for many nodes: requests to Slurm, answers that survive failures.

The tool on the nodes is a script that records the step it runs in and prints a node's answer.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.fleet import directory, summary
from tests.sample_fleets import HEALTHY, named
from tests.slurm import kills
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_fleet import DOCTOR, Slurm, told
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slurm


class Nodes:
    """The tool on the nodes of a cluster; ``first``: lines of shell that it runs before it answers.

    Its files are in this test's own directory, since other tests may use the cluster.
    """

    def __init__(self, cluster: Cluster, first: str = "") -> None:
        self.cluster = cluster
        directory = Path(tempfile.mkdtemp(prefix="nodes-", dir=cluster.directory))
        self.into, self.answer = directory / "out", directory / "answer"
        self.path, self._asked = directory / "gpuipc-doctor", directory / "asked"
        self.answer.write_bytes(summary.dumps(named(HEALTHY, "")))
        self.path.write_text(
            f"#!/bin/sh\necho $SLURM_JOB_ID.$SLURM_STEP_ID $SLURMD_NODENAME >> {self._asked}\n"
            f"{first}\nexec cat {self.answer}\n"
        )
        self.path.chmod(0o755)

    def command(self, *options: str) -> list[str]:
        return [*DOCTOR, "fleet", "check", "--into", str(self.into), "--tool", str(self.path), *options]

    def check(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*self.command(*options), timeout_s=LIMIT_S)

    def steps(self) -> list[tuple[str, str]]:
        """(job and step, node) of each start of the tool."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return [(step, node) for step, _, node in (line.partition(" ") for line in lines)]

    def begun(self, count: int) -> None:
        until(f"{count} have begun", lambda: len(self.steps()) >= count)


PARTITIONS = (
    "gpu Nodes=ALL MaxNodes=2 MaxTime=INFINITE State=UP",
    "short Nodes=ALL MaxTime=1 State=UP",
    'empty Nodes="" MaxTime=1 State=UP',
)


@pytest.fixture(scope="module")
def five_nodes(shared_slurm: Slurm) -> Cluster:
    return shared_slurm(nodes=5, PartitionName="\nPartitionName=".join(PARTITIONS))


@pytest.fixture
def five(five_nodes: Cluster) -> Iterator[Cluster]:
    """Five nodes, which are idle again at the end of the test."""
    yield five_nodes
    five_nodes.rest()


def slurmd(cluster: Cluster, node: str) -> str:
    [pid] = cluster.ask("pgrep", "-f", f"slurmd.* -N {node}$").split()
    return pid


def silent_states(nodes: Nodes) -> dict[str, str]:
    return {missing["nodes"]: missing["state"] for missing in told(nodes.into)["silent"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize("around", [(), ("salloc", "-N5")], ids=["partition", "allocation"])
def test_nodes_are_tested_by_one_job_and_one_step(five: Cluster, around: tuple[str, ...]) -> None:
    nodes = Nodes(five)
    where = () if around else ("--partition", "test")
    ended = nodes.cluster.run(*around, *nodes.command(*where), timeout_s=LIMIT_S)
    assert ended.returncode == 0, ended
    assert told(nodes.into)["nodes"]["pass"] == "n[1-5]"  # type: ignore[index]
    assert [count for _, count in Counter(step for step, _ in nodes.steps()).items()] == [5]


def test_long_full_report_is_complete(five: Cluster) -> None:
    """Slurm passes on at most 1024 bytes of a line."""
    answer = named(HEALTHY, "", reason="", facts={f"fact{n}": ("x" * 300,) for n in range(2000)})
    nodes = Nodes(five)
    nodes.answer.write_bytes(summary.dumps(answer))
    ended = nodes.check("-w", "n[1-3]")
    assert ended.returncode == 0, ended
    whole = {report.node: len(report.facts) for report in directory.read(nodes.into)[0]}
    assert whole == dict.fromkeys(["n1", "n2", "n3"], 2001)  # and the clock
    assert len(Counter(step for step, _ in nodes.steps())) == 1


def test_block_size_is_limited_by_option_and_partition(five: Cluster) -> None:
    nodes = Nodes(five)
    assert nodes.check("--partition", "gpu").returncode == 0
    assert sorted(Counter(step for step, _ in nodes.steps()).values()) == [1, 2, 2]
    assert nodes.check("--partition", "test", "--block", "3", "--into", str(nodes.into) + "2").returncode == 0
    assert sorted(Counter(step for step, _ in nodes.steps()[5:]).values()) == [2, 3]


def test_dead_slurmd_costs_only_its_own_answer_and_no_extra_steps(slurm: Slurm) -> None:
    """Slurm aborts the step on all nodes after MessageTimeout, before any other node has answered."""
    cluster = slurm(nodes=5, SlurmdTimeout="0", MessageTimeout="3")
    nodes = Nodes(cluster, "[ $SLURM_STEP_ID != 0 ] || sleep 60")
    cluster.run("kill", "-9", slurmd(cluster, "n3"))
    ended = nodes.check("--partition", "test", "--deadline", "45")
    assert ended.returncode == 11, ended
    assert told(nodes.into)["nodes"] == {"pass": "n[1-2,4-5]", "fail": "", "unknown": "n3"}, ended
    assert silent_states(nodes)["n3"] in ("launch failed", "deadline")
    assert max(Counter(step for step, _ in nodes.steps()).values()) == 4
    assert len(Counter(step for step, _ in nodes.steps())) <= 2, nodes.steps()
    kills.check("slurmd of n3, by `kill -9`", "before the run", nodes.into, ended.returncode)


def test_slurmd_that_dies_in_mid_step_costs_no_answer(slurm: Slurm) -> None:
    """The step's own daemon on that node keeps running."""
    cluster = slurm(nodes=4, SlurmdTimeout="0", MessageTimeout="3")
    nodes = Nodes(cluster, f"until [ -e {cluster.directory}/go ]; do sleep 0.1; done")
    with subprocess.Popen(
        cluster._inside(tuple(nodes.command("--partition", "test", "--deadline", "60"))),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        nodes.begun(4)
        cluster.run("kill", "-9", slurmd(cluster, "n2"))
        (cluster.directory / "go").touch()
        shown, _ = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, "4 PASS" in shown) == (0, True), shown
    kills.check("slurmd of n2, by `kill -9`", "during the step", nodes.into, running.returncode)


def test_node_that_dies_in_mid_step_costs_only_its_own_answer(slurm: Slurm) -> None:
    """Daemon, step and tool of one node are killed, as in a power failure; srun would wait for ever."""
    cluster = slurm(nodes=4, SlurmdTimeout="0", MessageTimeout="3")
    wait = f"until [ -e {cluster.directory}/go ]; do sleep 0.1; done"
    nodes = Nodes(
        cluster, f"[ $SLURMD_NODENAME = n2 ] && {{ echo $PPID > {cluster.directory}/pid; }}; {wait}"
    )
    with subprocess.Popen(
        cluster._inside(tuple(nodes.command("--partition", "test", "--deadline", "20", "--patience", "3"))),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        nodes.begun(4)
        tool_of_n2 = (cluster.directory / "pid").read_text().strip()
        ancestors = (
            f"p={tool_of_n2}; while [ $p -gt 2 ]; do echo $p; p=$(ps -o ppid= -p $p | tr -d ' '); done"
        )
        chain = [*cluster.ask("sh", "-c", ancestors).split(), slurmd(cluster, "n2")]
        cluster.run("kill", "-9", *reversed(chain))
        (cluster.directory / "go").touch()
        shown, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 11, shown
    assert told(nodes.into)["nodes"] == {"pass": "n[1,3-4]", "fail": "", "unknown": "n2"}
    assert silent_states(nodes) == {"n2": "deadline"}
    kills.check(
        "slurmd, step and tool of n2, by `kill -9`", "during the step", nodes.into, running.returncode
    )


def test_tool_that_hangs_costs_only_its_own_answer(five: Cluster) -> None:
    nodes = Nodes(five, "[ $SLURMD_NODENAME != n2 ] || exec sleep 4711")
    ended = nodes.check("-w", "n[1-3]", "--deadline", "3")
    assert ended.returncode == 11, ended
    assert silent_states(nodes) == {"n2": "deadline"}
    assert len(nodes.steps()) == 3  # n2 has used its time
    kills.check("the tool on n2", "hangs", nodes.into, ended.returncode)


def test_killed_command_leaves_no_job(five: Cluster) -> None:
    nodes = Nodes(five, "exec sleep 4711")
    command = nodes.cluster._inside(tuple(nodes.command("-w", "n[1-3]")))
    with subprocess.Popen(command, env=nodes.cluster.environment) as running:
        nodes.begun(3)
        [pid] = nodes.cluster.ask("pgrep", "-f", "gpuipc_doctor fleet check").split()
        nodes.cluster.run("kill", "-9", pid)
        running.wait()
    until("no job is left", lambda: nodes.cluster.ask("squeue", "-h") == "")
    until(
        "no tool is left",
        lambda: not [process for process in nodes.cluster.processes() if "sleep 4711" in process],
    )


def test_slurms_reason_of_a_drained_node_is_reported(five: Cluster) -> None:
    nodes = Nodes(five)
    five.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=fan 3 is dead")
    ended = nodes.check("-w", "n[1-3]")
    five.ask("scontrol", "update", "nodename=n2", "state=resume")
    assert ended.returncode == 11, ended
    assert "n2: Slurm: it is drained: fan 3 is dead" in ended.stdout
    assert [node for _, node in nodes.steps() if node == "n2"] == []
    kills.check("n2 is drained", "before the run", nodes.into, ended.returncode)


def test_busy_node_does_not_delay_its_block(five: Cluster) -> None:
    nodes = Nodes(five)
    with subprocess.Popen(
        five._inside(("srun", "--exclusive", "-w", "n2", "sleep", "4711")), env=five.environment
    ) as job:
        until("n2 is busy", lambda: five.node("n2")[0] == "allocated")
        ended = nodes.check("-w", "n[1-3]", "--patience", "2")
        five.ask("scancel", "-u", "root")
        job.wait()
    assert ended.returncode == 11, ended
    assert told(nodes.into)["nodes"]["pass"] == "n[1,3]"  # type: ignore[index]
    assert [silent_states(nodes)["n2"]] == ["launch failed"]
    kills.check("n2 is busy with a job", "for longer than --patience", nodes.into, ended.returncode)


def test_partition_with_a_short_limit_has_a_shorter_deadline(five: Cluster) -> None:
    nodes = Nodes(five)
    ended = nodes.check("--partition", "short", "-w", "n[1-2]")
    assert ended.returncode == 0, ended
    assert "partition short ends jobs after 60 s: using --deadline 50" in ended.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--partition", "nowhere"), "no nodes in partition nowhere"),
        (("--partition", "empty"), "no nodes in partition empty"),
        (("--reservation", "nowhere"), "nowhere"),
    ],
)
def test_no_nodes_is_one_line(five: Cluster, options: tuple[str, ...], says: str) -> None:
    nodes = Nodes(five)
    ended = nodes.check(*options)
    assert ended.returncode == 2, ended
    lines = [line for line in ended.stderr.splitlines() if line.startswith("gpuipc-doctor ")]
    assert len(lines) == 1
    assert says in lines[0]


WITH_LIMITS = pytest.mark.skipif(
    not all(
        shutil.which(name, path="/usr/sbin:/usr/bin")
        for name in ("slurmdbd", "mariadbd", "my_print_defaults")
    ),
    reason="needs slurmdbd and MariaDB: Debian's slurmdbd, slurm-wlm-mysql-plugin, mariadb-server-core",
)


@pytest.fixture(scope="module")
def six_nodes(shared_slurm: Slurm) -> Cluster:
    return shared_slurm(nodes=6, accounting=True)


NO_LIMIT = {
    "qos normal": ("MaxTRESPerJob=node=-1", "MaxSubmitJobsPU=-1", "flags=-1"),
    "account site": ("GrpTRES=node=-1", "MaxJobs=-1"),
}


@pytest.fixture
def accounted(six_nodes: Cluster) -> Iterator[Cluster]:
    """Six nodes with accounts; at the end of the test no limit and no job is left."""
    yield six_nodes
    for of, limits in NO_LIMIT.items():
        six_nodes.limit(of, *limits)
    six_nodes.rest()


@WITH_LIMITS
@pytest.mark.parametrize(
    ("of", "limits", "sizes"),
    [
        ("qos normal", ("MaxTRESPerJob=node=2",), [1, 1, 2, 2]),
        ("qos normal", ("MaxTRESPerJob=node=2", "flags=DenyOnLimit"), [1, 1, 2, 2]),
        ("qos normal", ("MaxSubmitJobsPU=1",), [3, 3]),
        ("account site", ("MaxJobs=1",), [3, 3]),
        ("account site", ("GrpTRES=node=3",), [3, 3]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_limits_of_qos_and_account_cost_no_answer(
    accounted: Cluster, of: str, limits: tuple[str, ...], sizes: list[int]
) -> None:
    """Blocks become smaller if the size of jobs is limited, and wait if the number of jobs is limited."""
    accounted.limit(of, *limits)
    nodes = Nodes(accounted, "sleep 1")
    ended = nodes.check("--partition", "test", "--block", "3", "--patience", "90")
    assert ended.returncode == 0, ended
    assert sorted(Counter(step for step, _ in nodes.steps()).values()) == sizes, nodes.steps()


@WITH_LIMITS
def test_limit_that_admits_no_job_is_reported_in_slurms_words(accounted: Cluster) -> None:
    accounted.limit("qos normal", "MaxSubmitJobsPU=0")
    nodes = Nodes(accounted)
    ended = nodes.check("-w", "n[1-2]", "--patience", "10")
    assert ended.returncode == 11, ended
    assert "QOSMaxSubmitJobPerUserLimit" in ended.stdout
    assert silent_states(nodes) == {"n[1-2]": "launch failed"}
