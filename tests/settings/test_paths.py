"""Files of ours: private, and whole or as they were."""

import json
from pathlib import Path

import pytest

from mlxspec.paths import put


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state" / "numbers.json"
    put(path, {"a": 1})
    put(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(TypeError):
        put(path, {"a": {1, 2}})
    assert json.loads(path.read_text()) == {"a": 2} and [file.name for file in path.parent.iterdir()] == ["numbers.json"]
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        put(path, {})
    assert [file.name for file in path.parent.iterdir()] == ["numbers.json"]
