"""The database, its mistakes, and its results for a node's versions and findings."""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from click.testing import Result as Ran
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli.known_issues import command
from gpuipc_doctor.files.yamlfile import BadFile
from gpuipc_doctor.knownissues import (
    SCHEMA,
    Confidence,
    KnownIssue,
    Workaround,
    affected,
    cures,
    database,
    issue_content,
)
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.entry import KINDS
from gpuipc_doctor.knownissues.issue_content import page
from gpuipc_doctor.model import Device, DriverFault, Evidence, Fact, Finding, Status
from gpuipc_doctor.node import inventory
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report_types import Join, Relation, Result
from gpuipc_doctor.run.request import UnknownName
from gpuipc_doctor.versions import ORDERS, Range, Verdict
from tests import golden

SHIPPED = {issue.id: issue for issue in knownissues.load()}
REOPEN = SHIPPED["nvidia-ipc-reopen"]
OPEN, INVALID = "cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_HANDLE"
SAID = "importer: cuIpcOpenMemHandle #4 (open segment 1 again) returned CUDA_ERROR_INVALID_HANDLE (400)"


def driver(version: str | None) -> tuple[Fact, ...]:
    return (Fact("nvidia-driver", version, "NVML"),)


def reopen(finding: Finding, device: str = "cuda:0", *roles: RoleOutcome) -> Result:
    return Result("ipc-reopen", finding, (device,), "destroy-context", roles=roles)


def joined(facts: tuple[Fact, ...], *results: Result, issue: KnownIssue = REOPEN) -> Join | None:
    joins = knownissues.join([issue], facts, results)
    return joins[0] if joins else None


def failed(call: str = OPEN, error: str = INVALID) -> Finding:
    return Finding.fail("failed", "{call} returned {error}", call=call, error=error)


FAILED = reopen(failed())
PASSED = reopen(Finding.ok("right", "reopened"))


@pytest.mark.parametrize(
    ("version", "result", "relation"),
    [
        ("460.32.03", FAILED, Relation.CONFIRMED),
        ("460.32.03", PASSED, Relation.LATENT),
        ("450.102.04", FAILED, Relation.NEW),
        ("450.102.04", PASSED, None),
        ("580.159.04", FAILED, Relation.UNKNOWN),
        ("580.159.04", PASSED, None),
        (None, FAILED, Relation.UNKNOWN),
        (None, PASSED, None),
        ("unheard-of", FAILED, Relation.UNKNOWN),
    ],
)
def test_versions_and_probes_are_joined_four_ways(
    version: str | None, result: Result, relation: Relation | None
) -> None:
    join = joined(driver(version), result)
    assert (join and join.relation) is relation


def test_golden_file_of_joins() -> None:
    cases = {
        "version bad, probe bad": joined(driver("460.32.03"), FAILED, reopen(failed(), "cuda:1")),
        "version bad, probe fine": joined(driver("455.45.01"), PASSED),
        "version bad, probe skipped": joined(driver("460.32.03"), reopen(Finding.skip("not-run", "budget"))),
        "version bad, probe in doubt": joined(
            driver("460.32.03"), PASSED, reopen(Finding.error("not-started", "no start"))
        ),
        "version bad, probe bad in another way": joined(
            driver("460.32.03"), reopen(Finding.fail("failed", "wrong data"))
        ),
        "version bad, nothing asked": joined(driver("460.32.03")),
        "version fine, probe bad": joined(driver("450.102.04"), FAILED),
        "version beyond what is known, probe bad": joined(driver("580.159.04"), FAILED),
        "no version that we know how to order, probe bad": joined(driver("unheard-of"), FAILED),
        "version not found, probe bad": joined((Fact("nvidia-driver", None, "no /proc/x"),), FAILED),
        "no such fact, probe bad": joined((), FAILED),
        "two versions, one of them bad, probe fine": joined(
            driver("580.95.05") + driver("460.32.03"), PASSED
        ),
    }
    lines = []
    for case, join in cases.items():
        assert join is not None
        spoken = f"{', '.join(join.checks) or 'no check'}; {', '.join(join.subjects) or 'no subject'}"
        lines += [f"# {case}", f"{join.relation.value}: {join.reason} [{spoken}]", f"Do: {join.remedy}", ""]
    golden.check("knownissues/joins.txt", "\n".join(lines))


