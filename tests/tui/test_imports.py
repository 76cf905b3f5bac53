"""The chat without its screen imports neither Textual nor MLX, so that the first picture comes at once."""

import subprocess
import sys
from pathlib import Path

from tests import ROOT


def test_nothing_heavy_is_imported_before_a_model_is_loaded(tmp_path: Path) -> None:
    below = [f"mlxspec.tui.chat.{path.stem}" for path in sorted((ROOT / "tui" / "chat").glob("*.py"))]
    modules = ", ".join(["mlxspec.cli.chat", "mlxspec.cli.sessions", "mlxspec.tui.plain", *below])
    heavy = "('mlx', 'mlx_lm', 'transformers', 'numpy', 'textual', 'rich', 'huggingface_hub')"
    check = f"import sys, {modules}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & set({heavy})))"
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == ""
