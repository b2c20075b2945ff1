"""A certificate authority for tests: makes certificates as they are wanted, good ones, expired ones and strangers'."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        folder: where files go.
        name: its name, and that of its file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._certificate = (
            _built(subject, subject, self._key, _now() - _DAY, _now() + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def pair(self, name: str, *, is_expired: bool = False, into: Path | None = None) -> Pair:
        """A certificate for a name on this machine; `into` writes it over the files of an earlier one."""
        key = ec.generate_private_key(ec.SECP256R1())
        since, until = (_now() - 9 * _DAY, _now() - _DAY) if is_expired else (_now() - _DAY, _now() + 9 * _DAY)
        here = [x509.DNSName("localhost"), x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _built(_subject(name), self._certificate.subject, key, since, until)
            .add_extension(x509.SubjectAlternativeName(here), critical=False)
            .add_extension(signer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = f"{self._name}-{name}{'-expired' if is_expired else ''}" if into is None else into.stem
        pair = Pair(certificate=self._folder / f"{stem}.pem", key=self._folder / f"{stem}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair


def _built(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    since: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
