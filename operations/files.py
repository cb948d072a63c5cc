"""Writing files: whole, atomically, with their mode from the first byte, in one round trip."""

from __future__ import annotations

import base64
import difflib
import hashlib
import shlex

from pyinfra.api import StringCommand

from facts.files import FileState
from operations.step import Commands, Step

WRITTEN_BY_OTHERS = "look what else writes it, as another configuration management does"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def put(path: str, text: str, mode: str = "0644") -> StringCommand:
    """
    Write *text* to *path*, owned by root.

    The content travels through the command's standard input, so it is in no argument
    list, no log and no world-readable temporary file; the old file stays whole until
    the new one replaces it. A link stays: what it leads to is written, also if that is not
    there yet. One that leads to no file, as ``/dev/null``, is somebody's word, and fails the host.

    + text: ends with a newline
    + mode: octal, as in ``0600``
    """
    assert text.endswith("\n"), path
    encoded = base64.b64encode(text.encode()).decode()
    script = (
        f'umask 077 && p={shlex.quote(path)} && f=$(readlink -m "$p") && '
        'if [ -e "$f" ] && [ ! -f "$f" ]; then echo "files: want a file at $p, have $f; '
        'look who made it, and take it away if ours may be there" >&2; exit 1; fi && '
        '(umask 022 && mkdir -p "${f%/*}") && t=$(mktemp "$f.XXXXXX") && '
        f'base64 -d > "$t" && chmod {mode} "$t" && mv -fT "$t" "$f"'
    )
    return StringCommand(script, _stdin=encoded)


def set_aside(path: str) -> StringCommand:
    """Keep a file of others, as it is, under a name that nothing reads; none is lost by it."""
    return StringCommand(
        "mv -T --backup=numbered", shlex.quote(path), shlex.quote(f"{path}.disabled")
    )


def differs(have: FileState | None, text: str, mode: str = "0644") -> bool:
    return have is None or have.sha256 != sha256(text) or have.mode != mode or have.owner != "root"


def written(
    title: str, path: str, text: str, files: dict[str, FileState | None], mode: str = "0644",
    *, secret: bool = False,
) -> Step | None:  # fmt: skip
    """The step that makes *path* hold *text*, or ``None`` if it does."""
    have = files[path]
    if not differs(have, text, mode):
        return None

    def apply() -> Commands:
        yield put(path, text, mode)

    before = (have.text if have else None) or ""
    diff = "" if secret else "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), text.splitlines(keepends=True), path, path, n=1
        )
    )  # fmt: skip
    return Step(
        title=title,
        want=f"{path} as declared",
        have="no such file" if have is None else "another content, mode or owner",
        apply=apply,
        diff=diff or None,
        remedy=f"{WRITTEN_BY_OTHERS}: `ls -l {path}`",
    )


def all_written(
    title: str, texts: dict[str, str], files: dict[str, FileState | None],
    mode: str = "0644", *, secret: bool = False,
) -> Step | None:  # fmt: skip
    """The one step that writes those of several files that differ, or ``None`` if none does."""
    steps = [
        step
        for path, text in texts.items()
        if (step := written(title, path, text, files, mode, secret=secret))
    ]
    if not steps:
        return None

    def apply() -> Commands:
        for step in steps:
            yield from step.apply()

    return Step(
        title=title,
        want=", ".join(step.want for step in steps),
        have=", ".join(dict.fromkeys(step.have for step in steps)),
        apply=apply,
        diff="".join(step.diff or "" for step in steps) or None,
        remedy=f"{WRITTEN_BY_OTHERS}: `ls -l {' '.join(texts)}`",
    )
