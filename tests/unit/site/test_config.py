"""Values of a site config keep their line numbers; each mistake is one clear line."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor import site_configs
from gpuipc_doctor.cli.config import command
from gpuipc_doctor.files.yamlfile import BadFile
from gpuipc_doctor.model import MemoryShare, Tier
from gpuipc_doctor.site import config, config_mistakes
from gpuipc_doctor.site.config import SiteConfig, Waiver
from gpuipc_doctor.site.policy import Action, PrologConfig, SweepConfig

GENERIC = Path(str(site_configs.__file__)).with_name("generic.yaml")


POLICY = ("on_fail", "on_error", "on_budget", "on_unkillable")
POLICIES = ", ".join(f"{key}: log" for key in POLICY)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def told(path: Path) -> list[str]:
    with pytest.raises(BadFile) as caught:
        config.load(path)
    return [str(mistake).replace(f"{path.parent}/", "") for mistake in caught.value.mistakes]


def test_generic_yaml_has_the_defaults_and_every_key(tmp_path: Path) -> None:
    text = GENERIC.read_text()
    assert (
        config.load(write(tmp_path / "x.yaml", text)) == SiteConfig()
    )  # a copy: the source may not be owned by root
    keys = config_mistakes.schema()["properties"]
    assert [key for key in keys if f"\n{key}:" not in text.replace("\n# ", "\n").replace("\n  ", "\n")] == []
    prolog = keys["prolog"]["properties"]
    stated = text.replace("\n  #   ", "\n  ")
    assert [key for key in [*prolog, *prolog["breaker"]["properties"]] if f"\n  {key}:" not in stated] == []


def test_all_values_of_a_config(tmp_path: Path) -> None:
    (tmp_path / "our-checks").mkdir()
    (tmp_path / "our-issues").mkdir()
    path = write(
        tmp_path / "x.yaml",
        "checks_dirs: [our-checks]\n"
        f"known_issues_dirs: ['{tmp_path}/our-issues']\n"
        "tier: prolog\n"
        "deadline_s: 5\n"
        "start_up_s: 1.5\n"
        "budget_s: {prolog: 4}\n"
        "memory: {fraction: 0.5}\n"
        "disabled:\n"
        "  ipc-peer: no NVLink, ticket 4711\n"
        "  ipc-stale: {reason: ticket 4712, until: 2026-12-31}\n"
        "prolog:\n"
        "  on_fail: log\n"
        "  on_error: ignore\n"
        "  on_budget: drain\n"
        "  on_unkillable: drain\n"
        "  shadow: true\n"
        "  checks: [ipc-reopen]\n"
        "  deadline_s: 2\n"
        "  fresh_for_s: 60\n"
        "  state_dir: state\n"
        "  log: /var/log/ours\n"
        "  log_max_bytes: 65536\n"
        "  syslog: false\n"
        "  breaker: {share: 0.5}\n"
        "  simulate: healthy-cuda\n"
        "sweep: {state_dir: sweep, over_s: 300}\n"
        "options:\n"
        "  ipc-release: {rounds: 3}\n",
    )
    assert config.load(path) == SiteConfig(
        checks_dirs=(tmp_path / "our-checks",),
        known_issues_dirs=(tmp_path / "our-issues",),
        disabled={
            "ipc-peer": Waiver("no NVLink, ticket 4711", f"{path}:9"),
            "ipc-stale": Waiver("ticket 4712", f"{path}:10", date(2026, 12, 31)),
        },
        prolog=PrologConfig(
            Action.LOG,
            Action.IGNORE,
            Action.DRAIN,
            Action.DRAIN,
            shadow=True,
            checks=("ipc-reopen",),
            deadline_s=2,
            fresh_for_s=60,
            state_dir=str(tmp_path / "state"),
            log="/var/log/ours",
            log_max_bytes=65536,
            syslog=False,
            breaker={"share": 0.5},
            simulate="healthy-cuda",
        ),
        sweep=SweepConfig(over_s=300, state_dir=str(tmp_path / "sweep")),
        tier=Tier.PROLOG,
        deadline_s=5.0,
        start_up_s=1.5,
        budget_s={Tier.PROLOG: 4.0, Tier.ACCEPTANCE: 300.0, Tier.SOAK: 3600.0},
        options={"ipc-release": {"rounds": 3}},
        memory=MemoryShare(0.5, 2.0),
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("deadlin_s: 3\n", ["x.yaml:1: unknown key 'deadlin_s'; did you mean 'deadline_s'?"]),
        ("tier: acceptence\n", ["x.yaml:1: tier: 'acceptence' is not known; did you mean 'acceptance'?"]),
        ("budget_s: {prolog: 0}\n", ["x.yaml:1: budget_s.prolog must be more than 0, not 0"]),
        ("job: {late_after_s: 5}\n", ["x.yaml:1: job.late_after_s must be at least 60, not 5"]),
        ("sweep: {power_share: 2}\n", ["x.yaml:1: sweep.power_share must be at most 1, not 2"]),
        ("sweep: {over: 5}\n", ["x.yaml:1: sweep: unknown key 'over'; did you mean 'over_s'?"]),
        ("memory: {fraction: 5}\n", ["x.yaml:1: memory.fraction must be at most 0.9, not 5"]),
        ("deadline_s: 1000000\n", ["x.yaml:1: deadline_s must be at most 604800, not 1000000"]),
        (
            "disabled:\n  ipc-peer:\n",
            ["x.yaml:2: disabled.ipc-peer must be text or a mapping (key: value), not empty"],
        ),
        ("disabled: {IPC: x}\n", ["x.yaml:1: disabled: key 'IPC' is not the id of a check"]),
        ("prolog: {}\n", [f"x.yaml:1: prolog: key '{key}' is missing" for key in sorted(POLICY)]),
        (
            f"prolog: {{{POLICIES}, on_fial: log}}\n",
            ["x.yaml:1: prolog: unknown key 'on_fial'; did you mean 'on_fail'?"],
        ),
        (f"prolog: {{{POLICIES}, shadow: 1}}\n", ["x.yaml:1: prolog.shadow must be true or false, not 1"]),
        (
            f"prolog: {{{POLICIES}, breaker: {{max_drains: 3}}}}\n",
            ["x.yaml:1: prolog.breaker: unknown key 'max_drains'"],
        ),
        ("disabled: {ipc-peer: {reason: x}}\n", ["x.yaml:1: disabled.ipc-peer: key 'until' is missing"]),
        (
            "disabled: {ipc-peer: {reason: x, until: soon}}\n",
            ["x.yaml:1: disabled.ipc-peer.until: 'soon' is not a day such as 2026-12-31"],
        ),
        (
            "disabled:\n  ipc-peer: {reason: x, until: 2026-02-30}\n",
            ["x.yaml:2: disabled.ipc-peer: no such date: 2026-02-30"],
        ),
        ("gpus: {count: 8, peers: 8}\n", ["x.yaml:1: gpus: each of 8 GPUs has at most 7 peers, not 8"]),
        (
            "gpus: {count: 1, peers: all}\n",
            ["x.yaml:1: gpus: a single GPU has no peers; remove 'peers', or correct 'count'"],
        ),
        (
            "gpus: {count: 8}\nnode_types:\n  a: {gpus: {count: 2, peers: 2}}\n",
            ["x.yaml:3: node_types.a.gpus: each of 2 GPUs has at most 1 peers, not 2"],
        ),
        ("gpus: {peers: every}\n", ["x.yaml:1: gpus.peers: 'every' is not a number of GPUs, or all"]),
        ("gpus: {nvlink: 18}\n", ["x.yaml:1: gpus: unknown key 'nvlink'; did you mean 'nvlinks'?"]),
        (
            "versions: {nvidia-driver: {from: '590', to: '580', else: fail}}\n",
            ["x.yaml:1: versions.nvidia-driver: no version is in this range: 590 to 580"],
        ),
        (
            "gpus: {count: 8, else: reject}\n",
            ["x.yaml:1: gpus.else: 'reject' is not known; it must be one of fail, warn"],
        ),
        (
            "settings: {persistance: on}\n",
            ["x.yaml:1: settings: key 'persistance' is not known; did you mean 'persistence'?"],
        ),
        (
            "fabric: none\nadapters: {verbs: 8}\n",
            ["x.yaml:2: adapters: verbs contradicts `fabric: none` at x.yaml:1; remove one of the two"],
        ),
        (
            "disabled: {ipc-peer: no NVLink}\nfabric: none\nrequired: [ipc-peer, fabric-info]\n",
            [
                "x.yaml:3: required: fabric-info needs a fabric, and x.yaml:2 says that there is none; "
                "remove one of the two",
                "x.yaml:3: required: ipc-peer is disabled at x.yaml:1; remove one of the two",
            ],
        ),
        (
            "limits: {open_files: many}\n",
            ["x.yaml:1: limits.open_files: 'many' is not a whole number, or unlimited"],
        ),
        ("checks_dirs: here\n", ["x.yaml:1: checks_dirs must be a list, not 'here'"]),
        ("\nchecks_dirs:\n- none\n", ["x.yaml:3: checks_dirs: none: No such file or directory"]),
        (
            "known_issues_dirs:\n- x.yaml\n- none\n",
            [
                "x.yaml:2: known_issues_dirs: x.yaml: Not a directory",
                "x.yaml:3: known_issues_dirs: none: No such file or directory",
            ],
        ),
    ],
)
def test_each_mistake_is_one_clear_line(tmp_path: Path, text: str, lines: list[str]) -> None:
    assert told(write(tmp_path / "x.yaml", text)) == lines


def test_missing_file_is_reported_as_such(tmp_path: Path) -> None:
    assert told(tmp_path / "x.yaml") == ["x.yaml: cannot be read: No such file or directory"]


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's user look like root, and its files like root's."""
    me, real = os.geteuid(), Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        status = real(path, **how)
        owner = 0 if status.st_uid == me else status.st_uid
        return os.stat_result((*status[:4], owner, *status[5:]))

    if me != 0:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(Path, "stat", stat)


