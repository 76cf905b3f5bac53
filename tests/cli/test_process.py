"""The command line as a process: pipes that close, signals, terminals, locales. The engine is a fake one."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli import prompt as prompts
from mlxspec.cli.main import VERBS, main
from tests import ROOT
from tests.fake_engine import ANSWER, Opened, install, isolate

COMMAND = [sys.executable, "-m", "tests.fake_engine"]
ENDLESS = {"FAKE_WORDS": "word after word*100000", "FAKE_PAUSE": "0.01"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    return tmp_path


def started(*argv: str, env: dict[str, str] | None = None, **streams: Any) -> "subprocess.Popen[bytes]":
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([*COMMAND, *argv], cwd=ROOT, env={**os.environ, **(env or {})}, **streams)


def ended(*argv: str, env: dict[str, str] | None = None, input: bytes | None = None, **streams: Any) -> tuple[int, bytes, bytes]:
    if input is not None:
        streams["stdin"] = subprocess.PIPE
    process = started(*argv, env=env, **streams)
    out, err = process.communicate(input, timeout=30)
    return process.returncode, out, err


def on_terminal(*argv: str, env: dict[str, str] | None = None, stderr_too: bool = True) -> tuple[int, str]:
    """Exit code and everything a process writes to a terminal."""
    master, slave = pty.openpty()
    process = started(*argv, env=env, stdin=slave, stdout=slave, stderr=slave if stderr_too else subprocess.DEVNULL)
    os.close(slave)
    seen = b""
    while select.select([master], [], [], 30)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:  # Linux: nobody has the other end open any more
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    return process.wait(timeout=30), seen.decode()


# ---- Starting up -------------------------------------------------------------------------------------------------------------------------


def test_help_imports_no_mlx() -> None:
    """All verbs in one process: what one of them imports the others would show."""
    check = (
        "import sys, io; from mlxspec.cli.main import main, VERBS; sys.stdout = io.StringIO(); "
        "codes = [main([verb, '--help']) for verb in ('--help', *VERBS)]; "
        "sys.stdout = sys.__stdout__; print(codes, sorted({name.split('.')[0] for name in sys.modules} "
        "& {'mlx', 'mlx_lm', 'numpy', 'transformers', 'huggingface_hub', 'textual', 'soundfile'}))"
    )
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout == f"{[0] * (len(VERBS) + 1)} []\n"


def test_help_is_fast() -> None:
    """The best of three, as the machine may be busy."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mlxspec.cli.main", "generate", "--help"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True, timeout=30)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 1


# ---- Pipes -------------------------------------------------------------------------------------------------------------------------------


def test_head_ends_the_reply_quietly() -> None:
    """The reply would take 50 minutes; a round takes 10 ms."""
    process = started("generate", "hi", "-n", "-1", env=ENDLESS)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(5) == b"word "
    process.stdout.close()
    closed = time.monotonic()
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - closed < 5
    assert process.stderr.read() == b"Model fake from nowhere\n"


def test_help_into_a_closed_pipe_is_quiet() -> None:
    line = f"{sys.executable} -m mlxspec.cli.main generate --help | head -c 5; echo ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, timeout=30)
    assert answer.stdout == b"usage0\n"
    assert answer.stderr == b""


def test_the_answer_arrives_as_it_is_said() -> None:
    process = started("generate", "hi", env={"FAKE_PAUSE": "0.2"})
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 100)
    assert first == b"Gravity"
    assert process.poll() is None
    assert first + process.stdout.read() == ANSWER.encode() + b"\n"
    process.communicate()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_below_stdout_is_one_line() -> None:
    for argv in (["generate", "hi"], ["generate", "hi", "--json"], ["paths"]):
        with open("/dev/full", "wb") as full:
            code, _, err = ended(*argv, stdout=full)
        assert code == 1
        assert err.decode().splitlines()[-1].startswith("mlxspec: stdout cannot be written (No space left on device)")
        assert b"Traceback" not in err and b"Exception" not in err


def test_closed_streams_are_no_failure() -> None:
    for closed in (">&-", "2>&-", "<&-"):
        line = f"exec {closed}; {' '.join(COMMAND)} generate hi"
        answer = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, timeout=30)
        assert answer.returncode == 0, closed
        assert b"Traceback" not in answer.stderr
        assert answer.stdout == (b"" if closed == ">&-" else ANSWER.encode() + b"\n")


def test_stdin_from_a_pipe_and_from_nowhere() -> None:
    shown = {"FAKE_WORDS": "x"}
    assert ended("generate", input=b"piped", env=shown)[:2] == (0, b"x\n")
    assert ended("generate", "hello", env=shown)[:2] == (0, b"x\n")
    code, out, err = ended("generate")
    assert (code, out) == (2, b"")
    assert err.decode().startswith("mlxspec: There is no prompt")


