"""Pictures from a report: one for each check and subject, labelled with the node."""

from __future__ import annotations

from dataclasses import replace
from importlib import util
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.check import command
from gpuipc_doctor.model import Finding
from gpuipc_doctor.report import plots
from gpuipc_doctor.report_types import Line, Mark, Report, Result, Series
from tests.sample_reports import gpus, report

MIB = 1 << 20


def series(title: str = "MemoryPool: 200.0 MiB allocated", most: float = 600 * MIB) -> Series:
    lines = (
        Line("used on the device", (0.0, most / 2, most)),
        Line("allocated", (0.0, most / 3, most / 3)),
    )
    return Series(title, "seconds", (0.0, 0.1, 0.2), lines, (Mark(0.15, "free_all_blocks"),))


def result(check: str = "allocator-growth", probe: str = "MemoryPool", *drawn: Series) -> Result:
    finding = Finding.fail("grows", f"{probe}: used memory grows by 32.0 MiB each round")
    return Result(check, finding, ("cuda:0",), probe, series=drawn or (series(),))


def recorded(*results: Result) -> Report:
    return report(gpus(1), results, started="2026-11-20T12:00:00+00:00")


def texts(svg: bytes) -> str:
    root = ElementTree.fromstring(svg)
    return "\n".join("".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text"))


def test_picture_is_labelled_with_subject_and_node() -> None:
    whole = recorded(result())
    (picture,) = plots.pictures(whole)
    assert picture.name == "allocator-growth-cuda0"
    said = texts(picture.svg)
    for text in (
        "allocator-growth on cuda:0",
        "MemoryPool: 200.0 MiB allocated",
        "FAIL  used memory grows by 32.0 MiB each round",
        "used on the device",
        "free_all_blocks",
        "milliseconds",
        "MiB",
        f"{whole.host} · NVIDIA H200 · NVIDIA 580.159.04",
        "2026-11-20 12:00",
    ):
        assert text in said
    assert "SIMULATED" not in said
    assert picture.png.startswith(b"\x89PNG")


@pytest.mark.full
def test_simulated_node_is_marked_on_its_picture() -> None:
    (picture,) = plots.pictures(replace(recorded(result()), simulated="leaky"))
    assert "allocator-growth on cuda:0 · SIMULATED" in texts(picture.svg)
    assert "SIMULATED (leaky)" in texts(picture.svg)


def test_report_without_series_has_no_picture() -> None:
    assert list(plots.pictures(recorded(Result("ipc-reopen", Finding.ok("right", "3 segments"))))) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("most", "unit"), [(0.0, "MiB"), (30.0, "B"), (3 << 20, "MiB"), (3 << 30, "GiB"), (1 << 30, "MiB")]
)
def test_unit_fits_the_figures(most: float, unit: str) -> None:
    (picture,) = plots.pictures(recorded(result("a", "b", series(most=most))))
    assert unit in texts(picture.svg).splitlines()


def test_text_of_a_driver_is_neither_markup_nor_a_formula() -> None:
    finding = Finding.fail("left", "b: left $x$ <b> \x1b[31m & \x07")
    (picture,) = plots.pictures(recorded(Result("a", finding, ("cuda:0",), "b", series=(series(),))))
    assert "FAIL  left $x$ <b>" in texts(picture.svg)


def test_missing_matplotlib_is_a_usage_error_with_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(command, ["--all", "--plots", str(tmp_path / "pictures")])
    assert ended.exit_code == 2
    assert "--plots needs matplotlib: pip install matplotlib" in ended.output
    assert not (tmp_path / "pictures").exists()


def test_unwritable_directory_is_reported_before_anything_runs() -> None:
    ended = CliRunner().invoke(command, ["--all", "--plots", "/dev/null/pictures"])
    assert ended.exit_code == 2
    assert "--plots: /dev/null/pictures: " in ended.output
