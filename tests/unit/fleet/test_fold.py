"""Merging node reports: bad, different and silent nodes, and data that is not a report."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import resource
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpuipc_doctor import report_types
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.fleet import directory, fleet_content, fleet_exports, fold, nodeset, summary
from gpuipc_doctor.fleet.ask import MAX_ANSWER, LaunchOptions, Target, Via, answer
from gpuipc_doctor.fleet.summary import Figure, FindingSummary, NodeReport, State
from gpuipc_doctor.model import Finding, Measurement, Status
from gpuipc_doctor.present.blocks import do
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.site import hosts
from tests import golden, schemas
from tests.sample_fleets import BAD, HEALTHY, a_fleet, named, timed
from tests.sample_reports import gpus, healthy, seed_002


def test_screen() -> None:
    golden.check("fleet/forty-80.txt", fleet_content.screen(fold.fold(a_fleet())))
    golden.check("fleet/forty-120.txt", fleet_content.screen(fold.fold(a_fleet()), width=120))


def test_documented_screen() -> None:
    path = Path(__file__).parents[3] / "docs/fleet.md"
    page, now = path.read_text(), fleet_content.screen(fold.fold(a_fleet()))
    [shown] = re.findall(r"```text\n(REJECT 2 (?:.*\n)*?)```", page)
    if now != shown and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        path.write_text(page.replace(shown, now))
        pytest.fail("docs/fleet.md was updated; look at it with git diff", pytrace=False)
    assert now == shown


@pytest.mark.parametrize(("width", "checks"), [(60, 30), (80, 1), (120, 1)])
def test_screen_has_at_most_60_lines(width: int, checks: int) -> None:
    """Each node has its own findings, facts and group, in long sentences; each silent one its own reason."""
    words = "word " * 80
    reports = []
    for number in range(200):
        node, told = f"rack{number}-node{number}", []
        for check in range(checks):
            changes = {
                "key": f"k{number}",
                "identity": ("FAIL", f"k{number}"),
                "says": words,
                "remedy": words,
            }
            told.append(
                msgspec.structs.replace(BAD.findings[0], check=f"check-{check}", status="FAIL", **changes)
            )
        every = {f"check-{check}": "FAIL" for check in range(checks)}
        facts = {f"env:V{fact}": (f"{number % 3} {words}",) for fact in range(50)}
        figures = {
            f"f{fact}": Figure(1 + 9 * (number == fact), "µs", more_is_better=False) for fact in range(50)
        }
        changed = {"checks": every, "findings": tuple(told), "facts": facts, "figures": figures}
        reports.append(named(HEALTHY, node, **changed, simulated="x" if number % 2 else ""))
        letters = f"{number:08b}".translate({48: "a", 49: "b"})
        reports.append(summary.silent(f"silent{number}", State.NO_ANSWER, f"{letters} {words}"))
    fleet = fold.fold(reports)
    *before, last = fleet_content.screen(fleet, width=width).splitlines()
    assert len(before) <= 60, len(before)
    assert last.startswith("200 FAIL · 200 ERROR")
    shown = " ".join(" ".join(before).split())
    for what in (
        "more groups",
        "more findings",
        "other reasons",
        "more facts",
        "more figures",
        "to see all",
    ):
        assert what in shown


def test_slow_nodes() -> None:
    fleet = fold.fold(timed(a_fleet(), nid0009=9.5))
    assert [(outlier.node, outlier.peers) for outlier in fleet.slow] == [("nid0009", 37)]
    assert (
        "SLOW  nid0009, x: latency: 9.5 µs; median of 37 nodes with the same GPUs: 2 µs"
        in fleet_content.screen(fleet, width=100)
    )


KNOWN = BAD.known[0]


def judged(*reports: NodeReport) -> list[tuple[str, list[str], list[str]]]:
    """(check, lines on known issues, remedies) of each finding."""
    return [
        (
            explained.problem.check,
            [item.text for item in explained.known_issues if not item.lead],
            [
                item.text
                for item in (*explained.known_issues, do(explained.remedy))
                if item.lead and item.text
            ],
        )
        for explained in fleet_content.judged(fold.fold(reports))
    ]


def test_gpus_that_differ() -> None:
    fleet = fold.fold([named(HEALTHY, f"n{n}", devices={"GH200": n}) for n in (1, 2, 2)])
    assert "DRIFT GPUs: 1 × GH200 on n1; 2 × GH200 on the other 2" in fleet_content.screen(fleet)


def test_fact_that_some_nodes_lack() -> None:
    fleet = fold.fold([named(HEALTHY, "n1"), named(HEALTHY, "n2", facts={}), named(HEALTHY, "n3")])
    assert "DRIFT nvidia-driver: not found on n2; 450.102.04 on the other 2" in fleet_content.screen(fleet)


def test_finding_has_its_known_issue_once_and_a_remedy() -> None:
    head = "Known issue nvidia-ipc-reopen CONFIRMED"
    assert judged(named(BAD, "n1"), named(BAD, "n2")) == [
        ("ipc-reopen", [f"{head}: {KNOWN.title}; {KNOWN.reason}"], [KNOWN.remedy]),
        ("known-versions", [f"{head}, see above"], []),
    ]


def test_nodes_with_different_relations_to_an_issue_are_separate() -> None:
    new = msgspec.structs.replace(KNOWN, relation=Relation.NEW, reason="nvidia-driver 580.95.05 is not")
    bare = tuple(msgspec.structs.replace(told, issues=()) for told in BAD.findings)
    other = [told for told in BAD.findings if told.check == "ipc-reopen"]
    _, said, remedies = judged(
        named(BAD, "n1"),
        named(BAD, "n2"),
        named(BAD, "n3", known=(new,), findings=tuple(other)),
        named(BAD, "n4", findings=bare),
    )[0]
    assert said == [
        f"Known issue nvidia-ipc-reopen CONFIRMED on n[1-2]: {KNOWN.title}; {KNOWN.reason}",
        "Known issue nvidia-ipc-reopen NEW on n3: nvidia-driver 580.95.05 is not",
    ]
    assert remedies == [KNOWN.remedy]


def test_summary_matches_its_schema() -> None:
    schemas.check(summary, "summary")
    Draft202012Validator.check_schema(schemas.of(summary))
    for report in a_fleet():
        Draft202012Validator(schemas.of(summary)).validate(json.loads(summary.dumps(report)))


def test_summary_of_a_version_without_known_issues_is_read() -> None:
    older = json.loads(summary.dumps(named(BAD, "n1")))
    del older["known"]
    older["issues"] = {"nvidia-ipc-reopen": "confirmed"}
    for told in older["findings"]:
        del told["issues"]
    found = summary.loads(json.dumps(older).encode())
    assert found.checks == BAD.checks
    assert [(said, do) for _, said, do in judged(found)] == [([], []), ([], [KNOWN.remedy])]


def test_simulated_node_is_marked() -> None:
    fleet = fold.fold([named(HEALTHY, "n1", simulated="healthy-both"), named(HEALTHY, "n2")])
    assert "SIMULATED: no real GPU was tested on n1" in fleet_content.screen(fleet)


def test_value_within_the_spread_is_no_outlier() -> None:
    values = [2.0, 2.1, 1.9, 2.2, 1.8, 2.3, 2.6]
    figures = [{"x: y": Figure(value, "µs", more_is_better=False)} for value in values]
    assert fold.fold(named(HEALTHY, f"n{n}", figures=one) for n, one in enumerate(figures)).slow == ()


USAGE = """\
gpuipc-doctor: /etc/gpuipc-doctor/site.yaml:1: hosts: n1 is not one of n[2-4]
Usage: gpuipc-doctor check [OPTIONS] [CHECK]...
Try 'gpuipc-doctor check --help' for help.

