"""Whose key is it: fingerprints of key files, and files that are not what they say."""

from __future__ import annotations

import base64

import pytest

from facts.openpgp import (
    BEGIN,
    END,
    NotAKey,
    armoured,
    dearmoured,
    expires_at_s,
    fingerprints,
    packets,
)
from tests.support.machine import KEY, KEY_FINGERPRINT, OTHER_KEY

# As `gpg --show-keys` prints it.
OTHER_FINGERPRINT = "B686C6A6B3A2B1793374EB64A7F18EAB2A36F2FA"


def test_fingerprint_is_the_one_that_gpg_shows():
    assert fingerprints(KEY.read_bytes()) == (KEY_FINGERPRINT,)
    assert fingerprints(OTHER_KEY.read_bytes()) == (OTHER_FINGERPRINT,)


def test_binary_and_armoured_are_one_key():
    binary = dearmoured(KEY.read_bytes())
    assert fingerprints(binary) == (KEY_FINGERPRINT,)
    assert dearmoured(armoured(binary).encode()) == binary


def test_windows_line_ends_and_headers_do_not_matter():
    text = KEY.read_text().replace(BEGIN + "\n", BEGIN + "\nComment: hello\n")
    assert fingerprints(text.replace("\n", "\r\n").encode()) == (KEY_FINGERPRINT,)


@pytest.mark.parametrize("join", ["armoured", "binary"])
def test_a_second_key_in_the_file_is_seen(join):
    both = KEY.read_bytes() + OTHER_KEY.read_bytes()
    if join == "binary":
        both = dearmoured(KEY.read_bytes()) + dearmoured(OTHER_KEY.read_bytes())
    assert fingerprints(both) == (KEY_FINGERPRINT, OTHER_FINGERPRINT)


def first_line(text: str) -> str:
    return text.splitlines()[2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no public key"),
        (b"<html>404 not found</html>", "where a packet should begin"),
        (KEY.read_bytes()[:500], "cut off"),
        (dearmoured(KEY.read_bytes())[:500], "cut off"),
        (KEY.read_bytes().replace(END.encode(), b""), "without its end"),
        (KEY.read_text().replace(first_line(KEY.read_text()), "A" * 64).encode(), "checksum"),
        (KEY.read_bytes().replace(b"PUBLIC", b"PRIVATE"), "something else than a public key"),
        (f"{BEGIN}\n\n!!!!\n{END}\n".encode(), "not base64"),
        (f"{BEGIN}\n\n\u00e9\n{END}\n".encode(), "not ASCII"),
        (b"\xc6\x02\x03\x00", "version 3"),
        (b"\xc5\x01\x04", "type 5"),
        (b"\xc6\xe1\x00", "in parts"),
        (b"\x9b\x04", "without a length"),
        (b"\xc6\xff\x00", "cut off"),
    ],
)
def test_what_is_no_public_key_is_said(data, reason):
    with pytest.raises(NotAKey, match=reason):
        fingerprints(data)


# As `gpg --with-colons --show-keys` prints it.
@pytest.mark.parametrize(
    ("name", "at_s"),
    [("archive", None), ("other", None), ("expired", 1767355200), ("renewed", 4102401600)],
)
@pytest.mark.parametrize("binary", [False, True])
def test_expiry_is_the_one_that_gpg_shows(name, at_s, binary):
    data = (KEY.parent / f"{name}.asc").read_bytes()
    assert expires_at_s(dearmoured(data) if binary else data) == at_s


def test_the_expiry_of_a_file_is_that_of_its_first_key():
    two = [(KEY.parent / f"{name}.asc").read_bytes() for name in ("archive", "expired")]
    assert expires_at_s(two[0] + two[1]) is None
    assert expires_at_s(two[1] + two[0]) == 1767355200


def test_every_length_of_a_packet_is_read():
    bodies = [b"x" * n for n in (0, 191, 192, 8383, 8384, 70000)]
    new = b""
    for body in bodies:
        n = len(body)
        if n < 192:
            head = bytes([n])
        elif n < 8384:
            head = bytes([((n - 192) >> 8) + 192, (n - 192) & 0xFF])
        else:
            head = b"\xff" + n.to_bytes(4, "big")
        new += b"\xc2" + head + body
    old = b"".join(
        bytes([0x88 + code]) + len(body).to_bytes(width, "big") + body
        for code, width, body in ((0, 1, bodies[1]), (1, 2, bodies[3]), (2, 4, bodies[5]))
    )
    assert [(tag, len(body)) for tag, body in packets(new)] == [(2, len(b)) for b in bodies]
    assert [len(body) for _, body in packets(old)] == [191, 8383, 70000]


def test_base64_of_a_key_survives_the_way_from_the_host():
    sent = base64.b64encode(KEY.read_bytes()).decode()
    assert fingerprints(base64.b64decode(sent, validate=True)) == (KEY_FINGERPRINT,)
