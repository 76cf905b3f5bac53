"""``mlxspec completion``: every verb, flag and choice of the parsers is offered. bash is asked itself; zsh and fish where they are installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlxspec.cli.completion import SHELLS, flags_of, parsers
from mlxspec.cli.main import VERBS, main
from mlxspec.settings.options import ACCEPT
from tests.fake_engine import failing


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(text: str, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    quoted = " ".join(f"'{word}'" for word in ("mlxspec", *words))
    asked = f'{text}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _mlxspec; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_every_verb_has_a_parser_of_its_own() -> None:
    found = parsers()
    assert list(found) == list(VERBS)
    assert all(parser.prog == f"mlxspec {verb}" for verb, parser in found.items())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_offers_verbs_flags_choices_and_first_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)
    assert offered(text, "") == [*VERBS, "--help", "--version"]
    assert offered(text, "sp") == ["speak"]
    for verb, parser in parsers().items():
        assert offered(text, verb, "-") == [spelling for flag in flags_of(parser) for spelling in flag.spellings]
        assert offered(text, verb, "") == list(parser.first)
        for flag in flags_of(parser):
            if flag.takes:
                assert all(offered(text, verb, spelling, "") == list(flag.values) for spelling in flag.spellings[-1:])
    assert offered(text, "generate", "--accept", "") == list(ACCEPT)
    assert offered(text, "generate", "--draft-tokens", "") == ["auto"]
    assert offered(text, "nonsense", "") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_every_flag_and_the_shell_can_read_it(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for parser in parsers().values():
        for flag in flags_of(parser):
            assert all((f"-l {name[2:]}" if shell == "fish" and name.startswith("--") else name[1:]) in text for name in flag.spellings)
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(text)
        assert subprocess.run([shell, "-n", str(tmp_path / "script")]).returncode == 0


def test_the_script_is_made_without_mlx() -> None:
    code = "import sys; from mlxspec.cli.main import main; main(['completion', 'bash']); sys.exit('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]], ids=str)
def test_another_shell_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "completion", *words)
    assert code == 2 and "bash, zsh, fish" in line
