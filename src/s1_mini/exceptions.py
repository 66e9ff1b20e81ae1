"""The errors that the engine raises, and `S1MiniError`, the base of all errors of this package.

Each error has a stable `code` for programs and a message for people, where possible with the given value, the allowed
values or the setting to change. `RequestError` and its subclasses name the `field` at fault and are the caller's
mistakes, except `VoiceFileError`. All other errors concern the installation, its load or its state, except
`CapacityError`, `RequestTimeoutError` and `GenerationError`, which a request can cause.
"""

from __future__ import annotations


class S1MiniError(Exception):
    """Base of all errors of this package."""

    code = "s1_mini_error"

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle `args` and attributes, because the constructors of subclasses take different arguments."""
        return _without_init, (type(self), self.args), self.__dict__


def _without_init(kind: type[S1MiniError], arguments: tuple[object, ...]) -> S1MiniError:
    return kind.__new__(kind, *arguments)


class ConfigurationError(S1MiniError, code="configuration_invalid"):
    """A setting is invalid, or settings conflict."""


class CheckpointError(S1MiniError, code="checkpoint_invalid"):
    """A checkpoint directory cannot be used."""


class CheckpointNotFoundError(CheckpointError, code="checkpoint_not_found"):
    """No checkpoint was named and none ships with the package, or the named one does not exist or cannot be reached."""


class CheckpointFileError(CheckpointError, code="checkpoint_file_invalid"):
    """A file of the checkpoint is missing or invalid, or cannot be read, downloaded or written."""


class CheckpointMismatchError(CheckpointError, code="checkpoint_mismatch"):
    """The checkpoint's files contradict each other, for example in a tensor's shape, or its config is not supported."""


class PackageError(CheckpointError, code="package_invalid"):
    """A packaged checkpoint differs from its manifest, or cannot be read or written."""


class VerificationError(S1MiniError, code="verification_failed"):
    """A checkpoint does not reproduce an oracle's tensors, the oracle is invalid, or no head follows the text."""


class DeploymentError(S1MiniError, code="deployment_failed"):
    """A call to AWS or a local endpoint failed, or a deployment did; the message has the next step if it is known."""


class RequestError(S1MiniError, code="request_invalid"):
    """The request is wrong: `field` names the part at fault, `reason` is the message without that name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.reason = field, message


class TextError(RequestError, code="text_invalid"):
    """The text is empty, too long or not text, or has characters that are forbidden or cannot be pronounced."""


class TextTooLongError(TextError):
    """The text has more characters than the limit."""


class NothingToSpeakError(TextError):
    """No part of the text can be spoken; `warning` names skipped characters, if any."""

    def __init__(self, field: str, message: str, warning: str | None = None) -> None:
        super().__init__(field, message)
        self.warning = warning


class MarkupError(TextError, code="markup_invalid"):
    """SSML, a mark in brackets or a lexicon is wrong; the message names the line and the column."""


class VoiceUnsupportedError(RequestError, code="voice_unsupported"):
    """A recording was given, but the checkpoint cannot clone from recordings."""


class ParameterError(RequestError, code="parameter_invalid"):
    """A parameter is invalid or conflicts with another one."""


class VoiceError(RequestError, code="voice_invalid"):
    """A voice name is invalid, a voice does not fit the model, or the model needs a voice and none was named."""


class VoiceNotFoundError(VoiceError, code="voice_not_found"):
    """No voice has that name."""


class VoiceExistsError(VoiceError, code="voice_exists"):
    """A voice of that name already exists, or is being added."""


class VoiceReadOnlyError(VoiceError, code="voice_read_only"):
    """The voice belongs to the checkpoint, so it can be neither replaced nor deleted."""


class VoiceFileError(VoiceError, code="voice_file_invalid"):
    """The voice's file is broken, or was made by another codec; the operator has to replace it."""


class ReferenceAudioError(RequestError, code="reference_invalid"):
    """A reference recording is missing, invalid, too large, too short, too long, silent or too loud."""


class EngineError(S1MiniError, code="engine_error"):
    """The engine cannot serve the request."""


class EngineNotReadyError(EngineError, code="engine_not_ready"):
    """The engine, or a process that it needs, is not running: it was not started, was stopped, or has failed."""


class QueueFullError(EngineError, code="queue_full"):
    """Too many requests are waiting; retry in `retry_after_s` seconds."""

    def __init__(self, waiting: int, max_size: int, retry_after_s: float, what: str = "requests") -> None:
        super().__init__(f"{waiting} {what} are already waiting (limit {max_size}); try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class CapacityError(EngineError, code="capacity_exceeded"):
    """A request, a voice or a checkpoint exceeds a slot, the available memory, or a limit on number or size."""


class RequestTimeoutError(EngineError, code="request_timeout"):
    """The request exceeded its time limit."""


class StorageError(EngineError, code="insufficient_storage"):
    """A file cannot be written or deleted, for example because the disk is full."""


class TextIdleError(EngineError, code="session_timeout"):
    """The rest of a text did not arrive in time while other requests waited for the slot of its utterance."""


class GenerationError(EngineError, code="generation_failed"):
    """The model failed on this request; others are not affected."""
