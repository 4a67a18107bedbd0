"""`fleet check` by one job and one step for many nodes: what Slurm is asked for, what survives which death.

The tool on the nodes is a script that writes down the step it runs in and prints a node's answer.
"""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from gpuipc_doctor.fleet import summary
from tests.sample_fleets import HEALTHY, named
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_fleet import DOCTOR, Slurm, told
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slurm


class Nodes:
    """The tool on the nodes of a cluster; ``first`` are lines of shell that it runs before it answers."""

    def __init__(self, cluster: Cluster, first: str = "") -> None:
        self.cluster, self.into = cluster, cluster.directory / "out"
        self.path, self._asked = cluster.directory / "gpuipc-doctor", cluster.directory / "asked"
        (cluster.directory / "answer").write_bytes(summary.dumps(named(HEALTHY, "")))
        self.path.write_text(
            f"#!/bin/sh\necho $SLURM_JOB_ID.$SLURM_STEP_ID $SLURMD_NODENAME >> {self._asked}\n"
            f"{first}\nexec cat {cluster.directory}/answer\n"
        )
        self.path.chmod(0o755)

    def command(self, *options: str) -> list[str]:
        return [*DOCTOR, "fleet", "check", "--into", str(self.into), "--tool", str(self.path), *options]

    def check(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*self.command(*options), timeout_s=LIMIT_S)

    def steps(self) -> list[tuple[str, str]]:
        """Each start of the tool: job and step, and the node."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return [(step, node) for step, _, node in (line.partition(" ") for line in lines)]

    def begun(self, count: int) -> None:
        until(f"{count} have begun", lambda: len(self.steps()) >= count)


def slurmd(cluster: Cluster, node: str) -> str:
    [pid] = cluster.ask("pgrep", "-f", f"slurmd.* -N {node}$").split()
    return pid


def silent_states(nodes: Nodes) -> dict[str, str]:
    return {one["nodes"]: one["state"] for one in told(nodes.into)["silent"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize("around", [(), ("salloc", "-N4")], ids=["partition", "allocation"])
def test_nodes_are_asked_by_one_job_and_one_step(slurm: Slurm, around: tuple[str, ...]) -> None:
    nodes = Nodes(slurm(nodes=4))
    where = () if around else ("--partition", "test")
    ended = nodes.cluster.run(*around, *nodes.command(*where), timeout_s=LIMIT_S)
    assert ended.returncode == 0, ended
    assert told(nodes.into)["nodes"]["pass"] == "n[1-4]"  # type: ignore[index]
    assert [count for _, count in Counter(step for step, _ in nodes.steps()).items()] == [4]
    until("no job is left", lambda: nodes.cluster.ask("squeue", "-h") == "")


def test_a_long_answer_in_full_is_whole(slurm: Slurm) -> None:
    """Slurm passes on 1024 bytes of a line at most."""
    cluster = slurm(nodes=3)
    answer = named(HEALTHY, "", reason="", facts={f"fact{n}": ("x" * 300,) for n in range(2000)})
    nodes = Nodes(cluster)
    (cluster.directory / "answer").write_bytes(summary.dumps(answer))
    ended = nodes.check("--partition", "test")
    assert ended.returncode == 0, ended
    assert len(summary.loads((nodes.into / "n3.summary.json").read_bytes()).facts) == 2001  # and the clock
    assert len(Counter(step for step, _ in nodes.steps())) == 1


def test_blocks_are_no_larger_than_asked_and_than_the_partition_admits(slurm: Slurm) -> None:
    nodes = Nodes(slurm(nodes=5, PartitionName="gpu Nodes=ALL MaxNodes=2 MaxTime=INFINITE State=UP"))
    assert nodes.check("--partition", "gpu").returncode == 0
    assert sorted(Counter(step for step, _ in nodes.steps()).values()) == [1, 2, 2]
    assert nodes.check("--partition", "test", "--block", "3", "--into", str(nodes.into) + "2").returncode == 0
    assert sorted(Counter(step for step, _ in nodes.steps()[5:]).values()) == [2, 3]


def test_a_dead_slurmd_costs_its_own_answer_and_no_single_step_of_the_others(slurm: Slurm) -> None:
    """Slurm aborts the step on all nodes after MessageTimeout; by then no other node has answered."""
    cluster = slurm(nodes=5, SlurmdTimeout="0", MessageTimeout="3")
    nodes = Nodes(cluster, "[ $SLURM_STEP_ID != 0 ] || sleep 60")
    cluster.run("kill", "-9", slurmd(cluster, "n3"))
    ended = nodes.check("--partition", "test", "--deadline", "45")
    assert ended.returncode == 11, ended
    assert told(nodes.into)["nodes"] == {"pass": "n[1-2,4-5]", "fail": "", "unknown": "n3"}, ended
    assert silent_states(nodes)["n3"] in ("launch failed", "deadline")
    assert max(Counter(step for step, _ in nodes.steps()).values()) == 4
    assert len(Counter(step for step, _ in nodes.steps())) <= 2, nodes.steps()


def test_a_slurmd_that_dies_in_mid_step_costs_no_answer(slurm: Slurm) -> None:
    """The step's own daemon on that node lives on."""
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


