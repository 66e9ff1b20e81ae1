"""Audio8 is a configuration of S1: its files, its prompts, its limits, and the original's results."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import invoke
from container_room import recording, running
from s1_mini import EngineConfig, ParameterError, ProductionTTSEngine
from s1_mini.codecs.causal.channels_last import ChannelsLastDecoder
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.exceptions import CheckpointError, TextError, VoiceError
from s1_mini.families.find import Checkpoint
from s1_mini.families.s1.config import S1Config, codec_sizes, read_configs
from s1_mini.families.s1.prompt import SPEAKER, build_prompt
from s1_mini.families.s1.random import RECIPES, published_codec
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.families.s1.weights import full_network
from s1_mini.types import Voice
from s1_mini.weights.fit import skeleton

ASSETS = Path(__file__).parents[1] / "assets" / "audio8_tiny"
CONFIG = read_configs(ASSETS)[0]
TOKENIZER = S1Tokenizer.from_directory(ASSETS, CONFIG.dialect.files)
ASKED: dict[str, Any] = {"text": "Hello there.", "seed": 1, "max_new_tokens": 12}
PUBLISHED = Path(os.environ.get("AUDIO8_CHECKPOINT", ASSETS / "none"))


@pytest.fixture(scope="module")
def engine() -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=ASSETS, device="cpu", compile="false")) as engine:
        yield engine


def changed(target: Path, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copy the checkpoint, without its oracle, with a change to one of its JSON files."""
    shutil.copytree(ASSETS, target, ignore=shutil.ignore_patterns("oracle.pt"))
    values = json.loads((target / file).read_text())
    change(values)
    (target / file).write_text(json.dumps(values))
    return target


def test_the_engine_computes_what_the_original_computes() -> None:
    """Except for two of its prompts, in which the names of control tokens became control tokens."""
    checks = invoke("verify", "--checkpoint", ASSETS, "--oracle", ASSETS / "oracle.pt")

    assert "all 84 checks passed" in checks


def test_the_depth_input_is_only_normed_if_the_config_says_so(tmp_path: Path) -> None:
    directory = changed(tmp_path / "c", "config.json", lambda values: values.update(norm_fastlayer_input=False))
    case = torch.load(ASSETS / "oracle.pt")["noref/sampled"]
    case = {name: case[name] for name in ("text", "prompt", "seq", "hidden")}
    torch.save({"noref": case | {"fast_input": case["hidden"]}}, tmp_path / "oracle.pt")

    assert "all 3 checks passed" in invoke("verify", "--checkpoint", directory, "--oracle", tmp_path / "oracle.pt")


def test_absent_keys_have_the_values_of_the_original_whatever_the_others_are() -> None:
    config = S1Config.from_json({"model_type": "arktts", "attention_o_bias": True, "attention_qk_norm": True})
    published = S1Config.from_json(RECIPES["audio8-0.6b"].model)
    post = DacConfig.from_json(codec_sizes({"model_type": "arktts", "codec_post_n_head": 24})).post_block()

    assert replace(config, backbone=published.backbone) == published
    assert (config.rope_base, config.depth.norm_eps, config.norm_fastlayer_input) == (1e6, 1e-6, True)
    assert (post.num_heads, post.num_kv_heads, post.head_dim) == (24, 8, 64)


def test_a_difference_from_the_original_is_found(tmp_path: Path) -> None:
    content = torch.load(ASSETS / "oracle.pt")
    content["ras"][0]["probs"] += 1e-3
    content["prompts"][0]["prefix"][-1] += 1
    content["noref/greedy"]["ras_windows"][5] += 1
    torch.save({name: content[name] for name in ("ras", "prompts", "noref/greedy")}, tmp_path / "oracle.pt")

    lines = invoke("verify", "--checkpoint", ASSETS, "--oracle", tmp_path / "oracle.pt", fails=True).splitlines()

    failed = [line.split("│")[1].strip() for line in lines if "FAILED" in line]
    assert failed == ["ras 0 probs", "prompts 0", "noref/greedy ras_windows"]


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("chained", [False, True])
def test_the_codec_of_a_gpu_computes_its_post_module_too(chained: bool) -> None:
    codec, rows = open_dac(ASSETS, read_configs(ASSETS)[1], encodes=False), torch.tensor([0])
    stored = torch.load(ASSETS / "oracle.pt")["codec"]
    stream = ChannelsLastDecoder(codec, 1, chained=chained)
    parts = [stream.push_slots(part, rows, rows == at) for at, part in enumerate(stored["codes"].split(7, dim=-1))]

    torch.testing.assert_close(torch.cat(parts, dim=-1), stored["audio"][0], rtol=0, atol=1e-5)