Error: --mpi-lib: file not found: /mpi.so; name the library itself"""
EXITED = "srun: error: n1: task 0: Exited with exit code 2"


@pytest.mark.parametrize(
    ("data", "code", "said", "via", "state", "reason"),
    [
        (b"", 255, "ssh: connect to host n1: Connection refused", Via.SSH, State.UNREACHABLE, "refused"),
        (b"", 127, "sh: 1: gpuipc-doctor: not found", Via.SSH, State.NO_TOOL, "not found"),
        (b"", 124, "", Via.SSH, State.DEADLINE, "ended at the deadline"),
        (b"", -9, "", Via.SLURM, State.KILLED, "exit code -9"),
        (
            b"",
            233,
            "srun: error: Task launch failed on node n1",
            Via.SLURM,
            State.NOT_LAUNCHED,
            "launch failed",
        ),
        (
            b"",
            2,
            "gpuipc-doctor: s.yaml:1: No such file or directory",
            Via.SSH,
            State.REFUSED,
            "s.yaml:1: No",
        ),
        (b"", 2, USAGE, Via.SSH, State.REFUSED, "--mpi-lib: file not found: /mpi.so; name the library"),
        (b"", 2, f"{USAGE}\n{EXITED}", Via.SLURM, State.REFUSED, "--mpi-lib: file not found: /mpi.so"),
        (b"", 1, f"gpuipc-doctor: no place\n{EXITED}", Via.SLURM, State.NO_ANSWER, "no place"),
        (b"", 2, "Error: No such option: --summary", Via.SSH, State.OTHER_VERSION, "--summary"),
        (b"", 2, "sh: 1: Syntax error", Via.SSH, State.NO_ANSWER, "sh: 1: Syntax error"),
        (b'{"schema": "gpuipc-doctor/report/9"}', 0, "", Via.SSH, State.OTHER_VERSION, "another version"),
        (b"{}", 0, "", Via.SSH, State.OTHER_VERSION, "is not a report"),
        (b"{", 0, "", Via.SSH, State.NO_ANSWER, "truncated after 1 bytes"),
        (summary.dumps(HEALTHY)[:-9], 0, "", Via.SSH, State.NO_ANSWER, "the answer was truncated after"),
        (b"Welcome to nid0001\n", 0, "", Via.SSH, State.NO_ANSWER, "not a report: 'Welcome to nid0001'"),
        (b"x" * MAX_ANSWER, 0, "", Via.SSH, State.NO_ANSWER, "longer than 64 MiB"),
    ],
)
def test_missing_answer_has_a_reason(
    data: bytes, code: int, said: str, via: Via, state: State, reason: str
) -> None:
    found, full = answer("n1", data, code, said, via)
    assert (found.node, found.state, full) == ("n1", state, b"")
    assert reason in found.reason
    assert "Usage" not in found.reason
    assert found.status is Status.ERROR


@pytest.mark.parametrize("banner", [b"", b"motd\n"])
@pytest.mark.parametrize(
    ("data", "state", "reason"),
    [
        (
            b'{"schema": oops}\n',
            State.NO_ANSWER,
            """the answer is garbled: '{"schema": oops}'; this is not JSON""",
        ),
        (b'{\n  "schema": oops\n}\n', State.NO_ANSWER, "the answer is garbled: '{'; this is not JSON"),
        (
            b'{"node":"",oops}\n',
            State.NO_ANSWER,
            """the answer is garbled: '{"node":"",oops}'; this is not""",
        ),
        (
            b'{"node":"\xff"}\n',
            State.NO_ANSWER,
            """the answer is garbled: '{"node":"\ufffd"}'; this is not""",
        ),
        (b'{"node":"","state":7}\n', State.OTHER_VERSION, "Expected `str`"),
        (b'{"node":"","state":"on holiday"}\n', State.OTHER_VERSION, "Invalid enum value 'on holiday'"),
    ],
)
def test_garbage_does_not_count_as_another_version(
    banner: bytes, data: bytes, state: State, reason: str
) -> None:
    found, full = answer("n1", banner + data, 0, "", Via.SSH)
    assert (found.state, full) == (state, b"")
    assert found.reason.startswith(reason)


BANNER = b"Lmod: loading cuda/12\n"


@pytest.mark.parametrize("banner", [b"", BANNER])
@pytest.mark.parametrize(
    "sent", [summary.dumps(named(HEALTHY, "")), b'{\n  "x": 1\n}\n' + summary.dumps(HEALTHY)]
)
def test_summary_is_read_as_the_node_wrote_it(banner: bytes, sent: bytes) -> None:
    found, full = answer("n1", banner + sent, 0, "", Via.SLURM)
    assert found == named(HEALTHY, "n1")
    assert full + summary.dumps(HEALTHY) in (summary.dumps(HEALTHY), sent)


@pytest.mark.parametrize("before", [b"", b"{ welcome to n1 }\n", b"{motd}\n", b"\x1b[31mn1\x1b[0m\n"])
@pytest.mark.parametrize("behind", [b"", b"logout\n"])
@pytest.mark.parametrize(
    "sent", [report_json.dumps(seed_002()).encode().rstrip(), summary.dumps(BAD).rstrip()]
)
def test_banners_of_any_kind_are_skipped(before: bytes, behind: bytes, sent: bytes) -> None:
    found, full = answer("n1", before + sent + b"\n" + behind, 12, "", Via.SSH)
    assert (found.state, found.checks["ipc-reopen"]) == (State.REPORTED, "FAIL")
    assert full.rstrip() in (b"", sent)


SKIPPED = {
    "mpi-start": ("no-mpi", "no MPI to test"),
    "mpi-first-touch": ("no-mpi", "no MPI to test"),
    "ipc-peer": ("no-pair", "fewer than two devices of one vendor to test"),
    "ipc-fabric": ("disabled", "disabled at site.yaml:12: no NVLink"),
    "ipc-stale": ("suppressed", "FAIL ipc-stale.stale is suppressed at site.yaml:9: 4711"),
    "fabric-info": ("no-fabric-here", "site.yaml:3 says this node has no fabric"),
}


def skipping(node: str, *checks: str) -> NodeReport:
    findings = tuple(
        FindingSummary(check, SKIPPED[check][0], "SKIP", (), says=SKIPPED[check][1]) for check in checks
    )
    return named(HEALTHY, node, checks={**HEALTHY.checks, **dict.fromkeys(checks, "SKIP")}, findings=findings)


@pytest.mark.parametrize("form", ["screen", "html", "markdown", "json"])
def test_unrequested_skips_are_reported_once_per_check(tmp_path: Path, form: str) -> None:
    for number in range(30):
        directory.save(tmp_path, skipping(f"n{number}", *(SKIPPED if number else ("mpi-start",))))
    option = ["--json"] if form == "json" else ["--format", form]
    ended = CliRunner().invoke(cli, ["fleet", "report", str(tmp_path), *option])
    assert ended.exit_code == 0
    shown = ended.stdout.replace("\\", "")
    if form == "json":
        found = json.loads(shown)["skipped"]
        assert [(finding["check"], finding["key"], finding["nodes"]) for finding in found] == [
            ("mpi-start", "no-mpi", "n[0-29]"),
            ("ipc-peer", "no-pair", "n[1-29]"),
            ("mpi-first-touch", "no-mpi", "n[1-29]"),
        ]
    else:
        assert shown.count("no MPI to test") == 2  # on all nodes, and on all except one
        assert ("all 30" in shown, shown.count("fewer than two devices")) == (True, 1)
    assert not [says for key, says in SKIPPED.values() if key in fold.EXPECTED_SKIPS and says in shown]


def test_checks_skipped_for_one_reason_are_one_line() -> None:
    fleet = fold.fold(skipping(f"n{number}", "mpi-start", "mpi-first-touch") for number in range(40))
    lines = [line for line in fleet_content.screen(fleet).splitlines() if line.startswith("SKIP")]
    assert lines == ["SKIP  mpi-first-touch, mpi-start on all 40: no MPI to test"]
    assert fleet.exit_code == 0


@pytest.mark.parametrize(
    ("changes", "state", "status"),
    [
        ({"probes_run": 0}, State.UNTESTED, Status.ERROR),
        ({"probes_run": 0, "needs_gpu": False}, State.REPORTED, Status.PASS),
        ({"interrupted": True}, State.KILLED, Status.ERROR),
    ],
)
def test_node_on_which_nothing_was_tested_has_not_passed(
    changes: dict[str, bool], state: State, status: Status
) -> None:
    report = replace(healthy(gpus(1)), **changes)
    found, full = answer("n1", report_json.dumps(report).encode(), 0, "", Via.SLURM)
    assert (found.state, found.status, bool(full)) == (state, status, True)
    fleet = fold.fold([found])
    assert fleet.sets["unknown" if status is Status.ERROR else "pass"] == ("n1",)
    assert ("nothing was tested on n1" in fleet_content.screen(fleet)) is (state is State.UNTESTED)


def test_command_for_each_launcher() -> None:
    command = ("gpuipc-doctor", "check", "a b")
    job = LaunchOptions(Via.SLURM, command, deadline_s=61).words(Target.of_node("n1"))
    assert job[:4] == ["srun", "--immediate=30", "--time=2", "-w"]
    assert LaunchOptions(Via.SLURM, command, job="7").words(Target.of_node("n1"))[1:3] == [
        "--overlap",
        "--jobid=7",
    ]
    assert (
        LaunchOptions(Via.SSH, command).words(Target.of_node("n1"))[-1]
        == """sh -c 'timeout "$@"; exit $?' sh 600 gpuipc-doctor check 'a b'"""
    )


def test_other_files_of_the_directory_are_reported(tmp_path: Path) -> None:
    directory.save(tmp_path, named(HEALTHY, "n1"))
    other = b'{"node": "n5", "state": "reported", "schema": "other"}'
    (tmp_path / f"n2{directory.SUMMARY}").write_bytes(gzip.compress(summary.dumps(named(HEALTHY, "n3"))))
    (tmp_path / f"n4{directory.SUMMARY}").write_bytes(
        gzip.compress(summary.dumps(named(HEALTHY, "n4")))[:100]
    )
    (tmp_path / f"n5{directory.SUMMARY}").write_bytes(gzip.compress(other))
    os.mkfifo(tmp_path / f"n6{directory.SUMMARY}")
    (tmp_path / f"n7{directory.SUMMARY}").write_bytes(summary.dumps(named(HEALTHY, "n7")))
    (tmp_path / f"n8{directory.SUMMARY}").write_bytes(gzip.compress(bytes(directory.MAX_SUMMARY + 1)))
    (tmp_path / "package.json").write_text('{"name": "x"}')
    reports, foreign = directory.read(tmp_path)
    assert [name for name, _ in foreign] == ["package.json"]
    assert {report.node: report.state for report in reports} == {
        "n1": State.REPORTED,
        **dict.fromkeys(["n2", "n4", "n5", "n6", "n7", "n8"], State.UNREADABLE),
    }
    assert fold.fold(reports).sets["unknown"] == ("n2", "n4", "n5", "n6", "n7", "n8")
    said = {report.node: report.reason for report in reports}
    assert ("was cut after" in said["n4"], "is longer than 1024 KiB" in said["n8"]) == (True, True), said


def test_summary_of_many_facts_needs_one_block_of_a_file_system(tmp_path: Path) -> None:
    """Each fact has a number unique to the node; as text they fill three blocks."""
    chaos = random.Random(0)
    facts = {
        f"env:UCX_OPTION_{n}": (f"{chaos.choice(['rc', 'dc', 'ud'])},{chaos.randrange(10**9)}",)
        for n in range(250)
    }
    node = named(HEALTHY, "n1", facts={**HEALTHY.facts, **facts})
    assert len(summary.dumps(node)) > 2 * 4096
    directory.save(tmp_path, node)
    assert (tmp_path / f"n1{directory.SUMMARY}").stat().st_size <= 4096
    assert directory.read(tmp_path) == ([node], [])


def test_common_facts_are_in_memory_once(tmp_path: Path) -> None:
    """Without this, ten thousand nodes with a hundred facts took 330 MB instead of 100."""
    for node in ("n1", "n2"):
        directory.save(tmp_path, named(BAD, node))
    [one, other], _ = directory.read(tmp_path)
    assert (one.facts, one.findings) == (BAD.facts, BAD.findings)
    assert all(one.facts[name] is other.facts[name] for name in BAD.facts)
    assert all(ours is theirs for ours, theirs in zip(one.findings, other.findings, strict=True))


def test_summary_is_kept_if_its_full_report_does_not_fit(tmp_path: Path) -> None:
    """Otherwise a later `fleet report` would not know of the bad node."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            directory.save(tmp_path, named(BAD, "n1"), bytes(8193))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == [f"n1{directory.SUMMARY}"]
    assert directory.read(tmp_path) == ([named(BAD, "n1")], [])


