"""Files that the spec names: what is on the host now."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue

MAX_BYTES = 65536
"""Larger files are compared by hash alone."""


@dataclass(frozen=True, slots=True)
class FileState(FactValue):
    sha256: str
    mode: str
    """Octal, as in ``0644``."""
    owner: str
    text: str | None
    """Content, ``None`` if larger than ``MAX_BYTES`` or not UTF-8."""
    changed_at_s: int
    """Time of the last change, seconds since the epoch, by the host's clock."""


class Files(FactBase[dict[str, FileState | None]]):
    """
    Hash, mode, owner and text of files; ``None`` for one that is not there.

    Of a link it is all that of the file to which it leads.

    + files: absolute paths; a ``*`` stands for the files that are there, and for no other
    """

    def command(self, files: Sequence[str] = ()) -> str:
        if not files:
            return "echo '## done'"
        quoted = (shlex.quote(path) for path in sorted(set(files)))
        paths = " ".join(path.replace("*", "'*'") for path in quoted)
        # One process per question, not per file: forks are what costs on a slow host.
        return (
            f'for f in {paths}; do if [ -e "$f" ]; then '
            f'echo "## $f"; sha256sum "$f" && stat -L -c "%a %U %Y %s" "$f" && '
            f'[ "$(stat -L -c %s "$f")" -gt {MAX_BYTES} ] || base64 -w0 "$f" && echo; '
            f'else echo "## $f"; echo {ABSENT}; fi; done; echo "## done"'
        )

    def process(self, output: list[str]) -> dict[str, FileState | None]:
        return parse_files(output)


def parse_files(output: list[str]) -> dict[str, FileState | None]:
    """Read what ``Files.command`` printed."""
    found: dict[str, FileState | None] = {}
    path, lines, done = "", list[str](), False
    for line in [*output, "## "]:
        if not line.startswith("## "):
            lines.append(line)
            continue
        if path and lines == [ABSENT]:
            found[path] = None
        elif path:
            if len(lines) < 2:
                raise FactProcessError(f"{path}: no hash in {lines!r}")
            mode, owner, changed, size = lines[1].split()
            sha256 = lines[0].split()[0].lstrip("\\")
            text: str | None = None
            if int(size) <= MAX_BYTES:
                # The hash is of an earlier moment than the content: they agree, or it is unknown.
                data = base64.b64decode("".join(lines[2:]), validate=True)
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise FactProcessError(f"{path}: its content is not that of its hash")
                with contextlib.suppress(UnicodeDecodeError):
                    text = data.decode()
            found[path] = FileState(
                sha256=sha256,
                mode=mode.zfill(4),
                owner=owner,
                text=text,
                changed_at_s=int(changed),
            )
        path, lines = line.removeprefix("## ").strip(), []
        if path == "done":
            done, path = True, ""
    if not done:
        raise FactProcessError("the list of files ended early")
    return found
