"""Private certificate authorities that a host is to trust."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyinfra.api import StringCommand

from facts.files import Files
from operations import packages
from operations.files import differs, put
from operations.have import Have
from operations.step import Commands, Step

# Source: update-ca-certificates(8), Debian 13.
FOLDER = "/usr/local/share/ca-certificates"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def path_on_host(certificate: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", certificate.stem)
    return f"{FOLDER}/rackwright-{name}.crt"


def files(certificates: Sequence[Path]) -> tuple[str, ...]:
    return (*map(path_on_host, certificates), BUNDLE) if certificates else ()


def trusted(certificates: Sequence[Path], have: Have) -> Iterator[Step]:
    """
    The steps that make the host trust *certificates*.

    + certificates: PEM files on this machine
    """
    if not certificates:
        return
    if step := packages.installed(
        "install the certificates' tool", {"ca-certificates": None}, have, hold=False
    ):
        yield step
        return
    now = have[Files]
    texts = {path_on_host(path): path.read_text().rstrip() + "\n" for path in certificates}
    missing = [path for path, text in texts.items() if differs(now[path], text)]
    bundle = now[BUNDLE]
    # The bundle is made from the files: one that is older than any of them lacks it.
    newest = max((state.changed_at_s for path in texts if (state := now[path])), default=0)
    stale = bundle is None or bundle.changed_at_s < newest
    if not missing and not stale:
        return

    def apply() -> Commands:
        for path in missing:
            yield put(path, texts[path])
        yield StringCommand("update-ca-certificates >/dev/null && touch", BUNDLE)

    yield Step(
        "trust the private certificate authorities", f"{len(texts)} of them in {BUNDLE}",
        f"{len(missing)} files missing or different" if missing else "an older bundle", apply,
        remedy="run `update-ca-certificates --verbose` on the host",
    )  # fmt: skip
