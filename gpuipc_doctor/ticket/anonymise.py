"""Consistent pseudonyms for hosts, users, addresses and paths in everything that is sent.

Addresses and paths in free text are found by their form. Hosts and users are known from the documents, from
this node, from home directories in paths and from the forms in which a text names a user. Passwords, tokens
and keys are removed. Other names, such as a project's in a message, are only
replaced if they are in `Names.words`.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import variables
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.vendors import SUPPORTED

T = TypeVar("T")

_KEPT = re.compile(
    r"/(?:usr/local/cuda[^/]*|usr(?!/local)|lib\d*|bin|sbin|proc|sys|dev|etc|run|"
    r"opt/(?:rocm[^/]*|cray|nvidia|intel)|var/(?:lib|log|run))(?:/|$)"
)
"""Directories of the system and of vendors' software, kept because their names identify the software."""

_PLAIN = frozenset("home users tmp scratch work data mnt opt var usr local root srv lib lib64 bin".split())  # noqa: SIM905
"""Directory names that do not identify a site."""

_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|python3\.\d+)/")
"""Paths of published packages; names below these paths are kept."""

_LIBRARY = re.compile(r"lib[\w+.-]*\.so(?:\.[\w.-]+)?|[\w+.-]+\.so")
_INTERPRETERS = re.compile(
    r"python[\d.]*|perl|bash|sh|java|julia|mpi(?:exec|run)\S*|srun|slurmstepd|orted|prted|hydra\w*"
)
_HOME = re.compile(r"/(?:home|users?)/([\w.-]+)", re.IGNORECASE)
_LABEL = re.compile(rf"(?:{'|'.join(SUPPORTED)}):\d+")
_SUFFIX = re.compile(r"(?:\.[A-Za-z]\w{0,5}){1,2}$")
_COMMON_USERS = frozenset({"root", "nobody", "daemon", ""})

_USER_NAME = r"([A-Za-z_][\w.-]{1,31})(?![\w.@/(-])"
_STATED_USERS = tuple(
    re.compile(form)
    for form in (
        rf"\b(?:USER|LOGNAME|USERNAME|SUDO_USER|\w+_USER|\w+_LOGNAME)=[\"']?{_USER_NAME}",
        r"\b(?:[ug]id|UserId|GroupId)=(?:\d+\()?([A-Za-z_][\w.-]*)\(?",
        r"(?i)\buser(?:[ _-]?name)?\\?[\"']?\s*[:=]\s*\\?[\"']?" + _USER_NAME,
        r"(?i)\b(?:owner|login|logname|submitter|submitted by|run by|started by)\s*[:=]?\s*" + _USER_NAME,
        r"(?i)\b(?:session (?:opened|closed)|accepted \w+|failed \w+|password) for (?:invalid )?(?:user )?"
        + _USER_NAME,
        r"(?i)\buser \\?[\"'`]([A-Za-z_][\w.-]*)",
        rf"\b(?:[Uu]ser|--user|-u) {_USER_NAME}",
        r"\b([a-z_][\w-]+) ?\(uid[ =]\d+\)",
        r"(?m)^[-dlcbps][rwxsStT-]{9}[.+@]? +\d+ +([A-Za-z_][\w.-]*) ",
        rf"\bsudo: +{_USER_NAME} :",
    )
)
"""Forms in which batch systems, PAM, ls(1), id(1) and messages name a user."""

