"""The database for other programs, its edition, and entries that are drafted by asking."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from click.testing import Result as Ran

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli.issue_draft import CLASSES, expression
from gpuipc_doctor.cli.known_issues import command
from gpuipc_doctor.knownissues import SCHEMA, osv
from tests import schemas

OWN = "suppress:\n  - {id: nvidia-ipc-reopen, reason: known here, until: 2026-12-31}\n"


def run(*args: str, answers: tuple[str, ...] = ()) -> Ran:
    return CliRunner().invoke(command, args, input="".join(f"{answer}\n" for answer in answers))


def test_other_programs_get_the_database_in_osvs_words() -> None:
    exported = json.loads(run("export").stdout)
    schema = schemas.beside(osv, "osv")
    jsonschema.Draft202012Validator(schema).validate(exported)
    assert exported["edition"] == knownissues.edition()
    issues = {issue["id"]: issue for issue in exported["issues"]}
    assert issues.keys() == {issue.id for issue in knownissues.load()}
    reopen, leak = issues["nvidia-ipc-reopen"], issues["cray-mpich-ipc-cache-leak"]
    assert leak["affected"][0]["ranges"][0]["events"] == [{"introduced": "0"}, {"fixed": "8.1.33"}]
    # Where nobody has said since when, no range pretends to know.
    assert "ranges" not in reopen["affected"][0]
    assert reopen["affected"][0]["versions"] == ["455.32.00", "460.32.03"]


def test_an_edition_is_that_of_a_sites_files_too(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    one = knownissues.edition([tmp_path])
    assert one != knownissues.edition()
    (tmp_path / "own.yaml").write_text(OWN + "# changed\n")
    assert knownissues.edition([tmp_path]) not in (one, knownissues.edition())


@pytest.mark.parametrize(
    ("line", "other"),
    [
        (
            "MPIDI_GPU(77): cuIpcOpenMemHandle failed [rank 3]",
            "MPIDI_GPU(1204):  cuIpcOpenMemHandle failed [rank 0]",
        ),
        ("at 0x7ffd in /opt/a/lib/libx.so.1 (-5)", "at 0xABCD in /usr/lib/libx.so.2 (-5)"),
        ("a.b + c*", "a.b + c*"),
    ],
)
def test_a_drafted_signature_finds_the_line_elsewhere(line: str, other: str) -> None:
    found = re.compile(expression(line).replace(" ", r"\s+"))
    assert found.search(f"x {line} y")
    assert found.search(other)
    assert not found.search(line.replace("a", "b").replace("M", "N"))


def test_an_issue_is_drafted_by_asking(tmp_path: Path) -> None:
    answers = (
        "own-ipc-fault",
        "an own fault",
        "mpich",
        "crash",
        "It crashes.",
        "4.2.1, 4.2.2",
        "4.2.0",
        "4.2.3",
    )
    answers += ("own_ipc.c:77: handle 0x12 is gone", "restart it", "https://example.org/1")
    ran = run("add", str(tmp_path), answers=answers)
    assert ran.exit_code == 0, ran.output
    (drafted,) = (one for one in knownissues.load([tmp_path]) if one.id == "own-ipc-fault")
    assert drafted.bad_versions == "4.2.0 to before 4.2.3"
    assert drafted.signatures[0].found_in("own_ipc.c:99: handle 0xff is gone")
    again = run("add", str(tmp_path), answers=answers)
    assert again.exit_code == 2
    assert "is there already" in again.output


def test_a_draft_that_is_wrong_is_kept_and_its_mistakes_are_named(tmp_path: Path) -> None:
    answers = ("nvidia-ipc-reopen", "t", "mpich", "crash", "s", "", "", "", "https://example.org/1")
    ran = run("add", str(tmp_path), answers=answers)
    assert ran.exit_code == 2
    assert "nvidia-ipc-reopen" in ran.stderr
    assert (tmp_path / "nvidia-ipc-reopen.yaml").exists()


def test_each_class_that_shows_somewhere_can_be_drafted() -> None:
    classes = json.loads(SCHEMA.read_text())["$defs"]["issue"]["properties"]["class"]["enum"]
    assert set(classes) - set(CLASSES) == {"probe-harms"}  # which needs `harms`
