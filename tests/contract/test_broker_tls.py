"""What is said when a broker and a node do not trust each other's certificates."""

import asyncio
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.kit.refusal import ConfigRefused
from crewlet.supervisor.broker import find_server, free_ports

LIMIT_S = 30.0
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Form:
    """What a certificate says."""

    address: str = "127.0.0.1"
    days_left: int = 1
    says_whose_key: bool = True
    has_weak_key: bool = False


class Authority:
    """One that signs certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = _named(name)
        self.pem = self._write(f"{name}.pem", self._sign(self.subject, self.key, Form(), is_authority=True))

    def issue(self, name: str, form: Form = Form()) -> tuple[Path, Path]:
        """A certificate and its key."""
        key = rsa.generate_private_key(65537, 1024) if form.has_weak_key else ec.generate_private_key(ec.SECP256R1())
        path = self.folder / f"{self.name}-{name}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return self._write(f"{self.name}-{name}.pem", self._sign(_named(name), key, form, is_authority=False)), path

    def _sign(self, subject: x509.Name, key: _Key, form: Form, *, is_authority: bool) -> x509.Certificate:
        ends = datetime.now(UTC) + timedelta(days=form.days_left)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(ends - timedelta(days=2))
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(form.address))]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if is_authority:
            builder = builder.add_extension(_SIGNS, critical=True)
        if form.says_whose_key:
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            builder = builder.add_extension(signer, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@contextmanager
def a_broker_that_asks_for_certificates(folder: Path, ours: Authority, form: Form = Form()) -> Generator[str]:
    certificate, key = ours.issue("broker", form)
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


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (Form(days_left=-1), r"^stream\.url: .* is not valid now \(certificate has expired\); renew it"),
        (Form(days_left=3), r"^stream\.url: .* is not valid now \(certificate is not yet valid.*\); renew it"),
        (
            Form(address="127.0.0.2"),
            r"^stream\.url: .* is for another address \(.*127\.0\.0\.1.*\); name the broker as its",
        ),
        (Form(has_weak_key=True), r"^stream\.url: .* is not in due form \(.*key too weak\); have it, or its"),
    ],
    ids=["expired", "not_yet", "another_address", "form"],
)
async def test_a_certificate_whose_authority_is_the_right_one_is_not_answered_with_the_authority(
    tmp_path: Path, form: Form, sentence: str
) -> None:
    ours = Authority(tmp_path, "ours")
    good, good_key = ours.issue("node")
    with a_broker_that_asks_for_certificates(tmp_path, ours, form) as url:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ConfigRefused, match=sentence):
                await connected(BrokerAddress((url,), tls_ca=ours.pem, tls_cert=good, tls_key=good_key))


async def test_a_certificate_of_a_plain_private_authority_is_trusted_on_every_python(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    good, good_key = ours.issue("node")
    with a_broker_that_asks_for_certificates(tmp_path, ours, Form(says_whose_key=False)) as url:
        async with asyncio.timeout(LIMIT_S):
            assert await connected(BrokerAddress((url,), tls_ca=ours.pem, tls_cert=good, tls_key=good_key))
