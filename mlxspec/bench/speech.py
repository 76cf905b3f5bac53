"""Speech compared: the same sentences and seeds under several rules, drafters and group sizes, judged and timed. Knows voices, no command line.

A row is ACCEPT[:DRAFTER[:GROUP_SIZE]], such as coupled:none, coupled:redrafter or mirror:redrafter:3; the first is what the others are compared with.
``teacher`` is the corpus's own sound of a line, ``codec`` the same through the codec: what no speech model can beat. swap[:GROUP_SIZE[:SOURCE]] is
the paper's swap test, that sound with each token replaced by any of its group, compared with ``codec`` where that is a row.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxspec.audio.codes.groups import swapped
from mlxspec.audio.sound.files import read_sound
from mlxspec.bench.listener import Judge
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.settings.options import ACCEPT, SpeechOptions
from mlxspec.speech.voice import Voice

RESAMPLES = 2000
REFERENCES = ("teacher", "codec", "swap")


@dataclass(frozen=True, slots=True)
class Row:
    """What is compared."""

    name: str
    accept: str = "coupled"
    drafter: str = "none"
    group_size: float | None = None
    group_source: str | None = None

    @property
    def spoken(self) -> bool:
        """Whether it is the voice that speaks, and not the corpus."""
        return self.name.partition(":")[0] not in REFERENCES

    @classmethod
    def of(cls, text: str) -> "Row":
        accept, _, rest = text.partition(":")
        if accept == "swap":
            size, _, source = rest.partition(":")
            if size and not _is_size(size):
                raise UsageError(f"The row {text} has {size!r} where a mean group size belongs: give swap[:GROUP_SIZE[:SOURCE]].")
            return cls(text, group_size=float(size) if size else None, group_source=source or None)
        if text in REFERENCES:
            return cls(text)
        drafter, _, size = rest.rpartition(":") if _is_size(rest.rpartition(":")[2]) else (rest, "", "")
        if accept not in ACCEPT:
            raise UsageError(f"The row {text} begins with none of {', '.join(ACCEPT)}: give ACCEPT[:DRAFTER[:GROUP_SIZE]], teacher, codec or swap.")
        return cls(text, accept, drafter or "none", float(size) if size else None)


def _is_size(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence, and where the corpus has it spoken."""

    number: int
    text: str
    sound: Path | None


