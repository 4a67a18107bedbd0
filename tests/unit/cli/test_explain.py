"""A check's page: its file's docstring, reformatted, and the known issues that it detects."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.api import loader
from gpuipc_doctor.cli import explain
from gpuipc_doctor.cli.explain import command
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.files import tables

CHECK = '''\
"""Look at something that takes a long sentence to say what it is, longer than eighty columns.

What it looks at:
- the first thing, which also takes a long sentence to say, so that this item has two lines
  of its own;
- the second.

    left as it is:   two words
"""

from gpuipc_doctor.api import Check, Finding


class SiteLook(Check):
    id = "site-look"
    title = "something is there"

    def probes(self, ctx):
        return ()

    def judge(self, done):
        return ()


CHECK = SiteLook()
'''


def explained(*arguments: str) -> str:
    ended = CliRunner().invoke(command, arguments)
    assert ended.exit_code == 0
    return ended.stdout


def test_docstring_of_a_check_is_wrapped_to_80_columns(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "site_look.py").write_text(CHECK)
    config = tmp_path / "site.yaml"
    config.write_text("checks_dirs: [.]\n")
    assert """\
site-look: something is there

Look at something that takes a long sentence to say what it is, longer than
eighty columns.

What it looks at:
- the first thing, which also takes a long sentence to say, so that this item
  has two lines of its own;
- the second.

    left as it is:   two words

