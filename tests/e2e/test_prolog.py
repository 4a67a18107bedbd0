"""The prolog on simulated nodes: one line, the exit code of the policy, in time, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import full
from tests.e2e.test_faults import left_in_shared_memory, ours_in_shared_memory
from tests.waiting import LIMIT_S

POLICY = {
    "on_fail": "drain",
    "on_error": "log",
    "on_budget": "log",
    "on_unkillable": "drain",
    "syslog": False,
    "state_dir": "state",
}

AMPLE = ("--budget", "90")
"""A budget for tests that are not about time: other tests run in parallel."""

SHORT_S = 4.0

FRESH = {"fresh_for_s": 600, "state_dir": "state", "log": "log.jsonl"}


class Site:
    """A site config for the prolog, and the command that uses it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "site.yaml"
        self.log = directory / "log.jsonl"
        self.state = directory / "state" / "state.json"

    def write(self, simulate: str, prolog: dict[str, object] | None = None, **more: object) -> None:
        section = {**POLICY, "simulate": simulate, **(prolog or {})}
        self.config.write_text(json.dumps({"prolog": section, **more}))  # JSON is also YAML
        self.config.chmod(0o644)

    def prolog(self, *arguments: str, gpus: str = "") -> tuple[int, str, str]:
        """Run the prolog like slurmd: without environment or terminal, waiting for the end of the pipes."""
        command = [sys.executable, "-I", "-m", "gpuipc_doctor", "prolog", "--config", "site.yaml"]
        before = ours_in_shared_memory()
        environment = {"SLURM_JOB_GPUS": gpus, "SLURM_JOB_ID": "4711"} if gpus else {}
        ended = subprocess.run(
            [*command, *arguments],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert left_in_shared_memory(before) == set()
        assert "Traceback" not in ended.stderr
        return ended.returncode, ended.stdout, ended.stderr

    def entries(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("profile", "prolog", "code", "says"),
    [
        ("hang-ipc-open", {"deadline_s": 1.5}, 12, ["cuIpcOpenMemHandle #2 hung (1.5 s)"]),
        ("no-devices", {"on_error": "drain"}, 11, ["ERROR"]),
    ],
)
def test_policy_decides(
    site: Site, profile: str, prolog: dict[str, object], code: int, says: list[str]
) -> None:
    site.write(profile, prolog)
    exit_code, line, said = site.prolog(*AMPLE)
    assert [text for text in says if text not in line] == []
    assert len(line) <= 201
    assert (exit_code, said) == (code, "")


def test_mistake_in_the_config_is_reported_and_the_job_starts(site: Site) -> None:
    site.config.write_text("prolog: {on_fail: drian}\n")
    code, line, said = site.prolog()
    assert code == 0
    assert line.startswith("gpuipc-doctor: ERROR invalid config")
    told = f"{line}\n{said}"
    assert told.count("site.yaml:1: prolog.on_fail: 'drian' is not known; did you mean 'drain'?") == 1
    assert told.count("site.yaml:1: prolog: key 'on_error' is missing") == 1


def test_usage_mistake_is_reported_and_the_job_starts(site: Site) -> None:
    code, line, said = site.prolog("--bugdet", "5")
    assert code == 0
    assert "ERROR invalid command line: gpuipc-doctor prolog: no option --bugdet; did you mean" in line
    assert "--bugdet" in said


def test_empty_config_name_is_not_a_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-m", "gpuipc_doctor", "prolog", "--config", ""]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0
    assert ended.stdout == (
        "gpuipc-doctor: ERROR invalid command line: gpuipc-doctor prolog: --config: the name is empty\n"
    )


def test_unknown_check_is_a_mistake_in_the_config(site: Site) -> None:
    site.write("healthy-single", {"checks": ["ipc-reopne"]})
    code, line, said = site.prolog(*AMPLE)
    assert code == 0
    assert "did you mean 'ipc-reopen'?" in line
    assert "no check 'ipc-reopne'" in f"{line}\n{said}"


def test_broken_check_is_an_error_and_the_job_starts(site: Site) -> None:
    (site.directory / "checks").mkdir(mode=0o755)
    (site.directory / "checks" / "ours.py").write_text("import no_such_module\n")
    site.write("healthy-single", checks_dirs=["checks"])
    code, line, _ = site.prolog(*AMPLE)
    assert code == 0
    assert "ERROR ours: cannot load the check file: " in line


# -- memory ---------------------------------------------------------------------------------------------


def test_healthy_node_passes_in_one_line_and_is_not_retested(site: Site) -> None:
    """A stored pass is used until the config changes; files left by a killed writer do not matter."""
    site.write("healthy-single", FRESH)
    code, line, said = site.prolog(*AMPLE)
    assert (code, said) == (0, "")
    assert line.startswith("gpuipc-doctor: SIMULATED (healthy-single) PASS 4 checks ")
    assert line.count("\n") == 1
    code, line, said = site.prolog(*AMPLE)
    assert (code, said) == (0, "")
    assert "s ago; boot, driver, GPUs and config unchanged" in line
    assert oct(site.state.stat().st_mode) == "0o100600"
    assert oct(site.state.parent.stat().st_mode) == "0o40700"
    site.state.with_name("state.json.draft").write_text("{")
    site.config.write_text(site.config.read_text() + "\n")
    assert " PASS 4 checks" in site.prolog(*AMPLE)[1]
    assert [path.name for path in site.state.parent.iterdir()] == ["state.json"]
    assert [entry["line"].split(") ")[1][:4] for entry in site.entries()] == ["PASS"] * 3  # type: ignore[attr-defined]


@pytest.mark.full
@pytest.mark.parametrize(
    "what",
    ["corrupt", "link", "pipe", "open to others", "a stranger's"],
)
def test_untrusted_state_is_ignored_and_reported(site: Site, what: str) -> None:
    site.write("healthy-single", FRESH)
    assert site.prolog(*AMPLE)[0] == 0
    content = site.state.read_bytes()
    says = "state ignored: "
    if what == "corrupt":
        site.state.write_bytes(content[:100])
        says += f"{site.state} is corrupt"
    elif what == "link":
        (site.directory / "elsewhere").write_bytes(content)
        site.state.unlink()
        site.state.symlink_to(site.directory / "elsewhere")
        says += "state.json is a symbolic link"
    elif what == "pipe":
        site.state.unlink()
        os.mkfifo(site.state, 0o600)
        says += "state.json is not a regular file"
    elif what == "open to others":
        site.state.parent.chmod(0o755)
        says += f"{site.state.parent} has mode 755, so other users can access it"
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(site.state, 4711, -1)
        says += "state.json belongs to user 4711"
    code, line, said = site.prolog(*AMPLE)
    assert (code, " PASS 4 checks" in line) == (0, True)
    assert says in said
    if what != "open to others":
        assert "ago" in site.prolog(*AMPLE)[1]
        assert [path.name for path in site.state.parent.iterdir()] == ["state.json"]


# -- the log --------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.cuda
def test_line_names_the_failure_and_the_log_has_the_rest(site: Site) -> None:
    site.write("nvidia-460.32.03", {"log": "log.jsonl"})
    code, line, said = site.prolog(*AMPLE)
    assert (code, said) == (12, "")
    parts = ("FAIL ipc-reopen on cuda:0 GPU-", "[nvidia-ipc-reopen]", "#8 returned")
    assert [part for part in parts if part not in line] == []
    assert len(line) <= 201
    (entry,) = site.entries()
    assert (entry["exit_code"], entry["policy"], entry["simulated"]) == (12, "drain", True)
    assert entry["line"] == line.rstrip("\n")
    assert "CUDA_ERROR_INVALID_HANDLE" in json.dumps(entry["results"])
    assert oct(site.log.stat().st_mode) == "0o100600"


# -- hangs and slowness ---------------------------------------------------------------------------------

DEADLINE_S = 9.0
"""Time after which a slow call counts as hung, in these tests; the default is 30 s or more."""


ROOMY_S = 8.0
"""A budget below the deadline with room for a start under load: the time that a patient prolog has in
addition to the deadline."""


def in_a_row(site: Site, profile: Path, count: int, budget_s: float = SHORT_S) -> list[tuple[int, str]]:
    """Exit codes and lines of ``count`` successive prologs; the budget is shorter than the deadline."""
    prolog = {"deadline_s": DEADLINE_S, "log": "log.jsonl"}
    site.write(str(profile), prolog, budget_s={"prolog": budget_s})
    return [site.prolog(gpus="0")[:2] for _ in range(count)]


def profile(site: Site, faults: str) -> Path:
    file = site.directory / "node.yaml"
    file.write_text(
        f"description: A node.\nextends: nvidia-450.102.04\nfaults: [{faults}]\nexpect: {{exit: 0}}\n"
    )
    return file


@pytest.mark.cuda
def test_hanging_driver_drains_at_the_second_job(site: Site) -> None:
    first, second = in_a_row(site, profile(site, "{call: init, do: hang}"), 2, ROOMY_S)
    assert (first[0], "ERROR" in first[1]) == (0, True)
    assert (second[0], "FAIL" in second[1]) == (12, True)
    assert f"hung ({DEADLINE_S:g} s)" in json.dumps(site.entries()[-1]["concerns"])


# -- results known when the budget ends ------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.cuda
def test_findings_before_the_end_of_the_budget_count(site: Site) -> None:
    """One GPU fails, then the prolog's own process is stopped: no report, but the node is drained."""
    (site.directory / "checks").mkdir(mode=0o755)
    (site.directory / "checks" / "zz_stops.py").write_text(STOPS)
    site.write("nvidia-460.32.03", {"log": "log.jsonl"}, checks_dirs=["checks"])
    code, line, _ = site.prolog("--budget", "12", gpus="0")
    assert (code, "FAIL ipc-reopen on cuda:0" in line) == (12, True)
    (entry,) = site.entries()
    checks = {row["check"]: row["status"] for row in entry["results"]}  # type: ignore[attr-defined]
    assert checks["ipc-reopen"] == "FAIL"
    assert checks["zz-stops"] == "ERROR"


STOPS = """
import os, signal, time
from gpuipc_doctor.api import Check, Finding, Probe, Tier

class Stops(Check):
    id = "zz-stops"
    title = "the prolog's own process is stopped"
    tier = Tier.PROLOG

    def probes(self, ctx):
        yield Probe("stop", {"role": stop})

    def judge(self, done):
        yield Finding.ok("", "nothing")

def stop(w):
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)

CHECK = Stops()
"""


# -- missing GPUs -----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("prolog", "gpus", "code", "says"),
    [
        ({"gpus": 4}, "", 12, "FAIL the kernel lists 2 GPUs; the site config says 4"),
        ({"gpus": 4, "on_missing": "log"}, "0", 0, "FAIL the kernel lists 2 GPUs; the site config says 4"),
        ({"gpus": 2}, "0", 0, "PASS"),
    ],
)
def test_missing_gpu(site: Site, prolog: dict[str, object], gpus: str, code: int, says: str) -> None:
    site.write("healthy-cuda", prolog)
    exit_code, line, _ = site.prolog(*AMPLE, gpus=gpus)
    assert says in line
    assert exit_code == code


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("counts", "prolog", "code", "says"),
    [
        full([8], {}, 12, "FAIL the kernel lists 2 GPUs; the site config says 8"),
        full([2, 8], {}, 0, "PASS 3 checks, 1 WARN on "),
        ([8], {"gpus": 2}, 0, "PASS 3 checks on "),
    ],
)
def test_missing_gpu_by_type_of_node(
    site: Site, counts: list[int], prolog: dict[str, int], code: int, says: str
) -> None:
    types = {f"h200-x{count}": {"gpus": {"model": "H200", "count": count}} for count in counts}
    site.write("healthy-cuda", prolog, node_types=types)
    exit_code, line, _ = site.prolog(*AMPLE, gpus="0")
    assert (exit_code, says in line) == (code, True), line


