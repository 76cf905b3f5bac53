"""``mlxspec speak`` and ``groups``: sound where it was asked for, one line and an exit code where something is wrong. The voice is a tiny one."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from mlxspec.audio.sound import playback
from mlxspec.cli.main import main
from mlxspec.cli.terminal import Terminal
from mlxspec.errors import AudioError
from tests import ROOT
from tests.fake_engine import isolate
from tests.tiny_voice import save_voice

HELLO = "Hello there, this is a test."


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_voice(tmp_path_factory.mktemp("voices") / "tiny"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Heard:
    """A player that remembers."""

    underruns = 2

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate, self.parts, self.ended = sample_rate, list[np.ndarray](), ""

    def write(self, samples: np.ndarray) -> None:
        self.parts.append(samples)

    def finish(self) -> None:
        self.ended = "finished"

    def stop(self) -> None:
        self.ended = "stopped"


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """A terminal, and a sound card that works."""
    players: list[Heard] = []

    def opened(sample_rate: int, cancel: threading.Event) -> Heard:
        players.append(Heard(sample_rate))
        return players[-1]

    monkeypatch.setattr(playback, "open_player", opened)
    on_terminal(monkeypatch)
    return players


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Terminal.__init__

    def init(self: Terminal, *args: Any, **more: Any) -> None:
        before(self, *args, **more)
        self.out_tty = True

    monkeypatch.setattr(Terminal, "__init__", init)


def run(*argv: str) -> int:
    return main(["speak", *argv])


def outcome(code: int) -> bool:
    """A tiny untrained voice ends well or is cut: both are told by the exit code."""
    return code in (0, 3)


# ---- Where sound goes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.wav", "out.flac", "out.ogg"])
def test_a_file_is_written_at_the_codecs_rate(name: str, voice: str, home: Path) -> None:
    assert outcome(run(HELLO, "-v", voice, "-o", name, "--seed", "5", "--drafter", "none"))
    sound, rate = soundfile.read(home / name)
    assert rate == 16000 and len(sound) > 100 and sorted(os.listdir(home))[-1] == name


def test_the_same_seed_writes_the_same_bytes(voice: str, home: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        for suffix in (".wav", ".flac"):
            run(HELLO, "-v", voice, "-o", name + suffix, "--seed", seed, "--drafter", "lookup", "--draft-tokens", "2")
    for suffix in (".wav", ".flac"):
        same, other = (home / f"a{suffix}").read_bytes(), (home / f"c{suffix}").read_bytes()
        assert same == (home / f"b{suffix}").read_bytes() != other


def test_json_tells_what_was_spoken(voice: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(HELLO, "-v", voice, "-o", "out.wav", "--seed", "5", "--drafter", "none", "--json")
    found = json.loads(capsys.readouterr().out)
    assert {"duration", "seconds_per_audio_second", "time_to_first_audio", "sentences", "cut", "faults", "seed", "exact", "stats"} <= set(found)
    assert found["samples"] == soundfile.info("out.wav").frames and found["duration"] == found["samples"] / found["sample_rate"]
    assert (found["text"], found["output"], found["seed"], found["exact"], found["sentences"]) == (HELLO, "out.wav", 5, True, 1)
    assert found["cut"] == bool(found["faults"]) == (code == 3)
    assert {"rounds", "drafted", "accepted", "emitted", "tokens_per_round", "acceptance", "accepted_by_depth", "speculation"} <= set(found["stats"])


def test_it_plays_where_stdout_is_a_terminal(player: list[Heard], voice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(run(f"{HELLO} And then a second sentence.", "-v", voice, "--seed", "5", "-i", "--drafter", "none", "--stats"))
    assert player[0].ended == "finished" and player[0].sample_rate == 16000 and sum(map(len, player[0].parts)) > 100
    err = capsys.readouterr().err
    assert err.index(HELLO) < err.index("And then a second sentence.")
    assert "ran out 2 times" in err and "first sound after" in err


def test_without_a_way_to_play_a_file_is_written_and_the_exit_code_says_so(
    voice: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(sample_rate: int, cancel: threading.Event) -> None:
        raise AudioError("No sound device can play (none): write a file, as with -o out.wav.")

    monkeypatch.setattr(playback, "open_player", none)
    on_terminal(monkeypatch)
    (home / "speech.wav").write_text("mine")
    assert run(HELLO, "-v", voice, "--seed", "5", "--drafter", "none") in (1, 3)
    assert (home / "speech.wav").read_text() == "mine" and soundfile.info(home / "speech-1.wav").frames > 100
    assert "No sound device" in (err := capsys.readouterr().err) and "goes to speech-1.wav" in err


def test_a_file_needs_no_sound_card_and_no_portaudio(voice: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert outcome(run(HELLO, "-v", voice, "-o", "x.wav", "--drafter", "none"))
    assert (home / "x.wav").exists()


def test_text_from_a_file(voice: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "text.txt").write_text("First line of it.\n\nSecond part of it.")
    run("-f", "text.txt", "-v", voice, "-o", "x.wav", "--json", "--drafter", "none")
    assert json.loads(capsys.readouterr().out)["sentences"] == 2


def test_approximate_speech_says_so(voice: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [HELLO, "-v", voice, "-o", "x.wav", "--mirror", "--group-size", "4", "--drafter", "lookup", "--seed", "3", "--force"]
    run(*argv, "--json", "--stats")
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["accept"], found["exact"]) == ("mirror", False) and found["stats"]["mirror"]["mean_group_size"] > 1
    assert "approximate: groups of" in err and "apart inside" in err
    run(*argv, "--no-stats")
    assert "This speech is approximate (groups of" in capsys.readouterr().err


# ---- What is wrong -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([""], 2, "empty"),
        (["..."], 2, "can be said"),
        (["日本語"], 2, "can be said"),
        ([HELLO, "-v", "nobody"], 2, "There is no voice nobody"),
        ([HELLO, "-o", "x.mp3"], 2, "ffmpeg"),
        ([HELLO, "-o", "no/x.wav"], 2, "There is no folder"),
        ([HELLO, "-o", "there.wav"], 2, "--force"),
        ([HELLO, "--raw"], 2, "-o -"),
        ([HELLO, "-o", "-", "--json"], 2, "both write to stdout"),
        ([HELLO, "--mirror", "--accept", "ratio"], 2, "contradict"),
        ([HELLO, "--mirror", "--temp", "0"], 2, "draws nothing"),
        ([HELLO, "--group-size", "3"], 2, "add --mirror"),
        ([HELLO, "--capped", "7", "--mirror"], 2, "from 0 to 1"),
        ([HELLO, "--drafter", "nobody"], 2, "--drafter nobody"),
        ([HELLO, "--drafter", "redrafter"], 1, "No redrafter drafter comes with"),
        ([HELLO, "--tempo", "2"], 2, "--tempo"),
        ([HELLO, "--drafter", "none", "--require-spec"], 3, "--require-spec asks for it"),
    ],
)
def test_one_line_and_no_file(
    argv: list[str], code: int, words: str, voice: str, home: Path, player: list[Heard], capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "there.wav").write_text("mine")
    argv = argv if "-v" in argv else [*argv, "-v", voice]
    assert run(*argv) == code
    err = capsys.readouterr().err
    assert words in err and len([line for line in err.splitlines() if line.startswith("mlxspec:")]) == 1
    assert [name for name in os.listdir(home) if name.endswith((".wav", ".mp3"))] == ["there.wav"] and not player


def test_no_text_at_all(monkeypatch: pytest.MonkeyPatch, player: list[Heard], capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    assert run() == 2
    assert 'mlxspec speak "Hello there."' in capsys.readouterr().err


def test_sound_is_not_thrown_at_a_pipe_that_did_not_ask(voice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(HELLO, "-v", voice) == 2
    assert "-o - for WAV on stdout" in capsys.readouterr().err


def test_voices_are_listed(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    save_voice(home / "data" / "mlxspec" / "voices" / "mine")
    assert run("-v", "?") == 0
    assert "mine" in capsys.readouterr().out.splitlines()


def test_help_needs_no_mlx() -> None:
    for verb in ("speak", "groups"):
        heavy = "{'mlx', 'numpy', 'soundfile'}"
        check = f"import sys; from mlxspec.cli.main import main; main(['{verb}', '--help']); print(*sorted({heavy} & set(sys.modules)))"
        answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        assert answer.stdout.splitlines()[-1] == "" and "--debug" in answer.stdout


# ---- As a process ------------------------------------------------------------------------------------------------------------------------

LONG = "This is one sentence of a long text, and it goes on for a while. " * 40


def process(*argv: str, **streams: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "mlxspec.cli.main", "speak", *argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **streams,
    )


def test_a_pipe_gets_wav_and_a_closed_one_ends_it_quietly(voice: str) -> None:
    one = process(HELLO, "-v", voice, "-o", "-", "--seed", "5", "--drafter", "none", "-q")
    out, err = one.communicate(timeout=60)
    assert one.returncode in (0, 3) and (one.returncode == 3 or err == b"") and out[:4] == b"RIFF"
    raw = process(HELLO, "-v", voice, "-o", "-", "--raw", "--seed", "5", "--drafter", "none")
    assert raw.communicate(timeout=60)[0] == out[44:]
    closed = process(LONG, "-v", voice, "-o", "-", "--drafter", "none", "-q")
    assert closed.stdout is not None and closed.stderr is not None
    closed.stdout.read(200)
    closed.stdout.close()
    assert closed.wait(60) == 0 and closed.stderr.read() == b""


def test_interrupting_leaves_a_whole_file(voice: str, home: Path) -> None:
    path = home / "long.wav"
    running = process(LONG, "-v", voice, "-o", str(path), "--drafter", "none", "-i")
    assert running.stderr is not None
    for line in io.TextIOWrapper(running.stderr):
        if line.startswith("This is one sentence"):
            break
    running.send_signal(signal.SIGINT)
    assert running.wait(60) in (130, 1)
    if running.returncode == 130:
        with wave.open(str(path)) as whole:
            assert 0 <= whole.getnframes() < 40 * 16000 * 10
    assert not [name for name in os.listdir(home) if name.startswith(".") and name.endswith(".wav")]


# ---- Groups ------------------------------------------------------------------------------------------------------------------------------


def test_groups_are_built_shown_and_kept(voice: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", voice, "--mean-size", "4", "--json", "--show", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["codes"] == 32 and found["mean_size"] == pytest.approx(4, abs=0.2) and 3 in found["group"]
    assert (found["source"], found["measure"]) == ("head", "centred")
    assert main(["groups", voice, "--source", "codebook", "--measure", "distance", "--distance", "0.5"]) == 0
    assert "by distance of codebook vectors" in capsys.readouterr().out
    kept = sorted(home.rglob("*.npz"))
    assert len(kept) == 2
    for path in kept:
        path.write_bytes(b"damaged")
    assert main(["groups", voice, "--mean-size", "4", "--json", "--show", "3"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == found and "are built anew" in err


def test_the_swap_test_writes_a_sound_with_its_tokens_swapped(voice: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write("in.wav", np.random.default_rng(0).normal(0, 0.1, 24000).astype(np.float32), 24000)
    assert main(["groups", voice, "--mean-size", "4", "--swap", "in.wav", "-o", "out.wav", "--json"]) == 0
    swap = json.loads(capsys.readouterr().out)["swap"]
    assert swap["tokens"] == 500 and 0.3 < swap["share_swapped"] < 0.95
    assert soundfile.info("out.wav").frames == 16000 and soundfile.info("out.wav").samplerate == 16000


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 2, "mlxspec groups VOICE"),
        (["nobody"], 2, "no voice nobody"),
        (["VOICE", "--mean-size", "3", "--distance", "0.2"], 2, "give one of them"),
        (["VOICE", "--source", "air"], 2, "--source air"),
        (["VOICE", "--measure", "feet"], 2, "--measure feet"),
        (["VOICE", "--mean-size", "900"], 2, "mean group size"),
        (["VOICE", "--show", "99"], 2, "0 to 31"),
        (["VOICE", "--swap", "x.wav"], 2, "go together"),
        (["VOICE", "--swap", "nowhere.wav", "-o", "y.wav"], 1, "cannot be read as sound"),
    ],
)
def test_groups_that_make_no_sense(argv: list[str], code: int, words: str, voice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", *(voice if word == "VOICE" else word for word in argv)]) == code
    assert words in capsys.readouterr().err
