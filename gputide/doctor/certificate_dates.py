"""Until when the certificates of a PEM file hold; the standard library reads them and does not tell.

Only the way to the validity is walked, through the outer three levels of DER. Called by `named_files`.

Source: RFC 5280, sections 4.1 and 4.1.2.5 (Certificate, Validity); X.690, sections 8.1.3 and 10.1 (lengths).
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_CERTIFICATES_MAX = 1000


def earliest_end(pem: str) -> datetime | None:
    """When the first of the certificates ends, UTC; None where there is none, or none that can be read.

    Args:
        pem: text of the file; keys and comments are passed over.
    """
    return min(_ends(pem), default=None)


def latest_end(pem: str) -> datetime | None:
    """When the last of them ends, as `earliest_end`: of many authorities one that ended keeps nobody out."""
    return max(_ends(pem), default=None)


def _ends(pem: str) -> list[datetime]:
    ends = []
    for part in pem.split(_BEGIN)[1:_CERTIFICATES_MAX]:
        body, sign, _ = part.partition(_END)
        if not sign:
            continue
        try:
            ends.append(_end_of(ssl.PEM_cert_to_DER_cert(_BEGIN + body + _END)))
        except (ValueError, IndexError):
            continue
    return ends


def _end_of(der: bytes) -> datetime:
    """`notAfter` of a certificate.

    Raises:
        ValueError: it is none.
        IndexError: it is cut.
    """
    whole, _ = _content(der, 0, _SEQUENCE)
    signed, _ = _content(whole, 0, _SEQUENCE)
    at = _content(signed, 0, _VERSION)[1] if signed[0] == _VERSION else 0
    for _ in range(3):  # serial number, algorithm, issuer
        at = _content(signed, at, signed[at])[1]
    validity, _ = _content(signed, at, _SEQUENCE)
    at = _content(validity, 0, validity[0])[1]
    text = _content(validity, at, validity[at])[0].decode("ascii")
    if validity[at] == _UTC_TIME:
        # RFC 5280: years from 50 on are of the last century.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif validity[at] != _GENERALIZED_TIME:
        raise ValueError("the validity holds no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(data: bytes, at: int, tag: int) -> tuple[bytes, int]:
    """What stands in an element, and where the next one begins."""
    if data[at] != tag:
        raise ValueError(f"expected tag {tag:#x}, found {data[at]:#x}")
    length, start = data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    if start + length > len(data):
        raise IndexError("an element ends beyond its data")
    return data[start : start + length], start + length