def test_prompts_share_everything_before_the_text() -> None:
    voice = Voice({"codes": torch.randint(0, 32, (10, 6))}, "A reference.")
    for voices in ([], [voice]):
        first, second = (build_prompt(TOKENIZER, CONFIG, text, voices) for text in ("One  more.", "Two."))

        assert first.prefix_key == second.prefix_key
        assert np.array_equal(first.items[: first.num_shared], second.items[: first.num_shared])
        assert first.text is not None
        assert TOKENIZER.decode(first.items[slice(*first.text), 0].tolist()) == "One more."
        assert TOKENIZER.decode(first.items[first.text[1] :, 0].tolist()) == (
            "<|im_end|>\n<|im_start|>assistant\n<|voice|>"
        )
    with pytest.raises(VoiceError, match=r"^voice: 2 voices were given; this model supports one"):
        build_prompt(TOKENIZER, CONFIG, "Text.", [voice, voice])


@pytest.mark.parametrize("transcript", ["<|speaker:12|> Aah.", "<|speaker:\u0663|> Aah."])
def test_a_transcript_keeps_its_speaker_tag(transcript: str) -> None:
    voice = Voice({"codes": torch.zeros(10, 1, dtype=torch.int64)}, transcript)

    assert SPEAKER not in TOKENIZER.decode(build_prompt(TOKENIZER, CONFIG, "Text.", [voice]).items[:, 0].tolist())