@pytest.mark.full
@pytest.mark.cuda
def test_pass_with_a_missing_gpu_is_not_remembered(site: Site) -> None:
    site.write("healthy-cuda", FRESH)
    assert "PASS" in site.prolog(*AMPLE)[1]
    assert "ago" in site.prolog(*AMPLE, gpus="0,1")[1]
    code, line, _ = site.prolog(*AMPLE, gpus="2")
    assert (code, "FAIL GPU 2 of the job is missing: the kernel lists 2 GPUs (0, 1)" in line) == (12, True)


LINKS = """\
description: The last of four GPUs has 17 of 18 links.
extends: healthy-cuda
devices:
  - {backend: cuda, name: NVIDIA H200, memory: 139 GiB, count: 3, nvml: {links: 18}}
  - {backend: cuda, name: NVIDIA H200, memory: 139 GiB, nvml: {links: 17}}
"""
TOO_FEW = "cuda:3 has 17; site.yaml:1 expects 18 active NVLinks"


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("expected", "of_job", "code", "says"),
    [
        ({"model": "H200", "count": 4, "peers": "all", "nvlinks": 18, "else": "fail"}, "", 12, TOO_FEW),
        ({"nvlinks": 18, "peers": "all", "else": "fail"}, "2,3", 12, TOO_FEW),
        ({"nvlinks": 18, "peers": "all", "else": "fail"}, "1,2", 0, "PASS"),
        ({"nvlinks": 18, "else": "warn"}, "2,3", 0, "WARN driver-init: cuda:3 has 17"),
        ({"nvlinks": 17, "peers": 3, "else": "fail"}, "3", 0, "PASS"),
        ({"model": "H100", "count": 4, "else": "fail"}, "", 12, "found 4 × NVIDIA H200 and no H100"),
        ({"model": "H100"}, "0", 0, "WARN driver-init: found 4 × NVIDIA H200"),
        full({"model": "H200", "count": 3, "else": "fail"}, "0", 12, "found 4 × H200; site.yaml:1 expects 3"),
        full({"count": 5, "else": "warn"}, "0", 0, "WARN driver-init: found 4 × GPU"),
        full({"count": 5}, "0", 12, "the kernel lists 4 GPUs; the site config says 5"),
        full({"model": "H200", "count": 4}, "0", 0, "PASS 3 checks"),
    ],
)
def test_site_expectations_of_gpus_hold_before_a_job(
    site: Site, expected: dict[str, object], of_job: str, code: int, says: str
) -> None:
    site.config.with_name("links.yaml").write_text(LINKS)
    site.write("./links.yaml", gpus=expected)
    exit_code, line, said = site.prolog(*AMPLE, gpus=of_job)
    assert says in line
    assert (exit_code, said) == (code, "")


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("peers", "of_job", "code"), [("all", "", 12), (1, "", 12), full("all", "0", 0), full(1, "0", 0)]
)
def test_peer_access_that_a_site_expects_is_asked_before_a_job(
    site: Site, peers: object, of_job: str, code: int
) -> None:
    site.write("no-peer-access", gpus={"peers": peers, "else": "fail"})
    exit_code, line, _ = site.prolog(*AMPLE, gpus=of_job)
    assert ("have no peer access" in line or "have peer access to fewer than 1" in line) == bool(code)
    assert exit_code == code