def test_only_affected_subjects_are_named() -> None:
    join = joined(driver("460.32.03"), FAILED, reopen(Finding.ok("right", "reopened"), "cuda:1"))
    assert join is not None
    assert (join.checks, join.subjects) == (("ipc-reopen",), ("cuda:0",))


ROLE = RoleOutcome("importer", Ending.DRIVER_ERROR)
FAULT = DriverFault("cuIpcOpenMemHandle", 400, "CUDA_ERROR_INVALID_HANDLE")
SILENT = Finding.fail("failed", "the importer failed")


@pytest.mark.parametrize(
    "result",
    [
        FAILED,
        reopen(Finding.fail("failed", "it failed", Evidence.seen("{call}: {error}", **failed().values))),
        reopen(SILENT, "cuda:0", replace(ROLE, log_tail=("noise", SAID))),
        reopen(SILENT, "cuda:0", replace(ROLE, native_stack=(SAID,))),
        reopen(SILENT, "cuda:0", replace(ROLE, python_stack=(SAID,))),
        reopen(SILENT, "cuda:0", replace(ROLE, kernel=(SAID,))),
        reopen(SILENT, "cuda:0", replace(ROLE, exception=SAID)),
        reopen(SILENT, "cuda:0", replace(ROLE, fault=FAULT)),
    ],
)
def test_signature_is_found_in_every_part_of_a_result(result: Result) -> None:
    join = joined(driver("460.32.03"), result)
    assert join is not None
    assert join.relation is Relation.CONFIRMED


@pytest.mark.parametrize(
    "result",
    [
        reopen(SILENT),
        reopen(Finding.fail("failed", SAID)),  # our own sentence is not evidence
        reopen(Finding.fail("failed", "{call}", Evidence.seen("{error}", error=INVALID), call=OPEN)),
        replace(FAILED, check="ipc-stale"),
        replace(FAILED, finding=replace(FAILED.finding, status=Status.ERROR)),
        reopen(failed("hipIpcOpenMemHandle", "hipErrorInvalidHandle")),
    ],
)
def test_other_result_is_not_taken_for_the_issue(result: Result) -> None:
    join = joined(driver("460.32.03"), result)
    assert join is not None
    assert join.relation is Relation.LATENT
    assert joined(driver("450.102.04"), result) is None


def test_issue_without_signatures_is_confirmed_by_its_check() -> None:
    unsigned = replace(REOPEN, signatures=())
    anything = reopen(SILENT)
    confirmed = joined(driver("460.32.03"), anything, issue=unsigned)
    assert confirmed is not None
    assert confirmed.relation is Relation.CONFIRMED
    assert joined(driver("450.102.04"), anything, issue=unsigned) is None  # no evidence for this issue


def test_withdrawn_issue_is_ignored() -> None:
    assert joined(driver("460.32.03"), FAILED, issue=replace(REOPEN, withdrawn="it was a cable")) is None


def test_versions_alone_make_an_issue_latent() -> None:
    joins = knownissues.match_versions(SHIPPED.values(), driver("460.32.03"))
    assert [(join.issue, join.relation) for join in joins] == [("nvidia-ipc-reopen", Relation.LATENT)]
    assert knownissues.match_versions(SHIPPED.values(), driver("580.159.04")) == ()


STALE = SHIPPED["mpich-ipc-stale-mapping"]
CUDA = Fact("cuda-driver", "12.9", "cuDriverGetVersion")


def mpich(version: str) -> tuple[Fact, ...]:
    return (Fact("mpich", version, "MPI_Get_library_version"), CUDA)


@pytest.mark.parametrize(
    ("version", "variables"),
    [
        ("3.4.3", ["HANDLE_CACHE=0", "P2P_THRESHOLD=1000000000"]),
        ("4.2.3", ["HANDLE_CACHE=disabled", "P2P_THRESHOLD=1000000000"]),
        ("5.0.2", ["HANDLE_CACHE=disabled", "P2P_THRESHOLD=1000000000"]),
        ("5.1.0a1", ["CACHE_SIZE=0", "P2P_THRESHOLD=1000000000"]),
        ("5.2.0", ["CACHE_SIZE=0", "P2P_THRESHOLD=1000000000"]),
    ],
)
def test_workaround_is_offered_for_versions_with_its_variable(version: str, variables: list[str]) -> None:
    wanted = "; or ".join(f"set MPIR_CVAR_CH4_IPC_GPU_{variable}" for variable in variables)
    assert cures.remedy(STALE, mpich(version)) == wanted


