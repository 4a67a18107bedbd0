"""``config shell``: completions and a manual page below a prefix."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import COMMANDS, cli


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    done = CliRunner().invoke(cli, ["config", "shell", "--to", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"fpath+={tmp_path}/share/zsh/site-functions" in done.output
    return tmp_path / "share"


def test_bash_completes_the_commands(prefix: Path) -> None:
    text = (prefix / "bash-completion/completions/gpuipc-doctor").read_text()
    assert "complete -o nosort -F _gpuipc_doctor_completion gpuipc-doctor" in text
    assert (prefix / "zsh/site-functions/_gpuipc-doctor").read_text().startswith("#compdef gpuipc-doctor")
    assert "gpuipc-doctor" in (prefix / "fish/vendor_completions.d/gpuipc-doctor.fish").read_text()


def test_manual_has_every_command_and_is_roff(prefix: Path) -> None:
    file = prefix / "man/man1/gpuipc-doctor.1"
    text = file.read_text()
    assert [name for name in COMMANDS if f".SH GPUIPC-DOCTOR {name.upper()}\n" not in text] == []
    assert ".SH GPUIPC-DOCTOR FLEET CHECK\n" in text
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", file], capture_output=True, text=True)
        assert (done.stderr, "require" in done.stdout) == ("", True)


def test_a_prefix_that_cannot_be_written_is_one_line() -> None:
    done = CliRunner().invoke(cli, ["config", "shell", "--to", "/dev/null"])
    assert done.exit_code == 2
    assert "cannot write /dev/null/share/" in done.output
