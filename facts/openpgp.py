"""OpenPGP certificates, as far as one has to look into a key before trusting it: whose key is this?

Source: RFC 4880, sections 4.2 (packet headers), 5.2.3 (signatures), 5.5.2 (public-key packets),
6.2 (ASCII armour) and 12.2 (fingerprints), and RFC 9580 for version 6 (read 2026-11-30).
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
from collections.abc import Iterator

BEGIN = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
END = "-----END PGP PUBLIC KEY BLOCK-----"

SIGNATURE = 2
PUBLIC_KEY = 6
OF_A_CERTIFICATE = {
    SIGNATURE: "signature", PUBLIC_KEY: "public key", 10: "marker", 12: "trust", 13: "user id",
    14: "public subkey", 17: "user attribute",
}  # fmt: skip
"""Packets that may be in a file of public keys. Anything else is not what was asked for."""


class NotAKey(Exception):
    """The bytes are no OpenPGP public key; the message says what they are instead."""


# Pure, and slow: of each host's keyrings again for each plan, and all hosts have the same ones.
@functools.lru_cache(maxsize=64)
def dearmoured(data: bytes) -> bytes:
    """Return the packets of a key file, whether it is ASCII-armoured or binary."""
    if not data.lstrip().startswith(b"-----BEGIN"):
        return data
    try:
        lines = [line.strip() for line in data.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise NotAKey(f"armour with a byte that is not ASCII at {error.start}") from None
    packets = b""
    while BEGIN in lines:
        begin = lines.index(BEGIN)
        if END not in lines[begin:]:
            raise NotAKey("armour without its end: the file is cut off")
        end = lines.index(END, begin)
        packets += _block(lines[begin + 1 : end])
        lines = lines[end + 1 :]
    if not packets:
        raise NotAKey("armour of something else than a public key")
    return packets


def _block(lines: list[str]) -> bytes:
    """The bytes of one armoured block: headers, an empty line, base64, ``=`` and the checksum."""
    body = lines[lines.index("") + 1 :] if "" in lines else lines
    checksums = [line[1:] for line in body if line.startswith("=")]
    text = "".join(line for line in body if not line.startswith("="))
    try:
        packets = base64.b64decode(text, validate=True)
        sums = [base64.b64decode(checksum, validate=True) for checksum in checksums]
    except binascii.Error as error:
        raise NotAKey(f"armour that is not base64: {error}") from None
    if sums and sums[-1] != _crc24(packets).to_bytes(3, "big"):
        raise NotAKey("armour whose checksum does not fit: the file is damaged")
    return packets


def armoured(packets: bytes) -> str:
    """Return *packets* in ASCII armour, the form that apt takes from a file named ``.asc``."""
    text = base64.b64encode(packets).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    checksum = base64.b64encode(_crc24(packets).to_bytes(3, "big")).decode()
    return "\n".join([BEGIN, "", *lines, f"={checksum}", END, ""])


def _crc24(data: bytes) -> int:
    # Source: RFC 4880, section 6.1.
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and body of each packet. Raises ``NotAKey`` at the first thing that is none."""
    at = 0
    try:
        while at < len(data):
            head = data[at]
            if not head & 0x80:
                raise NotAKey(f"byte {head:#04x} at {at}, where a packet should begin")
            at += 1
            if head & 0x40:
                tag = head & 0x3F
                first = data[at]
                if first < 192:
                    size, at = first, at + 1
                elif first < 224:
                    size, at = ((first - 192) << 8) + data[at + 1] + 192, at + 2
                elif first == 255:
                    size, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
                else:
                    raise NotAKey("a packet in parts, which no key has")
            else:
                tag = head >> 2 & 0x0F
                if head & 0x03 == 3:
                    raise NotAKey("a packet without a length")
                width = 1 << (head & 0x03)
                size, at = int.from_bytes(data[at : at + width], "big"), at + width
            body = data[at : at + size]
            if at > len(data) or len(body) != size:
                raise NotAKey("a packet that is cut off")
            at += size
            yield tag, body
    except IndexError:
        raise NotAKey("a packet that is cut off") from None


def fingerprints(data: bytes) -> tuple[str, ...]:
    """
    Return the fingerprints of all primary keys in a key file, 40 hexadecimal digits each.

    Raises ``NotAKey`` if the file holds none, or anything else than public keys: what
    apt would trust has to be known to the last packet.
    """
    found = list[str]()
    for tag, body in packets(dearmoured(data)):
        if tag not in OF_A_CERTIFICATE:
            raise NotAKey(f"a packet of type {tag}, which is not part of a public key")
        if tag != PUBLIC_KEY:
            continue
        if not body or body[0] != 4:
            version = body[0] if body else "none"
            raise NotAKey(f"a key of version {version}; only version 4 has such a fingerprint")
        hashed = b"\x99" + len(body).to_bytes(2, "big") + body
        found.append(hashlib.sha1(hashed, usedforsecurity=False).hexdigest().upper())
    if not found:
        raise NotAKey("no public key")
    return tuple(found)


CERTIFICATIONS = (0x10, 0x11, 0x12, 0x13)
"""Types of signatures on a user id: where the key itself says when it expires."""
CREATED, KEY_EXPIRES, ISSUER, ISSUER_FINGERPRINT = 2, 9, 16, 33
"""Types of a signature's subpackets."""


def expires_at_s(data: bytes) -> int | None:
    """
    When the first key of a key file expires, in seconds since 1970; ``None`` if it never does.

    What the key's newest signature on a user id of its own says. Nobody has checked that signature:
    this is a hint to fetch the key anew, not for trust.
    """
    (fingerprint, *_) = fingerprints(data)
    made_at = lifetime = newest = 0
    for tag, body in packets(dearmoured(data)):
        if tag == PUBLIC_KEY and made_at:
            break  # a second key
        if tag == PUBLIC_KEY:
            made_at = int.from_bytes(body[1:5], "big")
        elif tag == SIGNATURE and body[:1] == b"\x04" and body[1] in CERTIFICATIONS:
            size = int.from_bytes(body[4:6], "big")
            hashed = dict(_subpackets(body[6 : 6 + size]))
            unhashed = int.from_bytes(body[6 + size : 8 + size], "big")
            issuers = hashed | dict(_subpackets(body[8 + size : 8 + size + unhashed]))
            key_id = issuers.get(ISSUER) or issuers.get(ISSUER_FINGERPRINT, b"")[-8:]
            created = int.from_bytes(hashed.get(CREATED, b""), "big")
            if key_id.hex().upper() == fingerprint[-16:] and created >= newest:
                newest, lifetime = created, int.from_bytes(hashed.get(KEY_EXPIRES, b""), "big")
    return made_at + lifetime if lifetime else None


def _subpackets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each, without the bit that says that it is critical."""
    at = 0
    while at < len(data):
        first = data[at]
        if first < 192:
            size, at = first, at + 1
        elif first < 255:
            size, at = ((first - 192) << 8) + data[at + 1] + 192, at + 2
        else:
            size, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
        if size < 1 or at + size > len(data):
            raise NotAKey("a signature that is cut off")
        yield data[at] & 0x7F, data[at + 1 : at + size]
        at += size
