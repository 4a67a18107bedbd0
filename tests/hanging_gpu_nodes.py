"""Simulated nodes of which one GPU, or one pair, hangs in one call, and the prolog before two jobs on each.

Before a job no pair is tested, since no driver has said which GPUs reach each other: pairs are for `check`.

`tests.e2e.test_prolog_hanging_gpu` runs a stated draw of them, benchmarks/hanging_gpu.py all.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_S

CALLS = ("init", "context-create", "ipc-open", "ipc-close")
BUDGETS, DEADLINES = (8.0, 20.0, 40.0), (2.0, 5.0, 10.0)
PLACES = {2: ("first", "last"), 4: ("first", "middle", "last"), 8: ("first", "middle", "last")}

SEED = 56
"""Of the draw."""

HELD_S = 3.0
"""Seconds of the budget, beside the deadline, in which the first job finds a hang on an idle machine."""

STATUSES = ("FAIL", "ERROR", "PASS", "SKIP")


@dataclass(frozen=True, slots=True)
class HangingNode:
    """A node of ``gpus`` GPUs of which the one at ``place`` hangs in ``call``. At ``place`` ``pair`` the call
    hangs if the second GPU opens memory of the first."""

    gpus: int
    place: str
    call: str
    budget_s: float
    deadline_s: float

    def __str__(self) -> str:
        return f"{self.gpus}-{self.place}-{self.call}-{self.budget_s:g}-{self.deadline_s:g}"

    @property
    def bad(self) -> frozenset[str]:
        """Labels of the GPUs that hang."""
        if self.place == "pair":
            return frozenset({"cuda:0", "cuda:1"})
        number = {"first": 0, "middle": self.gpus // 2, "last": self.gpus - 1}[self.place]
        return frozenset({f"cuda:{number}"})

    @property
    def is_held(self) -> bool:
        """Whether the budget holds the deadline with room to spare, so that the first job drains."""
        return self.deadline_s + HELD_S <= self.budget_s

    @property
    def faults(self) -> list[dict[str, Any]]:
        if self.place == "pair":
            return [{"call": self.call, "exporter": 0, "device": 1, "do": "hang"}]
        (label,) = self.bad
        return [{"call": self.call, "device": int(label.removeprefix("cuda:")), "do": "hang"}]

    @property
    def prolog(self) -> dict[str, Any]:
        return {"deadline_s": self.deadline_s}


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A healthy node whose driver starts each GPU in 7 s: the processes that see it wait ``together``, or
    each of a check's two takes half of it, and none beside another. None: the default budget."""

    gpus: int
    together: bool
    budget_s: float | None

    def __str__(self) -> str:
        return f"{self.gpus}-{'together' if self.together else 'in-turn'}-{self.budget_s or 'default'}"

    @property
    def faults(self) -> list[dict[str, Any]]:
        how = {"do": "delay", "ms": 7000} if self.together else {"do": "in-turn", "ms": 3500}
        return [{"call": "init", "device": number, **how} for number in range(self.gpus)]

    @property
    def prolog(self) -> dict[str, Any]:
        return {}


def hanging() -> list[HangingNode]:
    """All of them."""
    places = [(gpus, place, call) for gpus in PLACES for place in PLACES[gpus] for call in CALLS]
    return [
        HangingNode(*node, budget_s, deadline_s)
        for node in (*places, (4, "pair", "ipc-open"))
        for budget_s in BUDGETS
        for deadline_s in DEADLINES
    ]


def slow() -> list[SlowNode]:
    budgets = (None, *BUDGETS[1:])
    return [SlowNode(gpus, how, each) for gpus in PLACES for how in (True, False) for each in budgets]


def drawn(count: int) -> list[HangingNode]:
    """A draw by `SEED` in which each place and call is equally likely."""
    return random.Random(SEED).sample(hanging(), count)


@dataclass(frozen=True, slots=True)
class Job:
    """What the prolog said before a job."""

    exit_code: int
    line: str
    entry: dict[str, Any]
    """Its entry in the log; without results if a busy machine left no time to write it."""

    @property
    def status(self) -> str:
        return next((status for status in STATUSES if f" {status} " in self.line), "?")

    @property
    def is_untested(self) -> bool:
        """Whether a busy machine did not even start the test in time."""
        return "exhausted while it started" in self.line or "exhausted while the prolog read" in self.line

    @property
    def failed(self) -> frozenset[str]:
        """Labels of the GPUs with a FAIL."""
        return frozenset(
            label for row in self.entry["results"] if row["status"] == "FAIL" for label in row["devices"]
        )

    @property
    def seconds(self) -> float:
        return float(self.entry["elapsed_s"])


