"""The house: packages, links, import directions, public names, file sizes, the wheel, and the README's commands."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("audio", "models", "tui")  # stand at the top, import as mlxspec.*
SCREEN_READS = (  # beside the public API: they load no MLX
    "arguments",
    "config",
    "errors",
    "events",
    "options",
    "paths",
    "report",
    "session_text",
    "sessions",
    "terminal",
    "trace",
)
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]


def sources(folder: str = "mlxspec") -> list[Path]:
    """Python files below a folder of the checkout, through the links."""
    return sorted(Path(at) / name for at, _, names in os.walk(ROOT / folder, followlinks=True) for name in names if name.endswith(".py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The absolute names a file imports, and whether it does so at the top. ``from a import b`` counts as ``a.b``."""
    tree = ast.parse(path.read_text("utf-8"), str(path))
    for node in ast.walk(tree):
        at_top = node in tree.body
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (("." * node.level + f"{node.module or ''}.{alias.name}", at_top) for alias in node.names)


def belongs(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


# ---- Packages and links ------------------------------------------------------------------------------------------------------------------


def test_packages_are_the_folders_on_disk() -> None:
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in sources()}
    assert set(SETUPTOOLS["packages"]) == found


def test_every_package_has_an_init() -> None:
    for package in SETUPTOOLS["packages"]:
        assert (ROOT / package.replace(".", "/") / "__init__.py").is_file(), package


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_at_the_top_are_mapped_and_linked(folder: str) -> None:
    assert SETUPTOOLS["package-dir"][f"mlxspec.{folder}"] == folder
    assert os.readlink(ROOT / "mlxspec" / folder) == f"../{folder}"
    assert (ROOT / "mlxspec" / folder / "__init__.py").samefile(ROOT / folder / "__init__.py")


# ---- Import directions: models, audio <- mlxspec <- tui ----------------------------------------------------------------------------------


def wrong_imports(path: Path) -> list[str]:
    """What a file of the package imports against the rules."""
    inside = path.relative_to(ROOT).parts[1]  # audio, models, tui, or of the engine
    own = [(name, at_top) for name, at_top in imports(path) if belongs(name, "mlxspec", *FOLDERS) or name.startswith(".")]
    if inside in ("audio", "models"):
        return [name for name, _ in own if not belongs(name, "mlxspec.audio", "mlxspec.models")]
    if inside == "tui":
        public = {f"mlxspec.{name}" for name in public_names()} | {"mlxspec"}
        shared = tuple(f"mlxspec.{name}" for name in SCREEN_READS)
        return [name for name, _ in own if name not in public and not belongs(name, "mlxspec.tui", *shared)]
    late = path.name == "cli_chat.py"  # the one place that may reach for the screen, inside a function
    return [name for name, at_top in own if not belongs(name, "mlxspec") or (belongs(name, "mlxspec.tui") and (at_top or not late))]


def test_imports_run_one_way() -> None:
    wrong = {str(path.relative_to(ROOT)): names for path in sources() if (names := wrong_imports(path))}
    assert not wrong


@pytest.mark.parametrize(
    ("at", "line"),
    [
        ("audio/x.py", "from mlxspec.decode import decode"),
        ("audio/x.py", "import mlxspec"),
        ("models/x.py", "from mlxspec.tui.app import App"),
        ("tui/x.py", "from mlxspec.decode import decode"),
        ("decode.py", "from mlxspec.tui.app import App"),
        ("cli.py", "from mlxspec.tui.app import App"),
        ("cli_chat.py", "from mlxspec.tui.app import App"),
        ("decode.py", "from models import redrafter"),
        ("decode.py", "from .accept import coupled"),
        ("tui/x.py", "from . import app"),
    ],
)
def test_wrong_imports_are_seen(at: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan itself: each of these lines is one that it must report."""
    path = tmp_path / "mlxspec" / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n", "utf-8")
    (tmp_path / "mlxspec" / "__init__.py").write_text("__all__ = ['load']\n", "utf-8")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert len(wrong_imports(path)) == 1


@pytest.mark.parametrize("statement", ["import mlxspec", "import mlxspec.cli", "import mlxspec.audio", "import mlxspec.models"])
def test_a_first_import_loads_no_mlx(statement: str) -> None:
    heavy = "('mlx', 'mlx_lm', 'transformers', 'numpy', 'textual', 'soundfile')"
    check = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & set({heavy})))"
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == ""


def test_an_engine_for_text_loads_no_speech() -> None:
    speech = "('mlxspec.audio', 'mlxspec.labels', 'mlxspec.models.codec', 'mlxspec.speech', 'soundfile')"
    check = f"import sys, mlxspec.cli_generate; mlxspec.load; print(*(m for m in sys.modules if m.startswith({speech})))"
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


# ---- Size --------------------------------------------------------------------------------------------------------------------------------


def test_no_file_is_over_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


# ---- The wheel ---------------------------------------------------------------------------------------------------------------------------


def test_the_wheel_holds_every_source_file(tmp_path: Path) -> None:
    """Built by setuptools itself, offline, from a copy of what it reads."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("mlxspec", *FOLDERS):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; print(build_meta.build_wheel('wheels'))"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
        (scripts,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert packed == {path.relative_to(ROOT).as_posix() for path in sources()}
    assert "mlxspec = mlxspec.cli:main" in scripts


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
