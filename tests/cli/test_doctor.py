"""``mlxspec doctor``: what it finds, what counts as broken, and the remedies."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli import doctor
from mlxspec.cli.main import main
from tests.fake_engine import isolate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    monkeypatch.setattr(doctor, "SIDE", 64)
    return tmp_path


def findings(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json"])
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    return code, json.loads(captured.out)


def test_a_sound_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys)
    assert (code, found["ok"]) == (0, True)
    checks = found["checks"]
    assert {"system", "memory", "python", "mlx", "blas", "audio", "terminal", "config", "files", "hub", "network"} == set(checks)
    assert checks["mlx"]["mlx-lm"].startswith("0.")
    assert checks["blas"]["gflops"] > 0
    assert all(check["status"] in ("ok", "note") for check in checks.values())


def test_the_table_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    captured = capsys.readouterr()
    assert "GFLOP/s" in captured.out
    assert "\x1b" not in captured.out
    assert captured.err == ""


def test_reference_blas_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("mlxspec.machine.blas", lambda: "libblas-1.so (reference)")
    code, found = findings(capsys)
    assert code == 0
    assert found["checks"]["blas"]["status"] == "note"
    assert "LD_PRELOAD=" in found["checks"]["blas"]["remedy"]
    monkeypatch.setattr("mlxspec.machine.blas", lambda: "libopenblas.so.0 (preloaded)")
    assert findings(capsys)[1]["checks"]["blas"]["status"] == "ok"


@pytest.mark.parametrize(
    ("arch", "triplet"), [("x86_64-linux-gnu", "x86_64-linux-gnu"), ("aarch64-linux-gnu", "aarch64-linux-gnu"), (None, "riscv64-linux-gnu")]
)
def test_the_remedy_fits_the_architecture(arch: str | None, triplet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: arch)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    line = f"LD_PRELOAD=/usr/lib/{triplet}/openblas-pthread/libopenblas.so.0"
    assert doctor.remedy(exists=lambda path: False).endswith(line)
    assert "apt-get install libopenblas0-pthread" in doctor.remedy(exists=lambda path: False)
    assert "apt-get" not in doctor.remedy(exists=lambda path: True)
    assert doctor.remedy(exists=lambda path: "lib64" in str(path)).endswith("LD_PRELOAD=/usr/lib64/libopenblasp.so.0")


def test_broken_things_exit_1(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    code, found = findings(capsys)
    assert (code, found["ok"], found["checks"]["mlx"]["status"]) == (1, False, "broken")
    monkeypatch.undo()
    isolate(monkeypatch, home)
    (home / "config" / "mlxspec").mkdir(parents=True)
    (home / "config" / "mlxspec" / "config.toml").write_text("tempo = 1")
    code, found = findings(capsys)
    assert (code, found["checks"]["config"]["status"]) == (1, "broken")
    assert "tempo" in found["checks"]["config"]["text"]


def test_an_old_mlx_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda package: "0.9.1")
    assert doctor.mlx().status == "broken"


def test_sound_is_not_needed_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert doctor.audio().status == "note"


def test_a_check_that_fails_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: 1 / 0)
    code, found = findings(capsys)
    assert code == 0
    assert "ZeroDivisionError" in found["checks"]["files"]["text"]
    assert found["checks"]["hub"]["status"] == "ok"


def test_the_network_is_said_to_be_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLXSPEC_OFFLINE", "1")
    assert findings(capsys)[1]["checks"]["network"]["offline"] is True