def jobs(node: HangingNode | SlowNode, directory: Path, count: int = 2) -> Iterator[Job]:
    """The prologs before ``count`` jobs on all GPUs, as slurmd starts them, each when it is asked for."""
    profile = write_profile(node, directory)
    policy = {"on_fail": "drain", "on_error": "log", "on_budget": "log", "on_unkillable": "drain"}
    files = {"syslog": False, "state_dir": "state", "log": "log.jsonl", "simulate": str(profile)}
    budget = {"budget_s": {"prolog": node.budget_s}} if node.budget_s else {}
    config, log = directory / "site.yaml", directory / "log.jsonl"
    config.write_text(json.dumps({"prolog": {**policy, **files, **node.prolog}, **budget}))
    config.chmod(0o644)
    for _ in range(count):
        before = log.read_bytes() if log.exists() else b""
        ended = _tool(directory, "prolog", "--config", "site.yaml", env={})
        written = log.read_bytes().removeprefix(before) if log.exists() else b""
        yield Job(ended.returncode, ended.stdout, json.loads(written or '{"results": [], "elapsed_s": 0}'))


def check(node: HangingNode, directory: Path) -> Job:
    """What `check` says of the node's pairs."""
    limits = ("--deadline", f"{node.deadline_s:g}", "--budget", f"{node.budget_s:g}")
    profile = str(write_profile(node, directory))
    ended = _tool(directory, "check", "ipc-peer", "--simulate", profile, "--json", *limits)
    report = json.loads(ended.stdout)
    rows = [{**row["finding"], "devices": row["devices"]} for row in report["results"]]
    worst = max(rows, key=lambda row: ("PASS", "WARN", "SKIP", "ERROR", "FAIL").index(row["status"]))
    line = f" {worst['status']} {worst['summary']}"
    return Job(ended.returncode, line, {"results": rows, "elapsed_s": report["elapsed_s"]})


def write_profile(node: HangingNode | SlowNode, directory: Path) -> Path:
    profile = directory / "node.yaml"
    device = {"backend": "cuda", "name": "NVIDIA H100 80GB HBM3", "memory": "80 GiB", "count": node.gpus}
    changes = {"extends": "healthy-cuda", "devices": [device], "faults": node.faults}
    profile.write_text(json.dumps({"description": "A node.", **changes}))
    return profile


def _tool(
    directory: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "gpuipc_doctor", *arguments]
    return subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def answers(node: HangingNode, directory: Path) -> list[Job]:
    """The answers up to the one that drains, or that of `check`."""
    if node.place == "pair":
        return [check(node, directory)]
    said = list[Job]()
    for job in jobs(node, directory, count=6):
        if not job.is_untested:
            said.append(job)
        if job.exit_code or len(said) == 2:
            break
    return said


def mistakes(node: HangingNode, said: Sequence[Job], *, is_idle: bool) -> list[str]:
    """What is wrong with the answers before the jobs up to the one that drained.

    ``is_idle``: the machine is, so that a budget with room for the deadline holds it.
    """
    if not said:
        return ["the machine was too busy for any test"]
    first, last = said[0], said[-1]
    if node.place == "pair":
        late = [(11, "ERROR"), (3, "SKIP"), (0, "SKIP")]  # no time for this pair, or for any
        verdicts = [(12, "FAIL"), *([] if node.is_held and is_idle else late)]
        wrong = [] if (last.exit_code, last.status) in verdicts else [f"{last.exit_code}: {last.line}"]
        is_blamed = not last.failed or last.failed == node.bad
        return wrong + ([] if is_blamed else [f"`check` blames {sorted(last.failed)}"])
    wrong = []
    if (last.exit_code, last.status) != (12, "FAIL"):
        wrong.append(f"job {len(said)} does not drain: {last.line}")
    wrong += [f"internal error: {job.line}" for job in said if " was raised" in job.line]
    if not node.bad & last.failed:
        wrong.append(f"job {len(said)} blames {sorted(last.failed)}")
    if len(said) > 1 and last.failed - node.bad:
        wrong.append(f"the second job blames healthy GPUs: {sorted(last.failed)}")
    if len(said) > 1 and node.is_held and is_idle:
        wrong.append(f"the first job does not drain: {first.line}")
    if len(said) > 1 and first.exit_code:
        wrong.append(f"the first job drains with {first.exit_code}: {first.line}")
    if first.status == "PASS" and not node.bad <= _not_reached(first):
        wrong.append(f"the first job passes over a GPU that was not seen to work: {first.line}")
    if node.deadline_s > node.budget_s and is_idle and "before its deadline" not in first.line:
        wrong.append(f"the first job does not say that the budget is too short: {first.line}")
    return wrong


def _not_reached(job: Job) -> frozenset[str]:
    """Labels of GPUs of which nothing but that there was no time is known."""
    rows = [row for row in job.entry["results"] if row["devices"]]
    return frozenset(label for row in rows if row["status"] == "SKIP" for label in row["devices"])
