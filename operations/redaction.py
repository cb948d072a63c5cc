"""What nobody else may read, taken out of what is written down: logs, results, support bundles."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

SHOWN = "***"

SECRET_NAME = re.compile(r"password|passwd|passphrase|secret|token|credential", re.IGNORECASE)
"""In the name of a key of host data or of a kubeconfig: its value is nobody's business."""

# Part of a name whose value is a secret, and the name's end behind it.
_WORD = (
    r"(?:passw(?:or)?d|passphrase|secret|token|credential|api[-_]?key|access[-_]?key|"
    r"client-key-data|private[-_]?key|(?<![a-z])authorization(?![\w-])|(?<![a-z])auth(?![a-z]))"
    r"[\w-]{0,64}[\"']?"
)
# One with quotes is shown whole up to the last: a quote may be escaped, or lack its end.
_STRING = (
    r"(?>\"\"\"[\s\S]*?\"\"\"|\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'|'[^'\n]*'|[\"'][^\n]*)"
)
_GAP = r"[\s+-]*+"  # between the items of an array, in a diff too
_ARRAY = rf"(?>\[{_GAP}{_STRING}(?:{_GAP},{_GAP}{_STRING})*+(?:{_GAP},)?{_GAP}\]|\[[^\]\n]++\]?|\[)"

# Forms of secrets that we need not know to recognise them.
FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    # http://user:password@proxy.example.com:3128
    (re.compile(r"(?<=://)[^/@\s\"']+@"), f"{SHOWN}@"),
    (
        re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL),
        f"{SHOWN} (a private key)",
    ),
    # A bootstrap token; its first half is part of the Secret's name, and not secret.
    (re.compile(r"\b([a-z0-9]{6})\.[a-z0-9]{16}\b"), rf"\1.{SHOWN}"),
    # A service account's token, or any other JSON web token.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), SHOWN),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {SHOWN}"),
    # YAML's block, and a value to its line's end:   token: |   and   password: a b  # c
    (
        re.compile(
            rf"^(([ \t+-]*+)[\"']?[\w.-]{{0,64}}?{_WORD}[ \t]*:[ \t]*)[|>][-+\d]*[ \t]*(?:#.*)?"
            r"(?:\n(?:\2[ \t]+.*|[ \t+-]*(?=\n)))+",
            re.IGNORECASE | re.MULTILINE,
        ),
        rf"\1{SHOWN}",
    ),
    (
        re.compile(
            rf"^([ \t+-]*+[\w.-]{{0,64}}?{_WORD}[ \t]*:[ \t]+)"
            r"(?!want |(?:bearer|basic) \*)[^\s\"'\[{|>].*$",
            re.IGNORECASE | re.MULTILINE,
        ),
        rf"\1{SHOWN}",
    ),
    # "password": "x"   password = "x"   auth = ["x"]   SECRET_KEY=x   and, at an end,   token: x
    (
        re.compile(
            rf"({_WORD}\s*)"
            rf"(?:([:=]\s*)(?:{_ARRAY}|{_STRING})|(=\s*)[^\s\"'\[](?:[^\s\"']|{_STRING})*"
            r"|(:\s*)[^\s\"'{}\[\],]+(?=\s*[,}]|\s+#|\s*$))",
            re.IGNORECASE | re.MULTILINE,
        ),
        rf"\1\2\3\4{SHOWN}",
    ),
    # --password x
    (
        re.compile(
            rf"((?<![\w-])--?[\w-]{{0,64}}?{_WORD}[ \t]+)(?:{_STRING}|(?!--|[:=])[^\s\"']+)",
            re.IGNORECASE,
        ),
        rf"\1{SHOWN}",
    ),
    # curl -u user:x
    (
        re.compile(r"((?<!\S)(?:-u ?|--(?:proxy-)?user[ =])[\"']?[^\s:\"']+:)[^\s\"']+"),
        rf"\1{SHOWN}",
    ),
    # .netrc and apt's auth.conf: machine x login y password z, on one line or on three
    (
        re.compile(
            r"(\b(?:machine\s+\S+|default|login\s+\S+)\s+(?:login\s+\S+\s+)?password\s+)\S+|"
            r"(^[ \t+-]*+password[ \t]+)(?![:=])\S+(?=\s*$)",
            re.IGNORECASE | re.MULTILINE,
        ),
        rf"\1\2{SHOWN}",
    ),
)

_known: set[str] = set()


def hide(*values: str) -> None:
    """Remember secrets of this run: ``redact`` takes them out wherever they stand."""
    # Shorter ones are parts of words, and would take those apart.
    _known.update(value for value in values if len(value) >= 4)


def redact(text: str) -> str:
    """*text* without secrets: those of this run, and whatever looks like one."""
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, SHOWN)
    for pattern, shown in FORMS:
        text = pattern.sub(shown, text)
    return text


def without_secrets(record: logging.LogRecord) -> bool:
    """A filter of a log that lets everything pass, redacted."""
    if isinstance(record.msg, str):
        record.msg, record.args = redact(record.getMessage()), None
    return True


def install() -> None:
    """
    Redact pyinfra's log from now on.

    At the logger, so that the terminal, which a CI system keeps, shows no more than a file: with
    ``--debug`` pyinfra tells how it connects, passwords included.
    """
    logging.getLogger("pyinfra").addFilter(without_secrets)


def redacted(value: Any) -> Any:
    """A JSON value with every string in it redacted; what a key calls a secret is not shown."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            str(key): SHOWN if SECRET_NAME.search(str(key)) and item else redacted(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return value


def secrets_of(data: Mapping[str, Any], kubeconfig: Path | None = None) -> set[str]:
    """
    Every secret that a run over one host is given: of its data, and of the cluster's kubeconfig.

    + data: merged inventory data, pyinfra's keys (``_sudo_password``, ``ssh_password``) among it
    """
    found = set(_strings(data))
    if kubeconfig is not None:
        try:
            users = yaml.safe_load(kubeconfig.expanduser().read_text())["users"]
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
            users = []  # its own error says so
        for user in users:
            of_user = user.get("user") or {}
            found |= set(_strings(of_user))
            found |= {of_user["client-key-data"]} if of_user.get("client-key-data") else set()
    return {value for value in found if value}


def _strings(value: Any, name: str = "") -> Iterator[str]:
    """Values under the names of secrets, and the passwords of URLs."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item, name)
    elif isinstance(value, str):
        if SECRET_NAME.search(name):
            yield value
        if "://" in value and "@" in value:
            password = urlsplit(value).password
            yield from {password, unquote(password)} if password else ()
