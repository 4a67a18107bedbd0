"""The steps of docs/slurm.md, from `pip install` to a drained node, under a real Slurm."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.waiting import LIMIT_S

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.cuda,
    pytest.mark.timeout(600),
]

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/slurm.md"

COMMANDS = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
FILE = re.compile(r"```(?:yaml|text)\n((?:.*\n)*?)```\n")
SCREEN = re.compile(r"```console\n((?:.*\n)*?)```\n")


def section() -> str:
    between = r"^## Set it up with Slurm\n(.*?)^## Exit codes"
    (found,) = re.findall(between, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def give_it_a_root_of_its_own(cluster: Cluster) -> None:
    """Give the cluster its own /etc, /opt and /var/log, because the commands write there."""
    own = cluster.directory / "root"
    shutil.copytree("/etc", own / "etc", symlinks=True)
    for name in ("opt", "log", "etc/slurm"):
        (own / name).mkdir(exist_ok=True)
    for source, target in (("etc", "/etc"), ("opt", "/opt"), ("log", "/var/log")):
        cluster.ask("mount", "--bind", str(own / source), target)
    cluster.ask("mount", "--bind", str(cluster.directory), "/etc/slurm")
    del cluster.environment["SLURM_CONF"]


def of_us(screen: str) -> str:
    """The screen without srun's messages about a refused or a waiting job, which vary."""
    return re.sub(
        r"^srun: (error|Force Terminated|Job step aborted|job \d+ ).*\n", "", screen, flags=re.MULTILINE
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the repository: installing from a directory leaves ``build`` in it."""
    copy = tmp_path / "source"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info"))
    return copy


def test_page_leads_from_pip_install_to_a_drained_node(slurm: Callable[..., Cluster], source: Path) -> None:
    cluster = slurm()
    give_it_a_root_of_its_own(cluster)

    def do(command: str) -> str:
        return cluster.ask("sh", "-c", command, timeout_s=LIMIT_S)

    install, look, simulate, repair = COMMANDS.findall(section())
    config, settings = FILE.findall(section())
    shadow, real = SCREEN.findall(section())

    # This version instead of PyPI's, without CuPy's 100 MB, and without compiling unused modules.
    instead = f"--no-compile {source} 'cuda-bindings==12.9.*'"
    for line in install.splitlines():
        do(line.replace("'.[cuda12]'", instead))
    do(f"cat > /etc/gpuipc-doctor/site.yaml <<'END'\n{config}END")
    for line in look.splitlines():
        do(line)
    do(f"cat >> /etc/slurm/slurm.conf <<'END'\n{settings}END\nscontrol reconfigure")
    do("sed -i 's/^prolog:/budget_s: {prolog: 30}\\n&/' /etc/gpuipc-doctor/site.yaml")  # a busy machine

    for line in simulate.splitlines():
        do(line)

    def typed(line: str) -> str:
        if line.startswith("sinfo"):  # not earlier than a person could type it
            cluster.await_node("n1", "drained")
        return f"$ {line}\n{do(f'{line} 2>&1 || true')}"

    for screen in (shadow, real):
        shown = "".join(map(typed, re.findall(r"^\$ (.*)", screen, re.MULTILINE)))
        if shown != screen and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
            PAGE.write_text(PAGE.read_text().replace(screen, shown))
            pytest.fail("docs/slurm.md was updated; look at it with git diff", pytrace=False)
        assert of_us(shown) == of_us(screen)
    for line in repair.splitlines():
        ended = cluster.run("sh", "-c", line)
        assert ended.returncode == 0 or (" check " in line and "no GPU" in ended.stdout), ended
    cluster.await_node("n1", "idle")