def test_without_a_version_each_workaround_states_its_versions() -> None:
    assert "HANDLE_CACHE=0 (mpich 3.4 to before 4.2.0); or " in cures.remedy(STALE, ())


def test_unmet_condition_makes_a_bad_version_harmless() -> None:
    overlap = failed(OPEN, "CUDA_ERROR_ALREADY_MAPPED")
    stale = Result("ipc-stale", overlap, ("cuda:0",))
    old_cuda = replace(STALE, needs=(replace(STALE.needs[0], matches=r"^11\."),))
    without_cuda = (mpich("5.0.2")[0],)
    for issue, facts, relation in (
        (STALE, mpich("5.0.2"), Relation.CONFIRMED),
        (STALE, without_cuda, Relation.UNKNOWN),
        (old_cuda, mpich("5.0.2"), Relation.NEW),
    ):
        join = joined(facts, stale, issue=issue)
        assert join is not None
        assert join.relation is relation


@given(
    st.sampled_from(["450.102.04", "455.32.00", "460.32.03", "580.159.04", "x", None]),
    st.lists(
        st.builds(
            reopen,
            st.builds(
                Finding,
                st.sampled_from(Status),
                st.just("key"),
                st.just("x"),
                st.sampled_from([failed().values, {}]),
            ),
        )
    ),
)
def test_join_claims_no_more_than_its_evidence(version: str | None, results: list[Result]) -> None:
    join = joined(driver(version), *results)
    is_shown = any(r.finding.status is Status.FAIL and r.finding.values for r in results)
    is_warned = any(r.finding.status is Status.WARN and r.finding.values for r in results)
    bad = version in ("455.32.00", "460.32.03")
    if join is None:
        assert not bad
        assert not is_shown
    else:
        assert (join.relation is Relation.CONFIRMED) == (bad and (is_shown or is_warned))
        assert (join.relation is Relation.LATENT) == (bad and not (is_shown or is_warned))


def test_each_class_has_a_severity_and_a_chapter() -> None:
    classes = json.loads(SCHEMA.read_text())["$defs"]["issue"]["properties"]["class"]["enum"]
    assert sorted(classes) == sorted(KINDS) == sorted(issue_content._SEEN)


def test_each_component_is_a_name_of_the_inventory() -> None:
    components = json.loads(SCHEMA.read_text())["$defs"]["component"]["enum"]
    assert set(ORDERS) <= set(components) <= set(inventory.NAMES)
    facts = {need.fact for issue in SHIPPED.values() for need in issue.needs if not need.is_env}
    assert facts <= set(inventory.NAMES)


GOOD = """\
issues:
  - id: some-issue
    title: it breaks
    component: mpich
    class: hang
    status: open
    symptom: it hangs
    affected:
      - {introduced: 4.0.0, fixed: 4.2.0}
    detected_by: [ipc-reopen]
    signatures: [broken]
    references:
      - {type: report, url: "https://example.org/1"}
"""


