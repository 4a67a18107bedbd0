"""Choice of checks and devices; no mistake of a check is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Context, Finding, Probe, loader
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.model import Device, Fact, Status, Tier
from gpuipc_doctor.probe_types import Launch, MpiStack
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.planner import Plan, Planner, sharing
from gpuipc_doctor.run.request import AmbiguousName, Request, UnknownName
from gpuipc_doctor.site.config import SiteConfig, Waiver
from tests.checks.judging import gpu

ABLE = frozenset({"legacy-ipc", "multi-process", "contexts"})
DEVICES = tuple(
    Device(backend, index, f"GPU-{backend}-{index}", f"0000:0{index}:00.0", "GPU", 1 << 30, ABLE)
    for backend in ("cuda", "hip")
    for index in range(2)
)


MPI_CHECKS = [
    item.check.id
    for item in loader.load()
    if isinstance(item, LoadedCheck) and item.check.needs_mpi and item.check.id != surveys.RANKS
]


def load(text: str, directory: Path, name: str = "own_check") -> LoadedCheck | BrokenCheck:
    file = directory / f"{name}.py"
    file.write_text(text)
    return loader.load_file(file)


def plan_probes(
    item: LoadedCheck | BrokenCheck,
    devices: tuple[Device, ...] = DEVICES,
    *,
    request: Request | None = None,
    config: SiteConfig | None = None,
    harmful: Mapping[tuple[str, str], Finding] | None = None,
) -> Plan:
    planner = Planner(request or Request(), config or SiteConfig())
    planner.selected = [item]
    return planner.plan_probes(Context(devices), harmful=harmful)


OWN_CHECK = """
from gpuipc_doctor.api import Check, Finding, Probe
class Own(Check):
    id = "own-check"
    title = "own"
    def probes(self, ctx):
        {body}
