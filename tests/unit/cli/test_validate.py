"""``config validate`` and ``known-issues lint`` name all mistakes in one pass."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli.main import cli


def test_a_config_its_checks_and_its_known_issues_are_looked_at_together(tmp_path: Path) -> None:
    for name in ("checks", "issues"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "checks" / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "issues" / "ours.yaml").write_text("isues: []\n")
    site = tmp_path / "site.yaml"
    site.write_text(
        "teir: soak\n"
        "checks_dirs: [checks]\n"
        "known_issues_dirs: [issues]\n"
        "disabled: {ipc-reopne: it is slow}\n"
        "mpi: {launcher: mpiexec}\n"
    )
    site.chmod(0o644)
    said = CliRunner().invoke(cli, ["config", "validate", str(site)])
    assert said.exit_code == 2
    for mistake in (
        "site.yaml:1: unknown key 'teir'",
        "site.yaml:4: disabled: there is no check 'ipc-reopne'; did you mean 'ipc-reopen'?",
        "site.yaml:5: mpi.launcher: {ranks} is missing",
        "ours.yaml:1: unknown key 'isues'",
        "ModuleNotFoundError",
    ):
        assert mistake in said.output


def test_an_entry_that_breaks_the_schema_does_not_hide_the_mistakes_of_others(tmp_path: Path) -> None:
    shipped = min(knownissues.files(), key=lambda file: file.stat().st_size).read_text()
    lines = shipped.splitlines()
    first = next(number for number, line in enumerate(lines) if line.lstrip("- ").startswith("id:"))
    entry = "\n".join(lines[first:])
    broken = entry.replace("component:", "componnet:", 1)
    again = entry.replace("detected_by: [", "detected_by: [ipc-reopne, ", 1)
    again = again if again != entry else f"{entry}\n    detected_by: [ipc-reopne]"
    head = "\n".join(lines[:first])
    file = tmp_path / "ours.yaml"
    file.write_text(f"{head}\n{broken}\n{again}\n")
    said = CliRunner().invoke(cli, ["known-issues", "lint", str(file)])
    assert said.exit_code == 2
    assert "componnet" in said.output
    assert "ipc-reopne" in said.output