def lint(tmp_path: Path, text: str, *more: str) -> list[str]:
    paths = []
    for number, content in enumerate((text, *more)):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(content)
    mistakes = knownissues.lint(paths, {"ipc-reopen", "ipc-stale"})
    return [str(mistake).replace(f"{tmp_path}/", "") for mistake in mistakes]


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (
            "symptom:",
            "sympton:",
            [
                "0.yaml:2: issues[0]: key 'symptom' is missing",
                "0.yaml:7: issues[0]: unknown key 'sympton'; did you mean 'symptom'?",
            ],
        ),
        ("mpich", "mpihc", ["0.yaml:4: issues[0].component: 'mpihc' is not known; did you mean 'mpich'?"]),
        ("4.2.0}", "4.2}", ["0.yaml:9: issues[0].affected[0].fixed must be text; quote it: '4.2'"]),
        ("4.2.0}", "4.0.0}", ["0.yaml:9: no version is in this range: 4.0.0 to before 4.0.0"]),
        ("4.2.0}", "v4}", ["0.yaml:9: 'v4' cannot be ordered as a version of mpich"]),
        (
            ", fixed: 4.2.0",
            "",
            ["0.yaml:9: give 'fixed' or 'last_affected': a version, or unknown"],
        ),
        ("4.2.0}", "4.2.0, last_affected: 4.1.0}", ["0.yaml:9: give 'fixed' or 'last_affected', not both"]),
        (
            "4.2.0}",
            "4.2.0, known_bad: [5.0.0]}",
            ["0.yaml:9: 'known_bad' 5.0.0 is outside of the range 4.0.0 to before 4.2.0"],
        ),
        (
            "[broken]",
            "['[']",
            ["0.yaml:11: '[' is not a regular expression: unterminated character set at position 0"],
        ),
        ("[broken]", "['x*']", ["0.yaml:11: 'x*' matches the empty string, so it would match everything"]),
        (
            "[ipc-reopen]",
            "[ipc-repoen]",
            ["0.yaml:10: no check 'ipc-repoen'; did you mean 'ipc-reopen'?"],
        ),
        (
            "https:",
            "see:",
            ["0.yaml:13: issues[0].references[0].url: 'see://example.org/1' is not an http or https address"],
        ),
    ],
)
def test_each_mistake_is_reported_with_its_line(
    tmp_path: Path, was: str, becomes: str, told: list[str]
) -> None:
    assert lint(tmp_path, GOOD) == []
    assert lint(tmp_path, GOOD.replace(was, becomes, 1)) == told


def test_issue_needs_a_reference(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("    references")]
    assert lint(tmp_path, text) == ["0.yaml:2: issues[0]: key 'references' is missing"]
    assert lint(tmp_path, text + "    references: []\n") == [
        "0.yaml:12: issues[0].references must not be empty"
    ]


def test_id_is_unique_in_all_files(tmp_path: Path) -> None:
    assert lint(tmp_path, GOOD, GOOD) == [
        "1.yaml:2: id 'some-issue' is already used by 0.yaml:2; to replace it, add 'overrides'"
    ]


def test_mistakes_in_conditions_and_workarounds_are_found(tmp_path: Path) -> None:
    text = GOOD + (
        "    needs:\n"
        "      - {fact: cuda-driver, matches: '[', says: x}\n"
        "      - {fact: nvidia-driver, range: {introduced: '580', fixed: '570'}}\n"
        "    workarounds:\n"
        "      - {do: pray, when: {introduced: R1}}\n"
    )
    assert lint(tmp_path, text) == [
        "0.yaml:15: '[' is not a regular expression: unterminated character set at position 0",
        "0.yaml:16: no version is in this range: 580 to before 570",
        "0.yaml:18: 'R1' cannot be ordered as a version of mpich",
    ]


def test_condition_on_an_unknown_fact_is_a_mistake_with_the_nearest_fact(tmp_path: Path) -> None:
    text = GOOD.replace("[broken]", "[{match: broken, needs: [{fact: nvidia-drivr}]}]") + (
        "    needs:\n"
        "      - {fact: openmpii}\n"
        "      - {fact: open-mpi, range: {introduced: '5'}}\n"
        "      - {fact: qqqqqq, absent: true}\n"
        "      - {env: OPENMPII, matches: '^1$'}\n"
        "      - {fact: openmpi, range: {introduced: '5'}}\n"
    )
    assert lint(tmp_path, text) == [
        "0.yaml:11: no fact 'nvidia-drivr'; did you mean 'nvidia-driver'?",
        "0.yaml:15: no fact 'openmpii'; did you mean 'openmpi'?",
        "0.yaml:16: no fact 'open-mpi'; did you mean 'openmpi'?",
        "0.yaml:17: no fact 'qqqqqq'; `gpuipc-doctor inventory` lists the facts",
    ]
    (tmp_path / "0.yaml").write_text(GOOD + "    needs: [{fact: openmpii}]\n")
    assert knownissues.load([tmp_path])[-1].id == "some-issue"  # as in 0.2.0: it never holds


