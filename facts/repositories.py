"""apt's sources: which repositories a host asks, from which file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue

# deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://example.org/repo ./
ONE_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)"
    r"(?P<components>[^#]*)"
)


@dataclass(frozen=True, slots=True)
class AptSource(FactValue):
    """One active source of binary packages: one URI, one suite."""

    path: str
    uri: str
    suite: str
    components: tuple[str, ...] = ()
    """As ``main``; none in a flat repository."""

    @property
    def key(self) -> tuple[str, str]:
        return source_key(self.uri, self.suite)


def source_key(uri: str, suite: str) -> tuple[str, str]:
    """What apt takes for one source: it refuses to work on two of these with different keyrings."""
    return uri.rstrip("/"), suite.strip("./") or "/"


class AptSources(FactBase[tuple[AptSource, ...]]):
    """
    The active sources of binary packages in ``/etc/apt``, in apt's two formats.

    .. code:: python

        (AptSource("/etc/apt/sources.list", "http://deb.debian.org/debian", "trixie", ("main",)),)
    """

    def command(self) -> str:
        # awk complains of a pattern that matches no file: ls passes on what there is.
        return (
            "f=$(ls /etc/apt/sources.list /etc/apt/sources.list.d/*.list "
            "/etc/apt/sources.list.d/*.sources || true); "
            "if [ -n \"$f\" ]; then awk '{ print FILENAME \"\\t\" $0 }' $f; fi && echo '## end'"
        )

    def process(self, output: list[str]) -> tuple[AptSource, ...]:
        return parse_sources(output)


def parse_sources(output: list[str]) -> tuple[AptSource, ...]:
    """Read ``FILE<tab>LINE`` lines."""
    if output[-1] != "## end":
        raise FactProcessError("the list of sources ended early")
    texts: dict[str, list[str]] = {}
    for line in output[:-1]:
        path, tab, text = line.partition("\t")
        if not tab or not path.startswith("/"):
            raise FactProcessError(f"no line of a source in {line!r}")
        texts.setdefault(path, []).append(text)
    found = list[AptSource]()
    for path, lines in texts.items():
        read = _deb822 if path.endswith(".sources") else _one_line
        found += [AptSource(path, *source) for source in read(lines)]
    return tuple(found)


def _one_line(lines: list[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    matches = (ONE_LINE.match(line.strip()) for line in lines)
    return [(m["uri"], m["suite"], tuple(m["components"].split())) for m in matches if m]


def _deb822(lines: list[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    found = list[tuple[str, str, tuple[str, ...]]]()
    stanza: dict[str, str] = {}
    name = ""
    for line in [*lines, ""]:
        if line.startswith("#"):
            continue
        if line.strip() == "":
            if (
                stanza.get("enabled", "yes").strip().lower() not in ("no", "false", "0")
                and "deb" in stanza.get("types", "").split()
            ):
                found += [
                    (uri, suite, tuple(stanza.get("components", "").split()))
                    for uri in stanza.get("uris", "").split()
                    for suite in stanza.get("suites", "").split()
                ]
            stanza, name = {}, ""
        elif line[0].isspace():
            stanza[name] = f"{stanza.get(name, '')} {line.strip()}"
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            stanza[name] = value
    return found