@pytest.mark.parametrize("form", ["screen", "html", "junit", "markdown", "nodeset", "prometheus", "json"])
def test_damaged_report_is_in_every_format(tmp_path: Path, form: str) -> None:
    directory.save(tmp_path, named(HEALTHY, "n1"))
    (tmp_path / "n4.json").write_text(report_json.dumps(seed_002())[:999])
    option = ["--json"] if form == "json" else ["--format", form]
    ended = CliRunner().invoke(cli, ["fleet", "report", str(tmp_path), *option])
    assert (ended.exit_code, "n4" in ended.stdout, ended.stderr) == (11, True, "")


@pytest.mark.parametrize("newer", ["n1", "n1.site"])
def test_newer_report_of_a_node_with_two_names_counts(tmp_path: Path, newer: str) -> None:
    for node in ("n1", "n1.site"):
        started = "2026-11-21T08:00:00+01:00" if node == newer else HEALTHY.started
        directory.save(tmp_path, named(HEALTHY if node == newer else BAD, node, started=started))
    directory.save(tmp_path, named(HEALTHY, "n1.other"))
    reports, foreign = directory.read(tmp_path)
    assert (newer in [report.node for report in reports], fold.fold(reports).sets["fail"]) == (True, ())
    assert foreign[0][1] == f"not used: {newer} is a newer report of the same node"
    assert (tmp_path / foreign[0][0]).exists()


