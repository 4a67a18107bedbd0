"""The verdict on each pair of GPUs, from the results of ipc-peer and ipc-kernels."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuipc_doctor.api import Json
from gpuipc_doctor.api.equal_gpus import picture
from gpuipc_doctor.model import Device, Evidence, Fact, Finding
from gpuipc_doctor.report import node_content, node_exports, p2p
from gpuipc_doctor.report.p2p import COPIES, KERNELS, Answer
from gpuipc_doctor.report_types import Report, Result
from tests import schemas
from tests.sample_reports import gpus, report

PASS = Finding.ok("right", "right")
WRONG = Finding.fail("wrong-copy", "wrong data after a copy", control=[])
WRONG_ALSO_ALONE = Finding.fail("wrong-copy", "wrong data after a copy", control=["the exporter's device"])
KERNELS_WRONG_ALONE = Finding.fail("wrong-alone", "kernels are wrong in memory of their own process")
HUNG = Finding.fail("hung", "cuIpcOpenMemHandle hung")
NO_ATOMICS = Finding.skip("no-native-atomics", "no additions")
NO_KERNELS = Finding.skip("no-kernels", "the driver does not run kernels")
NO_TIME = Finding.error("budget", "the budget was exhausted")
REFUSED = Finding.skip("no-peer-access", "no peer access: refused")


def two(peers: bool = True) -> tuple[Device, ...]:
    labels = frozenset({"cuda:0", "cuda:1"}) if peers else frozenset()
    return tuple(replace(device, peers=labels - {device.label}) for device in gpus(2))


def outcome(copies: list[Finding], kernels: list[Finding], *, peers: bool = True) -> Report:
    found = [(COPIES, each) for each in copies] + [(KERNELS, each) for each in kernels]
    pair = ("cuda:0", "cuda:1")
    results = [Result(check, each, pair[:: 1 - 2 * (n % 2)]) for n, (check, each) in enumerate(found)]
    return report(two(peers), results)


@pytest.mark.parametrize(
    ("copies", "kernels", "verdict", "atomics"),
    [
        ([PASS, PASS], [PASS, PASS], Answer.RIGHT, True),
        ([PASS, PASS], [PASS, NO_ATOMICS], Answer.RIGHT, False),
        ([PASS, WRONG], [PASS, PASS], Answer.WRONG, True),
        ([PASS, PASS], [PASS, HUNG], Answer.WRONG, None),
        ([PASS, WRONG_ALSO_ALONE], [PASS, PASS], Answer.CANNOT_TELL, True),
        ([WRONG, WRONG_ALSO_ALONE], [PASS, PASS], Answer.WRONG, True),
        ([PASS, PASS], [KERNELS_WRONG_ALONE, PASS], Answer.CANNOT_TELL, None),
        ([PASS, PASS], [NO_KERNELS], Answer.CANNOT_TELL, None),
        ([PASS, NO_TIME], [PASS, PASS], Answer.CANNOT_TELL, True),
        ([PASS, PASS], [], Answer.CANNOT_TELL, None),
    ],
)
def test_worst_answer_of_both_directions_is_the_verdict(
    copies: list[Finding], kernels: list[Finding], verdict: Answer, atomics: bool | None
) -> None:
    (pair,) = p2p.pairs(outcome(copies, kernels))
    assert (pair.verdict, pair.atomics) == (verdict, atomics)
    assert pair.granted
    assert bool(pair.why) == (verdict is not Answer.RIGHT and bool(pair.keys))


def test_pair_that_the_driver_refuses_is_no_fault() -> None:
    (pair,) = p2p.pairs(outcome([REFUSED, REFUSED], [REFUSED], peers=False))
    assert (pair.verdict, pair.granted, pair.copies) == (Answer.NO_PEER_ACCESS, False, Answer.NOT_TESTED)
    assert "refused" in pair.why


def test_way_of_a_pair_without_access_is_known_too() -> None:
    told = outcome([REFUSED], [REFUSED], peers=False)
    lines = picture(told.devices, {"cuda:0": {"cuda:1": "SYS"}})
    found = Result("driver-init", Finding.ok("initialised", "2", *lines))
    (pair,) = p2p.pairs(replace(told, results=(*told.results, found)))
    assert (pair.way, p2p.between(pair.way)) == ("SYS", "sockets")


def test_gpus_of_two_drivers_are_no_pair_and_one_gpu_has_none() -> None:
    other = replace(gpus(1)[0], backend="hip")
    for devices in ((gpus(1)[0], other), gpus(1)):
        said = p2p.content(report(devices, []))
        assert said.pairs == ()
        assert said.why_none.startswith("there is no pair")


def test_screen_and_page_have_the_table_and_the_way() -> None:
    ways = {"device": "cuda:0", "others": ["cuda:0", "cuda:1"], "ways": ["X", "NV18"]}
    told = outcome([PASS, PASS], [PASS, PASS])
    picture = Result("driver-init", Finding.ok("initialised", "2", Evidence.seen("{ways}", **ways)))
    whole = replace(
        told, results=(*told.results, picture), inventory=(*told.inventory, Fact("iommu", "off", "/"))
    )
    for page in (node_content.screen(whole, verbose=True), node_content.screen(whole, pairs=True)):
        assert "cuda:0 - cuda:1  right    18 NVLinks  yes" in page
        assert "iommu: off" in page
    assert "cuda:0 - cuda:1" not in node_content.screen(whole)
    assert "<td>cuda:0 - cuda:1</td>" in node_exports.html(whole)
    assert "there is no pair: 1 GPU" in node_content.screen(report(gpus(1), []), pairs=True)


@pytest.mark.parametrize(
    ("way", "words"),
    [("NV18", "18 NVLinks"), ("SYS", "sockets"), ("PIX", "PCIe switch"), ("", "-"), ("NV", "NV")],
)
def test_way_is_told_in_words(way: str, words: str) -> None:
    assert p2p.between(way) == words


def test_document_has_the_shipped_schema() -> None:
    schemas.check(p2p, "p2p")
    document: Json = json.loads(p2p.KIND.dumps(p2p.content(outcome([PASS, WRONG], [PASS]))))
    assert document["schema"] == "gpuipc-doctor/p2p/1"
    assert document["pairs"][0]["verdict"] == "wrong"
    assert document["pairs"][0]["keys"] == ["ipc-peer.wrong-copy"]
