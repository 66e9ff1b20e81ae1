"""Settings: all supported variables are read, unknown ones are reported, and the list of settings is fixed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import ConfigurationError
from s1_mini.server.settings import ServerSettings
from s1_mini.variables import ENGINE, known_variables

# A new setting means that no good default was found; add it to this list with the reason.
FIELDS = [
    "checkpoint_path",
    "device",
    "placement",
    "precision",
    "codec_dtype",  # float16 and bfloat16 sound different; if a codec overflows in one, choose the other
    "weights_dtype",  # changes the audio away from the training data: the deployment decides
    "kv_dtype",
    "text_layout",  # the original's choice differs between voices, and a long reference favours the other
    "predictor_temperature",  # of Qwen3-TTS, whose other 15 codes have a sampling of their own
    "predictor_top_k",
    "predictor_top_p",
    "prenet_dropout",  # a mel model was trained with it on; off gives one result whatever the seed
    "stop_threshold",  # a mel model's end is a probability, and its threshold differs between trainings
    "min_length_ratio",  # speech length per text: depends on the language and on the speaking rate of a voice
    "max_length_ratio",
    "min_eos_p",  # of the cascade: the original and transformers end speech by different rules
    "fine_temperature",  # of the cascade: as above, and the audio differs audibly
    "vllm_stages",  # the engine that generates tokens: sampled tokens differ between them, as do their requirements
    "vllm_python",  # the location of a separate environment depends on the machine
    "heads",
    "repetition_mode",
    "batch_invariance",  # identical tokens in any batch cost time: opt in where they are needed
    "compile",
    "compile_backend",
    "compile_cache_path",  # the directory that survives restarts depends on the machine
    "enable_batching",
    "max_batch_size",
    "batch_timeout_ms",
    "batch_grouping",
    "max_queue_size",  # a full queue refuses at once; the useful queue length depends on the client
    "kv_cache_gb",  # the memory that is shared with other processes on the device
    "max_columns",  # more small slots, or fewer large ones
    "prefix_cache_mb",
    "kv_cache_size",
    "reference_cache_size",
    "reference_cache_path",
    "reference_cache_disk_mb",  # disk space for the cache depends on what else uses the disk
    "voices_path",  # added voices have to outlive the process, in a directory that the deployment provides
    "normalize",  # whether numbers are normalized for a voice depends on the deployment, as with unsupported characters
    "on_unsupported",
    "lexicon_path",
    "accept_ssml",
    "label_audio",
    "max_text_length",
    "chunk_length",
    "max_reference_s",
    "max_reference_bytes",
    "max_waiting_references",
    "request_timeout_s",
    "stuck_after_s",
    "vram_clear_on_oom",
    "metrics_enabled",
]

VARIABLES = {
    "S1_MINI_CHECKPOINT_PATH": ("checkpoint_path", "voice", Path("voice")),
    "S1_MINI_DEVICE": ("device", "cpu", "cpu"),
    "S1_MINI_PRECISION": ("precision", "float16", "float16"),
    "S1_MINI_CODEC_DTYPE": ("codec_dtype", "bf16", "bfloat16"),
    "S1_MINI_WEIGHTS_DTYPE": ("weights_dtype", "INT8", "int8"),
    "S1_MINI_KV_DTYPE": ("kv_dtype", "float8", "fp8"),
    "S1_MINI_COMPILE": ("compile", "False", "false"),
    "S1_MINI_COMPILE_BACKEND": ("compile_backend", "eager", "eager"),
    "S1_MINI_ENABLE_BATCHING": ("enable_batching", "false", False),
    "S1_MINI_BATCH_SIZE": ("max_batch_size", "7", 7),
    "S1_MINI_MAX_BATCH_SIZE": ("max_batch_size", "7", 7),
    "S1_MINI_BATCH_TIMEOUT": ("batch_timeout_ms", "200", 200.0),
    "S1_MINI_BATCH_TIMEOUT_MS": ("batch_timeout_ms", "50", 50.0),
    "S1_MINI_BATCH_GROUPING": ("batch_grouping", "0", False),
    "S1_MINI_KV_CACHE_SIZE": ("kv_cache_size", "5", 5),
    "S1_MINI_REFERENCE_CACHE_SIZE": ("reference_cache_size", "5", 5),
    "S1_MINI_NORMALIZE": ("normalize", "off", "off"),
    "S1_MINI_ON_UNSUPPORTED": ("on_unsupported", "skip", "skip"),
    "S1_MINI_UNSPEAKABLE": ("on_unsupported", "skip", "skip"),
    "S1_MINI_REQUEST_TIMEOUT_S": ("request_timeout_s", "9", 9.0),
    "S1_MINI_VRAM_CLEAR_ON_OOM": ("vram_clear_on_oom", "false", False),
    "S1_MINI_METRICS_ENABLED": ("metrics_enabled", "no", False),
}


def test_the_settings_are_those_of_the_list_in_this_file() -> None:
    assert list(EngineConfig.model_fields) == FIELDS


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_of_the_original_design_is_read(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field, text, value = VARIABLES[variable]
    monkeypatch.setenv(variable, text)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert getattr(EngineConfig(), field) == value


def test_every_setting_has_its_variable() -> None:
    assert len(known_variables(ENGINE)) >= len(FIELDS)
    assert all(name.startswith("S1_MINI_") for name in known_variables(ENGINE))


def test_a_keyword_beats_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_BATCH_SIZE", "7")

    assert EngineConfig(max_batch_size=3).max_batch_size == 3


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_batchsize": 4}, "max_batchsize is not a setting; did you mean max_batch_size"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"precision": "int8"}, "precision='int8'"),
        ({"compile_backend": "tvm"}, "compile_backend='tvm'"),
        ({"max_reference_s": 1000}, "max_reference_s=1000"),
        ({"weights_dtype": "int4"}, "weights_dtype='int4': .*'full', 'int8' or 'fp8'"),
        ({"kv_dtype": "int4"}, "kv_dtype='int4': .*'full' or"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        EngineConfig(**values)


def test_an_engine_takes_a_config_or_its_fields_as_keywords() -> None:
    engine = ProductionTTSEngine(checkpoint_path="voice", device="cpu")

    assert engine.config == EngineConfig(checkpoint_path="voice", device="cpu")
    assert ProductionTTSEngine().config == ProductionTTSEngine(EngineConfig()).config


@pytest.mark.parametrize(
    ("positional", "keywords", "complaint"),
    [
        (("Qwen/a",), {}, 'config must be an EngineConfig, not str; for a checkpoint, use checkpoint_path="Qwen/a"'),
        (({"device": "cpu"},), {}, "config must be an EngineConfig, not dict"),
        ((EngineConfig(),), {"device": "cpu"}, r"config cannot be combined with device; put .* into EngineConfig\("),
        ((), {"checkpoint": "voice"}, "checkpoint is not a setting; did you mean checkpoint_path?"),
        ((), {"voice": "clara"}, "voice is not a setting but an option of a request: give it to generate or stream"),
        ((), {"device": "gpu"}, "device='gpu': is not a device"),
    ],
)
def test_a_wrong_argument_of_an_engine_is_refused_at_construction(
    positional: tuple[Any, ...], keywords: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{complaint}"):
        ProductionTTSEngine(*positional, **keywords)


def test_an_error_names_the_keyword_or_variable_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_BATCH_SIZE", "many")
    with pytest.raises(ConfigurationError, match="S1_MINI_BATCH_SIZE='many'"):
        EngineConfig()
    monkeypatch.delenv("S1_MINI_BATCH_SIZE")
    monkeypatch.setenv("S1_MINI_DEVICE", "gpu")

    with pytest.raises(ConfigurationError, match=r"^S1_MINI_DEVICE='gpu': is not a device; use auto"):
        EngineConfig()
    with pytest.raises(ConfigurationError, match=r"^device='tpu': is not a device"):
        EngineConfig(device="tpu")
    with pytest.raises(ConfigurationError, match=r"^device='tpu': is not a device"):
        EngineConfig(device="cpu").model_copy(update={"device": "tpu"})


def test_an_unknown_variable_is_warned_about_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_VOICES", "mine")

    with pytest.warns(
        UserWarning, match="S1_MINI_VOICES is not a setting of s1_mini; did you mean S1_MINI_SERVER_VOICE_NAMES"
    ):
        EngineConfig()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("S1_MINI_COMPLIE", "S1_MINI_COMPILE"),
        ("S1_MINI_DEVCE", "S1_MINI_DEVICE"),
        ("S1_MINI_DEVISE", "S1_MINI_DEVICE"),
        ("S1_MINI_DEVICES", "S1_MINI_DEVICE"),
        ("S1_MINI_MAX_BACHSIZE", "S1_MINI_MAX_BATCH_SIZE"),
        ("S1_MINI_CLUSTER_GPU", "S1_MINI_CLUSTER_GPUS"),
        ("S1_MINI_AWS_ROLL", "S1_MINI_AWS_ROLE"),
        ("S1_MINI_SERVER_API_KEI", "S1_MINI_SERVER_API_KEY"),
        ("S1_MINI_SERVER_PROT", "S1_MINI_SERVER_PORT"),
        ("S1_MINI_SERVER_SAGEMAKER_MAX_ASINC", "S1_MINI_SERVER_SAGEMAKER_MAX_ASYNC"),
    ],
)
def test_a_misspelt_variable_is_refused_unless_it_is_empty(
    monkeypatch: pytest.MonkeyPatch, wrong: str, meant: str
) -> None:
    settings = ServerSettings if wrong.startswith("S1_MINI_SERVER_") else EngineConfig
    monkeypatch.setenv(wrong, "1")

    with pytest.raises(ConfigurationError, match=f"{wrong} is not a setting of s1_mini; did you mean {meant}"):
        settings()
    monkeypatch.setenv(wrong, "")
    with pytest.warns(UserWarning, match=wrong):
        settings()


@pytest.mark.parametrize("server", ["", "SERVER_"])
def test_variables_of_kubernetes_never_prevent_a_start(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    ends = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT_80",
        "PORT_8080_TCP",
        "PORT_80_TCP_ADDR",
        "PORTS",
    )
    for end in ends:
        monkeypatch.setenv(f"S1_MINI_{server}{end}", "tcp://10.0.0.1:80")

    with pytest.warns(UserWarning, match="is not a setting"):
        (ServerSettings if server else EngineConfig)()


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(Exception, match="frozen"):
        EngineConfig().device = "cpu"


def test_a_copied_config_is_validated_and_reads_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(max_batch_size=2)
    monkeypatch.setenv("S1_MINI_BATCH_SIZE", "7")
    monkeypatch.setenv("S1_MINI_COMPLIE", "false")  # would be refused

    copy = config.model_copy(update={"checkpoint_path": "voice", "voices_path": "mine"})

    assert (copy.checkpoint_path, copy.voices_path, copy.max_batch_size) == (Path("voice"), Path("mine"), 2)
    assert config.model_copy() == config
    with pytest.raises(ConfigurationError, match="checkpoint_path=5: "):
        config.model_copy(update={"checkpoint_path": 5})
    with pytest.raises(ConfigurationError, match="max_batchsize is not a setting; did you mean max_batch_size"):
        config.model_copy(update={"max_batchsize": 4})