def test_site_adds_its_own_issues(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(GOOD)
    (tmp_path / "README").write_text("not an issue")
    assert [issue.id for issue in knownissues.load([tmp_path])] == [*SHIPPED, "some-issue"]
    (tmp_path / "more.yml").write_text("issues: 1\n")
    with pytest.raises(BadFile, match=r"more\.yml:1: issues must be a list, not 1"):
        knownissues.load([tmp_path])
    with pytest.raises(BadFile, match="none: cannot be read: No such file or directory"):
        knownissues.load([tmp_path / "none"])


def test_workaround_needs_versions_if_its_variable_changed(tmp_path: Path) -> None:
    path = tmp_path / "0.yaml"
    path.write_text(GOOD + "    workarounds:\n      - {env: {CACHE: '0', OTHER: '1'}}\n")
    changing = {"CACHE": {"mpich"}, "OTHER": {"ucx"}}
    mistakes = knownissues.lint([path], changing=changing)
    text = "CACHE differs between versions of mpich: add 'when'"
    assert [str(mistake) for mistake in mistakes] == [f"{path}:15: {text}"]
    path.write_text(path.read_text().replace("'1'}}", "'1'}, when: {introduced: 4.0.0}}"))
    assert knownissues.lint([path], changing=changing) == ()


def test_conflicts_of_a_workaround_must_exist(tmp_path: Path) -> None:
    text = GOOD + "    workarounds:\n      - {do: pray, conflicts: [nvidia-ipc-repoen]}\n"
    assert lint(tmp_path, text) == [
        "0.yaml:15: no known issue 'nvidia-ipc-repoen'; did you mean 'nvidia-ipc-reopen'?"
    ]


def test_issue_that_can_never_match_is_a_mistake(tmp_path: Path) -> None:
    text = GOOD.replace("    affected:\n      - {introduced: 4.0.0, fixed: 4.2.0}\n", "    affected: []\n")
    assert lint(tmp_path, text) == []
    silent = text.replace("    signatures: [broken]\n", "")
    assert lint(tmp_path, silent) == ["0.yaml:2: has no affected version, no condition and no signature"]
    assert lint(tmp_path, silent.replace("class: hang", "class: limitation")) == []


def test_signature_must_find_its_sample(tmp_path: Path) -> None:
    text = GOOD.replace("[broken]", "[{match: [broken, pipe], sample: a broken plate}]")
    says = "the signature does not find its own sample; give each line of it an expression"
    assert lint(tmp_path, text) == [f"0.yaml:11: {says}"]


def test_signature_of_the_package_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lint(tmp_path, GOOD) == []  # optional for a site's signature
    monkeypatch.setattr(database, "SHIPPED", tmp_path)
    text = "give in 'source' the file that prints the message, or 'none' if that file is not public"
    assert lint(tmp_path, GOOD) == [f"0.yaml:11: {text}"]
    assert lint(tmp_path, GOOD.replace("[broken]", "[{match: broken, source: none}]")) == []
    source = "{prints: broken, file: pmodels/mpich src/x.c}"
    assert lint(tmp_path, GOOD.replace("[broken]", f"[{{match: broken, source: {source}}}]")) == []


@pytest.mark.parametrize(
    ("need", "facts", "verdict"),
    [
        (Need("ucx"), [], Verdict.UNKNOWN),
        (Need("ucx"), [Fact("ucx", None, "no ucx")], Verdict.UNKNOWN),
        (Need("ucx"), [Fact("ucx", "1.15.0", "x")], Verdict.BAD),
        (Need("ucx", absent=True), [], Verdict.UNKNOWN),
        (Need("ucx", absent=True), [Fact("ucx", None, "no ucx")], Verdict.BAD),
        (Need("ucx", absent=True), [Fact("ucx", "1.15.0", "x")], Verdict.FINE),
        (Need("gpu-model", "GH200"), [Fact("gpu-model", "4 × NVIDIA GH200", "x")], Verdict.BAD),
        (Need("gpu-model", "GH200"), [Fact("gpu-model", "NVIDIA H100", "x")], Verdict.FINE),
        (Need("env:A"), [], Verdict.UNKNOWN),
        (Need("env:A"), [Fact("env:A", None, "not set")], Verdict.FINE),
        (Need("env:A"), [Fact("env:A", "", "environment")], Verdict.BAD),
        (Need("env:A", "^0?$"), [], Verdict.UNKNOWN),
        (Need("env:A", "^0?$"), [Fact("env:A", None, "not set")], Verdict.BAD),
        (Need("env:A", "^0?$"), [Fact("env:A", "0", "environment")], Verdict.BAD),
        (Need("env:A", "^0?$"), [Fact("env:A", "1", "environment")], Verdict.FINE),
        (Need("shs", range=Range("shs", "13.1")), [Fact("shs", "13.0", "x")], Verdict.FINE),
        (Need("shs", range=Range("shs", "13.1")), [Fact("shs", "14.0", "x")], Verdict.BAD),
        (Need("shs", range=Range("shs", "13.1")), [Fact("shs", "next", "x")], Verdict.UNKNOWN),
    ],
)
def test_need_is_judged_by_the_facts(need: Need, facts: list[Fact], verdict: Verdict) -> None:
    assert need.judge(facts) is verdict


A100, GH200 = (
    Device("cuda", index, f"GPU-{index}", f"0000:0{index}:00.0", name, 40 << 30)
    for index, name in enumerate(("NVIDIA A100-SXM4-40GB", "NVIDIA GH200 120GB"))
)
MI210 = Device("hip", 0, "GPU-x", "0000:09:00.0", "AMD Instinct MI210", 64 << 30)
ON_GH200 = replace(REOPEN, needs=(Need("gpu-model", "GH200"),))


@pytest.mark.parametrize(
    ("failed_on", "relation"),
    [
        ([], Relation.LATENT),
        (["cuda:1"], Relation.CONFIRMED),
        (["cuda:0"], Relation.LATENT),  # not the GPU with this version
        (["cuda:0", "cuda:1"], Relation.CONFIRMED),
    ],
)
def test_model_and_version_must_meet_on_one_gpu(failed_on: list[str], relation: Relation) -> None:
    results = [reopen(failed(), label) for label in failed_on]
    (join,) = knownissues.join([ON_GH200], driver("460.32.03"), results, [A100, GH200, MI210])
    assert (join.relation, join.subjects) == (relation, ("cuda:1",))
    assert knownissues.match_versions([ON_GH200], driver("460.32.03"), [A100, MI210]) == ()


def test_single_gpus_are_not_named_if_all_are_alike() -> None:
    (join,) = knownissues.match_versions([REOPEN], driver("460.32.03"), [A100, GH200])
    assert join.subjects == ()


def test_weak_signature_counts_only_with_a_bad_version() -> None:
    weak = replace(REOPEN, signatures=(replace(REOPEN.signatures[0], confidence=Confidence.LOW),))
    bad, fine = (joined(driver(version), FAILED, issue=weak) for version in ("460.32.03", "450.102.04"))
    assert bad is not None
    assert bad.relation is Relation.CONFIRMED
    assert fine is None


def test_version_older_than_the_fix_is_reported_as_such() -> None:
    issue = replace(REOPEN, affected=(Range("nvidia-driver", "unknown", fixed="470.57.02"),))
    join = joined(driver("460.32.03"), FAILED, issue=issue)
    assert join is not None
    assert join.relation is Relation.UNKNOWN
    assert join.reason.startswith("nvidia-driver 460.32.03 is older than 470.57.02, which fixes the issue")


def test_every_issue_has_references_evidence_and_a_symptom() -> None:
    assert len(SHIPPED) >= 250
    assert all(issue.references and issue.evidence and issue.symptom for issue in SHIPPED.values())
    files = {Path(issue.where.rpartition(":")[0]).name for issue in SHIPPED.values()}
    assert files == {path.name for path in knownissues.files() if path.parent == knownissues.SHIPPED}


def test_document_links_each_issue_to_its_row() -> None:
    document = run("list", "--markdown").stdout
    rows = {id_ for id_, issue in SHIPPED.items() if not issue.withdrawn}
    assert rows <= set(re.findall(r'<a id="([^"]+)"></a>', document))
    assert set(re.findall(r"^- .*\(#([^)]+)\)$", document, re.MULTILINE)) >= rows


def test_shipped_files_have_no_mistake() -> None:
    """The package's files are not validated when loaded, so this test validates them."""
    ran = run("lint")
    assert (ran.exit_code, ran.stderr) == (0, "")


def run(*args: str) -> Ran:
    return CliRunner().invoke(command, args)


def test_list_has_a_row_for_each_issue_and_message() -> None:
    *rows, count = run("list").stdout.splitlines()
    cells = dict(row.rstrip(")").split(" (", 1) for row in rows if row[:1].strip())
    kinds = {id_: "withdrawn" if issue.withdrawn else issue.kind for id_, issue in SHIPPED.items()}
    messages = knownissues.load_messages()
    assert cells == kinds | {message.id: f"message: {message.kind}" for message in messages}
    assert count == f"{len(kinds)} known issues, {len(messages)} messages"


def test_show_golden_files() -> None:
    for id_ in ("mpich-ipc-stale-mapping", "nvidia-ipc-reopen", "nccl-dev-shm-too-small"):
        golden.check(f"knownissues/show-{id_}.txt", run("show", id_).stdout)


def test_page_fits_80_columns_except_text_to_copy() -> None:
    for issue in SHIPPED.values():
        for line in page(issue).splitlines():
            # A word that is too long is alone on its line, after "report:", or after a bullet.
            assert len(line) <= 80 or len(line.split()) <= 3, line


def test_list_and_show_as_json() -> None:
    entries = {entry["id"]: entry for entry in json.loads(run("list", "--json").stdout)}
    assert entries.keys() == SHIPPED.keys() | {message.id for message in knownissues.load_messages()}
    shown = json.loads(run("show", "nvidia-ipc-reopen", "--json").stdout)
    assert shown == entries["nvidia-ipc-reopen"]
    assert shown["class"] == "error"
    assert shown["affected"][0]["known_bad"] == ["455.32.00", "460.32.03"]


def test_unknown_issue_suggests_the_nearest_one() -> None:
    ran = run("show", "nvidia-ipc-repoen")
    assert isinstance(ran.exception, UnknownName)
    assert str(ran.exception) == "no known issue 'nvidia-ipc-repoen'; did you mean 'nvidia-ipc-reopen'?"


def test_lint_names_mistakes_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("hang", "hung", 1))
    ran = run("lint", str(path))
    assert (ran.exit_code, ran.stdout) == (2, "")
    said = f"{path}:5: issues[0].class: 'hung' is not known; did you mean 'hang'?"
    assert ran.stderr == f"gpuipc-doctor: {said}\n"
    path.write_text(GOOD.replace("ipc-reopen", "driver-init"))
    ran = run("lint", str(path))
    assert (ran.exit_code, ran.stdout) == (0, "1 file without mistakes\n")


