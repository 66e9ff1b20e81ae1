"""The command line end to end: real processes, real files, correct exit codes."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from s1_mini.audio.container import COMMENT, check_writable
from s1_mini.cli.app import run
from s1_mini.cli.say import is_gone
from s1_mini.exceptions import ParameterError
from s1_mini.packaging.compile_cache import VARIABLES
from s1_mini.types import Voice
from s1_mini.voices.library import write_voice
from s1_mini.weights.directory import DEFAULT_MODEL
from tests.cli.conftest import Call, Result
from voice_formats import BOOKS
from waiting import EVENTUALLY_S

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith("S1_MINI_") and name not in VARIABLES
}


def s1_mini(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "s1_mini", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, env=ENVIRONMENT | environment, check=False)


def test_say_writes_a_file_and_names_it_on_stderr(call: Call, tiny: Path, tmp_path: Path) -> None:
    options = ("--checkpoint", tiny, "--seed", "1", "--max-new-tokens", "12")

    result = call("say", "Hello.", *options, "-o", tmp_path / "a.wav")

    assert (result.code, result.out) == (0, "")
    *warned, wrote = result.err.splitlines()
    assert wrote == f"wrote {tmp_path / 'a.wav'}"
    assert ["reached --max-new-tokens" in line for line in warned] == [True]  # a random model has no end
    wave, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == 44_100
    assert len(wave) > 0


def test_files_state_that_the_audio_is_synthetic_unless_a_setting_says_otherwise(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(name: str) -> tuple[str, str]:
        files = (tmp_path / f"{name}.wav", tmp_path / f"{name}.vtt")
        assert call("say", "We left.", "--seed", "1", "-o", files[0], "--subtitles", files[1]).code == 0
        with soundfile.SoundFile(files[0]) as sound:
            return sound.comment, files[1].read_text(encoding="utf-8")

    label, subtitles = said("a")
    monkeypatch.setenv("S1_MINI_LABEL_AUDIO", "false")
    none, others = said("b")

    assert (label, none) == (COMMENT, "")
    assert subtitles == others.replace("WEBVTT\n", f"WEBVTT\n\nNOTE {COMMENT}\n")


def test_say_writes_subtitles_with_all_of_the_text(call: Call, tmp_path: Path) -> None:
    """By the default voice, as there is no --checkpoint."""
    result = call(
        "say", "We left. Then it rained.", "--seed", "1", "-o", tmp_path / "a.wav", "--subtitles", tmp_path / "a.srt"
    )

    assert result.code == 0
    blocks = (tmp_path / "a.srt").read_text(encoding="utf-8").strip().split("\n\n")
    assert " ".join(block.split("\n", 2)[2] for block in blocks) == "We left. Then it rained."


def test_subtitles_need_a_known_suffix_and_an_alignment_head(call: Call, tiny: Path, tmp_path: Path) -> None:
    unknown = call("say", "Hello.", "--subtitles", tmp_path / "a.txt")
    unsupported = call("say", "Hello.", "--checkpoint", tiny, "--subtitles", tmp_path / "a.srt")

    assert "must end in .srt or .vtt" in unknown.err
    assert "word_times" in unsupported.err
    assert unknown.code == unsupported.code == 1
    assert not list(tmp_path.iterdir())


def test_text_comes_from_stdin_and_sound_goes_to_stdout(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    options = ["--checkpoint", tiny, "--seed", "1", "--max-new-tokens", "12"]

    def say(*words: str) -> bytes:
        monkeypatch.setattr(sys, "argv", [*map(str, ["s1-mini", "say", *words, "-o", "-", *options])])
        assert run() == 0
        output = capfdbinary.readouterr()
        assert b"wrote" not in output.err
        return output.out

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello.\n")))
    piped, streamed = say("-", "--format", "flac"), say("Hello.", "--stream")

    whole, _ = soundfile.read(io.BytesIO(piped), dtype="int16")
    samples = np.frombuffer(streamed[44:], dtype="<i2")
    assert streamed.startswith(b"RIFF")
    assert np.array_equal(samples, whole)


@pytest.mark.skipif(os.name == "nt", reason="Windows pipes do not break")
def test_a_closed_output_pipe_ends_the_command_without_a_traceback(tiny: Path) -> None:
    text = "A sentence that goes on. " * 40
    command = [sys.executable, "-m", "s1_mini", "say", text, "--checkpoint", str(tiny), "-o", "-", "--stream"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout.read(1000).startswith(b"RIFF")
        process.stdout.close()
        said = process.stderr.read().decode()
        code = process.wait(timeout=EVENTUALLY_S)

    assert code != 0
    assert "Traceback" not in said


def test_stdin_is_read_as_utf_8_whatever_the_locale(
    call: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--checkpoint", tiny, "--seed", "1", "--max-new-tokens", "6"]

    def call_with_stdin(content: bytes, output: Path) -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="cp1252"))
        return call("say", "-", "-o", output, *options)

    piped = call_with_stdin("\ufeffGrüße.".encode(), tmp_path / "a.wav")
    named = call("say", "Grüße.", "-o", tmp_path / "b.wav", *options)
    broken = call_with_stdin(b"Gr\xfc\xdfe.", tmp_path / "c.wav")

    assert (piped.code, named.code, broken.code) == (0, 0, 1)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    assert "stdin is not UTF-8" in broken.err


def test_a_process_without_stdin_is_named(
    call: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as after `<&-`, or in a Windows program without a console

    done = call("say", "-", "-o", tmp_path / "a.wav", "--checkpoint", tiny)

    assert done.code == 1
    assert "this process has no stdin" in done.err


def test_a_reference_file_of_any_rate_and_channels_is_taken(
    call: Call, tiny: Path, tmp_path: Path, tone: np.ndarray
) -> None:
    soundfile.write(tmp_path / "ref.flac", np.stack([tone, tone], axis=1), 22_050)

    spoken = call(
        *("say", "Hello.", "--checkpoint", tiny, "-o", tmp_path / "a.ogg", "--max-new-tokens", "12"),
        *("--reference", tmp_path / "ref.flac", "--reference-text", "Ah.", "--verbose"),
    )

    assert spoken.code == 0, spoken.err
    assert "real-time factor" in spoken.err
    assert soundfile.info(tmp_path / "a.ogg").subtype == "OPUS"


@pytest.mark.parametrize("verb", [("say", "Hello."), ("convert",)])
def test_a_missing_checkpoint_is_reported_with_how_to_get_one(
    call: Call, verb: tuple[str, ...], tmp_path: Path
) -> None:
    code, _, said = call(*verb, "--checkpoint", tmp_path / "nowhere", "-o", tmp_path / "a.wav")

    assert code == 1
    assert "fishaudio/openaudio-s1-mini" in said
    assert "--checkpoint" in said
    assert "Traceback" not in said


def test_the_checkpoint_may_be_named_by_its_variable(
    call: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S1_MINI_CHECKPOINT_PATH", str(tiny))
    asked = ("say", "Hi.", "--seed", "1", "--max-new-tokens", "4")

    assert call(*asked, "-o", tmp_path / "a.wav").code == 0
    monkeypatch.delenv("S1_MINI_CHECKPOINT_PATH")
    assert call(*asked, "-o", tmp_path / "b.wav", "--checkpoint", tiny).code == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


BAD_CALLS = {
    "empty text": (["say", " "], " TEXT: is empty"),
    "unknown suffix": (
        ["say", "Hi.", "-o", "{tmp}/a.doc"],
        " --output: '{tmp}/a.doc' ends in .doc, which is not an audio format",
    ),
    "format that contradicts the file name": (
        ["say", "Hi.", "-o", "{tmp}/a.wav", "--format", "mp3"],
        " --format: mp3 does not match {tmp}/a.wav; omit --format",
    ),
    "unknown format": (["say", "Hi.", "--format", "m4a"], " --format: 'm4a' is not known; use one of wav"),
    "no folder": (["say", "Hi.", "-o", "{tmp}/no/a.wav"], " --output: cannot write"),
    "temperature": (["say", "Hi.", "--temperature", "9"], " --temperature: 9.0 is not a number in [0, 2]"),
    "normalize": (["say", "Hi.", "--normalize", "on"], " --normalize: must be one of auto, off, not 'on'"),
    "on_unsupported": (
        ["say", "Hi.", "--on-unsupported", "no"],
        " --on-unsupported: must be one of error, skip, not 'no'",
    ),
    "unsupported character": (
        ["say", "Look 猫 now.", "--checkpoint", str(DEFAULT_MODEL)],
        "cannot pronounce '猫' (character 6). Remove it, or use --on-unsupported skip.",
    ),
    "nothing left": (
        ["say", "猫", "--on-unsupported", "skip", "--checkpoint", str(DEFAULT_MODEL)],
        " TEXT: this voice speaks English; it cannot pronounce any character of '猫'",
    ),
    "reference that is not a sound": (
        ["say", "Hi.", "--reference", __file__],
        f" --reference: {__file__!r}: the file is",
    ),
    "reference that is not there": (
        ["say", "Hi.", "--reference", "{tmp}/none.wav"],
        " --reference: '{tmp}/none.wav': ",
    ),
    "what is said in nothing": (
        ["say", "Hi.", "--reference-text", "Ah."],
        " --reference-text: was given without a recording; add",
    ),
    "two voices": (
        ["say", "Hi.", "--reference", "a.wav", "--voice", "me"],
        " --voice: cannot be combined with --reference",
    ),
    "unknown voice": (["say", "Hi.", "--voice", "nobody"], " --voice: unknown voice 'nobody'"),
    "stream into a file": (["say", "Hi.", "-o", "{tmp}/a.wav", "--stream"], " --stream: writes to stdout: add `-o -`"),
    "mp3 stream": (["say", "Hi.", "-o", "-", "--stream", "--format", "mp3"], " --format: mp3 cannot be streamed"),
    "output is a folder": (["say", "Hi.", "-o", "{tmp}"], "it is a folder"),
    "no device": (["say", "Hi.", "--device", "tpu"], " --device='tpu': is not a device; use auto"),
    "device that is not here": (
        ["say", "Hi.", "--device", "cuda:99"],
        " --device='cuda:99' is not available: this machine has",
    ),
    "no checkpoint": (
        ["say", "Hi.", "--checkpoint", "{tmp}"],
        " {tmp} is not a complete checkpoint: it lacks config.json, tok",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_gets_one_sentence_and_leaves_nothing_behind(
    call: Call, name: str, tiny: Path, tmp_path: Path
) -> None:
    arguments, complaint = BAD_CALLS[name]
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    if "-o" not in arguments:
        arguments += ["-o", str(tmp_path / "a.wav")]
    if "--checkpoint" not in arguments:
        arguments += ["--checkpoint", str(tiny)]

    code, _, said = call(*arguments)

    assert code == 1
    assert complaint.format(tmp=tmp_path) in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_av")
def test_a_file_whose_encoder_is_missing_is_refused_with_the_extra(call: Call, tiny: Path, tmp_path: Path) -> None:
    code, _, said = call("say", "Hi.", "-o", tmp_path / "a.aac", "--checkpoint", tiny)

    assert code == 1
    assert said.startswith("s1-mini: --format: 'aac': its encoder needs av")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


REFUSED_EARLY = {
    "voice": ["Hi.", "--voice", "nobody"],
    "voice in a folder": ["Hi.", "--voice", "bad", "--voices-path", "{tmp}"],
    "letter": ["\u732b", "-o", "-"],
    "blank": [" "],
    "sampling": ["Hi.", "--top-k", "3"],
    "missing reference": ["Hi.", "--reference", "{tmp}/none.wav", "--checkpoint", "{tiny}"],
    "reference that is not a sound": ["Hi.", "--reference", "{tmp}/bad.safetensors", "--checkpoint", "{tiny}"],
    "long reference": ["Hi.", "--reference", "{tmp}/long.wav", "--checkpoint", "{tiny}"],
    "reference where none is taken": ["Hi.", "--reference", "{tmp}/long.wav"],
    "markup": ["<speak><b/></speak>", "--text-type", "ssml", "--checkpoint", "{tiny}"],
}


# One process for all commands: if torch is not loaded after the last, no command loaded it.
RUN_ALL = """
import contextlib, io, json, sys
from s1_mini.cli.app import run

