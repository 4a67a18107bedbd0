"""Tests of check gpu-health: findings from recorded figures, each row both ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.api import Context, Json, Probe, Tier
from gpuipc_doctor.api.health_rows import ENDING_XIDS, FAULTS, LINKS, WARNINGS
from gpuipc_doctor.model import Fact, Finding, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, check, conclude, gpu, statuses

H100 = "NVIDIA H100 80GB HBM3"
LINK = {"generation": 5, "generations": 5, "lanes": 16, "slot": 16}
DONE = {"state": 3, "status": 0, "error": "", "health": 0, "cluster": "00" * 16, "clique": 0}
WELL: dict[str, Json] = {
    "name": H100,
    "recovery": 0,
    "remapped": [0, 0],
    "uncorrected": 0,
    "slowdown": [],
    "links": "18",
    "pcie": LINK,
    "fabric": DONE,
}
ALL_FALSE = 0b10_10_10_10 | 1 << 8  # each bit pair "false", no wrong configuration
XID_79 = [79, "NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus."]


def told_of(figures: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in figures.items() if value is not None}


def health(
    *gpus: dict[str, Json], quick: bool = False, states_links: bool = False, **told: Json
) -> list[Finding]:
    record = {
        "gpus": {f"cuda:{number}": told_of({**WELL, **gpu}) for number, gpu in enumerate(gpus)},
        "lost": {},
        "silent": {},
        "why": "",
        "log": 7,
        "loaded_s": 3600.0,
        "imex_nodes": 0,
        "wrong": "",
        **told,
    }
    asked = [] if len(gpus) > 1 else [["cuda:0"]]
    params = {"quick": quick, "imex": {"imex-daemon": None}, "gpus": asked, "states_links": states_links}
    return conclude("gpu-health", {"allocator": record}, **params)


@pytest.mark.parametrize(
    ("figures", "key"),
    [
        ({"recovery": 1}, "recovery-required"),
        ({"recovery": 4, "xids": [XID_79]}, "recovery-required"),
        ({"remapped": [0, 1]}, "rows-failed"),
        ({"remapped": [1, 1]}, "rows-failed"),
        ({"remapped": [1, 0]}, "rows-pending"),
        ({"uncorrected": 3}, "uncorrected-ecc"),
        ({"xgmi": 1}, "xgmi-errors"),
        ({"recovery": None, "xids": [XID_79]}, "xid"),
        ({"slowdown": ["heat"]}, "clocks-held"),
        ({"pcie": LINK | {"lanes": 8}}, "pcie-narrow"),
        ({"links": "17"}, "links-down"),
        ({"fabric": DONE | {"state": 1}}, "fabric-not-started"),
        ({"fabric": DONE | {"state": 2}}, "fabric-stuck"),
        ({"fabric": DONE | {"status": 999, "error": "Unknown Error"}}, "fabric-error"),
        ({"fabric": DONE | {"health": 1}}, "fabric-degraded"),
        ({"fabric": DONE | {"health": 1 << 2}}, "fabric-recovering"),
        ({"fabric": DONE | {"health": 1 << 6}}, "fabric-recovering"),
        ({"fabric": DONE | {"health": 1 << 4}}, "fabric-route"),
        ({"fabric": DONE | {"health": 4 << 8}}, "fabric-config"),
    ],
)
def test_fault_has_its_row_also_where_the_driver_lists_no_gpu(figures: dict[str, Json], key: str) -> None:
    for found in (*health(figures), *health({}, figures, figures)):
        assert found.key == key
        assert found.status is (Status.FAIL if key in FAULTS else Status.WARN)
        assert found.remedy
        assert "{" not in found.remedy
    assert "(cuda:1, cuda:2)" in sentences.summary(found)


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"name": "NVIDIA GH200 480GB", "links": "6"},
        {"name": "NVIDIA H200 NVL", "links": "12"},
        {"name": "NVIDIA H200", "links": "0"},
        {"fabric": DONE | {"state": 0, "status": 3}},
        {"fabric": DONE | {"health": ALL_FALSE}},
        {"fabric": {}},
        {"xids": [XID_79]},
        {"recovery": None, "xids": [[31, "MMU Fault"], [94, "Contained"], [48, "DBE"]]},
        {"pcie": None},
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_odd_but_healthy_gpu_passes(figures: dict[str, Json], quick: bool) -> None:
    assert statuses(health(figures, quick=quick)) == GOOD


@pytest.mark.parametrize(
    ("quick", "loaded_s", "key"),
    [
        (False, 599.0, "fabric-in-progress"),
        (False, None, "fabric-in-progress"),
        (False, 601.0, "fabric-stuck"),
        (True, 9e9, "fabric-in-progress"),
    ],
)
def test_registration_in_progress_fails_once_the_driver_is_long_loaded_but_not_before_a_job(
    quick: bool, loaded_s: float | None, key: str
) -> None:
    (found,) = health({"fabric": DONE | {"state": 2}}, quick=quick, loaded_s=loaded_s)
    assert found.key == key


@pytest.mark.parametrize(
    ("link", "quick", "keys"),
    [
        (LINK, False, ["no-fault"]),
        (LINK | {"generation": 4}, False, ["pcie-slow"]),
        (LINK | {"generation": 4}, True, ["no-fault"]),
        (LINK | {"lanes": 8}, False, ["pcie-narrow"]),
        (LINK | {"lanes": 8}, True, ["pcie-narrow"]),
        (LINK | {"generation": 1, "lanes": 8}, False, ["pcie-narrow", "pcie-slow"]),
        (LINK | {"generation": 1, "lanes": 8}, True, ["no-fault"]),
    ],
)
def test_link_is_judged_under_a_copy_and_without_one_unless_idle(
    link: Json, quick: bool, keys: list[str]
) -> None:
    copied = None if quick else True
    assert [each.key for each in health({"pcie": link, "copied": copied}, quick=quick)] == keys


@pytest.mark.parametrize(("nodes", "key"), [(0, "no-fault"), (1, "no-fault"), (18, "imex-down")])
def test_imex_domain_of_several_nodes_needs_the_daemon(nodes: int, key: str) -> None:
    assert [found.key for found in health({}, imex_nodes=nodes)] == [key]


def test_lost_gpu_fails_silent_gpu_is_an_error_and_the_others_are_judged() -> None:
    told = {"lost": {"cuda:1": "GPU is lost (15)"}, "silent": {"cuda:2": "Unknown Error (999)"}}
    found = health({"remapped": [1, 0]}, **told)
    assert {each.key: each.status for each in found} == {
        "gpu-lost": Status.FAIL,
        "rows-pending": Status.WARN,
        "no-answer": Status.ERROR,
    }


@pytest.mark.parametrize(
    "garbage",
    [
        {"fabric": DONE | {"state": 77}},
        {"pcie": LINK | {"lanes": 255}},
        {"pcie": LINK | {"generation": 0}},
        {"recovery": 201},
    ],
)
def test_garbage_is_an_error_and_accuses_no_gpu(garbage: dict[str, Json]) -> None:
    (found,) = health({}, garbage)
    assert (found.status, found.key) == (Status.ERROR, "impossible-figures")
    assert found.values["device"] == "cuda:1"


def test_without_figures_the_check_says_why_it_cannot_tell() -> None:
    (found,) = health(why="load libnvidia-ml.so.1: no such file")
    assert (found.status, found.key) == (Status.SKIP, "no-figures")
    assert "no such file" in sentences.summary(found)


def test_log_that_cannot_be_read_is_said() -> None:
    (found,) = health({}, log=None)
    assert any("Xids are unknown" in line for line in sentences.evidence(found))


def test_pass_names_the_figures_that_were_reported_and_what_imex_has() -> None:
    told = {"name": H100, "remapped": [0, 0], "links": "18"}
    record = {
        "gpus": {"cuda:0": told},
        "lost": {},
        "silent": {},
        "why": "",
        "log": 7,
        "loaded_s": None,
    }
    params = {"quick": False, "gpus": [["cuda:0"]], "states_links": False}
    imex = {"imex-channels": "channel0", "imex-daemon": None}
    done = {"allocator": {**record, "imex_nodes": 0, "wrong": ""}}
    (found,) = conclude("gpu-health", done, **params, imex=imex)
    assert sentences.summary(found) == "no fault reported: remapped rows, NVLinks"
    assert sentences.evidence(found) == ("imex-channels: channel0",)


@pytest.mark.parametrize(
    ("tier", "capabilities", "quick", "copies"),
    [
        (Tier.PROLOG, {"multi-process"}, True, False),
        (Tier.ACCEPTANCE, {"multi-process"}, False, True),
        (Tier.ACCEPTANCE, set(), False, False),  # exclusive: another process may have the GPU
    ],
)
def test_each_gpu_is_asked_and_copied_to_unless_a_job_waits_or_it_is_exclusive(
    tier: Tier, capabilities: set[str], quick: bool, copies: bool
) -> None:
    devices = tuple(replace(gpu(number), capabilities=frozenset(capabilities)) for number in range(2))
    facts = (Fact("imex-daemon", "runs", "/proc"), Fact("kernel", "6.8", "/proc"))
    planned = list(check("gpu-health").probes(Context(devices, facts, tier=tier)))
    assert [probe.subject for probe in planned if isinstance(probe, Probe)] == ["cuda:0", "cuda:1"]
    for probe in planned:
        assert isinstance(probe, Probe)
        assert (probe.params["quick"], probe.params["copies"]) == (quick, copies)
        assert probe.params["imex"] == {"imex-daemon": "runs"}


def test_without_a_gpu_nvml_is_asked_for_all_but_not_before_a_job() -> None:
    (probe,) = check("gpu-health").probes(Context())
    assert isinstance(probe, Probe)
    assert (probe.subject, probe.params["gpus"], probe.params["copies"]) == ("node", [], False)
    (finding,) = check("gpu-health").probes(Context(tier=Tier.PROLOG))
    assert isinstance(finding, Finding)
    assert finding.key == "no-device"


def test_number_of_links_that_a_site_states_wins_over_the_model() -> None:
    assert statuses(health({"links": "17"}, states_links=True)) == GOOD


def test_table_has_a_source_for_each_row() -> None:
    rows = (*FAULTS.values(), *WARNINGS.values())
    assert all(row["source"] and row["do"] and row["says"] for row in rows)
    assert 79 in ENDING_XIDS
    assert "NVIDIA GH200 480GB" not in LINKS