@pytest.mark.parametrize(
    ("match", "sample", "told"),
    [
        (
            r"job cannot run\s+see the administrator",
            r"job cannot run\nsee the administrator",
            "its own sample",
        ),
        (r"cafe \d+", "cafe 12", "has no fixed text except digits, white space and 'a' to 'f'"),
    ],
)
def test_lint_names_a_signature_that_no_log_shows(match: str, sample: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    signature = f"{{match: '{match}', confidence: medium, sample: \"{sample}\"}}"
    path.write_text(GOOD.replace("ipc-reopen", "driver-init").replace("broken", signature))
    ran = run("lint", str(path))
    assert ran.exit_code == 2
    assert told in ran.stderr


def test_risky_workaround_comes_last_with_its_risk() -> None:
    stale = SHIPPED["libfabric-mr-cache-stale-device-memory"]
    *_, last = cures.remedies(stale, [Fact("libfabric", "1.15.2", "fi_info")])
    assert last == "set FI_MR_ROCR_CACHE_MONITOR_ENABLED=0 (can cause wrong results)"
    risky = [workaround for issue in SHIPPED.values() for workaround in issue.workarounds if workaround.risk]
    assert risky
    assert all(workaround.risk_source for workaround in risky)


def test_risk_has_a_source(tmp_path: Path) -> None:
    text = GOOD + "    workarounds:\n      - {do: pray, risk: a hang}\n"
    assert lint(tmp_path, text) == ["0.yaml:15: issues[0].workarounds[0]: risk needs risk_source"]


@pytest.mark.parametrize(
    ("versions", "steps"),
    [
        ({"rocm": "7.0.0"}, {"exports VMM memory"}),
        ({"rocm": "7.1.1", "amdgpu": "6.16.6"}, {"exports VMM memory", "kills an importer"}),
        ({"rocm": "7.2.0", "amdgpu": "6.16.13"}, {"exports VMM memory"}),
        ({"nvidia-driver": "580.95.05"}, set()),
    ],
)
def test_harmful_probes_depend_on_the_nodes_versions(versions: dict[str, str], steps: set[str]) -> None:
    node = [Fact(name, version, "x") for name, version in versions.items()]
    harmful = {
        step
        for issue in SHIPPED.values()
        for step in issue.harms
        if affected.judge(issue, node)[0] is not Verdict.FINE
        and any(fact.name in ("rocm", "hip-runtime") for fact in node)
    }
    assert harmful == steps


def test_harmful_step_must_be_named_by_a_probe(tmp_path: Path) -> None:
    text = GOOD + "    harms: [exports VMM memory]\n"
    assert lint(tmp_path, text) == ["0.yaml:14: class 'probe-harms' and the key 'harms' need each other"]
    assert "did you mean 'exports VMM memory'?" in lint(tmp_path, text.replace("exports VMM", "sells VMM"))[0]


def test_quoted_message_needs_a_signature_or_a_reason(tmp_path: Path) -> None:
    text = GOOD.replace("    signatures: [broken]\n", "")
    text = text.replace("symptom: ", "symptom: an assertion, then ")
    (said,) = lint(tmp_path, text)
    assert said.endswith("quote a log (assertion): give a signature, a reason in 'silent', or other words")
    assert lint(tmp_path, text.replace("an assertion", "the first message that a rank sends hangs")) == []
    assert lint(tmp_path, text + "    silent: it goes to the console of another node\n") == []


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (Need("env:MPICH_GPU_IPC_ENABLED", "^1?$"), "MPICH_GPU_IPC_ENABLED unset or 1"),
        (Need("container", "docker|podman"), "container docker or podman"),
        (Need("env:UCX_CUDA_IPC_CACHE", "^[yY1]?$", says="unset or on"), "UCX_CUDA_IPC_CACHE unset or on"),
    ],
)
def test_condition_is_described_without_a_regular_expression(need: Need, words: str) -> None:
    assert str(need) == words