def test_a_node_that_dies_in_mid_step_costs_its_own_answer(slurm: Slurm) -> None:
    """Daemon, step and tool of one node are killed, as when it loses power; srun would wait for ever."""
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


def test_a_tool_that_hangs_costs_its_own_answer(slurm: Slurm) -> None:
    nodes = Nodes(slurm(nodes=3), "[ $SLURMD_NODENAME != n2 ] || exec sleep 4711")
    ended = nodes.check("--partition", "test", "--deadline", "3")
    assert ended.returncode == 11, ended
    assert silent_states(nodes) == {"n2": "deadline"}
    assert len(nodes.steps()) == 3  # n2 has had its time


def test_a_kill_of_the_command_leaves_no_job(slurm: Slurm) -> None:
    nodes = Nodes(slurm(nodes=3), "exec sleep 4711")
    command = nodes.cluster._inside(tuple(nodes.command("--partition", "test")))
    with subprocess.Popen(command, env=nodes.cluster.environment) as running:
        nodes.begun(3)
        [pid] = nodes.cluster.ask("pgrep", "-f", "gpuipc_doctor fleet check").split()
        nodes.cluster.run("kill", "-9", pid)
        running.wait()
    until("no job is left", lambda: nodes.cluster.ask("squeue", "-h") == "")
    until("no tool is left", lambda: not [one for one in nodes.cluster.processes() if "sleep 4711" in one])


def test_what_slurm_says_of_a_drained_node_is_its_reason(slurm: Slurm) -> None:
    cluster = slurm(nodes=3)
    nodes = Nodes(cluster)
    cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=fan 3 is dead")
    ended = nodes.check("--partition", "test")
    assert ended.returncode == 11, ended
    assert "n2: Slurm: it is drained: fan 3 is dead" in ended.stdout
    assert [node for _, node in nodes.steps() if node == "n2"] == []


def test_a_busy_node_does_not_delay_its_block(slurm: Slurm) -> None:
    cluster = slurm(nodes=3)
    nodes = Nodes(cluster)
    with subprocess.Popen(
        cluster._inside(("srun", "--exclusive", "-w", "n2", "sleep", "4711")), env=cluster.environment
    ) as job:
        until("n2 is busy", lambda: cluster.node("n2")[0] == "allocated")
        ended = nodes.check("--partition", "test", "--patience", "2")
        cluster.ask("scancel", "-u", "root")
        job.wait()
    assert ended.returncode == 11, ended
    assert told(nodes.into)["nodes"]["pass"] == "n[1,3]"  # type: ignore[index]
    assert [silent_states(nodes)["n2"]] == ["launch failed"]


def test_a_partition_with_a_short_limit_has_a_shorter_deadline(slurm: Slurm) -> None:
    nodes = Nodes(slurm(nodes=2, PartitionName="short Nodes=ALL MaxTime=1 State=UP"))
    ended = nodes.check("--partition", "short")
    assert ended.returncode == 0, ended
    assert "partition short ends jobs after 60 s: asking with --deadline 50" in ended.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--partition", "nowhere"), "no nodes in partition nowhere"),
        (("--partition", "empty"), "no nodes in partition empty"),
        (("--reservation", "nowhere"), "nowhere"),
    ],
)
def test_where_slurm_has_no_nodes_one_line_says_so(slurm: Slurm, options: tuple[str, ...], says: str) -> None:
    nodes = Nodes(slurm(nodes=1, PartitionName='empty Nodes="" MaxTime=1 State=UP'))
    ended = nodes.check(*options)
    assert ended.returncode == 2, ended
    lines = [line for line in ended.stderr.splitlines() if line.startswith(("Error", "gpuipc-doctor:"))]
    assert len(lines) == 1
    assert says in lines[0]
