"""What could be loaded here, and which drafters fit a model that is loaded, with the reason where one does not. Looks at files; loads nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.display import in_bytes
from mlxspec.loading.catalog import built_in, in_folders, in_hub_cache, trained_drafters


@dataclass(frozen=True, slots=True)
class Fit:
    """A model or drafter by the name that --model or --drafter takes, whether it can be used, and in a few words what it is or why not."""

    name: str
    kind: str
    fits: bool
    about: str
    current: bool = False


def models(engine: Any, folders: Sequence[Path]) -> list[Fit]:
    """Built-in models, those of the hub's cache, and those that stand in one of the folders."""
    now = engine.loaded if engine is not None else None
    rows = [*built_in(), *in_hub_cache(), *in_folders(folders)]
    found = []
    for row in rows:
        there = "" if row["cached"] else ", not here yet (a download)"
        current = now is not None and (now.name == row["name"] or (row["kind"] == "folder" and now.name == Path(row["name"]).name))
        found.append(Fit(row["name"], row["kind"], True, f"{in_bytes(row['size_bytes'])}, {row['source']}{there}", current))
    return found


def drafters(engine: Any, folders: Sequence[Path]) -> list[Fit]:
    """The drafters there are for the engine's model; none where none is loaded."""
    if engine is None:
        return []
    target, wish = engine.target, engine.drafter_name
    takes = target.shape != "none"
    why = "" if takes else f"the model takes no drafts ({target.reason})"
    found = [
        Fit("auto", "auto", True, "what fits the model and pays"),
        Fit("none", "none", True, "plain decoding", wish == "none"),
        Fit("lookup", "lookup", takes, why or "copies what stood in the prompt or answer before; costs no model", wish == "lookup"),
    ]
    for fit in [*trained(engine), *small(engine, folders)]:
        found.append(fit if takes else Fit(fit.name, fit.kind, False, why))
    return found


def trained(engine: Any) -> list[Fit]:
    """The trained drafters that come with the package."""
    from mlxspec.drafters.choose import tokens_digest

    found = []
    for kind, folder, record in trained_drafters():
        whose = record.get("target") or "a model that is not named"
        if record.get("target_digest") == engine.loaded.digest:
            found.append(Fit(kind, kind, True, "trained for this model", kind in engine.drafter_name.split("+")))
        elif record.get("tokens_digest") == tokens_digest(engine.tokenizer):
            found.append(Fit(f"{kind}:{folder}", kind, True, f"trained for {whose}, with the same tokens but other weights: may gain less"))
        else:
            found.append(Fit(f"{kind}:{folder}", kind, False, f"trained for {whose}, whose tokens differ"))
    return found


def small(engine: Any, folders: Sequence[Path]) -> list[Fit]:
    """Other models at hand as small drafters: they must have the same tokens."""
    ours = {number: text for text, number in engine.tokenizer.get_vocab().items()}
    found = []
    for row in [*in_hub_cache(), *in_folders(folders)]:
        name, folder = f"small:{row['name']}", snapshot(Path(row["path"]))
        if folder is None or row["name"] == engine.loaded.name or Path(row["name"]).name == engine.loaded.name:
            continue
        theirs = vocabulary(folder)
        if theirs is None:
            found.append(Fit(name, "small", True, f"{in_bytes(row['size_bytes'])}; whether it has the same tokens is seen when it is loaded"))
            continue
        differing = sum(ours.get(i) != theirs.get(i) for i in ours.keys() | theirs.keys())
        about = in_bytes(row["size_bytes"]) if not differing else f"{differing} of its {len(theirs)} tokens differ from the model's"
        found.append(Fit(name, "small", not differing, about, name == engine.drafter_name))
    return found


def snapshot(path: Path) -> Path | None:
    """The folder with a model's files: the path itself, or the latest snapshot of a repo in the hub's cache."""
    if (path / "config.json").is_file():
        return path
    found = [folder for folder in path.glob("snapshots/*") if (folder / "config.json").is_file()]
    return max(found, key=lambda folder: folder.stat().st_mtime) if found else None


def vocabulary(folder: Path) -> dict[int, str] | None:
    """Token texts by id as a folder's tokenizer.json has them; None where there is none that can be read."""
    try:
        stored = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        words = stored["model"]["vocab"]
        found = {i: str(word[0]) for i, word in enumerate(words)} if isinstance(words, list) else {int(i): str(word) for word, i in words.items()}
        return found | {int(token["id"]): str(token["content"]) for token in stored.get("added_tokens", [])}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