def role(w): ...
CHECK = Own()
"""


def test_unknown_check_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"no check 'ipc-reopne'; did you mean 'ipc-reopen'\?"):
        Planner(Request(checks=("ipc-reopne",)), SiteConfig())


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ((), ["cuda:0", "cuda:1", "hip:0", "hip:1"]),
        (("cuda:1",), ["cuda:1"]),
        (("GPU-hip-0", "hip:0"), ["hip:0"]),
    ],
)
def test_devices_by_label_index_or_uuid(names: tuple[str, ...], labels: list[str]) -> None:
    chosen = Request(devices=names).select_devices(DEVICES)
    assert [device.label for device in chosen] == labels


def test_index_is_a_device_if_one_backend_has_it() -> None:
    chosen = Request(devices=("1",)).select_devices(DEVICES[:2])
    assert [device.label for device in chosen] == ["cuda:1"]
    with pytest.raises(AmbiguousName, match="device '1' may be any of cuda:1, hip:1; name the one you mean"):
        Request(devices=("1",)).select_devices(DEVICES)


def test_unknown_device_suggests_the_nearest_label() -> None:
    with pytest.raises(UnknownName, match="no device '9, x'; there are cuda:0"):
        Request(devices=("0", "9", "x")).select_devices(DEVICES[:2])
    with pytest.raises(UnknownName, match="no device 'cuda:9'; did you mean 'cuda:"):
        Request(devices=("cuda:9",)).select_devices(DEVICES)


def test_check_plans_with_the_requested_tier(tmp_path: Path) -> None:
    item = load(OWN_CHECK.format(body="yield Finding.ok('told', ctx.tier.label)"), tmp_path)
    layout = plan_probes(item, request=Request(tier=Tier.SOAK))
    assert [sentences.summary(result.finding) for result in layout.concluded] == ["soak"]


ONE_WAY = (DEVICES[0], replace(DEVICES[1], peers=frozenset({"cuda:0"})))
"""The second has peer access to the first, but not the first to the second."""

ALL_PAIRS = """for pair in ctx.pairs:
            yield Probe('', {'a': role, 'b': role}, pair)"""


def test_pair_without_peer_access_is_a_skip_for_ipc_checks(tmp_path: Path) -> None:
    item = load(OWN_CHECK.format(body=ALL_PAIRS), tmp_path)
    assert isinstance(item, LoadedCheck)
    assert len(plan_probes(item, ONE_WAY).probes) == 2
    type(item.check).requires = frozenset({"legacy-ipc"})
    layout = plan_probes(item, ONE_WAY)
    assert [planned.probe.subject for planned in layout.probes] == ["cuda:0 > cuda:1"]
    [result] = layout.concluded
    assert result.subject == "cuda:1 > cuda:0"
    assert result.finding.key == "no-peer-access"
    assert sentences.summary(result.finding) == "no peer access between cuda:0 and cuda:1"


def test_device_without_a_requirement_is_a_skip_with_the_reason(tmp_path: Path) -> None:
    item = load(OWN_CHECK.format(body="return []"), tmp_path)
    assert isinstance(item, LoadedCheck)
    type(item.check).requires = frozenset({"legacy-ipc", "contexts"})
    plain = replace(DEVICES[0], capabilities=frozenset({"legacy-ipc"}))
    [result] = plan_probes(item, (plain,)).concluded
    assert (result.finding.status, sentences.summary(result.finding)) == (
        Status.SKIP,
        "cuda:0 lacks contexts (its driver says so)",
    )


@pytest.mark.parametrize(
    ("facts", "mode"), [((), "not 0"), ((Fact("compute-mode", "prohibited", ""),), "prohibited")]
)
def test_compute_mode_is_named_with_its_cure(tmp_path: Path, facts: tuple[Fact, ...], mode: str) -> None:
    item = load(OWN_CHECK.format(body="return []"), tmp_path)
    assert isinstance(item, LoadedCheck)
    type(item.check).requires = frozenset({"legacy-ipc", "multi-process"})
    device = replace(DEVICES[0], capabilities=frozenset({"legacy-ipc"}))
    planner = Planner(Request(), SiteConfig())
    planner.selected = [item]
    [result] = planner.plan_probes(Context((device,), facts)).concluded
    assert mode in sentences.summary(result.finding)
    assert "nvidia-smi -c 0" in result.finding.remedy
    assert "MPS" in result.finding.remedy


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return []", "the check's own code planned nothing to run"),
        ("raise KeyError('x')", "planning failed: KeyError: 'x'"),
        ("yield Probe('p', {'a': lambda w: None})", "is not a function defined in own_check.py"),
        ("yield Probe('p', {'a': print})", "is not a function defined in own_check.py"),
        ("yield Probe('p', {'a': role}, ('cuda:0',))", "must be devices from the check's `ctx`"),
        ("yield 'a probe'", "is neither a Probe nor a Finding"),
        ("yield Probe('p', {'a': role}, concurrent=True)", "concurrent must be a set of its roles"),
        ("yield Probe('p', {'a': role}, concurrent={'b'})", "concurrent must be a set of its roles"),
        ("raise SystemExit(0)", "planning failed: SystemExit"),
    ],
)
def test_check_that_plans_wrongly_is_an_error(tmp_path: Path, body: str, says: str) -> None:
    layout = plan_probes(load(OWN_CHECK.format(body=body), tmp_path))
    [result] = layout.concluded
    assert result.finding.status is Status.ERROR
    assert says in sentences.summary(result.finding)
    assert layout.probes == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(:\n", "own_check.py:1: SyntaxError"),
        ("\nimport no_such_module\n", "own_check.py:2: ModuleNotFoundError"),
        ("x = 1\n", "defines no CHECK"),
        ("CHECK = 3\n", "defines no CHECK"),
        ("raise SystemExit(0)\n", "own_check.py:1: SystemExit"),
        (
            OWN_CHECK.format(body="return []").replace("own-check", "Own Check"),
            "the check's id must be words",
        ),
        (
            OWN_CHECK.format(body="return []").replace("    title", "    tier = 'prolog'\n    title"),
            "the check's tier is",
        ),
        (
            OWN_CHECK.format(body="return []").replace(
                "    title", "    requires = frozenset({'legacy-icp'})\n    title"
            ),
            "the check requires 'legacy-icp', which no device can have; did you mean 'legacy-ipc'?",
        ),
    ],
)
def test_file_that_does_not_load_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    [result] = plan_probes(load(text, tmp_path)).concluded
    assert result.finding.status is Status.ERROR
    assert says in sentences.summary(result.finding)


def test_check_runs_after_the_last_day_of_its_disabling_and_says_so() -> None:
    (item,) = Planner(Request(checks=("ipc-reopen",)), SiteConfig()).selected

    def laid_out(until: date) -> Plan:
        config = SiteConfig(disabled={"ipc-reopen": Waiver("ticket 4711", "site.yaml:12", until)})
        return plan_probes(item, config=config)

    assert laid_out(date.today()).probes == ()
    again = laid_out(date(2001, 1, 1))
    assert len(again.probes) == len(plan_probes(item).probes)
    warned = [sentences.summary(r.finding) for r in again.concluded if r.finding.status is Status.WARN]
    assert warned == ["the check was disabled at site.yaml:12 until 2001-01-01, and now runs again"]


def test_deadline_of_the_command_line_takes_precedence() -> None:
    [item] = Planner(Request(checks=("ipc-reopen",)), SiteConfig()).selected
    for request, config, expected in (
        (Request(), SiteConfig(), 10.0),
        (Request(), SiteConfig(deadline_s=4.0), 4.0),
        (Request(deadline_s=2.0), SiteConfig(deadline_s=4.0), 2.0),
    ):
        layout = plan_probes(item, request=request, config=config)
        assert {planned.probe.deadline_s for planned in layout.probes} == {expected}


@pytest.mark.parametrize(("partner", "names"), [("", {"here", "both"}), ("n2", {"both"})])
def test_with_a_partner_only_probes_between_nodes_run(tmp_path: Path, partner: str, names: set[str]) -> None:
    lines = (
        "from gpuipc_doctor.probe_types import Launch",
        'yield Probe("here", {"role": role}, ctx.devices[:1], launch=Launch(("mpiexec",)))',
        'yield Probe("both", {"role": role}, ctx.devices[:1], launch=Launch(("srun",), nodes=2))',
    )
    own = load(OWN_CHECK.replace("{body}", "\n        ".join(lines)), tmp_path)
    plan = plan_probes(own, request=Request(partner=partner, nodes=2))
    assert {planned.probe.name for planned in plan.probes} == names


def test_probes_are_repeated_in_rounds() -> None:
    [item] = Planner(Request(checks=("ipc-reopen",)), SiteConfig()).selected
    once = plan_probes(item, DEVICES[:1])
    thrice = plan_probes(item, DEVICES[:1], request=Request(repeat=3))
    assert [(p.probe.name, p.repetition) for p in thrice.probes] == [
        (p.probe.name, number) for number in (1, 2, 3) for p in once.probes
    ]
    assert len({p.number for p in thrice.probes}) == len(thrice.probes)
    assert (thrice.checks, thrice.concluded) == (once.checks, once.concluded)


@pytest.mark.parametrize(
    ("checks", "needs_gpu"),
    [
        ((), True),
        (("known-versions", "environment"), False),
        (("known-versions", "ipc-reopen"), True),
        (("mpi-gpu-aware",), True),
        (("driver-init",), True),
    ],
)
def test_checks_that_need_a_gpu(checks: tuple[str, ...], needs_gpu: bool) -> None:
    assert Planner(Request(checks=checks), SiteConfig()).needs_gpu is needs_gpu


def test_harmful_probe_is_a_skip_on_affected_devices(tmp_path: Path) -> None:
    harms = "frozenset({'kills an importer'})"
    body = f"""for device in ctx.devices:
            yield Probe('kill', {{'a': role}}, (device,), harms={harms})
            yield Probe('end', {{'a': role}}, (device,))"""
    item = load(OWN_CHECK.format(body=body), tmp_path)
    reason = Finding.skip("would-harm", "it may")
    layout = plan_probes(item, DEVICES[1:3], harmful={("kills an importer", "hip:0"): reason})
    ran = [(planned.probe.subject, planned.probe.name) for planned in layout.probes]
    assert ran == [("cuda:1", "kill"), ("cuda:1", "end"), ("hip:0", "end")]
    [skipped] = layout.concluded
    assert (skipped.subject, skipped.probe, skipped.finding) == ("hip:0", "kill", reason)


@pytest.mark.parametrize("name", MPI_CHECKS)
def test_mpi_check_is_a_skip_where_the_library_takes_no_device_pointers(name: str) -> None:
    """A library that takes device memory for the host's would crash, or, on an APU, pass."""
    [item] = Planner(Request(checks=(name,)), SiteConfig()).selected
    stack = MpiStack("mpich", "5.0.2", "/opt/libmpi.so", Launch(("mpiexec", "-n", "{ranks}")))
    planner = Planner(Request(), SiteConfig())
    planner.selected = [item]
    for takes, on in ((frozenset(), set()), (frozenset({"hip"}), {"hip"})):
        layout = planner.plan_probes(
            Context(DEVICES, mpi=replace(stack, takes=takes, why_not="built without"))
        )
        assert {device.backend for planned in layout.probes for device in planned.probe.devices} == on
        skipped = {r.subject: r.finding for r in layout.concluded}
        assert {finding.key for finding in skipped.values()} == {"mpi-takes-no-device-pointers"}
        assert skipped.keys() == {device.label for device in DEVICES if device.backend not in on}