root = pytest.mark.usefixtures("as_root")


@root
def test_root_refuses_a_config_that_others_can_write(tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", "{}\n")
    path.chmod(0o664)
    assert told(path) == [
        "x.yaml: is not trusted: others can write x.yaml; as root, first `chmod go-w x.yaml`"
    ]


def test_root_refuses_a_config_that_belongs_to_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.yaml", "{}\n")
    if os.geteuid() == 0:
        os.chown(path, 1000, -1)
    user = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (line,) = told(path)
    assert line.startswith("x.yaml: is not trusted: ")
    assert line.endswith(f" belongs to user {user}; as root, use root's files")


@root
def test_root_refuses_a_config_that_others_could_replace(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    path = write(tmp_path / "open" / "x.yaml", "{}\n")
    (tmp_path / "open").chmod(0o777)
    (line,) = told(path)
    assert line.startswith("x.yaml: is not trusted: others can write ")
    (tmp_path / "open").chmod(0o1777)  # like /tmp: users cannot move other users' files there
    assert config.load(path) == SiteConfig()
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    (tmp_path / "open").chmod(0o777)
    (line,) = told(link)
    assert "others can write" in line


@root
def test_directory_is_reported_and_no_chmod_of_a_shared_one_is_suggested(tmp_path: Path) -> None:
    """`chmod go-w /tmp` would break the machine."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert told(shared) == ["shared: is a directory, not a file"]
    (line,) = told(write(tmp_path / "x.yaml", "checks_dirs: [shared]\n"))
    assert line.endswith("others can write shared; as root, use a directory that only root can write")


@root
def test_root_refuses_a_path_that_others_can_redirect(tmp_path: Path) -> None:
    for name in ("ours", "open"):
        (tmp_path / name).mkdir(mode=0o755)
    path = write(tmp_path / "ours" / "x.yaml", "{}\n")
    (tmp_path / "open" / "middle").symlink_to(path.parent)
    (tmp_path / "first").symlink_to("open/middle")  # root's own link, but through another user's directory
    assert config.load(tmp_path / "first" / "x.yaml") == SiteConfig()
    (tmp_path / "open").chmod(0o777)
    (line,) = told(tmp_path / "first" / "x.yaml")
    assert f"others can write {tmp_path}/open;" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_root_refuses_a_link_that_a_user_can_change(tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(write(tmp_path / "x.yaml", "{}\n"))
    assert config.load(link) == SiteConfig()
    os.lchown(link, 1000, -1)
    (line,) = told(link)
    assert "link.yaml belongs to user 1000" in line


@root
def test_root_refuses_compiled_checks_that_others_can_write(tmp_path: Path) -> None:
    write(tmp_path / "ours" / "ours.py", "")
    path = write(tmp_path / "x.yaml", "checks_dirs: [ours]\n")
    compiled = write(tmp_path / "ours" / "__pycache__" / "ours.cpython-311.pyc", "")
    assert config.load(path)
    compiled.chmod(0o666)
    assert "others can write ours/__pycache__/ours.cpython-311.pyc" in told(path)[0]
    compiled.chmod(0o644)
    compiled.parent.chmod(0o777)
    assert "others can write ours/__pycache__;" in told(path)[0]


@root
@pytest.mark.parametrize(("key", "file"), [("checks_dirs", "ours.py"), ("known_issues_dirs", "ours.yaml")])
def test_root_refuses_directories_that_others_can_write(tmp_path: Path, key: str, file: str) -> None:
    planted = write(tmp_path / "ours" / file, "")
    path = write(tmp_path / "x.yaml", f"{key}: [ours]\n")
    assert config.load(path)
    planted.chmod(0o666)
    assert told(path) == [
        f"x.yaml:1: {key}: ours/{file} is not trusted: others can write ours/{file};"
        f" as root, first `chmod go-w ours/{file}`"
    ]
    planted.chmod(0o644)
    planted.parent.chmod(0o1777)
    assert told(path)[0].startswith(f"x.yaml:1: {key}: ours is not trusted: others can write ours;")


def test_user_may_use_his_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.yaml", "{}\n")
    path.chmod(0o666)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert config.load(path) == SiteConfig()


def validate(*files: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["validate", *map(str, files)])
    return result.exit_code, result.stdout, result.stderr


def test_validate_accepts_a_valid_config(tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", "disabled: {driver-init: why not}\n")
    assert validate(path) == (0, f"{path}: fine\n", "")


def test_validate_reports_a_wrong_node_set(tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", "# ours\nhosts: nid[01-99\n")
    code, _, err = validate(path)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"gpuipc-doctor: {path}:2: hosts: 'nid[01-99' names no nodes: missing bracket")


def test_name_that_is_neither_a_file_nor_a_shipped_site(tmp_path: Path) -> None:
    code, _, err = validate(Path("olcf-fronteir"))
    assert (code, err) == (
        2,
        "gpuipc-doctor: olcf-fronteir: no file and no shipped site has this name; "
        "did you mean 'olcf-frontier'?\n",
    )
    code, _, err = validate(write(tmp_path / "x.yaml", "extends: ours\n"))
    assert "x.yaml:1: extends: no shipped site 'ours'; the shipped sites are csc-lumi-g, " in err


def test_validate_reports_every_mistake_of_every_file_and_its_additions(tmp_path: Path) -> None:
    write(tmp_path / "checks" / "ours.py", "import no_such_module\n")
    write(tmp_path / "issues" / "ours.yaml", "issues: []\n")
    a = write(tmp_path / "a.yaml", "tier: fast\n")
    b = write(
        tmp_path / "b.yaml",
        "checks_dirs: [checks]\nknown_issues_dirs: [issues]\n"
        "disabled: {driver-inot: x}\noptions: {zzz: {}}\n",
    )
    code, out, err = validate(a, b)
    assert (code, out) == (2, "")
    assert err.replace(f"{tmp_path}/", "").splitlines() == [
        "gpuipc-doctor: a.yaml:1: tier: 'fast' is not known; it must be one of prolog, acceptance, soak",
        "gpuipc-doctor: b.yaml:3: disabled: no check 'driver-inot'; did you mean 'driver-init'?",
        "gpuipc-doctor: b.yaml:4: options: no check 'zzz'",
        "gpuipc-doctor: issues/ours.yaml:1: issues must not be empty",
        "gpuipc-doctor: checks/ours.py:1: ModuleNotFoundError: No module named 'no_such_module'",
    ]


def test_mistakes_beyond_the_schema_are_reported_with_those_of_the_schema(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.yaml",
        "teir: soak\n"
        "budget_s: {prolog: soon}\n"
        "mpi: {launcher: mpiexec}\n"
        "checks_dirs: [none]\n"
        "disabled: {ipc-peer: {reason: x, until: 2026-02-30}}\n",
    )
    assert [line.removeprefix(f"{path.name}:") for line in told(path)] == [
        "1: unknown key 'teir'; did you mean 'tier'?",
        "2: budget_s.prolog must be a number, not 'soon'",
        "3: mpi.launcher: {ranks} is missing: it stands for the number of ranks to start",
        "4: checks_dirs: none: No such file or directory",
        "5: disabled.ipc-peer: no such date: 2026-02-30",
    ]


@pytest.mark.parametrize(
    "text", ["[]", "prolog: []\nchecks_dirs: {a: 1}\n", "checks_dirs: [1]\n", "disabled: [{}]\n"]
)
def test_section_of_the_wrong_type_hides_no_other_mistake(tmp_path: Path, text: str) -> None:
    found, mistakes = config_mistakes.examine(write(tmp_path / "x.yaml", text))
    assert mistakes
    assert [
        wrong for document in found.documents for wrong in config_mistakes.unknown_checks(document, ())
    ] == []