outcomes = {}
for name, arguments in json.load(sys.stdin).items():
    sys.argv = ["s1-mini", "say", *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as told:
        code = run()
    outcomes[name] = code, told.getvalue().count("\\n"), "torch" in sys.modules
print(json.dumps(outcomes))
"""


def test_a_wrong_request_is_refused_in_one_sentence_before_torch_is_loaded(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"no voice")
    soundfile.write(tmp_path / "long.wav", np.full(8_000 * 61, 0.1), 8_000)
    asked = {
        name: [argument.format(tmp=tmp_path, tiny=tiny) for argument in arguments]
        for name, arguments in REFUSED_EARLY.items()
    }

    child = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path,
        check=False,
    )

    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {name: [1, 1, False] for name in REFUSED_EARLY}


HINTS = {
    "Good morning": 'put the text in quotes: s1-mini say "Good morning."',
    "'-5 degrees'": 'a text that begins with a dash goes last, after --: s1-mini say -- "-5 degrees."',
}


@pytest.mark.parametrize("typed", HINTS)
@pytest.mark.parametrize("verb", [("say",), ("endpoint", "invoke", "hello")])
def test_a_text_that_was_parsed_as_an_option_is_explained(call: Call, typed: str, verb: tuple[str, ...]) -> None:
    code, _, said = call(*verb, *shlex.split(typed))

    assert code == 2
    assert HINTS[typed] in said


@pytest.mark.skipif(os.name == "nt", reason="opens a terminal of Linux or macOS")
@pytest.mark.parametrize("verb", [("say",), ("endpoint", "invoke", "hello")])
def test_sound_is_not_sent_to_a_terminal(verb: tuple[str, ...]) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "s1_mini", *verb, "Hi.", "-o", "-"]

    result = subprocess.run(
        command, stdout=theirs, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False, timeout=EVENTUALLY_S
    )

    os.close(ours)
    os.close(theirs)
    assert result.returncode == 1
    assert b"--output: - writes audio to stdout, which is this terminal; add `> FILE` or `| PROGRAM`" in result.stderr


def test_verify_prints_a_table_and_exits_by_its_outcome(call: Call, oracle: Path, tmp_path: Path) -> None:
    torch.save({"codec": torch.load(oracle / "oracle.pt", weights_only=True)["codec"]}, tmp_path / "oracle.pt")
    arguments = ("verify", "--checkpoint", oracle, "--oracle", tmp_path / "oracle.pt")

    passed, failed = call(*arguments), call(*arguments, "--tolerance", "1e-12")

    assert (passed.code, failed.code) == (0, 1)
    assert "codec enc_codes" in passed.out
    assert "checks failed" in failed.err


@pytest.mark.long
def test_compile_writes_a_cache_that_a_later_start_uses(tiny: Path, tmp_path: Path) -> None:
    options = ("--checkpoint", tiny, "--device", "cpu")

    compiled = s1_mini("compile", *options, "-o", tmp_path)
    files = sorted(tmp_path.rglob("*"))
    again = s1_mini("compile", *options, "-o", tmp_path)

    assert compiled.returncode == again.returncode == 0, compiled.stderr + again.stderr
    assert any(path.suffix == ".nbi" for path in files)
    assert sorted(tmp_path.rglob("*")) == files


def test_compile_fails_if_nothing_can_be_compiled_or_another_cache_is_set(
    call: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    elsewhere = call("compile", "--checkpoint", tiny, "-o", tmp_path / "a")
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("S1_MINI_COMPILE_BACKEND", "eager")
    unsupported = call("compile", "--checkpoint", tiny, "--device", "cpu", "-o", tmp_path / "b")

    assert unsupported.code == elsewhere.code == 1
    assert "nothing to compile: disabled by S1_MINI_COMPILE" in unsupported.err
    assert "TRITON_CACHE_DIR names another compile cache" in elsewhere.err


def test_convert_and_random_checkpoint_work_on_directories(call: Call, tmp_path: Path) -> None:
    made = call("random-checkpoint", tmp_path / "noise", "--form", "published")
    convert = ("convert", "--checkpoint", tmp_path / "noise", "-o", tmp_path / "compact")
    converted, again = call(*convert), call(*convert)

    assert (made.code, converted.code, again.code) == (0, 0, 1)
    assert "model.safetensors" in converted.err
    assert "already exists" in again.err


def test_a_character_that_the_console_cannot_print_is_escaped(tiny: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "voiced"
    shutil.copytree(tiny, checkpoint)
    (checkpoint / "voices").mkdir()
    voice = Voice({"codes": torch.zeros(BOOKS, 3, dtype=torch.int64)}, "Hello.")
    write_voice(checkpoint / "voices", "mei", voice, description="Grüße 你好")

    listed = s1_mini("voices", "list", "--checkpoint", checkpoint, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")

    assert listed.returncode == 0, listed.stderr.decode()
    assert "Grüße".encode("cp1252") in listed.stdout
    assert rb"\u4f60\u597d" in listed.stdout


def test_a_closed_pipe_is_recognised_by_the_errors_of_each_system() -> None:
    broken, invalid = BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError(errno.EINVAL, "Invalid argument")

    assert [is_gone(error, is_windows=False) for error in (broken, invalid)] == [True, False]
    assert [is_gone(error, is_windows=True) for error in (broken, invalid)] == [True, True]
    assert not is_gone(OSError(errno.ENOSPC, "No space left on device"), is_windows=True)


@pytest.mark.skipif(os.name == "nt", reason="a device of Linux and macOS stands for NUL")
def test_audio_may_be_written_to_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable("/dev/null", is_windows=False)
    monkeypatch.setattr("os.access", lambda *_: False)  # as Windows reports for NUL

    check_writable("/dev/null", is_windows=True)
    with pytest.raises(ParameterError, match="no permission"):
        check_writable("/dev/null", is_windows=False)


def test_say_reads_markup_and_names_the_place_of_a_mistake(call: Call, tiny: Path, tmp_path: Path) -> None:
    options = ("--checkpoint", tiny, "--seed", "1", "--max-new-tokens", "2", "-o", tmp_path / "out.wav")

    said = call("say", "One. [pause 1s] Two.", "--text-type", "marked", *options)
    refused = call("say", "<speak><b/></speak>", "--text-type", "ssml", *options)

    assert said.code == 0, said.err
    assert soundfile.info(tmp_path / "out.wav").frames == 44_100 + 4 * 2048
    assert refused.code != 0
    assert "line 1, column 8: <b> is not supported" in refused.err