_HOST_NAME = r"([A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*)*)(?![\w@/(:\[-]*[=/(\[])"
_LIKE_A_HOST = rf"(?=[\w-]*(?:\d|\.[A-Za-z])){_HOST_NAME}"
"""A name with a number or a domain: other words may stand in these places."""
_STATED_HOSTS = tuple(
    re.compile(form)
    for form in (
        rf"\b(?:HOST|HOSTNAME|SLURMD_NODENAME|MASTER_ADDR|SLURM_SUBMIT_HOST|\w+_HOST)=[\"']?{_HOST_NAME}",
        rf"(?i)\b(?:host(?: ?name)?|node ?name)\\?[\"']?\s*[:=]\s*\\?[\"']?{_HOST_NAME}",
        rf"(?i)\b(?:on|from|to|at|of) (?:remote |peer )?(?:host|node) [\"']?{_LIKE_A_HOST}",
        rf"\b(?:ssh|scp|rsh)(?: -\w+)* {_LIKE_A_HOST}",
        rf"(?i)\bconnection (?:to|from) {_LIKE_A_HOST}",
        rf"(?m)^[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d {_HOST_NAME} [\w./-]+(?:\[\d+\])?: ",
        rf"(?m)^\d{{4}}-\d\d-\d\dT[\d:.+Z-]+ {_HOST_NAME} [\w./-]+(?:\[\d+\])?: ",
        r"\b((?=[A-Za-z-]*\d)[A-Za-z][A-Za-z-]*\d+): (?:error|slurmstepd|srun|task)\b",
        r"(?m)^\[?((?=[A-Za-z-]*\d)[A-Za-z][A-Za-z-]*\d+)(?::\d+){1,2}\]? ",  # NCCL, Open MPI, UCX
    )
)
"""Forms in which the environment, syslog, ssh, launchers and libraries name a host."""
_NO_HOST = re.compile(
    r"a|all|an|and|any|another|compute|cuda|each|every|false|gpu|hip|id|in|is|it|its|local|login|memory|my|name|no|node|none|"
    r"not|null|numa|of|one|or|other|port|process|rank|remote|same|server|that|the|their|this|true|unknown|was|which|with|"
    r"localhost|localdomain|(?:cuda|hip|rank|mlx5_|hsn|ib|eth|cxi|gpu|numa|node)\d*",
    re.IGNORECASE,
)
"""Words in such places that are no names."""

_NO_USER = re.compile(
    r"a|about|action|address|an|and|application|argument|as|at|buffer|by|callback|can|"
    r"code|command|config|context|data|default|defined|did|does|driver|environment|error|"
    r"event|for|from|function|group|guide|has|id|in|input|interface|interrupt|interrupted|"
    r"is|kernel|level|library|limit|limits|mapping|may|memory|message|mode|module|must|"
    r"name|names|namespace|not|of|on|only|option|or|other|overflow|page|pages|permissions|"
    r"pid|pointer|process|processes|program|provided|quota|request|requested|script|session|"
    r"setting|settings|should|signal|sm|space|specified|stack|stream|task|that|thread|time|"
    r"to|type|unknown|was|while|will|with",
    re.IGNORECASE,
)
"""Words that follow "user" without being a name."""

GENERIC_USERS = frozenset("admin centos debian demo guest rocky runner test ubuntu user users".split())  # noqa: SIM905
"""Accounts whose names identify nobody and are words of other meanings."""

_HARMLESS = re.compile(
    r"[\d.,:*^+-]*[kmgt]?i?b?|y|n|yes|no|on|off|true|false|try|auto|all|none|inf|unlimited|"
    r"(?:mlx5_|hsn|ib|cxi|bnxt_re|eth)\d+(?::\d+)?|"
    r"rc|rc_x|rc_v|ud|ud_x|dc|dc_x|tcp|self|sm|shm|posix|sysv|cma|xpmem|cuda|cuda_copy|cuda_ipc|gdr_copy|"
    r"rocm|rocm_copy|rocm_ipc|ze|verbs|cxi|efa|psm2|psm3|ofi|ucx|ob1|cm|vader|smcuda|uct|"
    r"fatal|error|warn|info|debug|trace|data|version|memhooks|userfaultfd|kdreg2|disabled",
    re.IGNORECASE,
)
"""Values that do not identify a site: numbers, switches, transports, levels."""

_JOURNAL = (
    r"(?:(?m:^)\{\"event\":\"[a-z]+\",\"at\":[\d.e-]+"
    r"(?:,\"operation\":\"(?:cu|hip|ze|nccl|MPI_)\w+\",\"occurrence\":\d+)?(?:,\"text\":\"\")?\}\n)+"
)
"""Lines of our journals that only name calls of drivers and libraries: nearly all bytes of kept logs."""
_OF_JOURNAL = re.compile(r"\"(\w+)\"")

