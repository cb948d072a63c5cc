"""Vendors' apt repositories: one source each, signed by the one key that the inventory names."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from facts.files import Files, FileState
from facts.openpgp import NotAKey, armoured, dearmoured, expires_at_s, fingerprints
from facts.os import OsRelease, OsReleaseState
from facts.packages import Packages
from facts.repositories import AptSource, AptSources, source_key
from nodespec import NodeSpec
from nodespec.values import repository_url
from operations.causes import cause, sentence
from operations.failure import tell
from operations.files import differs, put, set_aside, written
from operations.have import Have
from operations.lock import connector_arguments
from operations.step import Commands, Refusal, Step

HEADER = "# Written by Rackwright (operations/repositories.py). Local changes are lost.\n"
MAX_KEY_BYTES = 48 * 1024
"""More than any vendor's key, less than what ``Files`` reads back whole."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a vendor lays out its repository: what is not in the URL."""

    suite: str
    """``/`` for a flat one; ``{suite}`` is the distribution's."""
    components: str = ""


# Source: the vendors' installation pages, named beside the URLs in nodespec/model.py.
LAYOUTS = {
    "cuda": Layout("/"),
    "container_toolkit": Layout("/"),
    "kubernetes": Layout("/"),
    "docker": Layout("{suite}", "stable"),
}
# Repositories that are gone for good: apt-get update fails for as long as a host has one.
# Source: kubernetes.io blog, "Kubernetes Legacy Package Repositories Will Be Frozen" (2023-08-31).
RETIRED = {
    "kubernetes": re.compile(
        r"https?://(apt\.kubernetes\.io|packages\.cloud\.google\.com/apt/?\s+kubernetes-)"
    )
}
# Source: the sources that the installers of Debian 13 and Ubuntu 24.04 leave (observed).
DISTRIBUTIONS = {
    "debian": (Layout("{suite}", "main"), "/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": (
        Layout("{suite} {suite}-updates", "main restricted universe"),
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    ),
}


def sources_path(name: str) -> str:
    return f"/etc/apt/sources.list.d/rackwright-{name.replace('_', '-')}.sources"


def keyring_path(name: str) -> str:
    return f"/etc/apt/keyrings/rackwright-{name.replace('_', '-')}.asc"


def files(*names: str) -> tuple[str, ...]:
    """Paths that ``present`` looks at: for a phase's ``files``."""
    return tuple(path for name in names for path in (sources_path(name), keyring_path(name)))


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository as asked for on one host."""

    name: str
    url: str
    suites: tuple[str, ...]
    components: str
    architecture: str
    fingerprint: str | None
    """``None``: signed by a key that the host has already."""
    key_url: str | None
    keyring: str

    @property
    def text(self) -> str:
        fields = {
            "Types": "deb",
            "URIs": self.url,
            "Suites": " ".join(self.suites),
            "Components": self.components,
            "Architectures": self.architecture,
            "Signed-By": self.keyring,
        }
        return HEADER + "".join(f"{key}: {value}\n" for key, value in fields.items() if value)

    @property
    def keys(self) -> set[tuple[str, str]]:
        return {source_key(self.url, suite) for suite in self.suites}


def repository(name: str, spec: NodeSpec, os: OsReleaseState, architecture: str) -> Repository:
    """The repository *name* as *spec* asks for it on one system."""

    def filled(template: str) -> str:
        return repository_url(
            template, os_id=os.id, os_version=os.version, suite=os.codename,
            kube_version=spec.kube_version,
        )  # fmt: skip

    fingerprint, key_url = spec.repository_key(name, os_id=os.id, os_version=os.version)
    if name == "debian":
        layout, keyring = DISTRIBUTIONS[os.id]
        keyring = keyring_path(name) if fingerprint else keyring
    else:
        layout, keyring = LAYOUTS[name], keyring_path(name)
    return Repository(
        name=name,
        url=filled(getattr(spec, f"{name}_repository_url")),
        suites=tuple(layout.suite.format(suite=os.codename).split()),
        components=layout.components,
        architecture=architecture,
        fingerprint=fingerprint,
        key_url=filled(key_url) if key_url else None,
        keyring=keyring,
    )


def present(name: str, spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    """
    The step that gives apt one repository and the key that signs it.

    The key is fetched by the host, through apt's own proxy, and trusted only after its
    fingerprint was compared here. Other sources of the same repository, with whatever
    keyring, are set aside: two of them make apt refuse to work at all. Components that they have
    and we do not ask for, as Debian's ``non-free-firmware``, go on in ours.

    + name: ``cuda``, ``docker``, ``container_toolkit``, ``kubernetes`` or ``debian``
    """
    architecture = have[Packages].architecture
    if architecture is None:
        yield Refusal(name, "a system with dpkg", "none", "use a system that is supported")
        return
    mine = sources_path(name)
    want = keeping(repository(name, spec, have[OsRelease], architecture), have[AptSources])
    others = duplicates(want, have[AptSources], mine)
    mixed = [path for path, whole in others.items() if not whole]
    if mixed:
        yield Refusal(
            "repositories", f"no other source of {want.url}", f"one in {', '.join(mixed)}",
            "take it out of there: the file has other repositories too, so it is not renamed",
        )  # fmt: skip
        return
    now = have[Files]
    trusted = want.fingerprint is None or key_in(now[want.keyring]) == (want.fingerprint,)
    source = written("", mine, want.text, now)
    if trusted and source is None and not others:
        return
    lacks = [
        *([] if trusted else ["its key"]),
        *([] if source is None else ["its source"]),
        *([f"another source of it in {', '.join(others)}"] if others else []),
    ]

    def apply() -> Commands:
        if not trusted:
            yield FunctionCommand(fetch_key, (want,), {})
        if source is not None:
            yield put(mine, want.text)
        for path in others:  # last: what ours keeps of them is read from them until then
            yield set_aside(path)

    yield Step(
        title=f"add the {name.replace('_', ' ')} repository",
        want=f"{want.url} signed by {want.fingerprint or want.keyring}",
        have=", ".join(["not as asked:", *lacks]).replace(":,", ":"),
        apply=apply,
        diff=source.diff if source else None,
        remedy=f"look at {mine}",
    )


def keeping(want: Repository, sources: tuple[AptSource, ...]) -> Repository:
    """*want* with the components that the host has of it already, by our own source or another."""
    there = [name for one in sources if one.key in want.keys for name in one.components]
    if not want.components:  # flat: it has none
        return want
    return replace(want, components=" ".join(dict.fromkeys([*want.components.split(), *there])))


def duplicates(want: Repository, sources: tuple[AptSource, ...], mine: str) -> dict[str, bool]:
    """
    Files with other sources of the same repository, and whether they hold nothing else.

    One that it has replaced is of the same repository.
    """
    retired = RETIRED.get(want.name)

    def same(source: AptSource) -> bool:
        words = f"{source.uri} {source.suite}"
        return source.key in want.keys or (retired is not None and bool(retired.match(words)))

    found: dict[str, bool] = {}
    for source in sources:
        if source.path != mine and same(source):
            found[source.path] = all(same(other) for other in sources if other.path == source.path)
    return found


def key_in(file: FileState | None) -> tuple[str, ...]:
    """Fingerprints in a keyring of ours; none if it is not there, not root's, or no keyring."""
    if file is None or file.text is None or differs(file, file.text):
        return ()
    try:
        return fingerprints(file.text.encode())
    except NotAKey:
        return ()


def renewals(have: Have) -> Commands:
    """
    Commands that fetch anew each key of ours that has expired: apt is about to need one of them.

    Its vendor may have renewed it: the same key, by its fingerprint, with another expiry. If not,
    apt says whether it matters, so it is not said here.
    """
    now, architecture = have[Files], have[Packages].architecture
    if architecture is None:
        return
    for name in (*LAYOUTS, "debian"):
        file = now.get(keyring_path(name))
        if file is None or not expired((file.text or "").encode()):
            continue
        want = repository(name, have.spec, have[OsRelease], architecture)
        if want.fingerprint is not None and key_in(file) == (want.fingerprint,):
            yield FunctionCommand(renew_key, (want,), {})


def expired(key: bytes) -> bool:
    try:
        at_s = expires_at_s(key)
    except NotAKey:
        return False
    return at_s is not None and at_s <= time.time()


def checked_key(data: bytes, want: Repository) -> str:
    """
    Return a downloaded key in the form that apt takes, if it is the one that is asked for.

    Raises ``NotAKey`` for another key, for a second one in the same file, and for what is no key.
    """
    found = fingerprints(data)
    if found != (want.fingerprint,):
        raise NotAKey(f"key {' and '.join(found)}")
    return armoured(dearmoured(data))


def fetch_key(state: State, host: Host, want: Repository) -> bool:
    """Download the key on the host, judge it here, and only then let apt see it."""
    text = downloaded(host, want)
    if isinstance(text, Problem):
        tell(host, text.sentence)
        return False
    return _keep(host, want, text)


def renew_key(state: State, host: Host, want: Repository) -> bool:
    """As ``fetch_key``, for a key that is there already: the old one stays if there is no newer."""
    text = downloaded(host, want)
    if isinstance(text, Problem):
        host.log(text.sentence)
    elif expired(text.encode()):
        host.log(
            f"{want.name} repository: its key has expired, and so has the one at {want.key_url}"
        )
    else:
        host.log(f"{want.name} repository: its key had expired, and was renewed by the vendor")
        return _keep(host, want, text)
    return True


@dataclass(frozen=True, slots=True)
class Problem:
    sentence: str


def downloaded(host: Host, want: Repository) -> str | Problem:
    """The key that *want* asks for, armoured, as the host sees it; or why it is not to be had."""
    assert want.key_url is not None
    arguments = connector_arguments(host)
    # apt's own downloader: it is always there, and goes through apt's proxy and certificates.
    ok, output = host.run_shell_command(
        StringCommand(
            'export LC_ALL=C; d=$(mktemp -d) && chmod 0755 "$d" && { /usr/lib/apt/apt-helper '
            f'-o Acquire::Retries=3 download-file {shlex.quote(want.key_url)} "$d/key" >&2 && '
            f'head -c {MAX_KEY_BYTES + 1} "$d/key" | base64 -w0; '
            'code=$?; rm -rf "$d"; exit $code; }'
        ),
        **arguments,
    )
    wanted = f"{want.name} repository: want key {want.fingerprint} at {want.key_url}"
    if not ok:
        lines = [line.line for line in output]
        reason, remedy = cause(lines, "check the address, and the proxy between host and it")
        return Problem(f"{wanted}, have {reason}; {remedy}")
    try:
        data = base64.b64decode("".join(output.stdout_lines[-1:]), validate=True)
        if len(data) > MAX_KEY_BYTES:
            raise NotAKey(f"a file of more than {MAX_KEY_BYTES} bytes")
        return checked_key(data, want)
    except (NotAKey, binascii.Error) as error:
        return Problem(
            f"{wanted}, have {error}; nothing was trusted: ask the vendor which key is right, "
            f"then set {want.name}_repository_fingerprint"
        )


def _keep(host: Host, want: Repository, text: str) -> bool:
    command = put(want.keyring, text)
    stdin = command.connector_arguments.get("_stdin")
    arguments = {**connector_arguments(host), "_stdin": stdin}
    ok, output = host.run_shell_command(command, **arguments)
    if not ok:
        lines = [line.line for line in output]
        tell(
            host,
            sentence(f"{want.name} repository", f"its key in {want.keyring}", lines, "look at it"),
        )
    return ok
