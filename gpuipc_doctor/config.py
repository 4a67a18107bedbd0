"""A site's config: one YAML file that says where its own checks are, what is disabled, and how long to wait.

``site-configs/generic.yaml`` holds every key with its default and what it means.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from gpuipc_doctor import policy
from gpuipc_doctor.model import Json, MemoryShare, Tier
from gpuipc_doctor.mpi.finding import check_template
from gpuipc_doctor.policy import SITE_DIRECTORIES, PrologConfig
from gpuipc_doctor.trust import untrusted
from gpuipc_doctor.yamlfile import BadFile, Document, Mistake, did_you_mean, read

SCHEMA = Path(__file__).with_name("config.schema.json")

_BUDGET_S = {Tier.PROLOG: policy.BUDGET_S, Tier.ACCEPTANCE: 300.0, Tier.SOAK: 3600.0}

"""The keys that name directories, and the files that are read there."""


@dataclass(frozen=True, slots=True)
class Disabled:
    """Why a site has disabled a check, ``file:line`` of where it says so, and the last day of it, if any."""

    reason: str
    where: str
    until: date | None = None

    def has_expired(self, today: date) -> bool:
        return self.until is not None and self.until < today


@dataclass(frozen=True, slots=True)
class MpiConfig:
    """A site's MPI; what is empty is found by itself."""

    library: str = ""
    """Path of the MPI library."""
    launcher: str = ""
    """Command that starts ranks, with ``{ranks}`` and, where wanted, ``{nodes} {ranks_per_node} {env}``."""


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """What a site has decided; without a file, the defaults. All times are seconds."""

    checks_dirs: tuple[Path, ...] = ()
    known_issues_dirs: tuple[Path, ...] = ()
    disabled: Mapping[str, Disabled] = field(default_factory=dict)
    """By check id."""
    tier: Tier = Tier.ACCEPTANCE
    deadline_s: float | None = None
    """For each single operation; None leaves it to the check."""
    start_up_s: float = 60.0
    """For a worker to start, until its first sign of life."""
    budget_s: Mapping[Tier, float] = field(default_factory=lambda: dict(_BUDGET_S))
    """For a whole run of a tier."""
    options: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """By check id, what that check's ``Context.options`` shall be."""
    mpi: MpiConfig = MpiConfig()
    prolog: PrologConfig = field(default_factory=PrologConfig)
    memory: MemoryShare = field(default_factory=MemoryShare)
    """How much device memory a check may take."""


def load(path: Path) -> SiteConfig:
    """Read a site config. Raises `BadFile` with every mistake in it.

    Directories in it are relative to the file. To root, a file or directory that others can write is a
    mistake, too: whoever can write it decides what root runs.
    """
    document = _read(path)
    data = document.data
    mistakes = list(_mistakes(document))
    if mistakes:
        raise BadFile(mistakes)
    budgets = {Tier[name.upper()]: float(seconds) for name, seconds in data.get("budget_s", {}).items()}
    deadline = data.get("deadline_s")
    return SiteConfig(
        checks_dirs=_directories(document, "checks_dirs"),
        known_issues_dirs=_directories(document, "known_issues_dirs"),
        disabled={
            id_: _disabled(said, f"{path}:{document.line('disabled', id_)}")
            for id_, said in data.get("disabled", {}).items()
        },
        tier=Tier[data.get("tier", "acceptance").upper()],
        deadline_s=None if deadline is None else float(deadline),
        start_up_s=float(data.get("start_up_s", SiteConfig().start_up_s)),
        budget_s={**_BUDGET_S, **budgets},
        options=data.get("options", {}),
        mpi=MpiConfig(**data.get("mpi", {})),
        prolog=PrologConfig.read(data.get("prolog", {}), path.absolute().parent),
        memory=MemoryShare(**data.get("memory", {})),
    )


def _disabled(said: Json, where: str) -> Disabled:
    if isinstance(said, str):
        return Disabled(said, where)
    return Disabled(said["reason"], where, date.fromisoformat(said["until"]))


def unknown_checks(path: Path, check_ids: Collection[str]) -> tuple[Mistake, ...]:
    """Each check that the file names and that does not exist."""
    document = _read(path)
    named: list[tuple[tuple[str | int, ...], str]] = [
        ((key, id_), id_) for key in ("disabled", "options") for id_ in document.data.get(key, {})
    ]
    prolog = enumerate(document.data.get("prolog", {}).get("checks", ()))
    named += [(("prolog", "checks", number), id_) for number, id_ in prolog]
    return tuple(
        document.mistake(
            f"{'.'.join(map(str, keys[:-1]))}: there is no check {id_!r}{did_you_mean(id_, check_ids)}", *keys
        )
        for keys, id_ in named
        if id_ not in check_ids
    )


def _read(path: Path) -> Document:
    if reason := untrusted(path):
        raise BadFile([Mistake(path, 0, reason)])
    return read(path, json.loads(SCHEMA.read_text(encoding="utf-8")))


def _directories(document: Document, key: str) -> tuple[Path, ...]:
    here = document.path.absolute().parent
    return tuple(here / name for name in document.data.get(key, ()))


def _mistakes(document: Document) -> Iterator[Mistake]:
    """What the schema cannot see: directories that cannot be read, or that root must not trust."""
    if mistake := check_template(document.data.get("mpi", {}).get("launcher", "{ranks}")):
        yield document.mistake(f"mpi.launcher: {mistake}", "mpi", "launcher")
    for id_, said in document.data.get("disabled", {}).items():
        if isinstance(said, dict) and not _is_day(said["until"]):
            yield document.mistake(
                f"disabled.{id_}: there is no day {said['until']}", "disabled", id_, "until"
            )
    prolog = document.data.get("prolog", {})
    if prolog.get("fresh_for_s") and not prolog.get("state_dir"):
        yield document.mistake(
            "prolog: fresh_for_s needs a state_dir to remember in", "prolog", "fresh_for_s"
        )
    for key, suffixes in SITE_DIRECTORIES.items():
        for number, directory in enumerate(_directories(document, key)):
            try:
                files = [path for path in directory.iterdir() if path.suffix in suffixes]
            except OSError as error:
                yield document.mistake(f"{key}: {directory}: {error.strerror}", key, number)
                continue
            cached = sorted((directory / "__pycache__").glob("*"))  # Python prefers these to the files
            for path in (directory, *sorted(files), directory / "__pycache__", *cached):
                if reason := untrusted(path):
                    yield document.mistake(f"{key}: {path} {reason}", key, number)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