def test_merges_may_be_strings_and_give_the_same_tokens(tmp_path: Path) -> None:
    def join(values: dict[str, Any]) -> None:
        values["model"]["merges"] = [" ".join(pair) for pair in values["model"]["merges"]]

    other = S1Tokenizer.from_directory(changed(tmp_path / "c", "tokenizer.json", join), CONFIG.dialect.files)

    assert other.encode("The speech, there.") == TOKENIZER.encode("The speech, there.")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda values: values.update(normalizer={"type": "NFKC"}), "normalizer is not that of Qwen2"),
        (lambda values: values["pre_tokenizer"]["pretokenizers"].pop(0), "pre_tokenizer is not that of Qwen2"),
        (lambda values: values["model"].update(type="Unigram"), "model is not that of Qwen2"),
        (lambda values: values["model"].update(dropout=0.1), "model is not that of Qwen2"),
        (lambda values: values["model"]["merges"].reverse(), r"model\.merges is not that of Qwen2"),
        (lambda values: values["model"]["merges"].pop(), r"model\.merges is not that of Qwen2"),
        (lambda values: values["model"]["merges"].append(["q", "unknown"]), "is not a byte-pair tokenizer"),
        (lambda values: values["model"].update(vocab=[]), "is not a byte-pair tokenizer"),
        (lambda values: values.pop("added_tokens"), "is not a byte-pair tokenizer"),
        (lambda values: values["model"]["vocab"].pop("A"), r"tokenizer\.json has no token for the byte 65"),
        (lambda values: values["added_tokens"][2].update(rstrip=True), "added_tokens is not that of Qwen2"),
        (lambda values: values["added_tokens"].pop(-3), r"tokenizer\.json: .*without gaps"),
        (lambda values: values["added_tokens"].pop(2), r"eos_token_id=378 must be None, the id of <\|im_end\|>"),
        (lambda values: values["added_tokens"][2].update(id="7"), r"the id of <\|im_end\|> must be an integer"),
    ],
)
def test_a_tokenizer_of_another_form_is_refused(
    change: Callable[[dict[str, Any]], object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        ProductionTTSEngine(EngineConfig(checkpoint_path=changed(tmp_path / "c", "tokenizer.json", change))).start()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"slow_backbone": "falcon_h1"}, "slow_backbone='falcon_h1' must be \"arktts\""),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False must be true"),
        ({"scale_codebook_embeddings": True}, "scale_codebook_embeddings=True must be false"),
        ({"codec_filename": "new.pth"}, "codec_filename='new.pth' must be \"codec.pth\""),
        ({"codec_sample_rate": 24_000}, "codec_sample_rate=24000 must be 44100, as in the codec"),
        ({"codec_frame_size": 1024}, "codec_frame_size=1024 must be 2048, as in the codec"),
        ({"codec_post_n_head": "8"}, "codec_post_n_head='8' must be a positive integer"),
        ({"ras_top_p": 2}, "ras_top_p=2 must be a number above 0 and up to 1"),
        ({"eos_token_id": 377}, r"eos_token_id=377 must be 378, the id of <\|im_end\|> in tokenizer\.json"),
    ],
)
def test_an_unsupported_config_is_refused_by_name(values: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    directory = changed(tmp_path / "c", "config.json", lambda config: config.update(values))

    with pytest.raises(CheckpointError, match=complaint):
        ProductionTTSEngine(EngineConfig(checkpoint_path=directory)).start()


def test_sampling_defaults_are_the_checkpoints_and_without_its_file_the_published_ones(tmp_path: Path) -> None:
    directory = changed(
        tmp_path / "c", "generation_config.json", lambda values: values.update(do_sample=False, top_k=9, top_p=None)
    )
    own = Checkpoint(directory).description.defaults
    (directory / "generation_config.json").unlink()
    published = Checkpoint(directory).description.defaults

    changed(tmp_path / "long", "config.json", lambda values: values.update(max_seq_len=2048))

    assert [Checkpoint(each).description.max_piece_bytes for each in (directory, tmp_path / "long")] == [128, 170]
    assert (own.temperature, own.top_k, own.top_p) == (0.0, 9, 0.9)
    assert (published.temperature, published.top_p, published.top_k) == (0.7, 0.9, 50)
    assert {own.repetition_penalty, published.repetition_penalty} == {1.0}


@pytest.mark.parametrize(
    ("options", "field"),
    [({"repetition_penalty": 1.1}, "repetition_penalty"), ({"instructions": "Whisper."}, "instructions")],
)
def test_options_of_other_models_are_refused_by_name(
    options: dict[str, Any], field: str, engine: ProductionTTSEngine
) -> None:
    with pytest.raises(ParameterError, match=rf"^{field}: .*not supported by this model"):
        engine.generate(**ASKED, **options)


def test_a_recording_with_its_transcript_is_cloned_through_every_route(
    engine: ProductionTTSEngine, tone: np.ndarray, tmp_path: Path
) -> None:
    def form(**more: str) -> dict[str, Any]:
        fields = {name: str(value) for name, value in ASKED.items()}
        return {"data": fields | more, "files": {"reference_audio": recording(tone)}}

    with running(engine, tmp_path) as container, container.http() as http:
        first, cached = (http.post("/v1/tts", **form(reference_text="Aah.")) for _ in range(2))
        invoked = http.post("/invocations", **form(reference_text="Aah."))
        plain, bare = http.post("/v1/tts", json=ASKED), http.post("/v1/tts", **form())

    assert [each.status_code for each in (first, cached, invoked, plain, bare)] == [200, 200, 200, 200, 422]
    assert first.content == cached.content == invoked.content != plain.content
    assert "reference_text" in bare.json()["error"]["message"]


def test_a_recording_without_its_transcript_is_refused_before_it_is_read(engine: ProductionTTSEngine) -> None:
    with pytest.raises(TextError, match=r"^reference_text: is empty; provide the exact words"):
        engine.generate(**ASKED, reference_audio=b"no recording")


def test_words_get_times_from_the_head_that_the_config_names(tmp_path: Path) -> None:
    head = {"layer": 1, "head": 3, "shift_ms": 0}
    directory = changed(tmp_path / "c", "config.json", lambda config: config.update(alignment=head))

    with ProductionTTSEngine(EngineConfig(checkpoint_path=directory, device="cpu", compile="false")) as engine:
        words = engine.generate(**ASKED, word_times=True).words

    assert [word.text for word in words] == ["Hello", "there"]


@pytest.mark.parametrize("stated", [True, False])
def test_the_published_size_has_the_published_numbers_of_parameters(stated: bool) -> None:
    values = {name: each for name, each in RECIPES["audio8-0.6b"].model.items() if stated or "codec_post" not in name}
    model = dict(full_network(S1Config.from_json(values)).named_parameters())
    codec = skeleton(lambda: Dac(DacConfig.from_json(codec_sizes(values))))
    stored = published_codec(codec, dict(codec.named_parameters()), buffers=False)

    del model["output.weight"]  # tied
    assert (len(model), sum(each.numel() for each in model.values())) == (226, 601_159_424)
    assert sum(each.numel() for each in stored.values()) == 337_428_866


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="AUDIO8_CHECKPOINT does not name the published checkpoint")
def test_the_published_tokenizer_gives_the_published_ids() -> None:
    config = read_configs(PUBLISHED)[0]
    tokenizer = S1Tokenizer.from_directory(PUBLISHED, config.dialect.files)
    voice = Voice({"codes": torch.zeros(10, 1, dtype=torch.int64)}, "This is a test.")
    prompt = build_prompt(tokenizer, config, "Hello, world!", [voice]).items[:, 0].tolist()

    before, after = prompt[: prompt.index(151_678)], prompt[prompt.index(151_678) + 1 :]
    assert before[:16] == [151644, 8948, 198, 14166, 279, 3897, 1467, 311, 8806, 5785, 311, 279, 2701, 1447, 1178, 510]
    assert before[16:] == [27, 91, 64476, 25, 15, 91, 29, 1986, 374, 264, 1273, 13, 271, 55625, 510]
    assert after == [151645, 198, 151644, 872, 198, 9707, 11, 1879, 0, 151645, 198, 151644, 77091, 198, 151673]
    spoken = [14755, 23, 350, 9951, 98313, 66635, 220, 17, 15, 17, 19, 1773]
    assert tokenizer.encode("Audio8 TTS 测试 2024。") == spoken
