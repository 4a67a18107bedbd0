"""Output of each module system is parsed; a missing module is one clear line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuipc_doctor.node import environment_modules, mpi_ranks
from gpuipc_doctor.node.mpi_locate import NotFound
from gpuipc_doctor.site.config import NodeConfig, SourcedValue

LMOD = """\
import os
os.environ["CRAY_MPICH_ROOTDIR"] = "/opt/cray/pe/mpich/8.1.28";
os.environ["__LMOD_REF_COUNT_PATH"] = "/opt/it's/bin:1;/usr/bin:1";
os.environ["PATH"] = "/opt/it's/bin:/usr/bin";
os.environ["OLD"] = ''
del os.environ["OLD"]
os.environ["_LMFILES_"] = "/modules/base/1.0:/modules/craympich/8.1.28";
os.environ["_ModuleTable001_"] = "X01vZHVsZVRhYmxlXyA9IHsKTVR2ZXJzaW9uID0gMywK";
_mlstatus = True
"""
"""Output of Lmod 8.6.19."""

ENVIRONMENT_MODULES = """\
import os
os.environ['PATH'] = '/opt/it\\'s/bin:/usr/bin'
os.environ['CRAY_MPICH_ROOTDIR'] = '/opt/cray/pe/mpich/8.1.28'
os.environ['__MODULES_LMPREREQ'] = 'craympich/8.1.28&base'
os.environ['OLD'] = ''
del os.environ['OLD']
_mlstatus = True
"""
"""Output of Environment Modules 5.2.0."""

Program = Callable[..., dict[str, str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """``program(text)`` → the environment of a user whose module system prints ``text``."""

    def made(text: str, variable: str = "LMOD_CMD", stderr: str = "", code: int = 0) -> dict[str, str]:
        path = tmp_path / "modulecmd"
        path.write_text(
            "#!/bin/sh\n"
            f'echo "$*" > {tmp_path}/asked\n'
            f"printf %s {shlex.quote(text)}\nprintf %s {shlex.quote(stderr)} >&2\nexit {code}\n"
        )
        path.chmod(0o755)
        return {"PATH": "/usr/bin:/bin", variable: str(path)}

    return made


@pytest.mark.parametrize("text", [LMOD, ENVIRONMENT_MODULES])
@pytest.mark.parametrize("variable", ["LMOD_CMD", "MODULES_CMD"])
def test_both_systems_are_parsed(program: Program, tmp_path: Path, text: str, variable: str) -> None:
    assert environment_modules.load(["base", "craympich/8.1.28"], program(text, variable)) == {
        "CRAY_MPICH_ROOTDIR": "/opt/cray/pe/mpich/8.1.28",
        "PATH": "/opt/it's/bin:/usr/bin",
    }
    assert (tmp_path / "asked").read_text() == "python load base craympich/8.1.28\n"


def test_output_is_not_executed(program: Program, tmp_path: Path) -> None:
    text = f"import os\nos.mkdir('{tmp_path}/planted')\nos.environ['A'] = str(1)\n_mlstatus = True\n"
    assert environment_modules.load(["base"], program(text)) == {}
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    ("text", "stderr", "says"),
    [
        (
            "_mlstatus = False\n",
            "Lmod has found:\n  unknown: nosuch\n",
            "Lmod has found: unknown: nosuch",
        ),
        ("import os\nos.environ['A'] = '1'\n_mlstatus = False\n", "ERROR: no nosuch", "ERROR: no nosuch"),
        ("", "", "exit code 1, no output"),
        ("raise (", "", "exit code 1, no output"),
    ],
)
def test_missing_module_is_reported_with_the_systems_message(
    program: Program, text: str, stderr: str, says: str
) -> None:
    environment = program(text, stderr=stderr, code=1)
    with pytest.raises(NotFound) as caught:
        environment_modules.load(["nosuch"], environment)
    assert caught.value.reason == f"{environment['LMOD_CMD']} cannot load nosuch: {says}"


# -- environment of ranks -----------------------------------------------------------------------------


def test_missing_module_system_is_reported_with_the_config_line() -> None:
    site = NodeConfig(modules=(SourcedValue("cray-mpich", "site.yaml:3"),))
    with pytest.raises(NotFound) as caught:
        mpi_ranks.setting(site, ["cuda"], {"PATH": ""})
    assert caught.value.reason == (
        "site.yaml:3: modules: no module system found: no LMOD_CMD, no MODULES_CMD, no modulecmd on PATH"
    )


def test_precedence_is_user_then_site_then_modules(program: Program) -> None:
    site = NodeConfig(
        modules=(SourcedValue("craympich", "site.yaml:1"),),
        environment={
            "MINE": SourcedValue("site", "site.yaml:3"),
            "CRAY_MPICH_ROOTDIR": SourcedValue("/other", "site.yaml:4"),
            "NEW": SourcedValue("1", "site.yaml:5"),
        },
    )
    environment = {**program(LMOD), "MINE": "user"}
    found = mpi_ranks.setting(site, ["cuda"], environment)
    assert found.environment == {"PATH": "/opt/it's/bin:/usr/bin", "CRAY_MPICH_ROOTDIR": "/other", "NEW": "1"}
    assert found.of(environment)["MINE"] == "user"


def test_ranks_preload_their_vendors_library(program: Program, tmp_path: Path) -> None:
    library = tmp_path / "opt/cray/pe/mpich/8.1.28/gtl/lib/libmpi_gtl_hsa.so"
    library.parent.mkdir(parents=True)
    library.touch()
    site = NodeConfig(
        modules=(SourcedValue("craympich", "site.yaml:1"),),
        preload={
            "cuda": SourcedValue("/none/libmpi_gtl_cuda.so", "site.yaml:3", "for NVIDIA"),
            "hip": SourcedValue("${CRAY_MPICH_ROOTDIR}/gtl/lib/libmpi_gtl_hsa.so", "site.yaml:4", "for AMD"),
        },
    )
    found = mpi_ranks.setting(site, ["hip"], program(LMOD), str(tmp_path))
    assert found.preloading == {"LD_PRELOAD": "/opt/cray/pe/mpich/8.1.28/gtl/lib/libmpi_gtl_hsa.so"}
    with pytest.raises(NotFound) as caught:
        mpi_ranks.setting(site, ["cuda"], program(LMOD), str(tmp_path))
    assert caught.value.reason == "site.yaml:3: preload: file not found: /none/libmpi_gtl_cuda.so"
    assert caught.value.remedy == "correct the path, or remove the entry (why: for NVIDIA)"


def test_unset_variable_is_reported(tmp_path: Path) -> None:
    site = NodeConfig(preload={"hip": SourcedValue("${CRAY_MPICH_ROOTDIR}/x.so", "site.yaml:4", "for AMD")})
    with pytest.raises(NotFound, match=r"site.yaml:4: preload: .*: CRAY_MPICH_ROOTDIR is not set, and no "):
        mpi_ranks.setting(site, ["hip"], {}, str(tmp_path))
