"""``check --p2p``: a verdict for each pair, for people and for an inference engine."""

from __future__ import annotations

import json

import jsonschema
import pytest

from gpuipc_doctor.model import Exit
from gpuipc_doctor.report import p2p
from tests import schemas
from tests.e2e.conftest import Command


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("profile", "code", "verdict"),
    [
        ("healthy-cuda", Exit.OK, "right"),
        ("copy-on-device-skipped", Exit.FAIL, "wrong"),
        ("peers-620-iommu", Exit.OK, "no peer access"),
    ],
)
def test_engine_reads_a_verdict_for_each_pair(
    doctor: Command, profile: str, code: Exit, verdict: str
) -> None:
    ended = doctor("check", "--p2p", "--json", "--simulate", profile, "--backend", "cuda")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, schemas.beside(p2p, "p2p"))
    assert [(pair["gpus"], pair["verdict"]) for pair in document["pairs"]] == [
        (["cuda:0", "cuda:1"], verdict)
    ]
    assert (ended.returncode, document["exit_code"]) == (code, code)


@pytest.mark.cuda
def test_one_gpu_has_no_pair_and_says_so(doctor: Command) -> None:
    ended = doctor("check", "--p2p", "--simulate", "healthy-single", "--backend", "cuda")
    assert "there is no pair: 1 GPU to test" in ended.stdout
    assert ended.returncode == Exit.OK


def test_checks_cannot_be_named_beside_it(doctor: Command) -> None:
    ended = doctor("check", "--p2p", "--all")
    assert ended.returncode == Exit.USAGE
    assert "--p2p chooses its checks" in ended.stderr
