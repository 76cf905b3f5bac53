"""Sessions that other processes delete between two looks, and those that a killed process left without a message."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlxspec.errors import MlxspecError
from mlxspec.sessions.store import Store


def kept(folder: Path, words: Sequence[str] = ("Hello there",), ended: bool = False) -> Path:
    """The file of a session whose process was killed, or of one that ended."""
    log = Store(folder).create(model="m")
    for text in words:
        log.user(text)
    if not words:
        log._put({"is": "set", "model": "n"})
        log.flush()
    if ended:
        log.close()
    elif log._file is not None:
        os.close(log._file)  # as a killed process leaves it
    return log.path


@pytest.mark.parametrize("state", ["cut off", "ended", "damaged", "empty", "no message"])
@pytest.mark.parametrize("place", ["stat", "open", "read_bytes", "utime", "rename"])
def test_a_session_that_vanishes_between_two_looks_is_no_reason_to_fail_at_start(
    state: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process deletes each file just before it is looked at, at every kind of look."""
    path = kept(tmp_path, () if state == "no message" else ("Hello there",), ended=state == "ended")
    if state == "damaged":
        path.write_bytes(path.read_bytes()[:20] + b"\0\0\n" + path.read_bytes()[20:])
    if state == "empty":
        path.write_bytes(b"")
    other = kept(tmp_path, ("Another",), ended=True)

    def vanishing(real: Any, owner: Any, name: str) -> None:
        def call(*args: Any, **more: Any) -> Any:
            if str(args[0]) == str(path):
                path.unlink(missing_ok=True)
            return real(*args, **more)

        monkeypatch.setattr(owner, name, call)

    if place == "stat":
        vanishing(Path.open, Path, "open")  # the list has seen it
    elif place in ("open", "utime"):
        vanishing(getattr(os, place), os, place)
    else:
        vanishing(getattr(Path, place), Path, place)
    for look in (Store.cut_off, Store.summaries, Store.latest, lambda store: list(store.search("Another"))):
        look(Store(tmp_path))
    with suppress(MlxspecError):
        Store(tmp_path).open(path.stem)[1].close()
    assert other.exists()


def test_a_killed_session_without_a_message_is_cleared_away_and_not_offered(tmp_path: Path) -> None:
    path = kept(tmp_path, ())
    assert path.exists()
    assert Store(tmp_path).cut_off() is None
    assert not path.exists()
    kept(tmp_path)
    cut = Store(tmp_path).cut_off()
    assert cut is not None and cut.turns == 1
