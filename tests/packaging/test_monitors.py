"""Inputs of other monitors: node-problem-detector's JSON, drain reasons in Slurm, and sos itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpuipc_doctor.prolog.decision import MAX_LINE, Concern, Kind, decide
from gpuipc_doctor.prolog.hooks import HOOKS
from gpuipc_doctor.site.policy import Action, PrologConfig

REPOSITORY = Path(__file__).parents[2]
MONITORING = (REPOSITORY / "docs/monitoring.md").read_text()


def test_node_problem_detector_configuration_is_complete() -> None:
    """The keys: github.com/kubernetes/node-problem-detector, docs/custom_plugin_monitor.md."""
    (text,) = re.findall(r"```json\n(.*?)```", MONITORING, re.DOTALL)
    document = json.loads(text)
    settings = document["pluginConfig"]
    assert document["plugin"] == "custom"
    assert settings["max_output_length"] >= MAX_LINE
    permanent = [rule for rule in document["rules"] if rule["type"] == "permanent"]
    assert {rule["condition"] for rule in permanent} == {item["type"] for item in document["conditions"]}
    assert all(item["reason"] and item["message"] for item in document["conditions"])
    for rule in document["rules"]:
        assert Path(rule["path"]).name == HOOKS["monitor"].name
        assert seconds(rule["timeout"]) <= seconds(settings["timeout"]) < seconds(settings["invoke_interval"])


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


@pytest.mark.packages
def test_sos_collects_the_inventory_and_the_last_report(tmp_path: Path) -> None:
    """A copy of Debian's sos with the plug-in. sos sets PATH, so an overlay puts the command in /usr/sbin."""
    (package,) = Path("/usr/lib/python3/dist-packages").glob("sos")
    shutil.copytree(package, tmp_path / "sos")
    shutil.copy(REPOSITORY / "ship/sos/gpuipc_doctor.py", tmp_path / "sos/report/plugins")
    (tmp_path / "out").mkdir()
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin/gpuipc-doctor").symlink_to(Path(sys.executable).with_name("gpuipc-doctor"))
    overlay = f"mount -t overlay overlay -o lowerdir={tmp_path}/sbin:/usr/sbin /usr/sbin"
    script = f'{overlay} && exec /usr/bin/python3 /usr/bin/sos report "$@"'
    options = (
        "--batch",
        "--only-plugins=gpuipc_doctor",
        f"--tmp-dir={tmp_path}/out",
        "--compression-type=gzip",
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sos", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (tmp_path / "out").glob("sosreport-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        (inventory,) = (
            n for n in names if n.endswith("sos_commands/gpuipc_doctor/gpuipc-doctor_inventory_--json")
        )
        assert json.load(packed.extractfile(inventory) or sys.stdin)
    assert any(name.endswith("sos_commands/gpuipc_doctor/gpuipc-doctor_--version") for name in names)
