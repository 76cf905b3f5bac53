"""``mlxspec train``: reads the flags; the work is done in ``mlxspec/training/run.py``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxspec.cli.arguments import Parser, above_zero, whole
from mlxspec.cli.terminal import Terminal
from mlxspec.drafters.kinds import TRAINED
from mlxspec.errors import UsageError
from mlxspec.paths import WEIGHTS
from mlxspec.settings import config


def parser() -> Parser:
    result = Parser(
        "train",
        f"{{{','.join(TRAINED)}}} --out DIR",
        "Train a drafter for a model, by distillation from the model itself. With no --data the model writes its own training text.",
        epilog="Use the result with --drafter redrafter:DIR or --drafter small:DIR. Ctrl-C keeps the last checkpoint; --resume goes on from it.",
        first=TRAINED,
    )
    result.one("-m", "--model", help="built-in name, local folder, .gguf file or hub repo id (default: smollm2-135m)", metavar="MODEL")
    result.one("--out", help="the folder of the trained drafter", kind=Path, metavar="DIR")
    text = result.add_argument_group("text")
    result.one("--data", help="train on this file: JSON lines with messages, prompt or text", kind=Path, metavar="FILE.jsonl", to=text)
    result.switch("--learned", help="train on the model's answers that generate --learn has kept", to=text)
    words = "tokens of answers the model writes (default: 400000; with --data or --learned: none)"
    result.one("--text-tokens", help=words, kind=whole("--text-tokens", 256), metavar="N", to=text)
    result.one("--text-batch", help="sequences written at once (default: 64)", kind=whole("--text-batch"), metavar="N", to=text)
    course = result.add_argument_group("course")
    result.one("--minutes", help="train about this long (default: 30)", kind=above_zero("--minutes"), metavar="N", to=course)
    result.one("--steps", help="train this many steps; with fixed BLAS threads the result is the same every time", kind=whole("--steps"), to=course)
    result.switch("--resume", help="go on with the run in --out that was broken off", to=course)
    result.one(
        "--from",
        help="start from trained weights, with new text: a folder, or a shipped drafter's name",
        kind=started,
        dest="start",
        metavar="DIR",
        to=course,
    )
    result.one("--seed", help="of text, weights and order (default: 0)", kind=whole("--seed", 0), metavar="N", to=course)
    result.one("--batch", help="rows (redrafter) or texts (small) in a step", kind=whole("--batch"), metavar="N", to=course)
    result.one("--rate", help="highest learning rate", kind=above_zero("--rate"), metavar="X", to=course)
    result.one("--labels", help="soft: the model's likeliest tokens with their probabilities; hard: the one it said (default: soft)", to=course)
    shape = result.add_argument_group("network")
    result.one("--layers", help="layers (default: 2 residual blocks, or 4 layers of the small model)", kind=whole("--layers"), metavar="N", to=shape)
    result.one(
        "--exit-dim", help="redrafter: width of what its head reads (default: the hidden size)", kind=whole("--exit-dim"), metavar="N", to=shape
    )
    words = "redrafter: tokens it can draft (default: 4096; --from keeps what it has, and can be cut to fewer)"
    result.one("--draft-vocab", help=words, kind=whole("--draft-vocab"), metavar="N", to=shape)
    result.one("--draft-steps", help="redrafter: tokens ahead it is trained for (default: 5)", kind=whole("--draft-steps"), metavar="N", to=shape)
    result.one("--hidden-size", help="small: width (default: 256)", kind=whole("--hidden-size", 8), metavar="N", to=shape)
    other = result.add_argument_group("other")
    result.switch("--offline", help="touch no network", to=other)
    result.switch("-y", "--yes", help="answer yes to a large download", to=other)
    result.switch("--force", help="overwrite what is in --out", to=other)
    result.switch("--json", help="print one JSON object about the result", to=other)
    result.common(other)
    return result


def started(text: str) -> Path:
    """The folder that --from means."""
    named = WEIGHTS / text
    return named if not Path(text).exists() and named.is_dir() else Path(text)


def train(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb."""
    namespace, words = parser().read(argv)
    given: dict[str, Any] = {name: value for name, value in vars(namespace).items() if name != "flags"}
    if len(words) != 1 or words[0] not in TRAINED:
        told = f"{' '.join(words)!r} was given" if words else "nothing was given"
        raise UsageError(f"train takes what to train, {' or '.join(TRAINED)}, and {told}: mlxspec train redrafter --out DIR.")
    if "out" not in given:
        raise UsageError("train needs a folder for the result: give --out DIR.")
    as_json, terminal.quiet = given.pop("json", False), given.pop("quiet", False)
    given.pop("debug", None)
    settings = {name: value for name, value in config.settings(environ).items() if name in ("model", "offline")}
    if given.get("resume"):
        settings.pop("model", None)

    from mlxspec.training.run import TrainOptions
    from mlxspec.training.run import train as run

    options = TrainOptions(kind=words[0], **{**settings, **given})
    with terminal.stdout_guarded():
        result = run(options, terminal.notice, frozenset({"kind", *given}))
    if as_json:
        terminal.json(result)
    return 0