_NAME = r"[\w.+@%~#-]"
_PRIVATE = r"/(?:home|users|scratch|work|projects?|tmp|lustre|gpfs|nfs)"
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"',;]+)"
_OF_SECRETS = r"passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential"
_SHAPES = (
    r"(?P<key>-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|CERTIFICATE)[A-Z ]*-----"
    r"(?s:.{1,20000}?-----END [A-Z0-9 ]*-----|(?:[A-Za-z0-9+/=\s]|\\[nr])*)|(?m:^[A-Za-z0-9+/]{60,}={0,2}$)|"
    r"\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-[\w-]+) AAAA[\w+/=]+|"
    r"\b(?:SHA256:[\w+/]{43}|MD5(?::[0-9a-f]{2}){16}))",
    r"(?P<bearer>\b(?i:(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?[\w-]+|bearer|negotiate)\s+[\w.~+/=-]{6,})",
    r"(?P<token>\b(?:eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?|A[KS]IA[0-9A-Z]{16}|gh[oprsu]_\w{20,}|github_pat_\w{20,}|"
    r"glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|hf_\w{20,}|sk-[\w-]{20,}|AIza[\w-]{35}|npm_\w{30,}|pypi-[\w-]{20,})|"
    r"\b(?i:key[ _-]?id)[\"']?\s*[:=]?\s*[\"']?(?:0x)?(?=\w*\d)\w{8,})",
    rf"(?P<option>(?<![\w-])--?(?i:[\w-]*(?:{_OF_SECRETS})(?!s\b)[\w-]*)\s+{_VALUE}|\bsshpass\s+-p\s*{_VALUE})",
    r"(?P<login>(?<![\w-])(?:-[uU]|--(?:proxy-)?user)[\s=]*[\"']?(?!\d+:\d+\b)[^\s:\"'/]+:[^\s\"',;]+)",
    rf"(?P<secret>(?i:[\w-]*(?:{_OF_SECRETS})[\w-]*[\"']?\s*[=:]\s*){_VALUE})",
    r"(?P<url>\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+)",
    r"(?P<serial>\b(?i:serial(?:[ _-]?(?:number|no\.?|num))?|s/n|board[ _]?serial|unique[ _]?id|"
    r"(?:node|port|sys(?:_?image)?|fabric|cluster|chassis)?[ _-]?guid|cluster ?uuid)"
    r"\\?[\"']?\s*[:=]?\s*\\?[\"']?(?:0x)?(?=[\w:-]*\d)[0-9A-Za-z][\w:-]{5,})",
    r"(?P<guid>(?<![\w.])(?:0x)?(?!0000)(?:[0-9a-f]{6}(?:03|ff)00[0-9a-f]{6}|[0-9a-f]{6}fffe[0-9a-f]{6})(?!\w))",
    r"(?P<mail>[\w.+-]+@[\w.-]+)",
    r"(?P<uuid>(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})",
    r"(?P<hex>(?<![\w:.])(?:[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5,}|(?:[0-9A-Fa-f]{4}:){3}[0-9A-Fa-f]{4})(?![\w:]))",
    r"(?P<six>(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:%\w+)?(?![\w:]))",
    r"(?P<four>(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]))",
    rf"(?P<path>(?<![\w/.~-])~?{_NAME}*(?:/{_NAME}+)+/?|{_PRIVATE}/{_NAME}+(?:/{_NAME}+)*)",
)


@dataclass(frozen=True)
class Names:
    """The names to replace, by kind."""

    hosts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    """Values of variables that may identify a site."""
    identifiers: frozenset[str] = frozenset()
    """The uuids and serial numbers of devices."""
    words: frozenset[str] = frozenset()
    versions: frozenset[str] = frozenset()
    """Versions with four numbers, which look like IP addresses."""


