"""The lab's own archive key: every repository of the mirror is signed with it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.command import run
from lab.errors import LabError
from lab.mirror.locking import locked
from lab.paths import CACHE, MIRROR

GNUPGHOME = CACHE / "mirror-key"
"""Beside the web root, not in it: it holds the private half."""

PUBLIC = MIRROR / "lab.asc"
FINGERPRINT = MIRROR / "fingerprint"

ADDRESS = "lab@rackwright.invalid"
USER_ID = f"Rackwright lab, in place of the vendors <{ADDRESS}>"


def key() -> Path:
    """Return the public key's file, armoured; the key is made if there is none."""
    with locked(CACHE / "mirror-key.lock"):
        if not (PUBLIC.is_file() and FINGERPRINT.is_file() and GNUPGHOME.is_dir()):
            with _gnupg():
                if ADDRESS not in _gpg("--list-secret-keys", "--with-colons"):
                    # It signs indexes on one machine: no encryption subkey, no expiry.
                    _gpg("--quick-generate-key", USER_ID, "ed25519", "sign", "never")
                MIRROR.mkdir(parents=True, exist_ok=True)
                listing = _gpg("--list-secret-keys", "--with-colons")
                _replace(FINGERPRINT, fingerprint(listing) + "\n")
                _replace(PUBLIC, _gpg("--armor", "--export", ADDRESS))
    return PUBLIC


def fingerprint(listing: str) -> str:
    """The primary key's, out of gpg's colon listing: that of the first ``fpr`` record."""
    for line in listing.splitlines():
        fields = line.split(":")
        if fields[0] == "fpr":
            return fields[9]
    raise LabError(
        f"archive key: want one in {GNUPGHOME}, have none; remove that directory and build again"
    )


def sign(release: Path) -> None:
    """Write ``InRelease`` and ``Release.gpg`` beside a ``Release`` file."""
    with _gnupg():
        for name, mode in (("Release.gpg", "--detach-sign"), ("InRelease", "--clear-sign")):
            signed = _gpg("--armor", "--digest-algo", "SHA512", mode, "-o", "-", str(release))
            _replace(release.with_name(name), signed)


def expired() -> str:
    """The public key, armoured, as it would be had it expired seconds after it was made.

    Fingerprint and signatures are those of the key that is in force.
    """
    key()
    with tempfile.TemporaryDirectory(prefix="rackwright-") as name:
        home = Path(name) / "home"
        shutil.copytree(GNUPGHOME, home, ignore=shutil.ignore_patterns("S.*", "*.lock"))
        with _gnupg(home):
            listing = _gpg("--list-secret-keys", "--with-colons", home=home)
            # gpg refuses to let a key expire in the past: it is told that it is then.
            then = ["--faked-system-time", str(_created_at_s(listing))]
            _gpg(*then, "--quick-set-expire", fingerprint(listing), "seconds=1", home=home)
            return _gpg(*then, "--armor", "--export", ADDRESS, home=home)


def _created_at_s(listing: str) -> int:
    """When the key was made, out of gpg's colon listing."""
    (made,) = [
        fields[5] for line in listing.splitlines() if (fields := line.split(":"))[0] == "sec"
    ]
    return int(made)


@contextmanager
def _gnupg(home: Path | None = None) -> Iterator[None]:
    home = home or GNUPGHOME
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        yield
    finally:
        # gpg leaves an agent behind that would outlive the directory.
        subprocess.run(
            ["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"],
            check=False,
            capture_output=True,
        )


def _gpg(*arguments: str, home: Path | None = None) -> str:
    return run(
        ["gpg", "--homedir", home or GNUPGHOME, "--batch", "--passphrase", "", *arguments],
        hint=f"remove {GNUPGHOME} for a new key",
    )


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)
