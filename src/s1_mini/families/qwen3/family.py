"""The entry of Qwen3-TTS in the registry of families; `families/base.py: Family` describes the methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from s1_mini.families.qwen3.settings import CODEC_FOLDER, OPTIONAL_FILES, SMALL_FILES, STAGES, Qwen3Settings
from s1_mini.families.registry import deferred
from s1_mini.weights.directory import MODEL_NAMES, pick_files


class Qwen3:
    """Qwen3-TTS with the 12 Hz codec: Base, CustomVoice and VoiceDesign."""

    title = "Qwen3-TTS"
    settings = Qwen3Settings
    stage_names = STAGES
    in_float16 = False  # it overflows: vLLM-Omni's issue 3253, NaN on a T4
    needed_files = (
        *((name,) for name in SMALL_FILES),
        MODEL_NAMES,
        tuple(f"{CODEC_FOLDER}/{name}" for name in MODEL_NAMES),
    )
    random_sizes: Mapping[str, str] = {
        "tiny": "under a megabyte, CustomVoice",
        "tiny-base": "under a megabyte, Base",
        "tiny-design": "under a megabyte, VoiceDesign",
        "0.6b": "the size of 0.6B CustomVoice",
        "0.6b-base": "the size of 0.6B Base",
        "1.7b": "the size of 1.7B CustomVoice",
        "1.7b-base": "the size of 1.7B Base",
        "1.7b-design": "the size of 1.7B VoiceDesign",
    }

    check_config = deferred("s1_mini.families.qwen3.config", "read_kind")
    describe = deferred("s1_mini.families.qwen3.voice", "describe")
    sizes = deferred("s1_mini.families.qwen3.costs", "measure_sizes")
    open = deferred("s1_mini.families.qwen3.loaded", "open_qwen3")
    files = deferred("s1_mini.families.qwen3.weights", "compact_files")
    verify = deferred("s1_mini.families.qwen3.verify", "verify_qwen3")
    write_random = deferred("s1_mini.families.qwen3.random", "write_random")

    def pick_files(self, names: Collection[str]) -> list[str]:
        return pick_files(names, self.needed_files, (*OPTIONAL_FILES, "voices/*.safetensors"))
