"""Certificates of the tests' own authorities, as PEM files."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_SIGNS = x509.KeyUsage(**{usage: usage == "key_cert_sign" for usage in _USAGES})


class Certificate(NamedTuple):
    """The files of a certificate, of its key, and of both in one, as brokers read them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates; ``file`` is its own, which clients trust."""

    def __init__(self, folder: Path, name: str) -> None:
        """Make it, with a key of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, _named(f"{name} of the tests")
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _certificate(self._name, self._name, self._key, valid=True)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "authority.pem"
        self.file.write_bytes(made.public_bytes(Encoding.PEM))

    def certify(self, name: str, *hosts: str, valid: bool = True) -> Certificate:
        """Return a certificate of ``name`` for hosts, or for a client; one may have expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        wanted = _certificate(_named(name), self._name, key, valid=valid)
        wanted = wanted.add_extension(issuer, critical=False)
        if hosts:
            wanted = wanted.add_extension(
                x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False
            )
        made = wanted.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files = Certificate(*(self._folder / f"{name}{end}.pem" for end in ("", "-key", "-both")))
        for file, content in zip(files, (made, private, private + made), strict=True):
            file.write_bytes(content)
        return files


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, valid: bool
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now + _DAY if valid else now - _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
