"""``config hooks``: content of the files, and errors if they cannot be written.

Their behaviour under Slurm is tested in tests/slurm.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.prolog import isolation
from gpuipc_doctor.prolog.decision import Kind
from gpuipc_doctor.prolog.hooks import HOOKS


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "our site.yaml"
    file.write_text("budget_s: {prolog: 20}\n")
    return file


@pytest.fixture
def scontrol(tmp_path: Path) -> str:
    file = tmp_path / "scontrol"
    file.touch(mode=0o755)
    return str(file)


def hooks(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["config", "hooks", *map(str, arguments)])


@pytest.mark.parametrize("which", HOOKS)
def test_every_path_is_filled_in_and_quoted(config: Path, scontrol: str, which: str) -> None:
    shown = hooks(which, "--config", config, "--scontrol", scontrol).output
    command = "job --sweep" if which == "sweep" else "prolog"
    assert f"{sys.executable} -I -m gpuipc_doctor {command} --config '{config}')" in shown
    assert "@" not in shown
    assert subprocess.run(["bash", "-n"], input=shown, text=True, capture_output=True).stderr == ""


def test_slurm_variables_that_the_prolog_keeps_are_passed_on(config: Path, scontrol: str) -> None:
    shown = hooks("slurm", "--config", config, "--scontrol", scontrol).output
    assert tuple(re.findall(r'^    \$\{(\w+)\+"\1=\$\1"\}', shown, re.MULTILINE)) == isolation.KEPT


def test_epilog_is_the_same_hook_with_its_own_command_and_use(
    config: Path, scontrol: str, tmp_path: Path
) -> None:
    common = ("slurm", "--config", config, "--scontrol", scontrol)
    shown = hooks(*common, "--epilog").output
    assert shown.startswith("#!/bin/sh\n# Slurm's Epilog: ")
    assert f"-I -m gpuipc_doctor epilog --config '{config}')" in shown
    assert (
        shown.partition("# A node is drained")[2].replace(" epilog ", " prolog ")
        == (hooks(*common).output.partition("# A node is drained")[2])
    )
    assert "gpuipc-doctor prolog" not in shown
    assert subprocess.run(["sh", "-n"], input=shown, text=True, capture_output=True).stderr == ""
    assert hooks(*common, "--epilog", "--to", tmp_path).exit_code == 0
    assert (
        f"Epilog={tmp_path}/gpuipc-doctor-slurm-epilog"
        in (tmp_path / "gpuipc-doctor-slurm-epilog").read_text()
    )


def test_epilog_goes_with_slurm_only(config: Path) -> None:
    assert "--epilog goes with slurm only" in hooks("nhc", "--config", config, "--epilog").output


@pytest.mark.parametrize("which", [name for name in HOOKS if name != "sweep"])
def test_hook_drains_on_the_prologs_drain_codes(which: str) -> None:
    codes = sorted({kind.exit_code for kind in Kind})
    text = (
        Path(sys.modules["gpuipc_doctor.prolog.hooks"].__file__ or "")
        .with_name(HOOKS[which].source)
        .read_text()
    )
    assert f"    {' | '.join(map(str, codes))})" in text


def test_slurm_conf_is_passed_on_if_not_in_the_usual_place(
    config: Path, scontrol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert "SLURM_CONF" not in hooks("slurm", "--config", config, "--scontrol", scontrol).output
    monkeypatch.setenv("SLURM_CONF", "/opt/our slurm/slurm.conf")
    shown = hooks("slurm", "--config", config, "--scontrol", scontrol).output
    assert "SLURM_CONF='/opt/our slurm/slurm.conf'\nexport SLURM_CONF\n" in shown


def test_rewritten_hook_is_replaced_and_keeps_its_mode(config: Path, scontrol: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = hooks("slurm", "--config", config, "--scontrol", scontrol, "--to", tmp_path)
        assert done.exit_code == 0, done.output
    file = tmp_path / "gpuipc-doctor-slurm"
    assert done.output == f"{file}: written; its first lines say how to use it\n"
    assert file.stat().st_mode & 0o777 == 0o755
    assert f"#   Prolog={file}\n" in file.read_text()


def test_foreign_file_is_not_overwritten(config: Path, scontrol: str, tmp_path: Path) -> None:
    file = tmp_path / "gpuipc-doctor-slurm"
    file.write_text("#!/bin/sh\n")
    done = hooks("slurm", "--config", config, "--scontrol", scontrol, "--to", tmp_path)
    assert done.exit_code == 2
    assert f"{file} exists and was not written by this tool; move it away" in done.output
    assert file.read_text() == "#!/bin/sh\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is held to it")
def test_root_writes_nothing_into_a_directory_that_others_can_write(
    config: Path, scontrol: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks").chmod(0o777)
    done = hooks("slurm", "--config", config, "--scontrol", scontrol, "--to", tmp_path / "hooks")
    assert f"gpuipc-doctor-slurm: is not trusted: others can write {tmp_path / 'hooks'}" in done.output
    assert done.exit_code == 2
    assert list((tmp_path / "hooks").iterdir()) == []


def test_config_with_mistakes_is_not_installed(config: Path, scontrol: str) -> None:
    config.write_text("prolog: {on_fail: drian}\n")
    done = hooks("slurm", "--config", config, "--scontrol", scontrol)
    assert "drian" in str(done.exception)
    assert "#!/bin/sh" not in done.output


def test_a_build_host_without_slurm_names_the_path_on_the_nodes(config: Path) -> None:
    done = hooks("slurm", "--config", config, "--scontrol", "/nowhere/scontrol")
    assert done.exit_code == 0
    assert "/nowhere/scontrol --oneliner show node" in done.stdout
    assert "/nowhere/scontrol is not on this machine; the nodes must have it" in done.stderr


@pytest.mark.parametrize("named", [[], ["--scontrol", "scontrol-of-ours"]])
def test_missing_scontrol_is_reported(
    config: Path, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = hooks("slurm", "--config", config, *named)
    assert done.exit_code == 2
    assert "give its path on the nodes, as --scontrol /usr/bin/scontrol" in done.output


def nhc(check: str) -> subprocess.CompletedProcess[str]:
    """Run the check with stand-ins for NHC's ``die`` and ``log``, the first with the quoting of NHC 1.4."""
    functions = """die() { eval echo "'die'" "'$*'"; }\nlog() { echo "log $*"; }\n"""
    return subprocess.run(["bash", "-c", f"{check}\n{functions}check_gpuipc"], capture_output=True, text=True)


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("profile", "python", "said"),
    [
        ("healthy-single", sys.executable, ""),
        ("nvidia-460.32.03", sys.executable, "die 1 check_gpuipc:  gpuipc-doctor: SIMULATED"),
        ("healthy-single", "/nowhere/python", "log check_gpuipc:  gpuipc-doctor prolog ended with 127"),
    ],
)
def test_nhc_check_calls_the_functions_of_nhc(config: Path, profile: str, python: str, said: str) -> None:
    policy = "on_fail: drain, on_error: log, on_budget: log, on_unkillable: log"
    config.write_text(f"budget_s: {{prolog: 90}}\nprolog: {{{policy}, simulate: {profile}}}\n")
    ended = nhc(hooks("nhc", "--config", config).output.replace(sys.executable, python))
    assert ended.stdout.startswith(said), ended
    assert bool(ended.stdout) == bool(said)
    assert ended.returncode == (1 if said.startswith("die") else 0)