tier      acceptance
""" in explained("site-look", "--config", str(config))


def test_ids_of_known_issues_are_not_wrapped() -> None:
    page = explained("ipc-peer")
    assert "rocm-ipc-between-containers" in page
    assert "nccl-container-without-peers" in page


def test_known_versions_detects_all_issues_with_versions() -> None:
    assert "detects   every known issue with versions\n" in explained("known-versions")


def test_check_begins_with_the_jobs_that_break_and_ends_with_the_public_report() -> None:
    page = explained("ipc-reopen")
    assert page.index("\nbreaks    ") < page.index("\ndo        ") < page.index("As a control")
    assert page.index("As a control") < page.index("heterodb/toybox")


def test_every_check_says_which_jobs_break_and_what_to_do() -> None:
    rows = tables.table(explain.TABLE)["checks"]
    assert set(rows) == set(loader.built_in())
    assert all(len(row) in (2, 3) and all(row) for row in rows.values())
    assert all(source.startswith("https://") for row in rows.values() for source in row[2:])


def test_a_document_is_named_only_if_there_is_one() -> None:
    known = explain.known_here()
    [with_document], [without] = list(known.answers("ipc-fabric")), list(known.answers("ipc-reopen"))
    assert (
        "source    https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html"
        in with_document
    )
    assert "source  " not in without


KEYS = Path(__file__).parents[2] / "golden/finding_keys.txt"


def test_every_finding_key_is_explained_with_its_check() -> None:
    known = explain.known_here()
    rows = [line.split()[:2] for line in KEYS.read_text().splitlines()]
    unknown = [
        f"{check}.{key}"
        for check, key in rows
        if not list(known.answers(key if check == "*" else f"{check}.{key}"))
    ]
    assert unknown == []


def test_key_begins_with_good_or_bad_as_its_findings_are() -> None:
    table, known = tables.table(explain.TABLE), explain.known_here()
    statuses = {key: status for status, keys in table["statuses"].items() for key in keys.split(", ")}
    shown: dict[str, set[str]] = {}
    for line in KEYS.read_text().splitlines():
        _, key, *found = line.split()
        shown.setdefault(key, set()).update(found)
    assert {key: set(status.split(", ")) for key, status in statuses.items()} == shown
    assert not [key for key in shown if not list(known.answers(key)) or "…" in next(known.answers(key))]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("LATENT", "a known issue whose versions this node has"),
        ("latent", "a known issue whose versions this node has"),
        ("REJECT", "the verdict that jobs should not run here"),
        ("cannot tell", "the verdict if nothing failed but"),
        ("tier", "prolog (before each job"),
        ("importers", "the importer is another process that opens the handle"),
        (
            "ipc-handles.other-memory",
            "other-memory: bad (FAIL): an IPC handle opened the wrong memory checks: ipc-handles",
        ),
        (
            "links-down",
            "fewer NVLinks are active than the GPU has checks: collective-speed, gpu-health",
        ),
        ("hung", "hung: bad (FAIL or ERROR): a call did not return by its deadline"),
        ("CUDA_ERROR_INVALID_HANDLE", "nvidia-ipc-reopen: "),
        ("cudaErrorInvalidResourceHandle", "400 (CUDA, HIP): invalid resource handle"),
        ("hipErrorInvalidValue", "1 (CUDA, HIP): invalid argument"),
        ("801", "801 (CUDA, HIP): operation not supported"),
        ("ncclInvalidArgument", "(NCCL and RCCL, 4): an argument has an invalid value"),
        ("Xid 79", "nvidia-gpu-lost: "),
        ("xid:79", "nvidia-gpu-lost: "),
        ("Xid 250", "Xid 250 is not in the database; NVIDIA's catalogue: https://"),
        ("exit 12", "exit code 12 of gpuipc-doctor check: "),
        ("IPC_REOPEN", "ipc-reopen: IPC memory reopens"),
        ("ipc reopen", "ipc-reopen: IPC memory reopens"),
        ("nvidia-ipc-reopen", "What to do"),
        ("eight-gpus", "gpuipc-doctor check --all --simulate eight-gpus"),
        ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.", "nvidia-gpu-lost: "),
        ("RuntimeError: CUDA error: invalid resource handle", "torch-ipc-invalid-resource-handle: "),
    ],
)
def test_what_people_have_in_hand_is_explained(asked: str, says: str) -> None:
    assert says in " ".join(explained(*asked.split()).split())


def test_several_meanings_are_counted_and_shown() -> None:
    page = explained("46")
    assert "'46' has 2 meanings:" in page
    assert "46 (CUDA, HIP): " in page
    assert "Xid 46, " in page


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("ipc-reopne",), "did you mean 'ipc-reopen'"),
        (("latnt",), "did you mean 'LATENT'"),
        (("CUDA_ERROR_INVALID_HANDEL",), "did you mean 'CUDA_ERROR_INVALID_HANDLE'"),
        (("ipc-reopn.hung",), "did you mean 'ipc-reopen'"),
        (("check", "ipc-reopen"), "did you mean 'ipc-reopen'"),
        (("qqqq",), "`gpuipc-doctor list` names the checks"),
        ((__file__,), "is a file; to search it, run `gpuipc-doctor diagnose "),
        (("",), "name a check, a known issue, a word or a code, or paste a line of a log"),
        ((), "Missing argument"),
        (("a\x1b[31mb",), "`gpuipc-doctor list` names the checks"),
    ],
)
def test_what_is_unknown_gets_one_line_with_what_to_type(asked: tuple[str, ...], says: str) -> None:
    ended = CliRunner().invoke(command, asked)
    assert ended.exit_code == 2
    assert says in ended.stderr
    assert "\x1b" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("check --simulate eight", "eight-gpus"),
        ("check ipc-re", "ipc-reopen"),
        ("drill eight", "eight-gpus"),
        ("replay --simulate eight", "eight-gpus"),
        ("explain nvidia-ipc", "nvidia-ipc-reopen"),
        ("known-issues show nvidia-ipc", "nvidia-ipc-reopen"),
        ("known-issues list --check ipc-re", "ipc-reopen"),
    ],
)
def test_names_are_completed(words: str, name: str) -> None:
    ended = CliRunner().invoke(
        cli,
        [],
        prog_name="gpuipc-doctor",
        env={
            "_GPUIPC_DOCTOR_COMPLETE": "bash_complete",
            "COMP_WORDS": f"gpuipc-doctor {words}",
            "COMP_CWORD": str(len(words.split())),
        },
    )
    assert f"plain,{name}" in ended.stdout.splitlines()


def test_profiles_are_listed_and_an_unknown_one_says_where() -> None:
    listed = CliRunner().invoke(cli, ["list", "--profiles"])
    assert "eight-gpus " in listed.stdout
    ended = CliRunner().invoke(cli, ["check", "--all", "--simulate", "qqqq"])
    assert "`gpuipc-doctor list --profiles` names them" in str(ended.exception)