def test_condition_with_a_complex_expression_needs_its_own_text(tmp_path: Path) -> None:
    text = GOOD + '    needs: [{fact: gpu-model, matches: "GB[23]00"}]\n'
    assert lint(tmp_path, text) == ["0.yaml:14: explain 'GB[23]00' in 'says'"]


@pytest.mark.parametrize(
    ("driver", "offered"),
    [
        ("cuda-driver", ["FI_MR_CUDA_CACHE_MONITOR_ENABLED", "FI_X"]),
        ("amdgpu", ["FI_MR_ROCR_CACHE_MONITOR_ENABLED", "FI_X"]),
        ("linux", ["FI_MR_CUDA_CACHE_MONITOR_ENABLED", "FI_MR_ROCR_CACHE_MONITOR_ENABLED", "FI_X"]),
    ],
)
def test_variable_of_another_vendor_is_not_offered(driver: str, offered: list[str]) -> None:
    names = ("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "FI_MR_ROCR_CACHE_MONITOR_ENABLED", "FI_X")
    ways = tuple(Workaround(f"set {name}=0", {name: "0"}) for name in names)
    issue = KnownIssue("x", "x", "libfabric", "leak", "open", "it leaks", (), workarounds=ways)
    facts = [Fact("libfabric", "1.17.0", "/usr/lib"), Fact(driver, "6", "here")]
    assert [next(iter(workaround.env)) for workaround in cures.settings(issue, facts)] == offered


WRONG = st.sampled_from([580, None, [], {}, "x", [1], {"a": 1}, True])


@given(st.lists(st.tuples(st.integers(0, 60), WRONG), min_size=1, max_size=6))
def test_any_number_of_mistakes_in_an_issue_is_told(changes: list[tuple[int, Any]]) -> None:
    """Three in one entry were an internal error."""
    issue = yaml.safe_load(GOOD)
    for number, value in changes:
        places = list(_places(issue))
        inside, key = places[number % len(places)]
        inside[key] = copy.deepcopy(value)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "site.yaml")
        file.write_text(yaml.safe_dump(issue))
        told = knownissues.lint([file], {"ipc-reopen", "ipc-stale"})
    assert all("\n" not in str(mistake) for mistake in told)


def _places(inside: Any) -> Iterator[tuple[Any, Any]]:
    """Each value in a document: what contains it, and its key there."""
    keys = (
        list(inside) if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else ()
    )
    for key in keys:
        yield inside, key
        yield from _places(inside[key])
