"""Questions to the database: what hits a version, and what an upgrade changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues import issue_content
from gpuipc_doctor.knownissues.questions import Change, Question, ask
from gpuipc_doctor.versions import Verdict

ENTRY = """
  - id: {id}
    title: {title}
    component: nvidia-driver
    class: error
    status: fixed
    symptom: something with handles fails
    affected: [{affected}]
    detected_by: [ipc-reopen]
    references: [{{type: report, url: "https://example.org/1"}}]
    evidence: read
    silent: it returns an error code
    workarounds: [{{do: update the driver}}]
"""

AFFECTED = {
    "old-only": "{introduced: '450', fixed: '550'}",
    "in-between": "{introduced: '560', fixed: '575'}",
    "new-only": "{introduced: '580', fixed: '585'}",
    "both": "{introduced: '500', fixed: '590'}",
    "not-known": "{introduced: unknown, fixed: unknown}",
}


@pytest.fixture(scope="module")
def issues(tmp_path_factory: pytest.TempPathFactory) -> tuple[knownissues.KnownIssue, ...]:
    directory = tmp_path_factory.mktemp("issues")
    entries = (ENTRY.format(id=id_, title=f"title of {id_}", affected=it) for id_, it in AFFECTED.items())
    Path(directory, "site.yaml").write_text("issues:\n" + "".join(entries))
    return tuple(issue for issue in knownissues.load((directory,)) if issue.id in AFFECTED)


def found(question: Question, issues: tuple[knownissues.KnownIssue, ...]) -> set[str]:
    return {answer.entry.id for answer in ask(question, issues)}


def test_version_has_its_own_issues_and_those_that_cannot_be_told(
    issues: tuple[knownissues.KnownIssue, ...],
) -> None:
    question = Question(component="nvidia-driver", version="580.95.05")
    told = {answer.entry.id: answer.verdict for answer in ask(question, issues)}
    assert told == {"new-only": Verdict.BAD, "both": Verdict.BAD, "not-known": Verdict.UNKNOWN}


def test_upgrade_brings_some_and_ends_others(issues: tuple[knownissues.KnownIssue, ...]) -> None:
    question = Question(component="nvidia-driver", version="580.95.05", before="535.1")
    assert {answer.entry.id: answer.change for answer in ask(question, issues)} == {
        "new-only": Change.NEW,
        "both": Change.STAYS,
        "not-known": Change.STAYS,
        "old-only": Change.ENDS,
    }


@pytest.mark.parametrize(
    ("question", "ids"),
    [
        (Question(), {*AFFECTED}),
        (Question(words=("TITLE", "new-only")), {"new-only"}),
        (Question(words=("handles", "nothing of it")), set()),
        (Question(component="ucx"), set()),
        (Question(check="ipc-reopen"), {*AFFECTED}),
        (Question(check="ipc-handles"), set()),
    ],
    ids=["all", "word", "no word", "component", "check", "another check"],
)
def test_words_component_and_check(
    issues: tuple[knownissues.KnownIssue, ...], question: Question, ids: set[str]
) -> None:
    assert found(question, issues) == ids


def test_component_also_finds_issues_that_need_it_and_messages_about_it() -> None:
    entries = (*knownissues.load(), *knownissues.load_messages())
    of_driver = [answer.entry for answer in ask(Question(component="nvidia-driver"), entries)]
    assert {"nvidia-driver"} < {entry.component for entry in of_driver}
    assert {isinstance(entry, knownissues.Message) for entry in of_driver} == {True, False}


@pytest.mark.parametrize(("version", "newer"), [("630.10", True), ("610.57.04", False)])
def test_answer_on_a_version_beyond_the_data_says_so(version: str, newer: bool) -> None:
    page = issue_content.listing([], Question(component="nvidia-driver", version=version))
    assert ("is newer than our data of 20" in page) is newer