def test_one_of_two_equally_old_reports_of_a_node_counts(tmp_path: Path) -> None:
    """A node that -w names twice, short and in full, counts once, and neither name is reported as missing."""
    for node in ("n1.site", "n1"):
        directory.save(tmp_path, named(HEALTHY, node))
    reports, _ = directory.read(tmp_path)
    assert [report.node for report in reports] == ["n1"]
    assert directory.lacking(["n1", "n1.site", "n2", "n2.site"], ["n1", "n2.site"]) == []
    assert directory.lacking(["n1.site", "n10", "n1.other"], ["n1.site"]) == ["n10", "n1.other"]


def test_nodes_without_a_report_are_grouped_by_state_and_cause() -> None:
    causes = {
        "ssh: connect to host {node} port 22: No route to host": "abc",
        "ssh: connect to host {node} port 22: Connection refused": "de",
        "{node}: Permission denied (publickey); job 1234{node}": "f",
    }
    reports = [
        summary.silent(f"nid{name}", State.UNREACHABLE, reason.format(node=f"nid{name}"))
        for reason, names in causes.items()
        for name in names
    ]
    fleet = fold.fold(reports)
    assert [len(missing.nodes) for missing in fleet.silent] == [3, 2, 1]
    screen = fleet_content.screen(fleet, width=100)
    assert [screen.count(words) for words in ("No route", "refused", "denied", "Do: run `ssh")] == [
        1,
        1,
        1,
        3,
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(summary.BadSummary):
        assert summary.loads(data).node is not None


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        directory.ours(tmp_path),
        pytest.raises(directory.InUse, match=str(os.getpid())),
        directory.ours(tmp_path),
    ):
        pass
    with directory.ours(tmp_path):
        pass


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-w", "n[1-"], "names no nodes"),
        (["-w", "@nowhere-there-is-such-a-group"], "names no nodes"),
        (["-w", ""], "name the nodes"),
        ([], "name the nodes"),
        (["-w", "n1!n1"], "the set is empty"),
        (["-w", "-oProxyCommand=x"], "'-oProxyCommand=x' is not a node name"),
        (["-w", "../n1"], "'../n1' is not a node name"),
        (["-w", "n1", "--", "--deadlin", "5"], "--deadlin"),
        (
            ["-w", "n1", "--", "ipc-repoen"],
            "no check 'ipc-repoen'; did you mean 'ipc-reopen'? (for a site's check,",
        ),
        (["-w", "n1", "--", "--deadline", "soon"], "'soon' is not a valid float"),
        (["-w", "n1", "--", "--all", "ipc-reopen"], "--all runs every check of the tier; omit --all"),
        (["-w", "n1", "--", "--deadline", "5"], "name the checks to run, or give --all"),
        (["-w", "n1", "--", "ipc-reopen", "--nodes", "2"], "need a check that runs between nodes"),
        (
            ["-w", "n1", "--", "--all", "--tier", "prolog", "--partner", "n2"],
            "need a check that runs between nodes",
        ),
        (["-w", "n1", "--", "--all", "--dry-run"], "`fleet` has no --dry-run"),
    ],
)
def test_usage_mistake_is_one_line_before_any_node_is_reached(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    ended = CliRunner(env={"SLURM_JOB_NODELIST": ""}).invoke(
        cli, ["fleet", "check", "--into", str(tmp_path / "out"), *arguments]
    )
    assert ended.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert says in ended.output


@pytest.mark.parametrize(
    "names", [["n1", "n2", "n3"], ["x1c0s0b0n0", "x1c0s0b0n1", "x1c0s1b0n0", "x1c0s1b0n1"]]
)
def test_folded_node_set_expands_to_the_same_nodes(names: list[str]) -> None:
    folder = nodeset.NodeSetFormatter(names)
    for subset in (names, names[:-1], names[:1]):
        assert sorted(hosts.expand(folder.fold(subset))) == subset


def test_node_that_refused_the_command_is_not_silent() -> None:
    reports = [HEALTHY, answer("n2", b"", 2, USAGE, Via.SSH)[0]]
    shown = fleet_content.screen(fold.fold(reports))
    assert "ERROR n2 refused the command\n      n2: --mpi-lib: file not found: /mpi.so; name" in shown
    assert "no report" not in shown
    assert "no report" not in fleet_exports.html(fold.fold(reports))


def test_drift_that_is_known_bad_is_first_and_never_left_out() -> None:
    """Thirty facts drift; only two driver versions of two nodes are known bad."""
    facts = {f"amdgpu-{number:02}": ("1",) for number in range(30)}
    good = [named(HEALTHY, f"n{number}", facts={**HEALTHY.facts, **facts}) for number in range(6)]
    odd = dict.fromkeys(facts, ("2",))
    bad = [named(BAD, f"n{number}", facts={**BAD.facts, **odd}) for number in (6, 7)]
    fleet = fold.fold([*good, *bad])
    names = [drift.name for drift in fleet.drift]
    assert names[0] == "nvidia-driver"
    assert len(names) > 30
    screen = fleet_content.screen(fleet)
    assert "DRIFT nvidia-driver: 460.32.03 on n[6-7], known bad (nvidia-ipc-reopen)" in screen
    assert "more facts not the same everywhere" in screen
    assert screen.startswith("REJECT 2 (n[6-7]), ACCEPT 6\n")


def test_clocks_that_differ_are_reported() -> None:
    now = datetime.fromisoformat(HEALTHY.started) + timedelta(seconds=HEALTHY.elapsed_s + 20)
    reports = [named(HEALTHY, f"n{number}") for number in range(4)]
    clocks = [now, now, now - timedelta(hours=2), now]
    fleet = fold.fold(
        summary.clocked(one, clock.astimezone()) for one, clock in zip(reports, clocks, strict=True)
    )
    [drift] = fleet.drift
    assert {held.value: held.nodes for held in drift.values} == {
        "as here": ("n0", "n1", "n3"),
        "120 min ahead": ("n2",),
    }
    odd = named(HEALTHY, "n1", started="yesterday")
    assert summary.clocked(odd, now.astimezone()) is odd


def reported(place: Path) -> Result:
    return CliRunner().invoke(cli, ["fleet", "report", str(place)])


def test_directory_of_foreign_and_torn_files(tmp_path: Path) -> None:
    """A line for each foreign file (for some, if there are many); a node for each torn file."""
    directory.save(tmp_path, named(HEALTHY, "n1"))
    for number in range(20):
        torn = gzip.compress(summary.dumps(HEALTHY))[: 10 * number]
        (tmp_path / f"m{number:02}{directory.SUMMARY}").write_bytes(torn)
        (tmp_path / f"package{number:02}.json").write_text("{}")
    for name in ("holiday.jpg", ".n7.json.4711", "n8.json"):
        (tmp_path / name).write_bytes(b"\xff")
    ended = reported(tmp_path)
    lines = ended.stderr.splitlines()
    assert (ended.exit_code, len(lines)) == (11, 9)
    assert lines[0].startswith("gpuipc-doctor: package00.json: ")
    assert lines[-1] == "gpuipc-doctor: and 12 more files that cannot be used"
    assert "21 ERROR · 1 PASS" in ended.stdout


def test_full_reports_without_summaries_are_merged(tmp_path: Path) -> None:
    for node, report in {"a": seed_002(), "b": healthy(gpus(4)), "c": healthy(gpus(4))}.items():
        (tmp_path / f"{node}.json").write_text(report_json.dumps(report))
    directory.save(tmp_path, named(BAD, "c"))
    reports, foreign = directory.read(tmp_path)
    assert (sorted((report.node, report.status.value, report.exit_code) for report in reports), foreign) == (
        [("a", "FAIL", 12), ("b", "PASS", 0), ("c", "FAIL", 12)],
        [],
    )
    [a] = [report for report in reports if report.node == "a"]
    assert a == summary.of(seed_002(), "a", 12)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("n1.json", '{"schema": "gpuipc-doctor/fleet/2"}', "n1.json: "),
        ("n[1-2].json", report_json.dumps(healthy(gpus(1))), "n[1-2].json: the file name is not a node name"),
    ],
)
def test_other_json_is_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    directory.save(tmp_path, named(HEALTHY, "n2"))
    (tmp_path / name).write_text(text)
    ended = reported(tmp_path)
    assert ended.stderr.startswith(f"gpuipc-doctor: {says}")
    assert (ended.stderr.count("\n"), ended.exit_code) == (1, 0)


