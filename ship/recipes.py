"""Write recipes for conda (rattler-build, pixi) and Spack from what pyproject.toml requires, and lint them.

    python -m ship.recipes dist [--git https://host/gpuipc-doctor.git]

conda's takes the source from this clone; with ``--git``, as Spack's always, from the release's tag.
rattler-build's parser reads conda's. Spack is on no index: the lint of its package is ours, and knows only
what we write.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import metadata, requires
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from gpuipc_doctor import __version__

REPOSITORY = Path(__file__).parents[1]

VARIANTS = {"mpi": ("mpi", {"mpi4py"}), "cuda": ("cuda12", {"cuda-bindings", "nvidia-ml-py"})}
"""Variant of Spack's package → the extra, and which of its packages Spack has (2026-11)."""

PACKAGE = '''from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class {name}(PythonPackage):
    """{summary}."""

    git = "{git}"

    license("{license}")

    {versions}

{directives}
'''
SETUPTOOLS = Requirement("setuptools>=77")
CLUSTERSHELL = "https://github.com/cea-hpc/clustershell.git"
"""Not among Spack's own packages (2026-11)."""


def required(extra: str = "") -> list[Requirement]:
    """The packages that the command needs, or that an extra adds."""
    found = map(Requirement, requires("gpuipc-doctor") or ())
    if not extra:
        return [each for each in found if each.marker is None]
    return [each for each in found if each.marker and each.marker.evaluate({"extra": extra})]


def conda(git: str) -> str:
    """recipe.yaml, in rattler-build's format."""
    of_python = ["python >=3.10"]
    recipe = {
        "schema_version": 1,
        "package": {"name": "gpuipc-doctor", "version": __version__},
        "source": {"git": git, "tag": f"v{__version__}"} if git else {"path": str(REPOSITORY)},
        "build": {
            "number": 0,
            "noarch": "python",
            "script": "python -m pip install . --no-deps --no-build-isolation",
            "python": {"entry_points": ["gpuipc-doctor = gpuipc_doctor.__main__:main"]},
        },
        "requirements": {
            "host": [*of_python, "pip", _conda(SETUPTOOLS)],
            "run": [*of_python, *map(_conda, required())],
            "run_constraints": [_conda(each) for name in ("mpi", "stacks") for each in required(name)],
        },
        "tests": [{"script": ["gpuipc-doctor --version", "gpuipc-doctor list"]}],
        "about": {
            "summary": metadata("gpuipc-doctor")["Summary"],
            "license": metadata("gpuipc-doctor")["License-Expression"],
            "license_file": "LICENSE",
        },
    }
    return yaml.safe_dump(recipe, sort_keys=False, width=110)


def _conda(requirement: Requirement) -> str:
    bounds = sorted(map(str, requirement.specifier), reverse=True)
    return f"{requirement.name.lower()} {','.join(bounds)}"


def spack(git: str) -> str:
    """Spack's package.py."""
    directives = [
        f'    variant("{name}", default=False, description="packages of the extra {extra}")'
        for name, (extra, _) in VARIANTS.items()
    ]
    directives += ["", '    depends_on("python@3.10:", type=("build", "run"))']
    directives += [f'    depends_on("{_spack(SETUPTOOLS)}", type="build")']
    directives += [f'    depends_on("{_spack(each)}", type=("build", "run"))' for each in required()]
    for name, (extra, known) in VARIANTS.items():
        wanted = [each for each in required(extra) if each.name in known]
        directives += [
            f'    depends_on("{_spack(each)}", type=("build", "run"), when="+{name}")' for each in wanted
        ]
    return PACKAGE.format(
        name="PyGpuipcDoctor",
        summary=metadata("gpuipc-doctor")["Summary"].partition(", and")[0],
        git=git or REPOSITORY.as_uri(),
        license=metadata("gpuipc-doctor")["License-Expression"],
        versions=f'version("main", branch="main")\n    version("{__version__}", tag="v{__version__}")',
        directives="\n".join(directives),
    )


def _spack(requirement: Requirement) -> str:
    """``py-cuda-bindings@12.9:12`` for ``cuda-bindings>=12.9,<13``."""
    bounds = {each.operator: each.version for each in requirement.specifier}
    below = str(int(bounds["<"]) - 1) if "<" in bounds else ""
    return f"py-{requirement.name.lower()}@{bounds.get('>=', '')}:{below}"


def clustershell() -> str:
    return PACKAGE.format(
        name="PyClustershell",
        summary="Node sets and parallel commands on clusters",
        git=CLUSTERSHELL,
        license="LGPL-2.1-or-later",
        versions='version("1.9.3", tag="v1.9.3")',
        directives='    depends_on("py-setuptools", type="build")\n'
        '    depends_on("py-pyyaml", type=("build", "run"))',
    )


SPEC = re.compile(r"(?:python|py-[a-z0-9-]+)(?:@[\d.]*(?::[\d.]*)?)?")


def mistakes(package: str) -> Iterator[str]:
    """What Spack would refuse, or what must not be in a recipe of ours."""
    yield from (f"line longer than 99: {line}" for line in package.splitlines() if len(line) > 99)
    if found := re.search(r"sha256|pypi|https?://\S*\.(?:gz|whl|zip)", package):
        yield f"a source that is neither a tag nor a path: {found[0]}"
    (body,) = (each for each in ast.parse(package).body if isinstance(each, ast.ClassDef))
    if not ast.get_docstring(body):
        yield "no docstring"
    calls = [each.value for each in body.body if isinstance(each, ast.Expr)]
    given = [
        (
            ast.unparse(call.func),
            [ast.literal_eval(each) for each in call.args],
            {str(each.arg): ast.literal_eval(each.value) for each in call.keywords},
        )
        for call in calls
        if isinstance(call, ast.Call)
    ]
    variants = {words[0] for name, words, _ in given if name == "variant"}
    for name, words, options in given:
        if name not in ("license", "version", "variant", "depends_on"):
            yield f"unknown directive {name}"
        if name == "version" and not options.keys() & {"tag", "branch"}:
            yield f"version {words[0]} without tag"
        if name == "depends_on" and not SPEC.fullmatch(words[0]):
            yield f"no spec: {words[0]}"
        if (when := options.get("when", "").lstrip("+")) and when not in variants:
            yield f"no variant {when}"


def write(out: Path, git: str = "") -> Path:
    """Write the recipes below ``out``, and return conda's; exits with the mistakes, if there are any."""
    repo = out / "spack/spack_repo/gpuipc"
    files = {
        out / "conda/recipe.yaml": conda(git),
        repo / "repo.yaml": "repo:\n  namespace: gpuipc\n  api: v2.0\n",
        repo / "packages/py_gpuipc_doctor/package.py": spack(git),
        repo / "packages/py_clustershell/package.py": clustershell(),
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.suffix == ".py" and (found := list(mistakes(text))):
            sys.exit("\n".join(f"{file}: {mistake}" for mistake in found))
    return out / "conda/recipe.yaml"


def main() -> None:
    from rattler_build import Stage0Recipe

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--git", default="", metavar="ADDRESS")
    given = parser.parse_args()
    Stage0Recipe.from_file(write(given.out.resolve(), given.git)).render()


if __name__ == "__main__":
    main()
