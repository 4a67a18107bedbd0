"""Inputs of other monitors: node-problem-detector's JSON, and drain reasons in Slurm."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.prolog.decision import MAX_LINE, Concern, Kind, decide
from gpuipc_doctor.prolog.hooks import HOOKS
from gpuipc_doctor.site.policy import Action, PrologConfig

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "hook"), [("kubernetes", "monitor"), ("monitoring", "sweep")])
def test_node_problem_detector_configuration_is_complete(page: str, hook: str) -> None:
    """The keys: github.com/kubernetes/node-problem-detector, docs/custom_plugin_monitor.md."""
    monitoring = (REPOSITORY / f"docs/{page}.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", monitoring, re.DOTALL)
    document = json.loads(text)
    settings = document["pluginConfig"]
    assert document["plugin"] == "custom"
    assert settings["max_output_length"] >= MAX_LINE
    permanent = [rule for rule in document["rules"] if rule["type"] == "permanent"]
    assert {rule["condition"] for rule in permanent} == {item["type"] for item in document["conditions"]}
    assert all(item["reason"] and item["message"] for item in document["conditions"])
    for rule in document["rules"]:
        assert Path(rule["path"]).name == HOOKS[hook].name
        assert seconds(rule["timeout"]) <= seconds(settings["timeout"]) < seconds(settings["invoke_interval"])


MANIFESTS = (REPOSITORY / "ship/kubernetes").iterdir()
KUBERNETES = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in MANIFESTS}


def test_manifests_mount_what_they_read_and_run_commands_that_exist() -> None:
    documents = [each for several in KUBERNETES.values() for each in several]
    assert {each["kind"] for each in documents} == {"Job", "ConfigMap", "DaemonSet"}
    texts = KUBERNETES["monitor"][0]["data"]
    for workload in (each["spec"]["template"]["spec"] for each in documents if each["kind"] != "ConfigMap"):
        volumes = {volume["name"] for volume in workload.get("volumes", ())}
        for container in workload["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}
            assert set(mounts) <= volumes
            for word in container["command"]:
                if "/config/" in word:
                    assert word.rpartition("/config/")[2] in texts
    said = [shlex.split(line) for line in re.findall(r"gpuipc-doctor (.*)", texts["test.sh"])]
    [job] = KUBERNETES["accept-node"]
    said.append(job["spec"]["template"]["spec"]["containers"][0]["command"][1:])
    for name, *words in said:
        words = words[: words.index(">")] if ">" in words else words
        command = cli.get_command(click.Context(cli), name)
        assert command
        command.make_context(name, [word.replace("/state/", "/").replace("/metrics/", "/") for word in words])


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    documents = [each for several in KUBERNETES.values() for each in several]
    for pod in (each["spec"]["template"]["spec"] for each in documents if each["kind"] != "ConfigMap"):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        with_token = {volume["name"] for volume in pod.get("volumes", ()) if "projected" in volume}
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"]["drop"] == ["ALL"]
            assert set(rights["capabilities"].get("add", ())) <= {"SYS_PTRACE", "DAC_OVERRIDE"}
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert bool(mounted & with_token) is (container["name"] == "condition")


@pytest.mark.parametrize("name", ["metrics", "sweep"])
def test_unit_has_no_right_to_administer_the_system(name: str) -> None:
    unit = (REPOSITORY / f"ship/package/gpuipc-doctor-{name}.service").read_text()
    kept = " ".join(re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)).split()
    assert kept
    assert not {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_RAWIO", "CAP_SETUID", "CAP_BPF"} & {*kept}


@pytest.mark.parametrize(
    ("code", "screen", "exit_code", "says"),
    [
        ("0", "", 0, "GPU IPC works"),
        ("10", "", 0, "GPU IPC works"),
        ("12", "SIMULATED\nREJECT  ipc-reopen on cuda:0", 1, "REJECT  ipc-reopen on cuda:0"),
        ("11", "", 2, "could not be tested"),
        ("3", "", 2, "could not be tested"),
        (None, "", 2, "not tested yet"),
    ],
)
def test_condition_in_kubernetes(
    tmp_path: Path, code: str | None, screen: str, exit_code: int, says: str
) -> None:
    script = KUBERNETES["monitor"][0]["data"]["read.sh"].replace("/state", str(tmp_path))
    (tmp_path / "screen.txt").write_text(screen)
    if code:
        (tmp_path / "code").write_text(f"{code}\n")
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (exit_code, f"{says}\n")


def seconds(duration: str) -> int:
    """Seconds of a duration in Go's notation, with one number and unit."""
    number, unit = re.fullmatch(r"(\d+)(s|m|h)", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def drain_reason() -> re.Pattern[str]:
    """The pattern in docs/slurm.md."""
    (pattern,) = re.findall(
        r"^    (\^gpuipc-doctor: .*)$", (REPOSITORY / "docs/slurm.md").read_text(), re.MULTILINE
    )
    return re.compile(pattern)


@pytest.mark.parametrize("simulate", ["", "nvidia-460.32.03"])
@pytest.mark.parametrize("kind", Kind)
def test_every_drain_reason_matches_the_documented_pattern(kind: Kind, simulate: str) -> None:
    policy = PrologConfig(**{f"on_{kind.value}": Action.DRAIN for kind in Kind}, simulate=simulate)  # type: ignore[arg-type]
    concern = (
        f"{kind.word} ipc-reopen on cuda:0 GPU-2da63d83 and 1 more [nvidia-ipc-reopen]: importer: failed"
    )
    found = drain_reason().match(decide([Concern(kind, concern)], policy).line)
    assert found
    assert (found["status"], found["check"], found["issues"]) == (
        kind.word,
        "ipc-reopen",
        "nvidia-ipc-reopen",
    )


@pytest.mark.parametrize(
    "line", ["gpuipc-doctor: PASS 3 checks on cuda:0, 1.0 s", "gpuipc-doctor: would drain: FAIL"]
)
def test_no_other_line_matches_the_pattern_of_a_drain_reason(line: str) -> None:
    assert not drain_reason().match(line)
