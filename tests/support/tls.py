"""Certificates for encrypted connections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Identity:
    """A key and a certificate: of an authority, or signed by one."""

    def __init__(self, folder: Path, name: str, signer: Identity | None = None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = signer or self
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(issuer._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName(name)]
                ),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), True)
            .sign(issuer._key, hashes.SHA256())
        )
        self.cert, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        self.cert.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            self._key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