def late(end: int) -> None:
    os.write(end, b"late")
    os.close(end)


def test_a_silent_pipe_is_waited_for_and_said_to_be(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(prompts, "PATIENCE", 0.05)
    opened: Opened = install(monkeypatch)
    end, begin = os.pipe()
    with os.fdopen(end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        threading.Timer(0.3, late, (begin,)).start()
        assert main(["generate", "hello"]) == 0
    assert opened.prompt == "hello\n\nlate"
    assert "Reading stdin" in capsys.readouterr().err


# ---- Signals -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["--stats"], ["--json"]], ids=" ".join)
def test_ctrl_c_ends_the_reply_with_what_it_has(flags: list[str], home: Path) -> None:
    path = home / "run.jsonl"
    process = started("generate", "hi", "-n", "-1", "--trace", str(path), *flags, env=ENDLESS)
    waited = time.monotonic()
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        assert time.monotonic() - waited < 20
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert time.monotonic() - sent < 5
    assert b"Traceback" not in err
    if flags == ["--json"]:
        found = json.loads(out)
        assert found["finish_reason"] == "interrupted"
        assert found["text"].startswith("word after")
    else:
        assert out.startswith(b"word after") and out.endswith(b"\n")
        assert err.decode().splitlines()[-1].endswith("interrupted")
    assert json.loads(path.read_text().splitlines()[-1])["finish_reason"] == "interrupted"


def test_a_second_ctrl_c_does_not_wait_for_the_round(home: Path) -> None:
    process = started("generate", "hi", env={"FAKE_PAUSE": "20"})
    assert process.stderr is not None
    assert process.stderr.readline() == b"Model fake from nowhere\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, b"", b"mlxspec: interrupted\n")


# ---- Terminals and locales ---------------------------------------------------------------------------------------------------------------

HOSTILE = "plain \x1b[31mred\x1b[0m \x1b]52;c;c2VjcmV0\x07 é end"


def test_model_output_drives_no_terminal() -> None:
    code, seen = on_terminal("generate", "hi", env={"FAKE_WORDS": HOSTILE, "NO_COLOR": "1"})
    assert code == 0
    assert not set(seen) & {"\x1b", "\x07"}
    assert "plain red  é end\r\n" in seen
    assert "tok/s" in seen, "the statistics, as stderr is a terminal"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    assert ended("generate", "hi", env={"FAKE_WORDS": HOSTILE})[1] == HOSTILE.encode() + b"\n"


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_progress_of_a_long_prompt(env: dict[str, str]) -> None:
    _, seen = on_terminal("generate", "hi", env={"FAKE_PROMPT": "4000", "COLUMNS": "60", **env})
    assert ("reading the prompt" in seen) is (env.get("TERM") != "dumb")
    assert "\x1b" not in seen
    before, _, after = seen.partition("Gravity")
    assert re.search(r"(^|\n|\r *\r)$", before), "the bar is gone when the answer begins"
    assert after.startswith(ANSWER.removeprefix("Gravity"))
    code, out, err = ended("generate", "hi", env={"FAKE_PROMPT": "4000"})
    assert (code, out, err) == (0, ANSWER.encode() + b"\n", b"Model fake from nowhere\n")


def test_a_short_prompt_and_a_quiet_run_show_no_progress() -> None:
    assert "reading" not in on_terminal("generate", "hi")[1]
    assert on_terminal("generate", "hi", "-q", env={"FAKE_PROMPT": "4000"})[1] == ANSWER + "\r\n"


@pytest.mark.parametrize("env", [{"LANG": "C"}, {"LANG": "", "LC_ALL": "C"}, {"LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}], ids=str)
def test_the_c_locale(env: dict[str, str]) -> None:
    """Our own signs are ASCII; the answer is as it is."""
    code, out, err = ended("generate", "hi", "--stats", env={"FAKE_WORDS": "café ·", **env})
    assert code == 0
    assert out == "café ·\n".encode()
    assert err.isascii()


def test_cp1252_on_stdin() -> None:
    assert ended("generate", input=b"caf\xe9", env={"LANG": "en_US.CP1252"})[0] == 0
    assert ended("generate", input=b"caf\xe9", env={"PYTHONIOENCODING": "cp1252"})[0] == 0
    code, out, err = ended("generate", input=b"caf\xe9")
    assert (code, out) == (1, b"")
    assert b"byte 4 is 0xe9" in err and err.count(b"\n") == 1
