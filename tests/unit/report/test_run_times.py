"""When probes ran, and what a run waited for."""

from __future__ import annotations

from dataclasses import replace

from gpuipc_doctor.model import Finding
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import node_content, plots, run_times
from gpuipc_doctor.report_types import Report, Result
from tests.sample_reports import gpus, healthy, report


def ran(check: str, start: float, end: float, *devices: str) -> Result:
    role = RoleOutcome("role", Ending.COMPLETED)
    found = Finding.ok("right", "it is right")
    return Result(check, found, devices or ("cuda:0",), "", end - start, (role,), started_s=start)


def of(*results: Result) -> Report:
    return report(gpus(1), results, elapsed_s=9.0)


RUN = of(
    ran("short", 1.0, 2.0),
    ran("long", 1.0, 5.0),
    ran("second", 2.05, 4.0),
    ran("alone", 5.02, 8.0),
    replace(ran("skipped", 0.0, 0.0), roles=()),
)


def test_run_waits_for_what_ends_last_and_for_what_that_waited_for() -> None:
    assert [each.check for each in run_times.waited_for(RUN)] == ["long", "alone"]
    assert [each.check for each in run_times.probes(RUN)] == ["long", "short", "second", "alone"]


def test_verbose_screen_says_what_the_run_waited_for() -> None:
    said = " ".join(node_content.screen(RUN, verbose=True).split())
    assert "Of 9.0 s the run waited for: long 4.0 s, alone 3.0 s" in said
    assert "waited for" not in node_content.screen(RUN)


def test_earlier_report_without_times_has_neither() -> None:
    old = replace(
        healthy(gpus(1)), results=tuple(replace(r, started_s=0.0) for r in healthy(gpus(1)).results)
    )
    assert run_times.waited_for(old) == []
    assert plots.of_run(old) is None
    assert "waited for" not in node_content.screen(old, verbose=True)


def test_picture_names_checks_and_node() -> None:
    pair = of(ran("long", 1.0, 5.0), ran("pair", 1.0, 3.0, "cuda:0", "cuda:1"))
    picture = plots.of_run(pair)
    assert picture
    assert picture.png.startswith(b"\x89PNG")
    for text in (b">long<", b"cuda:0 &gt; cuda:1", pair.host.encode()):
        assert text in picture.svg
