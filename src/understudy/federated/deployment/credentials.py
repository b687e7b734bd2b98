"""Credentials of a federation: its own certificate authority, the server's TLS certificate, and a key per client."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from understudy.errors import InputError
from understudy.files import write_bytes

AUTHORITY, CERTIFICATE, SERVER_KEY, CLIENT_KEY = "ca.crt", "server.pem", "server.key", "key"
_YEARS = 5
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_SSH = serialization.PrivateFormat.OpenSSH


def write_authority(server: Path, hosts: Sequence[str]) -> None:
    """A new authority and a certificate for the server; the authority's key is thrown away, so nothing else is signed.

    ``hosts`` are the names and addresses under which the server is reached; loopback is always included.
    """
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "understudy federation")])
    authority = (
        _certificate(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "understudy server")])
    certificate = (
        _certificate(subject, name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_bytes(server / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
    write_bytes(server / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    _write_secret(server / SERVER_KEY, _pem(server_key))


def write_client_key(home: Path) -> str:
    """A new key that authenticates a client; returns its public part as one line."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(home / CLIENT_KEY, key.private_bytes(serialization.Encoding.PEM, _SSH, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode() + "\n"


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(minutes=5),
        not_valid_after=now + timedelta(days=365 * _YEARS),
    )


def check_hosts(hosts: Sequence[str]) -> None:
    """Refuse what is neither a name nor an address, which no certificate could hold."""
    for host in hosts:
        if not (_HOST_NAME.fullmatch(host) or _is_address(host)) or host in ("0.0.0.0", "::"):
            raise InputError(
                f"host: {host!r} is no name or address under which a server is reached; pass for example --host "
                "federation.example.org, a name with other letters in its xn-- form, and 0.0.0.0 as --listen only"
            )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for address in dict.fromkeys(("127.0.0.1", "::1", *hosts)):
        named = x509.IPAddress(ipaddress.ip_address(address)) if _is_address(address) else x509.DNSName(address)
        names.append(named)
    return names


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