def test_second_check_with_the_same_id_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text(OWN_CHECK.format(body="return []").replace("own-check", "ipc-reopen"))
    loaded = loader.load([tmp_path])
    [broken] = [item for item in loaded if isinstance(item, BrokenCheck)]
    assert "the check's id 'ipc-reopen' is already used by" in broken.reason


def test_every_built_in_check_loads_and_is_documented() -> None:
    loaded = loader.load()
    assert not [item for item in loaded if isinstance(item, BrokenCheck)]
    for item in loaded:
        assert isinstance(item, LoadedCheck)
        assert item.file == loader.built_in()[item.check.id]
        assert (loader.module(item.file).__doc__ or "").strip()
        assert len(item.check.title) <= 60


def test_only_requested_built_in_checks_are_imported(tmp_path: Path) -> None:
    """Uses a new process: this one has imported all checks. A site's files are not imported either."""
    (tmp_path / "ours.py").write_text(OWN_CHECK.format(body="return []"))
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gpuipc_doctor.run import planner\n"
        "from gpuipc_doctor.run.request import Request\n"
        "from gpuipc_doctor.site.config import SiteConfig\n"
        "config = SiteConfig(checks_dirs=(Path(sys.argv[1]),))\n"
        "for item in planner.select(Request(('ipc-reopen', 'driver-init')), config):\n"
        "    print(item.check.id)\n"
        "ours = ('gpuipc_doctor.checks.', 'gpuipc_doctor.histories', 'gpuipc_doctor_site_check')\n"
        "print(*(name for name in sys.modules if name.startswith(ours)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == [
        "ipc-reopen",
        "gpuipc_doctor.checks.ipc_reopen gpuipc_doctor.checks.driver_init",
    ]


