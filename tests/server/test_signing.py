"""Complete files are signed with the operator's certificate, which C2PA's verifier accepts with our root as anchor."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import pytest
import soundfile
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from door_room import listening
from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import COMMENT, SOURCE_TYPE, encode, media_type
from s1_mini.exceptions import ConfigurationError, GenerationError
from s1_mini.extras import MODULES
from s1_mini.server.app import create_app
from s1_mini.server.settings import ServerSettings
from s1_mini.server.signing import Signer
from tests.server.conftest import serving

c2pa = pytest.importorskip("c2pa", reason="pip install -r requirements-test.lock.txt")

SPEECH = {"text": "Good morning.", "seed": 1, "max_new_tokens": 12}
TONE = (0.5 * np.sin(np.arange(24_000) / 9)).astype(np.float32)


class Authority(NamedTuple):
    """A root, and a folder for the files of certificates that it has issued."""

    key: Any
    certificate: x509.Certificate
    folder: Path

    def issue(self, name: str, *, key: Any = None, days: tuple[int, int] = (-1, 30)) -> tuple[Path, Path]:
        """Write a certificate chain and its key; return both paths."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        leaf = certificate(name, key, self, days)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(pem(leaf) + pem(self.certificate))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


def pem(found: x509.Certificate) -> bytes:
    return found.public_bytes(Encoding.PEM)


