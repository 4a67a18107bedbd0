"""A site's config: one YAML file that says where its own checks are, what is disabled, and how long to wait.

``site-configs/generic.yaml`` holds every key with its default and what it means.
"""

from __future__ import annotations

import enum
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuipc_doctor.model import Json, MemoryShare, Tier
from gpuipc_doctor.mpi.finding import check_template
from gpuipc_doctor.yamlfile import BadFile, Document, Mistake, did_you_mean, read

SCHEMA = Path(__file__).with_name("config.schema.json")

_BUDGET_S = {Tier.PROLOG: 8.0, Tier.ACCEPTANCE: 300.0, Tier.SOAK: 3600.0}

_DIRECTORIES = {"checks_dirs": (".py",), "known_issues_dirs": (".yaml", ".yml")}
"""The keys that name directories, and the files that are read there."""


@dataclass(frozen=True, slots=True)
class Disabled:
    """Why a site has disabled a check, and ``file:line`` of where it says so."""

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class MpiConfig:
    """A site's MPI; what is empty is found by itself."""

    library: str = ""
    """Path of the MPI library."""
    launcher: str = ""
    """Command that starts ranks, with ``{ranks}`` and, where wanted, ``{nodes} {ranks_per_node} {env}``."""


class Action(enum.Enum):
    """What the prolog does about a kind of result."""

    DRAIN = "drain"
    LOG = "log"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class PrologConfig:
    """What ``gpuipc-doctor prolog`` does about what it finds, and where it keeps what it has to."""

    on_fail: Action = Action.DRAIN
    on_error: Action = Action.LOG
    on_budget: Action = Action.LOG
    on_unkillable: Action = Action.LOG
    deadline_s: float | None = None
    """For each single operation; None leaves it to the check."""
    simulate: str = ""
    """The profile of the simulated node that is tested instead of this one."""

    @classmethod
    def read(cls, section: Mapping[str, Json]) -> PrologConfig:
        """From the config's section, which the schema has seen."""
        actions = {key: Action(section[key]) for key in section if key.startswith("on_")}
        return cls(**{**section, **actions})

    def written(self) -> dict[str, Json]:
        """As a section that `read` takes."""
        return {
            name: value.value if isinstance(value, Action) else value for name, value in asdict(self).items()
        }


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
    prolog: PrologConfig = PrologConfig()
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
            id_: Disabled(reason, f"{path}:{document.line('disabled', id_)}")
            for id_, reason in data.get("disabled", {}).items()
        },
        tier=Tier[data.get("tier", "acceptance").upper()],
        deadline_s=None if deadline is None else float(deadline),
        start_up_s=float(data.get("start_up_s", SiteConfig().start_up_s)),
        budget_s={**_BUDGET_S, **budgets},
        options=data.get("options", {}),
        mpi=MpiConfig(**data.get("mpi", {})),
        prolog=PrologConfig.read(data.get("prolog", {})),
        memory=MemoryShare(**data.get("memory", {})),
    )


def unknown_checks(path: Path, check_ids: Collection[str]) -> tuple[Mistake, ...]:
    """Each check that the file's ``disabled`` and ``options`` name and that does not exist."""
    document = _read(path)
    return tuple(
        document.mistake(f"{key}: there is no check {id_!r}{did_you_mean(id_, check_ids)}", key, id_)
        for key in ("disabled", "options")
        for id_ in document.data.get(key, {})
        if id_ not in check_ids
    )


def _read(path: Path) -> Document:
    if reason := _untrusted(path):
        raise BadFile([Mistake(path, 0, reason)])
    return read(path, json.loads(SCHEMA.read_text(encoding="utf-8")))


def _directories(document: Document, key: str) -> tuple[Path, ...]:
    here = document.path.absolute().parent
    return tuple(here / name for name in document.data.get(key, ()))


def _mistakes(document: Document) -> Iterator[Mistake]:
    """What the schema cannot see: directories that cannot be read, or that root must not trust."""
    if mistake := check_template(document.data.get("mpi", {}).get("launcher", "{ranks}")):
        yield document.mistake(f"mpi.launcher: {mistake}", "mpi", "launcher")
    for key, suffixes in _DIRECTORIES.items():
        for number, directory in enumerate(_directories(document, key)):
            try:
                files = [path for path in directory.iterdir() if path.suffix in suffixes]
            except OSError as error:
                yield document.mistake(f"{key}: {directory}: {error.strerror}", key, number)
                continue
            cached = sorted((directory / "__pycache__").glob("*"))  # Python prefers these to the files
            for path in (directory, *sorted(files), directory / "__pycache__", *cached):
                if reason := _untrusted(path):
                    yield document.mistake(f"{key}: {path} {reason}", key, number)


def _untrusted(path: Path) -> str:
    """Why root must not let this path decide anything: others can write it, or replace it. Empty if fine."""
    if os.geteuid() != 0:
        return ""
    way = _way(path)
    for one in way:
        try:
            status, itself = one.stat(), one.lstat()
        except OSError:
            continue  # whoever reads it says so
        # In a sticky directory such as /tmp others can add files, but neither move nor replace root's.
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        is_way_there = one not in (path.absolute(), path.resolve())
        if foreign := itself.st_uid or status.st_uid:
            return f"is not trusted: {one} belongs to user {foreign}; as root, use files of root's"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (is_sticky and is_way_there):
            return f"is not trusted: others can write {one}; as root, first `chmod go-w {one}`"
    return ""


def _way(path: Path) -> list[Path]:
    """Every file and directory that decides what ``path`` is, those behind symbolic links included."""
    seen: list[Path] = []
    ahead = [path.absolute()]
    while ahead:
        named = ahead.pop()
        for one in (named, *named.parents):
            if one not in seen:
                seen.append(one)
                if one.is_symlink():
                    ahead.append(one.parent / one.readlink())
    return seen