class Pseudonyms:
    """Replaces names. ``texts``: all texts to be rewritten, to find names that only occur in paths."""

    def __init__(self, names: Names, texts: Iterable[str]) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._versions = names.versions
        self._users = set(names.users)
        hosts_named = set(names.hosts)
        files = set(names.programs)
        for text in texts:
            text = re.sub(_JOURNAL, "", text)
            self._users.update(_HOME.findall(text), _users_in(text))
            files.update(_file_names(text))
            hosts_named.update(_hosts_in(text))
        self._users -= _COMMON_USERS
        kinds = {
            "value": names.values,
            "id": names.identifiers,
            "word": names.words,
            "name": {
                each for each in files if not (_LIBRARY.fullmatch(each) or _INTERPRETERS.fullmatch(each))
            },
            "user": self._users,
        }
        self._kinds = {word: kind for kind, those in reversed(kinds.items()) for word in those if word}
        known = sorted(map(re.escape, self._kinds), key=len, reverse=True)
        hosts = [_like(host) for host in sorted(hosts_named, key=len, reverse=True) if len(host) > 1]
        groups = {"known": known, "host": hosts}
        words = [
            f"(?P<{kind}>(?<![A-Za-z0-9])(?:{'|'.join(those)})(?![A-Za-z0-9]))"
            for kind, those in groups.items()
            if those
        ]
        self._word = re.compile("|".join(words) or r"(?!)")
        self._all = re.compile("|".join((rf"(?P<journal>{_JOURNAL})", self._word.pattern, *_SHAPES)))

    def text(self, text: str) -> str:
        """The text with pseudonyms."""
        return text if _LABEL.fullmatch(text) else self._all.sub(self._replace, text)

    def of(self, value: T) -> T:
        """A document, or part of one, with pseudonyms. Enums, numbers and field names are kept."""
        return self._of(value)  # type: ignore[no-any-return]

    def _of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, enum.Enum):
            return value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {each.name: self._of(getattr(value, each.name)) for each in dataclasses.fields(value)}
            return dataclasses.replace(value, **fields)
        if isinstance(value, Mapping):
            return {self._of(key): self._of(each) for key, each in value.items()}
        if isinstance(value, tuple | list | frozenset):
            return type(value)(self._of(each) for each in value)
        return value

    def _replace(self, found: re.Match[str]) -> str:
        assert found.lastgroup is not None
        token = found[0]
        replace: Callable[[str], str] = {
            "journal": self._journal,
            "known": self._known,
            "host": lambda token: self._named("host", token),
            "key": lambda token: "removed",
            "bearer": lambda token: re.sub(r"\S+$", "removed", token),
            "token": lambda token: "removed",
            "option": lambda token: re.sub(rf"{_VALUE}$", "removed", token),
            "login": self._login,
            "secret": lambda token: re.sub(r"(?s)([=:]\s*).*", r"\1removed", token, count=1),
            "url": lambda token: self._words(re.sub("//[^/@]*@", "//", token)),
            "serial": self._serial,
            "guid": lambda token: self._named("id", token),
            "mail": lambda token: "@".join(map(self._named, ("user", "host"), token.split("@", 1))),
            "uuid": lambda token: self._named("id", token),
            "hex": lambda token: self._named("address", token),
            "six": self._address,
            "four": self._address,
            "path": self._path,
        }[found.lastgroup]
        return replace(token)

    def _named(self, kind: str, token: str) -> str:
        number = len([key for key in self._given if key[0] == kind]) + 1
        return self._given.setdefault((kind, token), f"{kind}-{number}")

    def _login(self, token: str) -> str:
        """An option with ``user:secret``."""
        option, user = re.fullmatch(r"(.*[\s=\"']|-[uU])([^\s=\"':]+):.*", token, re.DOTALL).groups()  # type: ignore[union-attr]
        return f"{option}{self._named('user', user)}:removed"

    def _serial(self, token: str) -> str:
        """A serial number or GUID after its name."""
        number = re.search(r"(?:0x)?[0-9A-Za-z][\w:-]*$", token)
        assert number
        return token[: number.start()] + self._named("id", number[0])

    def _known(self, token: str) -> str:
        kind = self._kinds[token]
        suffix = _SUFFIX.search(token) if kind == "name" else None
        return self._named(kind, token) + (suffix[0] if suffix else "")

    def _journal(self, lines: str) -> str:
        named = " ".join(set(_OF_JOURNAL.findall(lines)))
        return self._words(lines) if self._word.search(named) else lines

    def _words(self, token: str) -> str:
        return self._word.sub(self._replace, token)

    def _address(self, token: str) -> str:
        try:
            address = ipaddress.ip_address(token.partition("%")[0])
        except ValueError:
            return token
        is_public = token in self._versions or address.is_loopback or address.is_unspecified
        return token if is_public else self._named("address", token)

    def _path(self, path: str) -> str:
        if not path.startswith(("/", "~")):
            option, slash, rest = path.partition("/")
            if option.startswith("-") or re.match(_PRIVATE + "/", slash + rest):  # -L/home/anna/lib
                return self._words(option) + self._path(slash + rest)
            return self._words(path)  # below a directory that is not named
        if _KEPT.match(path):
            return self._words(path)
        packages = _PACKAGES.search(path)
        if packages:
            return self._path(path[: packages.start()] or "/") + self._words(path[packages.start() :])
        *directories, last = path.split("/")
        return "/".join((*map(self._component, directories), self._component(last)))

    def _component(self, name: str) -> str:
        if not name or name in _PLAIN or _LIBRARY.fullmatch(name):
            return name
        replaced = self._words(name)
        if replaced != name:
            return replaced
        suffix = _SUFFIX.search(name)
        return self._named("name", name) + (suffix[0] if suffix else "")