def certificate(name: str, key: Any, issuer: Authority | None, days: tuple[int, int]) -> x509.Certificate:
    """Return a certificate of `issuer`, or without one a root."""
    now, is_root = datetime.now(UTC), issuer is None
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Ours"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )
    signing = key if issuer is None else issuer.key
    built = (
        x509.CertificateBuilder(subject if issuer is None else issuer.certificate.subject, subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days[0]))
        .not_valid_after(now + timedelta(days[1]))
        .add_extension(x509.BasicConstraints(is_root, None), critical=True)
        .add_extension(
            x509.KeyUsage(not is_root, False, False, False, False, is_root, is_root, False, False), critical=True
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not is_root:
        built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
    return built.sign(signing, hashes.SHA256())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The root of all certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(key, certificate("Root", key, None, (-20, 30)), tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def signed(short_engine: ProductionTTSEngine, authority: Authority) -> Iterator[httpx2.Client]:
    """A client of a server with a certificate."""
    chain, key = authority.issue("Server")
    with serving(short_engine, c2pa_certificate_path=chain, c2pa_key_path=key) as door, door.client() as client:
        yield client


def verified(content: bytes, kind: str, authority: Authority) -> tuple[str, dict[str, Any]]:
    """Return the verifier's state of a file, and its active manifest."""
    trust = {"verify": {"verify_trust": True}, "trust": {"trust_anchors": pem(authority.certificate).decode()}}
    with c2pa.Reader(kind, io.BytesIO(content), context=c2pa.Context.from_dict(trust)) as reader:
        found = json.loads(reader.json())
        return reader.get_validation_state(), found["manifests"][found["active_manifest"]]


@pytest.mark.parametrize("name", ["wav", "mp3", "flac"])
def test_a_complete_file_has_a_trusted_manifest_that_calls_it_synthetic_and_the_same_samples(
    signed: httpx2.Client, short_door: Any, authority: Authority, name: str
) -> None:
    content = signed.post("/v1/tts", json=SPEECH | {"format": name}).content
    with short_door.client() as client:
        bare = client.post("/v1/tts", json=SPEECH | {"format": name}).content

    state, manifest = verified(content, media_type(name), authority)

    assert state == "Trusted"
    assert manifest["signature_info"]["common_name"] == "Server"
    (assertion,) = manifest["assertions"]
    assert assertion["data"]["actions"] == [{"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}]
    with soundfile.SoundFile(io.BytesIO(content)) as sound, soundfile.SoundFile(io.BytesIO(bare)) as other:
        assert sound.comment == COMMENT
        assert np.array_equal(sound.read(), other.read())
    if name == "wav":
        assert content[36:40] == b"data"  # where programs that skip 44 bytes expect the samples


def test_a_changed_sample_invalidates_the_manifest(signed: httpx2.Client, authority: Authority) -> None:
    content = bytearray(signed.post("/v1/tts", json=SPEECH).content)
    content[1000] ^= 1

    assert verified(bytes(content), "audio/wav", authority)[0] == "Invalid"


def test_json_has_the_signed_file_and_streams_and_ogg_are_not_signed(signed: httpx2.Client) -> None:
    answer = signed.post("/v1/tts/batch", json={"items": [{"text": "Yes."}], "seed": 1, "max_new_tokens": 12})
    others = [signed.post("/v1/tts", json=SPEECH | more) for more in ({"format": "ogg"}, {"stream": True})]

    assert b"c2pa" in base64.b64decode(answer.json()["results"][0]["audio_base64"])
    assert [other.status_code for other in others] == [200, 200]
    assert not any(b"c2pa" in other.content for other in others)


@pytest.mark.parametrize(
    "kind",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate,
    ],
    ids=["P-384", "RSA", "Ed25519"],
)
def test_every_kind_of_key_that_the_standard_allows_signs(authority: Authority, kind: Any) -> None:
    signer = Signer(*authority.issue("Other", key=kind()))

    assert verified(signer.sign(encode(TONE, 24_000, "wav"), "wav"), "audio/wav", authority)[0] == "Trusted"


def test_files_that_cannot_sign_are_refused_by_name_before_the_server_listens(authority: Authority) -> None:
    (chain, key), (_, other_key) = authority.issue("One"), authority.issue("Two")
    missing, text, locked = (authority.folder / name for name in ("missing.pem", "text.pem", "locked.key"))
    text.write_text("not a certificate")
    private = ec.generate_private_key(ec.SECP256R1())
    locked.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    curve = authority.issue("Curve", key=ec.generate_private_key(ec.SECP256K1()))
    cases: list[tuple[Path | None, Path | None, str]] = [
        (missing, key, r"CERTIFICATE_PATH='.*missing.pem': cannot be read: No such file"),
        (chain, missing, r"KEY_PATH='.*missing.pem': cannot be read: No such file"),
        (chain, None, r"KEY_PATH is not set; a signature needs both"),
        (None, key, r"CERTIFICATE_PATH is not set; a signature needs both"),
        (text, key, r"CERTIFICATE_PATH='.*text.pem': has no valid PEM certificate"),
        (chain, text, r"KEY_PATH='.*text.pem': has no valid PEM private key"),
        (chain, locked, r"KEY_PATH='.*locked.key': is encrypted; use a file without a password"),
        (chain, other_key, r"KEY_PATH='.*Two.key': is not the key of the first certificate in .*One.pem"),
        (*authority.issue("Old", days=(-10, -2)), r"CERTIFICATE_PATH='.*Old.pem': the certificate is valid only from"),
        (*authority.issue("New", days=(2, 10)), r"CERTIFICATE_PATH='.*New.pem': the certificate is valid only from"),
        (*curve, r"CERTIFICATE_PATH='.*Curve.pem': the audio cannot be signed"),
    ]

    for certificate_path, key_path, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            ServerSettings(c2pa_certificate_path=certificate_path, c2pa_key_path=key_path).signer()


def test_a_certificate_that_expires_while_the_server_runs_fails_with_its_date(authority: Authority) -> None:
    signer, old = Signer(*authority.issue("Soon")), authority.issue("Past", days=(-10, -2))
    signer._chain, signer._key = (path.read_bytes() for path in old)

    with pytest.raises(
        GenerationError,
        match=r"cannot be signed: .*valid at time of signing; .* valid until 20.*, renew it and restart",
    ):
        signer.sign(encode(TONE, 24_000, "wav"), "wav")


def test_in_the_last_week_of_a_certificate_a_warning_comes_at_the_start_and_with_an_answer_of_each_further_day(
    short_engine: ProductionTTSEngine, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name == "s1_mini.server.signing"]
        caplog.clear()
        return found

    chain, key = authority.issue("Week", days=(-1, 6))
    settings = ServerSettings(host="127.0.0.1", port=0, c2pa_certificate_path=chain, c2pa_key_path=key)
    signer = settings.signer()
    assert signer is not None
    assert told() == []
    with listening(create_app(short_engine, settings), short_engine) as door, door.client() as client:
        (first,) = told()
        assert client.post("/v1/tts", json=SPEECH).status_code == 200
        assert told() == []
        signer._warned -= timedelta(days=1)
        assert client.post("/v1/tts", json=SPEECH).status_code == 200
        assert told() == [first]
        signer._warned, signer.ends = None, datetime.now(UTC) - timedelta(hours=1)
        assert client.post("/v1/tts", json=SPEECH).status_code == 200
        (last,) = told()
    assert re.search(r"C2PA_CERTIFICATE_PATH: the certificate expires on 20.* UTC; .* renew it and restart", first)
    assert "the certificate expired on 20" in last

    calm = Signer(*authority.issue("Month", days=(-1, 8)))
    calm.sign(encode(TONE, 24_000, "wav"), "wav")
    assert told() == []


def test_without_the_extra_the_message_names_it(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s1_mini.extras.find_spec", lambda name: None if name in MODULES["c2pa"] else object())

    with pytest.raises(ConfigurationError, match=r"C2PA_CERTIFICATE_PATH needs c2pa, .*s1-mini\[c2pa\]"):
        Signer(*authority.issue("Any"))