def test_directory_without_a_report(tmp_path: Path) -> None:
    ended = reported(tmp_path)
    assert (ended.exit_code, "has no node reports" in ended.stderr) == (2, True)
    assert reported(tmp_path / "nowhere").exit_code == 2


def test_second_run_into_a_directory_is_refused(tmp_path: Path) -> None:
    with directory.ours(tmp_path):
        ended = CliRunner().invoke(cli, ["fleet", "check", "-w", "n1", "--into", str(tmp_path)])
    assert (ended.exit_code, f"process {os.getpid()} is writing to it" in ended.output) == (2, True)
    assert not list(tmp_path.glob("*.json"))


def test_one_slow_pair_of_a_node_is_not_hidden_by_the_nodes_median() -> None:
    def measured(pair: int, value: float) -> report_types.Result:
        latency = Measurement("latency", value, "µs")
        return report_types.Result(
            "mpi-small-message", Finding.ok("x", "x", measured=[latency]), (f"cuda:{pair}", "x")
        )

    report = replace(healthy(gpus(8)), results=tuple(measured(n, 9.0 if n == 3 else 2.0) for n in range(8)))
    figures = summary.of(report, "n1", 0).figures
    assert {name: figure.value for name, figure in figures.items()} == {
        "mpi-small-message: latency": 2.0,
        "mpi-small-message: latency, slowest": 9.0,
    }