def test_text_evaluated_by_nhc_has_no_apostrophes(config: Path, tmp_path: Path) -> None:
    drains = tmp_path / "drains"
    drains.write_text("#!/bin/sh\necho \"it'; echo evaluated; 's bad\"; exit 12\n")
    drains.chmod(0o755)
    ended = nhc(hooks("nhc", "--config", config).output.replace(sys.executable, str(drains)))
    assert ended.stdout == "die 1 check_gpuipc:  it; echo evaluated; s bad\n"


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("profile", "python", "code", "line"),
    [
        pytest.param(
            "healthy-single",
            sys.executable,
            0,
            "gpuipc-doctor: SIMULATED (healthy-single) PASS",
            marks=pytest.mark.full,
        ),
        ("nvidia-460.32.03", sys.executable, 1, "gpuipc-doctor: SIMULATED (nvidia-460.32.03) FAIL"),
        ("healthy-single", "/nowhere/python", 2, ""),
    ],
)
def test_monitor_exits_0_healthy_1_drain_2_unknown(
    config: Path, profile: str, python: str, code: int, line: str
) -> None:
    """node-problem-detector's custom plug-ins and NVSentinel's preflight checks use these codes."""
    policy = "on_fail: drain, on_error: log, on_budget: log, on_unkillable: log"
    config.write_text(f"budget_s: {{prolog: 90}}\nprolog: {{{policy}, simulate: {profile}}}\n")
    script = hooks("monitor", "--config", config).output.replace(sys.executable, python)
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.startswith(line)) == (code, True), ended
    assert ended.stdout.count("\n") == bool(line)


@pytest.mark.parametrize(("found", "code"), [(0, 0), (11, 2), (12, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("is_slurm", [True, False])
def test_sweep_exits_0_healthy_1_stuck_2_unknown_and_under_slurm_0(
    config: Path, tmp_path: Path, found: int, code: int, is_slurm: bool
) -> None:
    """Slurm runs a HealthCheckProgram without PATH, and its slurmd registers only after exit code 0."""
    said, logged = tmp_path / "said", tmp_path / "logged"
    said.write_text(f"#!/bin/sh\necho 'gpuipc-doctor: FAIL $x'; exit {found}\n")
    logger = tmp_path / "logger"
    logger.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >{logged}\n')
    for program in (said, logger):
        program.chmod(0o755)
    script = hooks("sweep", "--config", config).output.replace(sys.executable, str(said))
    script = script.replace("/usr/bin/logger", str(logger))
    environment = {"SLURMD_NODENAME": "n1"} if is_slurm else {}
    ended = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stdout) == (0 if is_slurm else code, "gpuipc-doctor: FAIL $x\n")
    assert logged.exists() == (is_slurm and found > 0)
    if logged.exists():
        assert logged.read_text() == "-t gpuipc-doctor -p daemon.warning -- FAIL $x\n"


def test_monitor_with_a_config_that_became_wrong_is_unknown(config: Path) -> None:
    script = hooks("monitor", "--config", config).output
    config.write_text("prolog: {on_fail: drian}\n")
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "drian" in ended.stderr