def compare(
    voice: Voice,
    rows: Sequence[Row],
    lines: Sequence[Line],
    seeds: Sequence[int],
    judge: Judge | None,
    options: dict[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run all rows interleaved, sentence by sentence, after a warm-up; returns figures by row."""
    voices = {row.drafter: voice.with_drafter(row.drafter) for row in rows if row.spoken}
    for one in voices.values():
        one.speak(lines[0].text, seed=0, **options)
    runs: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    for i, line in enumerate(lines):
        for seed in seeds:
            for row in rows:
                if not row.spoken and seed != seeds[0]:
                    continue
                sound, figures = _sound(voice, voices, row, line, seed, options)
                figures |= {"line": line.number, "seed": seed, "duration": len(sound) / voice.sample_rate}
                if judge is not None:
                    found = judge(sound, voice.sample_rate, line.text)
                    figures |= {"words": found.errors.words, "of_words": found.errors.of_words, "heard": found.heard}
                    figures |= {"letters": found.errors.letters, "of_letters": found.errors.of_letters}
                    figures |= {"overall": found.overall, "p808": found.p808}
                runs[row.name].append(figures)
        say(f"{i + 1} of {len(lines)} sentences")
    first = next((row.name for row in rows if row.spoken), rows[0].name)
    with_codec = {row.name: "codec" for row in rows if row.name.partition(":")[0] == "swap" and "codec" in runs}
    summaries = [{"name": row.name, **summary(runs[row.name], runs[with_codec.get(row.name, first)])} for row in rows]
    return {"compared_with": first, "rows": summaries, "runs": runs}


def _sound(voice: Voice, voices: dict[str, Voice], row: Row, line: Line, seed: int, options: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    more: dict[str, Any] = {"group_size": row.group_size} if row.group_size is not None else {}
    if not row.spoken:
        if line.sound is None or not line.sound.is_file():
            raise UsageError(f"The row {row.name} needs the sound of line {line.number}: give --sounds, the folder of the corpus.")
        sound = read_sound(line.sound, voice.sample_rate)
        if row.name == "teacher":
            return sound, {}
        frames = voice.codec.encode(sound)
        if row.name == "codec":
            return voice.codec.decode(frames), {}
        labels = voice.labels(SpeechOptions(group_source=row.group_source, **more))
        tokens, share = swapped(labels.groups, voice.layout.tokens(frames), seed)
        return voice.codec.decode(voice.layout.frames(tokens)), {"share_swapped": share}
    try:
        speech = voices[row.drafter].speak(line.text, seed=seed, accept=row.accept, **more, **options)
    except MlxspecError as error:  # a voice that says nothing is a figure, too
        return np.zeros(voice.sample_rate // 10, np.float32), {"faults": 1, "fault": str(error)}
    stats = speech.spoken.stats
    kept = ("rounds", "drafted", "accepted", "emitted", "tokens_per_second", "seconds_per_audio_second", "time_to_first_audio", "tries")
    figures = {key: stats[key] for key in kept} | {"decode": stats["seconds"]["decode"], "faults": len(speech.spoken.faults)}
    return speech.samples, figures | (stats["mirror"] or {})


def summary(runs: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row's figures; where the other row has the same sentences and seeds, the differences with 95 % intervals."""
    pairs = {(run["line"], run["seed"]): run for run in against}
    paired = [(run, pairs[run["line"], run["seed"]]) for run in runs if (run["line"], run["seed"]) in pairs]
    found: dict[str, Any] = {
        "sentences": len(runs),
        "faults": sum(run.get("faults", 0) for run in runs),
        "tokens_per_round": _ratio(runs, "emitted", "rounds"),
        "acceptance": _ratio(runs, "accepted", "drafted"),
        "tokens_per_second": _ratio(runs, "emitted", "decode"),
        "word_error": _ratio(runs, "words", "of_words"),
        "letter_error": _ratio(runs, "letters", "of_letters"),
    }
    for key in (
        "seconds_per_audio_second",
        "time_to_first_audio",
        "overall",
        "p808",
        "mean_group_size",
        "within_group_distance",
        "distance_bound",
        "share_swapped",
    ):
        values = [run[key] for run in runs if run.get(key) is not None]
        found[key] = statistics.fmean(values) if values else None
    found["duration_ratio"] = _paired(paired, lambda a, b: a["duration"] / b["duration"])
    found["word_error_change"] = _paired_share(paired, "words", "of_words")
    found["overall_change"] = _paired(paired, lambda a, b: a["overall"] - b["overall"] if "overall" in a and "overall" in b else None)
    return found


def _ratio(runs: Sequence[dict[str, Any]], above: str, below: str) -> float | None:
    total = sum(run.get(below, 0) for run in runs)
    return sum(run.get(above, 0) for run in runs) / total if total else None


def _paired(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], measure: Callable[[Any, Any], float | None]) -> dict[str, float] | None:
    """The mean of a measure over pairs, with a bootstrap interval over them."""
    values = [value for a, b in pairs if (value := measure(a, b)) is not None]
    return _interval(np.array(values), np.ones(len(values))) if len(values) > 1 else None


def _paired_share(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], above: str, below: str) -> dict[str, float] | None:
    """The change of a share whose parts add up over sentences, such as word error."""
    found = [(a[above] - b[above], a[below]) for a, b in pairs if above in a and above in b]
    return _interval(np.array([x for x, _ in found], float), np.array([y for _, y in found], float)) if len(found) > 1 else None


def _interval(above: np.ndarray, below: np.ndarray) -> dict[str, float]:
    picks = np.random.default_rng(0).integers(0, len(above), (RESAMPLES, len(above)))
    low, high = np.quantile(above[picks].sum(axis=1) / below[picks].sum(axis=1), (0.025, 0.975))
    return {"mean": float(above.sum() / below.sum()), "low": float(low), "high": float(high)}


def best_mirror(rows: Sequence[dict[str, Any]]) -> str:
    """Whether an approximate row is worth it on this machine: in words."""
    exact = [row for row in rows if row["name"].split(":")[0] in ("coupled", "ratio") and row["tokens_per_second"]]
    mirror = [row for row in rows if row["name"].split(":")[0] in ("mirror", "pcg") and row["tokens_per_second"]]
    if not exact or not mirror:
        return ""
    a, b = (max(group, key=lambda row: row["tokens_per_second"]) for group in (exact, mirror))
    gain = b["tokens_per_second"] / a["tokens_per_second"]
    if gain <= 1:
        return f"Approximate speech does not pay here: {b['name']} makes {gain:.2f} x the tokens a second of {a['name']}, which is exact."
    change = b["word_error_change"]
    cost = f", at a word error {100 * change['mean']:+.1f} points" if change else ""
    return f"{b['name']} makes {gain:.2f} x the tokens a second of {a['name']}, the best exact row{cost}."
