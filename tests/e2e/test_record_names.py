"""What a site's check records is the check's alone, whatever the names: no name changes a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, evidence, full

CHECK = """
from gpuipc_doctor.api import Check, Finding, Probe, Tier

NAMES = (
    "unsupported", "kinds", "holders", "lacking", "memory", "control", "wrong", "refused",
    "library", "transports", "warned", "ledger", "ledger of cuda:0", "running", "after each round",
    "loaded", "version", "check", "price", "baselines", "at", "do", "trying", "waits_for",
    "exchanged", "held", "used", "outside", "devices", "facts",
)


class Mine(Check):
    id = "mine"
    title = "a handle opens twice"

    def probes(self, ctx):
        value = ctx.options["value"]
        roles = {"exporter": export, "importer": attach}
        for device in ctx.devices:
            yield Probe("", roles, (device,), {"value": value}, exclusive=True)

    def judge(self, done):
        yield Finding.ok("opened", "opened twice")

    options = {"value": {}}


def note(w):
    if w.params["value"] is not None:
        w.record(**dict.fromkeys(NAMES, w.params["value"]))


def export(w):
    note(w)
    with w.gpu.alloc(4096) as buffer:
        w.peer.send(buffer.ipc_handle())
        w.peer.recv()


def attach(w):
    note(w)
    handle = w.peer.recv()
    for _ in range(2):
        with w.gpu.open_ipc(handle):
            note(w)
    w.peer.send("done")


CHECK = Mine()
"""


def verdict(doctor: Command, tmp_path: Path, value: Any, profile: str) -> Any:
    (tmp_path / "mine.py").write_text(CHECK)
    site = tmp_path / "site.yaml"
    site.write_text(json.dumps({"checks_dirs": ["."], "options": {"mine": {"value": value}}}))
    done = doctor("check", "mine", "--simulate", profile, "--config", str(site), "--json")
    findings = [
        (result["check"], result["devices"], result["finding"]["summary"], evidence(result["finding"]))
        for result in json.loads(done.stdout)["results"]
    ]
    return done.returncode, findings


@pytest.mark.parametrize(
    ("profile", "code", "values"),
    [
        ("error-ipc-open", 12, ["a text", ["a text", 2, 3, 4]]),
        full("error-ipc-open", 12, [{"a": 1}, [["a", "b", "c"]], 1, 1.5, True, 0, "", [], {}, [None]]),
        full("healthy-single", 0, ["a text", {"a": 1}, [["a", "b", "c"]], 1]),
    ],
)
def test_names_of_records_change_no_verdict(
    doctor: Command, tmp_path: Path, profile: str, code: int, values: list[Any]
) -> None:
    plain = verdict(doctor, tmp_path, None, profile)
    assert plain[0] == code
    for value in values:
        assert verdict(doctor, tmp_path, value, profile) == plain, value