def names(documents: Iterable[Report | JobReport], more: Iterable[Fact], here: Names) -> Names:
    """Names to replace: from the documents, the facts ``more``, this node and this user."""
    hosts, users, programs = set(here.hosts), set(here.users), set(here.programs)
    values, identifiers, versions = set[str](), set[str](), set[str]()
    facts = list(more)
    for document in documents:
        if isinstance(document, Report):
            hosts.add(document.host)
            identifiers |= {device.uuid for device in document.devices}
            facts += (*document.inventory, *document.stack)
        else:
            for rank in document.ranks:
                hosts.add(rank.host)
                programs.add(rank.program)
                values |= set(rank.settings.values())
                versions |= set(rank.versions.values())
    versions |= {str(fact.value) for fact in facts}
    serials = [word for fact in facts if fact.name == "gpu-serials" for word in str(fact.value).split()]
    serials = [word.rstrip(";") for word in serials if re.fullmatch(r"[\w.-]{4,64};?", word)]
    identifiers |= {f"{prefix}{serial}" for serial in serials for prefix in ("", "SN")}
    values |= {str(fact.value) for fact in facts if fact.name.startswith("env:") and fact.value}
    return Names(
        frozenset(hosts),
        frozenset(users),
        frozenset(programs),
        frozenset(value for value in values if not _is_harmless(value)),
        frozenset(identifiers),
        here.words,
        frozenset(versions),
    )


def _is_harmless(value: str) -> bool:
    forms = (form for variable in variables.load().values() for form in variable.forms)
    words = {word.lower() for form in forms if isinstance(form.values, tuple) for word in form.values}
    parts = re.split(r"[,;=\s]", value.lower().lstrip("^+"))
    return all(_HARMLESS.fullmatch(part) or part in words for part in parts)


def _users_in(text: str) -> Iterator[str]:
    """Users that are named in a text in one of the usual forms."""
    for form in _STATED_USERS:
        for name in form.findall(text):
            plain = name.rstrip(".-")
            if not (_NO_USER.fullmatch(plain) or plain.isupper()):
                yield plain


def _hosts_in(text: str) -> Iterator[str]:
    """Hosts that are named in a text in one of the usual forms."""
    for form in _STATED_HOSTS:
        for name in form.findall(text):
            if not _NO_HOST.fullmatch(name) and not _LIBRARY.fullmatch(name):
                yield name


def _file_names(text: str) -> Iterator[str]:
    """Names of files at the end of private paths, since they may also occur without their directory."""
    for found in re.finditer(rf"(?<![\w/.~])~?(?:/{_NAME}+)+", text):
        path = found[0]
        last = path.rpartition("/")[2]
        if not _KEPT.match(path) and not _PACKAGES.search(path) and _SUFFIX.search(last):
            yield last


def _like(host: str) -> str:
    """Hosts whose names differ from this one's only in numbers, with their domain."""
    short = host.partition(".")[0]
    return re.sub(r"\d+", r"\\d+", re.escape(short)) + r"(?:\.[A-Za-z][\w-]*)*"
