"""Voices on disk: a folder with a speech model that stock mlx-lm loads, a codec, and ``voice.json``, which ties them together. Loads nothing large.

voice.json     name, language, front end, layout of ids, tokens a symbol takes, which groups suit the mirror mode, how it was trained
config.json, model.safetensors, tokenizer.json, generation_config.json     the speech model, and the sampling it likes
codec/         the codec
"""

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlxspec.audio.codes.layout import Layout
from mlxspec.errors import AudioError, ModelError, UsageError
from mlxspec.paths import WEIGHTS, data_dir, replacing

VOICE = "voice.json"
FORMAT = 1
FRONT_END = "english-ipa-2"  # counts up when a text comes to be read otherwise: a voice reads what it was trained on
BLANK = "\u2423"  # stands for the blank among the tokenizer's words
SOURCES = ("head", "input", "codebook")


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Which groups suit a voice, as its swap test found: where vectors come from, how they are compared, and the mean size of a group."""

    source: str = "head"
    measure: str = "centred"
    mean: float = 3.0


@dataclass(frozen=True, slots=True)
class VoiceFiles:
    """A voice's folder, and what its ``voice.json`` says."""

    name: str
    folder: Path
    layout: Layout
    tokens_per_symbol: float
    language: str = "en"
    groups: GroupChoice = field(default_factory=GroupChoice)
    card: Mapping[str, Any] = field(default_factory=dict)

    @property
    def codec(self) -> Path:
        return self.folder / "codec"


def shipped() -> list[Path]:
    """Folders of the voices that come with the package, and of those the user has put in place."""
    places = (WEIGHTS / "voices", data_dir() / "voices")
    return [path.parent for place in places for path in sorted(place.glob(f"*/{VOICE}"))]


def names() -> list[str]:
    return list(dict.fromkeys(folder.name for folder in shipped()))


def find_voice(name: str | None) -> VoiceFiles:
    """The voice of a name or folder; without a name the first there is. An unknown one is a UsageError that lists them."""
    known = {folder.name: folder for folder in reversed(shipped())}
    here = ", ".join(known) or "none here yet"
    if name is None:
        if not known:
            raise UsageError(f"There is no voice: put one in {data_dir() / 'voices'}, or give its folder with --voice.")
        return read_voice(next(reversed(known.values())))
    if name in known:
        return read_voice(known[name])
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        if not (folder / VOICE).is_file():
            raise UsageError(f"{name} is a folder without {VOICE}, so it has no audio alphabet: give a voice ({here}).")
        return read_voice(folder)
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(f"There is no voice {name}{f' (meant {near[0]}?)' if near else ''}: give one of the voices ({here}), or a voice's folder.")


def read_voice(folder: Path) -> VoiceFiles:
    """What a voice's folder says. Raises ModelError where it cannot be read, or is for another front end."""
    path = folder / VOICE
    try:
        value = json.loads(path.read_text("utf-8"))
        if value["format"] != FORMAT:
            raise ModelError(f"{path} is of format {value['format']!r} and this mlxspec reads {FORMAT}: fetch the voice again, or a newer mlxspec.")
        if value.get("front_end") != FRONT_END:
            raise ModelError(f"{path} was trained on the text front end {value.get('front_end')!r} and this is {FRONT_END!r}: take another voice.")
        groups = GroupChoice(**value.get("groups", {}))
        layout = Layout.from_json(value["layout"])
        rate = float(value["tokens_per_symbol"])
        if not bool(layout.phases) < rate < 1000 or groups.source not in SOURCES:
            raise ValueError(f"tokens_per_symbol {rate}, groups {groups}")
        return VoiceFiles(
            str(value.get("name") or folder.name), folder, layout, rate, str(value.get("language", "en")), groups, value.get("trained", {})
        )
    except AudioError as error:
        raise ModelError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read ({type(error).__name__}: {error!s:.80}): fetch or train the voice again.") from error


def write_voice(folder: Path, voice: VoiceFiles) -> None:
    """Write ``voice.json`` and the tokenizer that lets stock mlx-lm load the model: a word for every id."""
    folder.mkdir(parents=True, exist_ok=True)
    value = {
        "format": FORMAT,
        "name": voice.name,
        "language": voice.language,
        "front_end": FRONT_END,
        "tokens_per_symbol": voice.tokens_per_symbol,
        "groups": asdict(voice.groups),
        "trained": dict(voice.card),
        "layout": voice.layout.to_json(),
    }
    for name, text in {VOICE: json.dumps(value, indent=1, ensure_ascii=False) + "\n", **_tokenizer(voice.layout)}.items():
        with replacing(folder / name) as draft:
            draft.write_text(text, "utf-8")


def _tokenizer(layout: Layout) -> dict[str, str]:
    """Its files: words with blanks between. The speech path never uses it, there ids come from the layout; training drafters does."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"<|unused_{i}|>": i for i in range(layout.vocab_size)}
    named = {i + phase: _word(symbol, phase) for symbol, i in layout.symbols.items() for phase in range(max(1, layout.phases))}
    named |= {i: f"<|s_{slot}_{code}|>" for slot, span in enumerate(layout.slots) for code, i in enumerate(span.ids)}
    named |= {layout.start: "<|start|>", layout.end: "<|end|>"} | ({} if layout.mask is None else {layout.mask: "<|mask|>"})
    words = {named.get(i, word): i for word, i in words.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "bos_token": None, "clean_up_tokenization_spaces": False}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=named[layout.end]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(config, indent=1) + "\n",
    }


def _word(symbol: str, phase: int) -> str:
    return (BLANK if symbol == " " else symbol) + (str(phase) if phase else "")


def as_words(layout: Layout, symbols: Sequence[str]) -> str:
    """Symbols as the tokenizer reads them, ready for speech to follow: a prompt for ``mlxspec train --data``."""
    turns = max(1, layout.phases)
    return " ".join([*(_word(symbol, place % turns) for place, symbol in enumerate(symbols)), "<|start|>"])
