"""The house: packages and links, what an import loads, public names, the wheel, and the README's commands."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

FOLDERS = ("audio", "models", "tui")  # stand at the top, import as mlxspec.*
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]


def sources(folder: str = "mlxspec") -> list[Path]:
    """Python files below a folder of the checkout, through the links."""
    return sorted(Path(at) / name for at, _, names in os.walk(ROOT / folder, followlinks=True) for name in names if name.endswith(".py"))


# ---- Packages and links ------------------------------------------------------------------------------------------------------------------


def test_packages_are_the_folders_on_disk() -> None:
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in sources()}
    assert set(SETUPTOOLS["packages"]) == found - {"mlxspec.recipes"}  # they make the shipped voice, and stay in the checkout


def test_every_package_has_an_init() -> None:
    for package in SETUPTOOLS["packages"]:
        assert (ROOT / package.replace(".", "/") / "__init__.py").is_file(), package


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_at_the_top_are_mapped_and_linked(folder: str) -> None:
    assert SETUPTOOLS["package-dir"][f"mlxspec.{folder}"] == folder
    assert os.readlink(ROOT / "mlxspec" / folder) == f"../{folder}"
    assert (ROOT / "mlxspec" / folder / "__init__.py").samefile(ROOT / folder / "__init__.py")


# ---- What an import loads (lint-imports checks who may import whom) ----------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["import mlxspec", "import mlxspec.cli.main", "import mlxspec.audio", "import mlxspec.models"])
def test_a_first_import_loads_no_mlx(statement: str) -> None:
    heavy = "('mlx', 'mlx_lm', 'transformers', 'numpy', 'textual', 'soundfile')"
    check = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & set({heavy})))"
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == ""


def test_an_engine_for_text_loads_no_speech() -> None:
    speech = "('mlxspec.audio', 'mlxspec.speech.labels', 'mlxspec.models.codec', 'mlxspec.speech.voice', 'soundfile')"
    check = f"import sys, mlxspec.cli.generate; mlxspec.load; print(*(m for m in sys.modules if m.startswith({speech})))"
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == ""


# ---- Public names ------------------------------------------------------------------------------------------------------------------------


def public_names() -> list[str]:
    """``__all__`` of the package, read without importing it."""
    for node in ast.parse((ROOT / "mlxspec" / "__init__.py").read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            return list(ast.literal_eval(node.value))
    raise AssertionError("mlxspec/__init__.py has no __all__ that is a plain list of names")


def test_public_names_are_all() -> None:
    import mlxspec

    listed = public_names()
    assert len(set(listed)) == len(listed)
    assert sorted(dir(mlxspec)) == sorted(listed)
    for name in listed:
        assert getattr(mlxspec, name) is not None, name
    promised = "load Options Proposal Verdict Prefill Text Step Done MlxspecError UsageError ModelError DrafterError RollbackError"
    assert set(promised.split()) <= set(listed)
    with pytest.raises(AttributeError):
        getattr(mlxspec, "no_such_name")  # noqa: B009


# ---- The wheel ---------------------------------------------------------------------------------------------------------------------------


def test_the_wheel_holds_what_a_user_needs(tmp_path: Path) -> None:
    """Built by setuptools itself, offline, from a copy of what it reads."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("mlxspec", *FOLDERS):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; print(build_meta.build_wheel('wheels'))"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        packed = {name for name in names if name.endswith(".py")}
        (scripts,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    shipped = {path.relative_to(ROOT).as_posix() for path in sources()}
    assert packed == {name for name in shipped if not name.startswith("mlxspec/recipes/")}
    assert {"mlxspec/py.typed", "mlxspec/tui/chat.tcss"} <= names and not [name for name in names if name.endswith("spoken.npz")]
    assert "mlxspec = mlxspec.cli.main:main" in scripts


# ---- The README's commands ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m venv .venv",
        ".venv/bin/pip install -e '.[test]'",
        '.venv/bin/mlxspec generate "What is gravity?"',
        ".venv/bin/python -m pytest",
    ],
)
def test_ci_runs_the_readme_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text("utf-8")
    assert command in (ROOT / ".ci" / "run").read_text("utf-8")
