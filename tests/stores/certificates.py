"""Certificates of an authority of our own, for servers that speak TLS."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates that are valid for a day."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wiggle tests")])
        self._certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))

    def write(self, folder: Path, address: str) -> tuple[Path, Path, Path]:
        """A new certificate for an address: the files of the authority, of the certificate, and of its key."""
        key, certificate = self._new(address)
        files = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        files[0].write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[2].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _new(self, address: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        return key, self._sign(name, key, alternatives)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
        return builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())
