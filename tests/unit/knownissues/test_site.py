"""A site's own files: its own issues, overridden ones, and suppressions with a reason and a last day."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli.explain import command as explain
from gpuipc_doctor.cli.known_issues import command as known_issues
from gpuipc_doctor.files.yamlfile import BadFile
from gpuipc_doctor.knownissues import KnownIssue
from gpuipc_doctor.model import Fact, Finding
from gpuipc_doctor.report_types import Join, Relation, Result

DRIVER = (Fact("nvidia-driver", "460.32.03", "NVML"),)
FAILED = Result(
    "ipc-reopen",
    Finding.fail("failed", "{call} failed", call="cuIpcOpenMemHandle", error="CUDA_ERROR_INVALID_HANDLE"),
)
TODAY = date(2026, 11, 20)

SUPPRESS = """\
suppress:
  - id: nvidia-ipc-reopen
    reason: no job here ends its context, ticket 4711
    until: 2026-12-31
"""

REASON_MISSING = "2: suppress[0]: key 'reason' is missing"

OVERRIDE = """\
issues:
  - id: nvidia-ipc-reopen
    overrides: our driver 460.32.03 was patched
    title: it is fine here
    component: nvidia-driver
    class: error
    status: resolved-by-site
    symptom: none
    affected:
      - {introduced: 455.32.00, last_affected: 455.32.00}
    references:
      - {type: report, url: "https://example.org/4711"}
"""


def load(tmp_path: Path, text: str) -> dict[str, KnownIssue]:
    (tmp_path / "site.yaml").write_text(text)
    return {issue.id: issue for issue in knownissues.load([tmp_path])}


def lint(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return [str(mistake).removeprefix(f"{path}:") for mistake in knownissues.lint([path], today=TODAY)]


def joined(issue: KnownIssue, today: date, *results: Result) -> Join | None:
    joins = knownissues.join([issue], DRIVER, results, today=today)
    return joins[0] if joins else None


def test_suppressed_issue_is_silent_until_its_last_day(tmp_path: Path) -> None:
    issue = load(tmp_path, SUPPRESS)["nvidia-ipc-reopen"]
    assert joined(issue, TODAY) is None
    assert joined(issue, date(2026, 12, 31)) is None
    after = joined(issue, date(2027, 1, 1))
    assert after is not None
    assert after.relation is Relation.LATENT
    said = f"(no job here ends its context, ticket 4711; {tmp_path}/site.yaml:2)"
    assert after.reason.endswith(f"; the site's suppression of the issue expired on 2026-12-31 {said}")


def test_finding_of_a_probe_is_reported_despite_suppression(tmp_path: Path) -> None:
    issue = load(tmp_path, SUPPRESS)["nvidia-ipc-reopen"]
    seen = joined(issue, TODAY, FAILED)
    assert seen is not None
    assert seen.relation is Relation.CONFIRMED
    assert "; suppressed until 2026-12-31 only while no probe shows the issue (no job" in seen.reason


def test_expired_suppression_is_a_mistake_for_lint_but_loads(tmp_path: Path) -> None:
    text = SUPPRESS.replace("2026-12-31", "2026-11-19")
    assert "nvidia-ipc-reopen" in load(tmp_path, text)
    assert lint(tmp_path, text) == [
        "4: the suppression of 'nvidia-ipc-reopen' expired on 2026-11-19; renew or remove it"
    ]
    assert lint(tmp_path, SUPPRESS) == []


def test_overriding_entry_replaces_the_shipped_one(tmp_path: Path) -> None:
    issues = load(tmp_path, OVERRIDE)
    assert list(issues) == [issue.id for issue in knownissues.load()]
    assert issues["nvidia-ipc-reopen"].title == "it is fine here"
    assert joined(issues["nvidia-ipc-reopen"], TODAY) is None
    assert lint(tmp_path, OVERRIDE) == []


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (
            "    overrides: our driver 460.32.03 was patched\n",
            "",
            "2: id 'nvidia-ipc-reopen' is already used by {shipped}; to replace it, add 'overrides'",
        ),
        (
            "id: nvidia-ipc-reopen",
            "id: nvidia-ipc-repoen",
            "2: nothing to override: no known issue 'nvidia-ipc-repoen'; did you mean 'nvidia-ipc-reopen'?",
        ),
    ],
)
def test_override_must_name_a_shipped_issue(tmp_path: Path, was: str, becomes: str, told: str) -> None:
    shipped = next(issue for issue in knownissues.load() if issue.id == "nvidia-ipc-reopen").where
    assert lint(tmp_path, OVERRIDE.replace(was, becomes)) == [told.replace("{shipped}", shipped)]
    with pytest.raises(BadFile):
        load(tmp_path, OVERRIDE.replace(was, becomes))


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (
            "nvidia-ipc-reopen",
            "nvidia-ipc-repoen",
            "2: no known issue 'nvidia-ipc-repoen'; did you mean 'nvidia-ipc-reopen'?",
        ),
        ("2026-12-31", "2027-02-30", "4: no such date: '2027-02-30'"),
        ("2026-12-31", "next year", "4: suppress[0].until: 'next year' is not a day, as 2027-03-31 is"),
        ("    reason: no job here ends its context, ticket 4711\n", "", REASON_MISSING),
        ("    until: 2026-12-31\n", "", "2: suppress[0]: key 'until' is missing"),
        ("until:", "untill:", None),
    ],
)
def test_mistakes_of_a_suppression_are_reported(
    tmp_path: Path, was: str, becomes: str, told: str | None
) -> None:
    found = lint(tmp_path, SUPPRESS.replace(was, becomes))
    if told is None:
        assert "4: suppress[0]: unknown key 'untill'; did you mean 'until'?" in found
    else:
        assert found == [told]
    with pytest.raises(BadFile):
        load(tmp_path, SUPPRESS.replace(was, becomes))


def test_sites_signatures_are_validated_before_use(tmp_path: Path) -> None:
    text = OVERRIDE + "    signatures: ['(a+)+b', '[']\n    needs: [{fact: kernel, matches: '('}]\n"
    with pytest.raises(BadFile) as bad:
        load(tmp_path, text)
    assert [str(mistake).partition(": ")[2][:30] for mistake in bad.value.mistakes] == [
        "'(a+)+b' repeats a part that c",
        "'[' is not a regular expressio",
        "'(' is not a regular expressio",
    ]


def test_golden_file(tmp_path: Path) -> None:
    tomorrow = date.today() + timedelta(days=1)
    (tmp_path / "issues").mkdir()
    (tmp_path / "issues/a.yaml").write_text(OVERRIDE)
    (tmp_path / "issues/b.yaml").write_text(SUPPRESS.replace("2026-12-31", str(tomorrow)))
    config = tmp_path / "site.yaml"
    config.write_text("known_issues_dirs: [issues]\n")
    page = CliRunner().invoke(explain, ["nvidia-ipc-reopen", "--config", str(config)]).stdout
    assert "Changed by this site\n  our driver 460.32.03 was patched\n" in page
    assert f"(until {tomorrow};" in " ".join(page.split())
    shown = CliRunner().invoke(known_issues, ["show", "nvidia-ipc-reopen", "--json", "--config", str(config)])
    assert json.loads(shown.stdout)["suppression"]["until"] == str(tomorrow)
