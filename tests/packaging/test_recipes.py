"""The recipes for conda and Spack: read by rattler-build, and linted."""

from __future__ import annotations

from pathlib import Path

import pytest
from rattler_build import Stage0Recipe

from gpuipc_doctor import __version__
from ship import recipes


def test_recipes_name_what_the_command_needs_and_no_index(tmp_path: Path) -> None:
    file = recipes.write(tmp_path)
    (variant,) = Stage0Recipe.from_file(file).render()
    assert variant.recipe.package.name == "gpuipc-doctor"
    packages = tmp_path / "spack/spack_repo/gpuipc/packages"
    spack = (packages / "py_gpuipc_doctor/package.py").read_text()
    names = [each.name.lower() for each in recipes.required()]
    assert len(names) >= 8
    for name in names:
        assert f"- {name} >=" in file.read_text()
        assert f'depends_on("py-{name}@' in spack
    for text in (file.read_text(), *(each.read_text() for each in packages.rglob("*.py"))):
        assert not any(word in text for word in ("sha256", "pypi", "anaconda", "rocm"))


def test_source_is_the_tag_at_a_given_address(tmp_path: Path) -> None:
    file = recipes.write(tmp_path, "https://host.example/gpuipc-doctor.git")
    assert "path:" not in file.read_text()
    Stage0Recipe.from_file(file).render()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('tag="v', 'sha256="', "neither a tag nor a path"),
        (f', tag="v{__version__}"', "", f"version {__version__} without tag"),
        ('variant("mpi"', 'variant("mpich"', "no variant mpi"),
        ('"py-click@8.2:"', '"py-click>=8.2"', "no spec: py-click>=8.2"),
        ("    license(", "    licence(", "unknown directive licence"),
        ('    """Test', '    says = """Test', "no docstring"),
    ],
)
def test_lint_names_the_mistake(before: str, after: str, says: str) -> None:
    good = recipes.spack("")
    assert list(recipes.mistakes(good)) == []
    assert before in good
    assert any(says in mistake for mistake in recipes.mistakes(good.replace(before, after)))
