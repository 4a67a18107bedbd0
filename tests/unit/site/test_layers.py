"""Precedence of a site config's layers, and order of their mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuipc_doctor.files.yamlfile import BadFile, Document, read
from gpuipc_doctor.site import config, hosts, layers
from gpuipc_doctor.site.layers import Layers

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file of this name; ``site.yaml`` is the site's own, ``shipped/…`` belong to the package."""
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(layers, "SITE_FILE", tmp_path / "site.yaml")
    monkeypatch.setattr(layers, "shipped", lambda: tmp_path / "shipped")

    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    return written


def unchecked(path: Path) -> Document:
    return read(path, None)


def names(top: Path | None, match: layers.Find = lambda: None) -> list[str]:
    return [document.path.name for document in layers.lineage(top, unchecked, match)]


def refused(top: Path, match: layers.Find = lambda: None) -> list[str]:
    with pytest.raises(BadFile) as caught:
        config.load(top, match)
    return [f"{wrong.path.name}:{wrong.line}: {wrong.text}" for wrong in caught.value.mistakes]


def test_extended_file_replaces_all_following_layers(write: Write) -> None:
    write("site.yaml", "tier: prolog\n")
    write("shipped/generic.yaml", "tier: acceptance\n")
    write("shipped/lake.yaml", "extends: generic\n")
    write("base.yaml", "extends: lake\n")
    top = write("top.yaml", "extends: ./base.yaml\n")
    other = write("shipped/other.yaml", "cluster: other\n")
    assert names(top, lambda: other) == ["top.yaml", "base.yaml", "lake.yaml", "generic.yaml"]
    assert names(write("own.yaml", "extends: site.yaml\n"), lambda: other) == [
        "own.yaml",
        "site.yaml",
        "other.yaml",
    ]


def test_sections_are_merged_by_entry_and_values_keep_their_lines(write: Write) -> None:
    write(
        "base.yaml",
        "environment:\n"
        "  A: from below\n"
        '  B: {value: "1", why: because}\n'
        "modules: [one,\n  two]\n"
        "deadline_s: 5\n"
        "checks_dirs: [.]\n"
        "budget_s: {prolog: 4, soak: 9}\n",
    )
    top = write("top.yaml", "extends: ./base.yaml\nenvironment:\n  A: from above\nbudget_s: {prolog: 3}\n")
    found = Layers(tuple(layers.lineage(top, unchecked)))
    assert found.data == {
        "environment": {"A": "from above", "B": {"value": "1", "why": "because"}},
        "modules": ["one", "two"],
        "deadline_s": 5,
        "checks_dirs": [str(top.parent)],
        "budget_s": {"prolog": 3, "soak": 9},
    }
    assert [
        found.where(*keys).removeprefix(f"{top.parent}/")
        for keys in (
            ("environment", "A"),
            ("environment", "B"),
            ("modules", 1),
            ("deadline_s",),
            ("budget_s", "soak"),
        )
    ] == ["top.yaml:3", "base.yaml:3", "base.yaml:5", "base.yaml:6", "base.yaml:8"]


def test_empty_variable_removes_the_lower_layers_value(write: Write) -> None:
    write("shipped/lake.yaml", "environment: {A: one, B: two}\n")
    top = write("top.yaml", "extends: lake\nenvironment: {A: }\n")
    said = config.load(top).node.environment
    assert {name: one.value for name, one in said.items()} == {"B": "two"}
    assert said["B"].where == "site-configs/lake.yaml:1"


def test_loop_of_extends_is_reported_at_its_last_line(write: Write) -> None:
    write("shipped/lake.yaml", "\nextends: sea\n")
    write("shipped/sea.yaml", "extends: lake\n")
    top = write("top.yaml", "extends: lake\n")
    back = "is a cycle; change 'extends' in one of its files"
    assert refused(top) == [f"sea.yaml:1: extends: 'lake' {back}"]
    assert refused(write("own.yaml", "extends: ./own.yaml\n")) == [
        f"own.yaml:1: extends: './own.yaml' {back}"
    ]


def test_mistakes_of_all_layers_are_reported_at_once(write: Write) -> None:
    write("base.yaml", "tier: fast\nhosts: n[1-\nversions: {nvidia-drvier: '580'}\n")
    top = write("top.yaml", "extends: ./base.yaml\nmpi: {launcher: 'srun -n{tasks}'}\n")
    assert refused(top) == [
        "base.yaml:1: tier: 'fast' is not known; it must be one of prolog, acceptance, soak",
        "base.yaml:2: hosts: 'n[1-' names no nodes: missing bracket: \"n[1-\"; see `nodeset --help`",
        "base.yaml:3: versions: no component 'nvidia-drvier'; did you mean 'nvidia-driver'?",
        "top.yaml:2: mpi.launcher: braces can only hold one of ranks, nodes, ranks_per_node, env, "
        "not 'tasks'",
    ]


def test_sites_file_is_read_or_reported_as_unreadable(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    site = write("site.yaml", "tier: prolog\n")
    assert config.load().tier.label == "prolog"
    monkeypatch.setattr(layers, "SITE_FILE", site.parent)
    with pytest.raises(BadFile, match="is a directory, not a file"):
        config.load()


def test_file_precedes_a_shipped_site_of_the_same_name(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = write("shipped/lake.yaml", "cluster: lake\n")
    assert layers.of_option(Path("lake")) == shipped
    write("lake", "{}\n")
    assert layers.of_option(Path("lake")) == Path("lake")
    assert layers.of_option(Path("laek")) == Path("laek")


# -- nodes of a config --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ({}, False),
        ({"cluster": "lake"}, True),
        ({"cluster": ["sea", "lake"]}, True),
        ({"cluster": "sea"}, False),
        ({"hosts": "nid[0001-0128]"}, True),
        ({"hosts": ["nid[0200-0300]", "nid0007"]}, True),
        ({"hosts": "nid[1-128]"}, False),
        ({"cluster": "lake", "hosts": "gpu[1-4]"}, False),
        ({"cluster": "sea", "hosts": "nid0007"}, False),
    ],
)
def test_config_fits_the_nodes_it_names(said: dict[str, object], fits: bool) -> None:
    assert hosts.is_of(said, "nid0007", "lake") is fits


def test_two_matching_shipped_sites_are_left_to_the_user(write: Write) -> None:
    write("shipped/lake.yaml", "# the lake\ncluster: lake\n")
    write("shipped/pond.yaml", "hosts: nid[0001-0009]\n")

    def match() -> Path | None:
        return hosts.matching("nid0007", "lake", unchecked)

    top = write("top.yaml", "tier: soak\n")
    assert refused(top, match) == [
        "lake.yaml:2: cluster: this node also matches site-configs/pond.yaml; "
        "name the config for this node: --config lake"
    ]
    assert names(write("own.yaml", "extends: pond\n"), match) == ["own.yaml", "pond.yaml"]


def test_cluster_name_is_the_jobs_or_that_of_slurm_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "SLURM_CONF", (str(tmp_path / "none"), str(tmp_path / "default.conf")))
    assert hosts.cluster_name({}) == ""
    (tmp_path / "default.conf").write_text("#ClusterName=no\nclustername = lake # ours\n")
    assert hosts.cluster_name({}) == "lake"
    (tmp_path / "named.conf").write_text("ControlMachine=x\nClusterName=pond\n")
    assert hosts.cluster_name({"SLURM_CONF": str(tmp_path / "named.conf")}) == "pond"
    assert hosts.cluster_name({"SLURM_CLUSTER_NAME": "sea"}) == "sea"