CONTROL = OWN_CHECK.replace("import Check,", "import Check, Control,").replace(
    'title = "own"', 'title = "own"\n    control = Control("ipc-reopen", "right", "wrong")'
)


@pytest.mark.parametrize(
    ("request_", "devices", "runs"),
    [(Request(), (), False), (Request(), DEVICES, True), (Request(checks=("ipc-reopen",)), (), True)],
)
def test_control_waits_for_its_check_unless_requested(
    tmp_path: Path, request_: Request, devices: tuple[Device, ...], runs: bool
) -> None:
    item = load(CONTROL.format(body='yield Probe("", {"a": role})'), tmp_path)
    layout = plan_probes(item, devices, request=request_)
    assert bool(layout.probes) is runs
    assert [result.finding.key for result in layout.concluded] == [] if runs else ["no-subject"]


@pytest.mark.parametrize(("tier", "concurrent"), [(Tier.ACCEPTANCE, set()), (Tier.SOAK, {"role"})])
def test_contexts_in_soak_are_like_an_applications(tier: Tier, concurrent: set[str], tmp_path: Path) -> None:
    item = load(OWN_CHECK.format(body='yield Probe("", {"role": role}, ctx.devices[:1])'), tmp_path)
    (planned,) = plan_probes(item, request=Request(tier=tier)).probes
    assert planned.probe.concurrent == concurrent


def test_equal_probes_of_different_checks_have_one_run(tmp_path: Path) -> None:
    body = "yield Probe('', {'a': role}, ctx.devices[:1], {'n': 1})"
    item = load(OWN_CHECK.format(body=body), tmp_path)
    assert isinstance(item, LoadedCheck)
    first = plan_probes(item).probes[0]
    again = replace(first, number=first.number + 1, check=copy(item.check))
    other = replace(again, number=7, probe=replace(first.probe, params={"n": 2}))
    same_check = replace(first, number=8)
    later = replace(again, number=9, repetition=2)
    assert sharing([first, again, other, same_check, later]) == {first.number: [again]}


@pytest.mark.parametrize(
    ("count", "peers", "subjects"),
    [
        (1, True, ["cuda:0"]),
        (2, True, ["cuda:0 > cuda:1", "cuda:1 > cuda:0"]),
        (3, True, ["cuda:0 > cuda:1", "cuda:1 > cuda:2", "cuda:2 > cuda:0"]),
        (2, False, ["cuda:0", "cuda:1"]),
    ],
)
def test_each_device_exports_once_to_another_if_it_can(count: int, peers: bool, subjects: list[str]) -> None:
    labels = frozenset(f"cuda:{number}" for number in range(count))
    devices = tuple(replace(gpu(number), peers=labels if peers else frozenset()) for number in range(count))
    assert [Probe("", {}, chosen).subject for chosen in Context(devices).exporters] == subjects
    assert Context(devices, tier=Tier.SOAK).exporters == Context(devices, tier=Tier.SOAK).subjects
