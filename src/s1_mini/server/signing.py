"""Signs complete files with the operator's certificate, as the C2PA specifies; needs the extra `c2pa`.

The signed manifest in a file states that the audio is synthetic, and which hash it has. There is no time stamp, so the
signature is valid only as long as the certificate is.
"""

from __future__ import annotations

import io
import logging
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from s1_mini.audio.container import SOURCE_TYPE, encode, media_type
from s1_mini.exceptions import ConfigurationError, GenerationError
from s1_mini.extras import require
from s1_mini.variables import SERVER
from s1_mini.version import __version__

if TYPE_CHECKING:
    from s1_mini.types import AudioFormat

logger = logging.getLogger(__name__)

WARNED_BEFORE = timedelta(days=7)
RENEW = "renew it and restart the server"
FORMATS: tuple[AudioFormat, ...] = ("wav", "mp3", "flac")  # Ogg has no place for a manifest
CERTIFICATE, KEY = f"{SERVER}C2PA_CERTIFICATE_PATH", f"{SERVER}C2PA_KEY_PATH"
MANIFEST = {
    "claim_generator_info": [{"name": "s1_mini", "version": __version__}],
    "assertions": [
        {
            "label": "c2pa.actions.v2",
            "data": {"actions": [{"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}]},
        }
    ],
}
_CURVES = {"secp256r1": b"es256", "secp384r1": b"es384", "secp521r1": b"es512"}


class Signer:
    """A certificate chain and its private key. Methods are thread-safe."""

    def __init__(self, certificate: Path | None, key: Path | None) -> None:
        """Read and check two PEM files: the chain, beginning with the signer's certificate, and the unencrypted key.

        Raises `ConfigurationError`, also if one of them is missing.
        """
        for given, absent in ((certificate, KEY), (key, CERTIFICATE)):
            if given is not None and not (certificate and key):
                raise ConfigurationError(f"{absent} is not set; a signature needs both the certificate and its key")
        assert certificate is not None
        assert key is not None
        require("c2pa", CERTIFICATE)
        self._chain, self._key = _read(CERTIFICATE, certificate), _read(KEY, key)
        leaf, private = _parse_chain(certificate, self._chain), _parse_key(key, self._key)
        if leaf.public_key() != private.public_key():
            raise ConfigurationError(f"{KEY}={str(key)!r}: is not the key of the first certificate in {certificate}")
        self.begins, self.ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if not self.begins <= datetime.now(UTC) <= self.ends:
            valid = f"from {self.begins:%Y-%m-%d} to {self.ends:%Y-%m-%d}"
            raise ConfigurationError(f"{CERTIFICATE}={str(certificate)!r}: the certificate is valid only {valid}")
        self._algorithm = _algorithm(private)
        self._warned: date | None = None  # when `warn` has logged last
        try:
            self._sign(encode(np.zeros(1, np.float32), 8000, "wav"), "wav")
        except GenerationError as error:
            raise ConfigurationError(f"{CERTIFICATE}={str(certificate)!r}: {error}") from None

    def sign(self, content: bytes, audio_format: AudioFormat) -> bytes:
        """Return a file with a signed manifest and the same samples; in another format than `FORMATS`, `content`.

        Raises `GenerationError`, for example once the certificate has expired.
        """
        if audio_format not in FORMATS:
            return content
        self.warn()
        return self._sign(content, audio_format)

    def warn(self) -> None:
        """Log, at most once a day, that the certificate ends within `WARNED_BEFORE`, or has ended."""
        now = datetime.now(UTC)
        if now < self.ends - WARNED_BEFORE or now.date() == self._warned:
            return
        self._warned = now.date()
        ends = f"{'expires' if now < self.ends else 'expired'} on {self.ends:%Y-%m-%d %H:%M %Z}"
        reason = "complete WAV, MP3 and FLAC responses fail without a valid one"
        logger.warning("%s: the certificate %s; %s; %s", CERTIFICATE, ends, reason, RENEW)

    def _sign(self, content: bytes, audio_format: AudioFormat) -> bytes:
        import c2pa

        signed = io.BytesIO()
        try:
            info = c2pa.C2paSignerInfo(self._algorithm, self._chain, self._key, None)
            with c2pa.Signer.from_info(info) as signer, c2pa.Builder(MANIFEST) as builder:
                builder.sign(signer, media_type(audio_format), io.BytesIO(content), signed)
        except c2pa.C2paError as error:
            until = f"the certificate is valid until {self.ends:%Y-%m-%d}; if it has expired, {RENEW}"
            raise GenerationError(f"the audio cannot be signed: {error}; {until}") from None
        return signed.getvalue()


def _read(variable: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{variable}={str(path)!r}: cannot be read: {error.strerror or error}") from None


def _parse_chain(path: Path, content: bytes) -> Any:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(content)[0]
    except ValueError:
        raise ConfigurationError(
            f"{CERTIFICATE}={str(path)!r}: has no valid PEM certificate; the file must begin with the signer's, "
            "followed by those of the authorities between it and the root"
        ) from None


def _parse_key(path: Path, content: bytes) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(content, None)
    except TypeError:
        raise ConfigurationError(f"{KEY}={str(path)!r}: is encrypted; use a file without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{KEY}={str(path)!r}: has no valid PEM private key") from None


def _algorithm(key: Any) -> bytes:
    """Return the C2PA's name for the signatures of a key."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPrivateKey):
        return b"ps256"
    return _CURVES.get(key.curve.name, b"") if isinstance(key, ec.EllipticCurvePrivateKey) else b"ed25519"
