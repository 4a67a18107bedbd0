"""Run NVIDIA's own `dcgmi diag -r 1`, and report its verdict beside ours: `check --all --with-dcgm`.

Level 1 of DCGM tests the installation and the GPUs' records (libraries, permissions, row remapping) within
seconds and stresses nothing. A failure is DCGM's, with DCGM's words. If all that it complains of are settings
of the node (its severity 5, such as persistence mode), it is a WARN. A dcgmi that is not found or has no
nv-hostengine is a SKIP, a document that cannot be read is an ERROR.

Both of DCGM's formats are read, 3's and 4's. No real dcgmi was run for this check: it was tried with programs
that print such documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuipc_doctor.api import Check, Context, Finding, Json, Probe, ProbeOutcome, Worker

ROLE, DEADLINE_S, MARGIN_S = "allocator", 120.0, 20.0
NO_ENGINE = ("host engine", "hostengine", "establish a connection")
"""Parts of dcgmi's words if nv-hostengine does not run."""


class DcgmDiag(Check):
    id = "dcgm-diag"
    title = "NVIDIA's DCGM passes its own level 1 (--with-dcgm)"
    subject = None
    on_request = True

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        if any(device.vendor.manages for device in ctx.devices):
            yield Probe("", {ROLE: ask}, deadline_s=DEADLINE_S)
        else:
            yield Finding.skip("no-device", "DCGM tests only NVIDIA GPUs, and none was found")

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        told = done.records[ROLE]
        if not told["program"]:
            remedy = "install NVIDIA's datacenter-gpu-manager, or add dcgmi's directory to PATH"
            yield Finding.skip("no-dcgmi", "dcgmi is not on PATH", remedy=remedy)
        elif told["exit"] is None:
            says = "dcgmi diag -r 1 did not end within {limit:s}"
            yield Finding.error("no-answer", says, limit=DEADLINE_S - MARGIN_S)
        elif "tests" not in told:
            yield unread(told)
        else:
            yield verdict(told, told["tests"])


def unread(told: Mapping[str, Json]) -> Finding:
    """Of output without a document."""
    said = str(told["said"]).replace("{", "(") or "no output"
    if any(words in said.lower() for words in NO_ENGINE):
        return Finding.skip(
            "no-engine",
            "dcgmi reaches no nv-hostengine: {said}",
            remedy="start it: systemctl start nvidia-dcgm",
            said=said,
        )
    return Finding.error("unreadable", "dcgmi exited with {code}: {said}", code=told["exit"], said=said)


def verdict(told: Mapping[str, Json], tests: Sequence[Json]) -> Finding:
    """Of DCGM's document; a failure outweighs what DCGM could not test."""
    lines = [line(*test) for test in tests if test[1] not in ("PASS", "SKIP")]
    failed = sorted({name for name, status, _, _, mild in tests if status == "FAIL" and not mild})
    mild = sorted(
        {name for name, status, _, _, mild in tests if status == "WARN" or (status == "FAIL" and mild)}
    )
    passed = sorted({name for name, status, *_ in tests if status == "PASS"})
    odd = sorted({test[1] for test in tests} - {"PASS", "SKIP", "FAIL", "WARN"})
    version = told["version"] or "of unknown version"
    if failed:
        says, remedy = "DCGM {version}: {tests} failed", "do what DCGM says; then rerun dcgmi diag -r 2"
        return Finding.fail("failed", says, *lines, remedy=remedy, tests=failed, version=version)
    if told["error"] or odd:
        says = "DCGM {version} could not test: {reason}"
        return Finding.error(
            "not-tested", says, *lines, reason=told["error"] or ", ".join(odd), version=version
        )
    if mild:
        says, remedy = "DCGM {version}: {tests}: a setting of the node", "do what DCGM says"
        return Finding.warn("settings", says, *lines, remedy=remedy, tests=mild, version=version)
    if told["exit"]:
        says = "dcgmi exited with {code}, but no test of DCGM {version} failed"
        return Finding.error("contradiction", says, code=told["exit"], version=version)
    if not passed:
        return Finding.skip("all-skipped", "DCGM {version} tested nothing here", version=version)
    return Finding.ok("passed", "DCGM {version}: {tests} passed", tests=passed, version=version)


def line(name: str, status: str, gpu: str, warnings: Sequence[str], mild: bool) -> str:
    """One result of DCGM, with its words."""
    where = f", GPU {gpu}" if gpu else ""
    text = f"{name}{where}: {' '.join(warnings) or status.lower()}"
    return text.replace("{", "(").replace("}", ")")


def ask(w: Worker) -> None:
    w.record(**w.dcgm(w.deadline_s - MARGIN_S))


CHECK = DcgmDiag()
