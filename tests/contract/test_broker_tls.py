"""What is said when a broker and a node do not trust each other's certificates."""

import asyncio
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.kit.refusal import ConfigRefused
from crewlet.supervisor.broker import find_server, free_ports

LIMIT_S = 30.0


class Authority:
    """One that signs certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = _named(name)
        self.pem = self._write(f"{name}.pem", self._sign(self.subject, self.key, is_authority=True))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder / f"{self.name}-{name}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return self._write(f"{self.name}-{name}.pem", self._sign(_named(name), key, is_authority=False)), path

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(here, critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@contextmanager
def a_broker_that_asks_for_certificates(folder: Path, ours: Authority) -> Generator[str]:
    certificate, key = ours.issue("broker")
    (port,) = free_ports(1)
    command = [find_server(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "store")]
    tls = ["--tls", "--tlscert", str(certificate), "--tlskey", str(key), "--tlsverify", "--tlscacert", str(ours.pem)]
    server = subprocess.Popen([*command, *tls], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"tls://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


async def connected(address: BrokerAddress) -> bool:
    connection = await Connection.open(address, clock=SystemClock(), startup_timeout_s=LIMIT_S)
    try:
        return connection.is_connected
    finally:
        await connection.close()


async def test_certificates_that_are_missing_or_not_trusted_are_refused_with_the_setting_to_mend(
    tmp_path: Path,
) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    good, good_key = ours.issue("node")
    bad, bad_key = others.issue("node")
    with a_broker_that_asks_for_certificates(tmp_path, ours) as url:
        async with asyncio.timeout(3 * LIMIT_S):
            assert await connected(BrokerAddress((url,), tls_ca=ours.pem, tls_cert=good, tls_key=good_key))
            with pytest.raises(
                ConfigRefused, match=r"^stream\.tls\.cert: .* asks for a certificate, and none is named"
            ):
                await connected(BrokerAddress((url,), tls_ca=ours.pem))
            with pytest.raises(ConfigRefused, match=r"^stream\.tls\.cert: .* refuses the certificate .*unknown ca"):
                await connected(BrokerAddress((url,), tls_ca=ours.pem, tls_cert=bad, tls_key=bad_key))
            with pytest.raises(ConfigRefused, match=r"^stream\.tls\.ca: .* is not trusted"):
                await connected(BrokerAddress((url,), tls_ca=others.pem, tls_cert=good, tls_key=good_key))
