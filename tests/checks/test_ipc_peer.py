"""Tests of check ipc-peer: planned probes, and findings from recorded results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.api import Context, Finding, Json, Probe
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, TWO, check, conclude, gpu, plan, statuses

SOME = ["turn 2 of 5: 1 B wrong"]


def peer(
    wrong: str = "",
    exporter: Json = (),
    importer: Json = (),
    copied: Json = (),
    back: Json = (),
    sampled: Json = (),
    control: Json = (),
) -> list[Finding]:
    records = {
        "exporter": {"exchanged": exporter, "copied": back, "sampled": [], "control": control},
        "importer": {
            "wrong": wrong,
            "exchanged": importer,
            "copied": copied,
            "sampled": sampled,
            "control": [],
        },
    }
    return conclude("ipc-peer", records, TWO, kinds=["64 KiB"])


def test_correct_data_in_both_directions_passes() -> None:
    assert statuses(peer()) == GOOD


@pytest.mark.parametrize(
    ("seen", "key"),
    [
        ({"wrong": "1 B wrong"}, "wrong-data"),
        ({"importer": SOME}, "later-writes-unseen"),
        ({"exporter": SOME}, "writes-lost"),
        ({"copied": SOME}, "wrong-copy"),
        ({"exporter": SOME, "copied": SOME, "back": SOME}, "writes-lost"),
        ({"back": SOME}, "wrong-copy"),
        ({"sampled": SOME}, "wrong-kind"),
    ],
)
def test_wrong_data_fails_and_names_the_direction(seen: dict[str, Json], key: str) -> None:
    (finding,) = peer(**seen)
    assert (finding.status, finding.key) == (Status.FAIL, key)


def test_data_that_are_also_wrong_without_peer_access_say_so() -> None:
    (right,), (wrong,) = peer(copied=SOME), peer(copied=SOME, control=SOME)
    assert (right.values["control"], wrong.values["control"]) == ([], SOME)
    assert "control, without peer access: turn 2 of 5: 1 B wrong" in sentences.evidence(wrong)[-1]


def test_each_pair_of_a_backend_is_probed_and_a_single_device_skips() -> None:
    pairs = plan("ipc-peer", gpu(0), gpu(1), gpu(0, "hip"))
    assert [probe.subject for probe in pairs] == ["cuda:0 > cuda:1", "cuda:1 > cuda:0"]
    (finding,) = check("ipc-peer").probes(Context((gpu(0), gpu(0, "hip"))))
    assert isinstance(finding, Finding)
    assert finding.status is Status.SKIP


ALL = frozenset({"legacy-ipc", "vmm-ipc", "pool-ipc", "memory-pools"})


@pytest.mark.parametrize(
    ("importer", "harmful", "left_out"),
    [
        (ALL, [], set()),
        (ALL, ["exports VMM memory"], {"physical memory"}),
        (ALL, ["kills an importer"], set()),
        (ALL - {"vmm-ipc"}, [], {"physical memory"}),
        (ALL - {"pool-ipc"}, [], {"pool memory"}),
    ],
)
def test_kinds_that_both_can_share_without_harm_are_shared(
    importer: frozenset[str], harmful: list[str], left_out: set[str]
) -> None:
    pair = replace(gpu(0), capabilities=ALL), replace(gpu(1), capabilities=importer)
    there, _ = check("ipc-peer").probes(Context(pair, harmful=frozenset(harmful)))
    assert isinstance(there, Probe)
    assert set(there.params["kinds"]) == {"64 KiB", "8 MiB", "physical memory", "pool memory"} - left_out
