"""Messages: their files, limits and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli import explain
from gpuipc_doctor.files.yamlfile import BadFile
from gpuipc_doctor.knownissues import database, relation, relevance
from gpuipc_doctor.knownissues.message import Message, Severity
from gpuipc_doctor.model import Fact
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.versions import Verdict

ISSUES = knownissues.load()
MESSAGES = knownissues.load_messages()

GOOD = """\
messages:
  - id: some-message
    severity: error
    says: it broke
    look: the other rank
    signatures:
      - match: it is broken
        sample: here it is broken
        file: openucx/ucx src/x.c
"""


def mistakes(directory: Path, text: str, name: str = "ucx.yaml") -> list[str]:
    path = directory / name
    path.write_text(text)
    return [str(mistake).replace(f"{directory}/", "") for mistake in knownissues.lint([path])]


def test_database_keeps_its_size() -> None:
    assert len(MESSAGES) <= 250
    assert sum(len(path.read_text().splitlines()) for path in knownissues.files()) <= 11_500


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        ("look: the other rank", "look: 3", "ucx.yaml:5: messages[0].look must be"),
        ("error", "hang", "ucx.yaml:3: messages[0].severity: 'hang' is not known"),
        ("    look", "    inferred: [x]\n    look", "messages[0]: unknown key 'inferred'"),
        ("        file: openucx/ucx src/x.c\n", "", "messages[0].signatures[0]: key 'file' is missing"),
        ("some-message", "nvidia-ipc-reopen", "ucx.yaml:2: id 'nvidia-ipc-reopen' is already used by "),
        ("is broken\n        sample", "is whole\n        sample", "does not find its own sample"),
        ("match: it is broken", "match: '['", "is not a regular expression"),
    ],
)
def test_mistake_is_named_with_its_place(was: str, becomes: str, told: str, tmp_path: Path) -> None:
    assert mistakes(tmp_path, GOOD) == []
    assert any(told in text for text in mistakes(tmp_path, GOOD.replace(was, becomes, 1)))


def test_file_is_named_after_a_component_or_the_message_names_one(tmp_path: Path) -> None:
    [told] = mistakes(tmp_path, GOOD, "ours.yaml")
    assert told == "ours.yaml:2: no component 'ours': name the file after one, or add 'component'"
    assert mistakes(tmp_path, GOOD.replace("    look", "    component: ucx\n    look"), "ours.yaml") == []


def test_shipped_message_must_not_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MESSAGES", tmp_path)
    short = GOOD.replace("look: the", "look: >-\n      the\n      very\n      other")
    assert mistakes(tmp_path, short) == []
    [told] = mistakes(tmp_path, short.replace("very", "very\n" + "      very\n" * 3))
    assert told == "ucx.yaml:2: has 14 lines; a message with so many signatures has at most 12"


def test_entry_in_the_wrong_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SHIPPED", tmp_path)
    assert "ucx.yaml:1: 'messages' does not belong into a file of issues" in mistakes(tmp_path, GOOD)
    [told] = mistakes(tmp_path, UNBOUND.format(id="some-issue"))
    assert told.endswith(
        "has no affected version, condition or check: it is a message and belongs into messages/"
    )


UNBOUND = """\
issues:
  - id: {id}
    title: it broke
    component: ucx
    class: error
    status: open
    symptom: It breaks.
    affected: []
    signatures: [{{match: it is broken, source: none}}]
    references: [{{type: report, url: "https://example.org"}}]
"""


def test_sites_known_issue_replaces_a_message_of_the_same_id(tmp_path: Path) -> None:
    overrides = UNBOUND.format(id="nvidia-gpu-lost") + "    overrides: our advice\n"
    (tmp_path / "a.yaml").write_text(overrides)
    assert "nvidia-gpu-lost" in {issue.id for issue in knownissues.load([tmp_path])}
    assert "nvidia-gpu-lost" not in {message.id for message in knownissues.load_messages([tmp_path])}


def test_site_adds_messages_and_its_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ucx.yaml").write_text(GOOD)
    assert knownissues.load_messages([tmp_path])[-1].id == "some-message"
    (tmp_path / "ucx.yaml").write_text(GOOD.replace("error", "3"))
    with pytest.raises(BadFile, match=r"ucx\.yaml:3: messages\[0\]\.severity"):
        knownissues.load_messages([tmp_path])


def test_page_of_a_message_has_its_meaning_and_where_to_look() -> None:
    page = CliRunner().invoke(explain.command, ["nvidia-gpu-lost"]).output
    assert page.startswith("nvidia-gpu-lost: the GPU has fallen off the bus\n")
    assert "What to do\n  - " in page


@pytest.mark.parametrize(
    ("expected", "shown", "related"),
    [
        (Verdict.BAD, True, Relation.CONFIRMED),
        (Verdict.BAD, False, Relation.LATENT),
        (Verdict.FINE, True, Relation.NEW),
        (Verdict.UNKNOWN, True, Relation.UNKNOWN),
        (Verdict.FINE, False, None),
        (Verdict.UNKNOWN, False, None),
    ],
)
def test_relation_follows_from_versions_and_what_is_shown(
    expected: Verdict, shown: bool, related: Relation | None
) -> None:
    assert relation(expected, shown) is related


@pytest.mark.parametrize(
    ("component", "also", "backends"),
    [
        ("nvidia-driver", (), {"cuda"}),
        ("nccl", (), {"cuda"}),
        ("nccl", ("rccl",), {"cuda", "hip"}),  # RCCL prints NCCL's messages
        ("cuda-runtime", ("openmpi",), {"cuda"}),
        ("amdgpu", (), {"hip"}),
        ("mlnx-ofed", (), {"cuda", "hip"}),
        ("openmpi", ("cuda-driver",), {"cuda", "hip"}),
    ],
)
def test_component_decides_of_which_vendor_an_entry_is(
    component: str, also: tuple[str, ...], backends: set[str]
) -> None:
    entry = Message("x", Severity.ERROR, "x", component, (), ("x",), also)
    assert {backend for backend in ("cuda", "hip") if relevance.concerns(entry, backend)} == backends
    for backend, fact in (("cuda", "nvidia-driver"), ("hip", "amdgpu")):
        assert relevance.may_concern(entry, [Fact(fact, "1", "x")]) is (backend in backends)
    assert relevance.may_concern(entry, [])


def test_shipped_issue_is_bound() -> None:
    assert [issue.id for issue in ISSUES if not issue.is_bound] == []
