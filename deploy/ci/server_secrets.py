"""What a server needs that has TLS and asks for keys, made on the spot."""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.ci.api_keys import new_key


def write_secrets(directory: Path) -> tuple[bytes, str]:
    """Make what a server with TLS and keys needs; return whom to trust and the key of a caller."""
    key, entry = new_key("tester")
    certificate, private_key = _self_signed("localhost")
    (directory / "callers.toml").write_text(entry, encoding="utf-8")
    (directory / "server.crt").write_bytes(certificate)
    (directory / "server.key").write_bytes(private_key)
    directory.chmod(0o755)  # the container's user is another than ours
    return certificate, key


def _self_signed(name: str) -> tuple[bytes, bytes]:
    """Return a certificate for a name, good for an hour, and its private key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(hours=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return builder.sign(key, hashes.SHA256()).public_bytes(pem), private
