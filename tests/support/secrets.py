"""The secrets of a run, and where they must not turn up; for simulated hosts and for real ones.

secrets = of_run(data, kubeconfig) | {"a join token": token}
assert leaks({"argv of a process": argv, "run.log": text}, secrets) == []
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from operations.redaction import secrets_of


def of_run(data: Mapping[str, Any], kubeconfig: Path, *keys: Path) -> dict[str, str]:
    """
    Everything secret that a run over one host is given, by what it is.

    + data: the host's merged inventory data, with ``_sudo_password`` and proxies' URLs
    + keys: files with private keys of this machine or of the control plane: SSH's, the CA's
    """
    found = {f"a secret of host data or kubeconfig ({value[:2]}...)": value
             for value in secrets_of(data, kubeconfig)}  # fmt: skip
    for path in keys:
        lines = [line for line in path.read_text().splitlines() if "-----" not in line]
        # The first is the same in every key of its kind: it says how the rest is written.
        found[f"the key in {path.name}"] = max(lines[1:] or lines, key=len)
    return found


def forms(value: str) -> set[str]:
    """What a secret looks like on its way: as it is, in a URL, in a shell's quotes, in base64."""
    found = {value, quote(value, safe=""), shlex.quote(value).strip("'")}
    for shift in range(3):
        # Somewhere in the middle of longer data: what of it does not depend on its neighbours.
        encoded = base64.b64encode(b"\0" * shift + value.encode()).decode().rstrip("=")
        found.add(encoded[(0, 2, 3)[shift] : -1])
    return {form for form in found if len(form) >= 6}


def leaks(texts: Mapping[str, str], secrets: Mapping[str, str]) -> list[str]:
    """Which of *secrets* stands in which of *texts*, with a little of what is around it."""
    found = list[str]()
    for place, text in texts.items():
        for title, value in secrets.items():
            for form in forms(value):
                at = text.find(form)
                if at >= 0:
                    around = text[max(0, at - 40) : at] + "<HERE>" + text[at + len(form) :][:20]
                    found.append(f"{place}: {title}: {around!r}")
                    break
    return found


def files_below(folder: Path) -> dict[str, str]:
    """Every file below *folder*, by its path: a run's folder, or what was copied from a host."""
    return {str(path): text for path, text in _files(folder)}


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_text("utf-8", "replace")
