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

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle `args` and attributes, because the constructors of subclasses take different arguments."""
        return _without_init, (type(self), self.args), self.__dict__


def _without_init(kind: type[S1MiniError], arguments: tuple[object, ...]) -> S1MiniError:
    return kind.__new__(kind, *arguments)


class ConfigurationError(S1MiniError):
    """A setting is invalid, or settings conflict."""

    code = "configuration_invalid"


class CheckpointError(S1MiniError):
    """A checkpoint directory cannot be used."""

    code = "checkpoint_invalid"


class CheckpointNotFoundError(CheckpointError):
    """No checkpoint was named and none ships with the package, or the named one does not exist or cannot be reached."""

    code = "checkpoint_not_found"


class CheckpointFileError(CheckpointError):
    """A file of the checkpoint is missing or invalid, or cannot be read, downloaded or written."""

    code = "checkpoint_file_invalid"


class CheckpointMismatchError(CheckpointError):
    """The checkpoint's files contradict each other, for example in a tensor's shape, or its config is not supported."""

    code = "checkpoint_mismatch"


class PackageError(CheckpointError):
    """A packaged checkpoint differs from its manifest, or cannot be read or written."""

    code = "package_invalid"


class VerificationError(S1MiniError):
    """A checkpoint does not reproduce an oracle's tensors, the oracle is invalid, or no head follows the text."""

    code = "verification_failed"


class DeploymentError(S1MiniError):
    """A call to AWS or a local endpoint failed, or a deployment did; the message has the next step if it is known."""

    code = "deployment_failed"


class RequestError(S1MiniError):
    """The request is wrong: `field` names the part at fault, `reason` is the message without that name."""

    code = "request_invalid"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.reason = field, message


class TextError(RequestError):
    """The text is empty, too long or not text, or has characters that are forbidden or cannot be pronounced."""

    code = "text_invalid"


class TextTooLongError(TextError):
    """The text has more characters than the limit."""


class NothingToSpeakError(TextError):
    """No part of the text can be spoken; `warning` names skipped characters, if any."""

    def __init__(self, field: str, message: str, warning: str | None = None) -> None:
        super().__init__(field, message)
        self.warning = warning


class MarkupError(TextError):
    """SSML, a mark in brackets or a lexicon is wrong; the message names the line and the column."""

    code = "markup_invalid"


class VoiceUnsupportedError(RequestError):
    """A recording was given, but the checkpoint cannot clone from recordings."""

    code = "voice_unsupported"


class ParameterError(RequestError):
    """A parameter is invalid or conflicts with another one."""

    code = "parameter_invalid"


class VoiceError(RequestError):
    """A voice name is invalid, a voice does not fit the model, or the model needs a voice and none was named."""

    code = "voice_invalid"


class VoiceNotFoundError(VoiceError):
    """No voice has that name."""

    code = "voice_not_found"


class VoiceExistsError(VoiceError):
    """A voice of that name already exists, or is being added."""

    code = "voice_exists"


class VoiceReadOnlyError(VoiceError):
    """The voice belongs to the checkpoint, so it can be neither replaced nor deleted."""

    code = "voice_read_only"


class VoiceFileError(VoiceError):
    """The voice's file is broken, or was made by another codec; the operator has to replace it."""

    code = "voice_file_invalid"


class ReferenceAudioError(RequestError):
    """A reference recording is missing, invalid, too large, too short, too long, silent or too loud."""

    code = "reference_invalid"


class EngineError(S1MiniError):
    """The engine cannot serve the request."""

    code = "engine_error"


class EngineNotReadyError(EngineError):
    """The engine, or a process that it needs, is not running: it was not started, was stopped, or has failed."""

    code = "engine_not_ready"


class QueueFullError(EngineError):
    """Too many requests are waiting; retry in `retry_after_s` seconds."""

    code = "queue_full"

    def __init__(self, waiting: int, max_size: int, retry_after_s: float, what: str = "requests") -> None:
        super().__init__(f"{waiting} {what} are already waiting (limit {max_size}); try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class CapacityError(EngineError):
    """A request, a voice or a checkpoint exceeds a slot, the available memory, or a limit on number or size."""

    code = "capacity_exceeded"


class RequestTimeoutError(EngineError):
    """The request exceeded its time limit."""

    code = "request_timeout"


class GenerationError(EngineError):
    """The model failed on this request; others are not affected."""

    code = "generation_failed"
