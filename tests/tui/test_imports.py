"""What lies below the screen imports neither the screen nor MLX, so that the first picture comes at once."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layout import ROOT

BELOW = (
    *("jobs", "reports", "protocols", "worker", "baseline", "measured", "comparison", "said", "keeping", "talk", "commands", "actions", "plain"),
    *("origin", "history", "clipboard", "editor", "awake", "markdown", "aloud", "words"),
)


@pytest.mark.parametrize("name", BELOW)
def test_below_the_screen_there_is_no_textual(name: str) -> None:
    tree = ast.parse((ROOT / "tui" / f"{name}.py").read_text("utf-8"))
    found = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in found if module.split(".")[0] in ("textual", "rich")]


def test_nothing_heavy_is_imported_before_a_model_is_loaded(tmp_path: Path) -> None:
    modules = ", ".join(["mlxspec.cli_chat", "mlxspec.cli_sessions", *(f"mlxspec.tui.{name}" for name in BELOW)])
    heavy = "('mlx', 'mlx_lm', 'transformers', 'numpy', 'textual', 'huggingface_hub')"
    check = f"import sys, {modules}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & set({heavy})))"
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == ""
