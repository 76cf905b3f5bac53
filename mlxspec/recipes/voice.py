"""Trains the speech model: ``python -m mlxspec.recipes.voice --texts FILE --sounds DIR --codec DIR --out DIR --minutes 180``.

A stock Llama reads phonemes and says codes, and between them the name of each phoneme as it comes to it (``audio/layout.py``), which the teacher's
timing of the corpus teaches. Loss on what it says alone; some of the codes it reads are masked, so that it leans on the text. What comes out is a
voice's folder, with prompts for the training of its drafters (``mlxspec train redrafter --data``).
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mlxspec.audio.codes.codec import NeuralCodec
from mlxspec.audio.codes.layout import Layout
from mlxspec.audio.text.phonemes import SYMBOLS
from mlxspec.core.sampling import number
from mlxspec.errors import AudioError, UsageError
from mlxspec.models.codec import load as load_codec
from mlxspec.models.codec import save as save_codec
from mlxspec.recipes.attention_guide import Guide, places
from mlxspec.recipes.corpus import line_range
from mlxspec.recipes.loop import Plan, train, work_folder
from mlxspec.recipes.phase_embeddings import phase_in, stock
from mlxspec.recipes.sounds import WATCHED, open_sounds
from mlxspec.recipes.spoken import TAKES, Spoken, read_corpus, unspoken
from mlxspec.recipes.timing import Timer
from mlxspec.recipes.two_processes import Team, command
from mlxspec.speech.voice_folder import VoiceFiles, as_words, write_voice
from mlxspec.training.fast_exp import in_llama, logsumexp

PHASES = 64  # ids of a symbol
POSITIONS = 2048
POOL = 16  # batches that are sorted by length together
PROMPTS = 1000  # sentences its drafters may learn from
WATCH = 64  # sentences whose loss is watched
GUIDED = 0.3  # weight of the guide's loss
SETTINGS = ("width", "layers", "heads", "hidden", "batch", "seed", "rate", "decay", "masked", "phases")


class VoiceTask:
    """The speech model and its loss."""

    def __init__(self, network: nn.Module, layout: Layout, corpus: Sequence[Spoken], team: Team, **more: Any) -> None:
        """``more``: batch, seed, and the share of codes that is masked at most."""
        self.network, self.layout, self.team = network, layout, team
        self.batch, self.seed, self.masked = more.get("batch", 16), more.get("seed", 0), more.get("masked", 0.3)
        self.state: dict[str, mx.array] = {}
        self.watched = [one for one in corpus if one.line % WATCHED == WATCHED - 1 and not one.take][:WATCH]
        self.corpus = [one for one in corpus if one.line % WATCHED != WATCHED - 1]
        if not self.watched or not self.corpus:
            raise UsageError(f"The corpus has {len(corpus)} lines: it takes at least {WATCHED}.")
        self.prompts: Sequence[Sequence[str]] = ()
        self.voice: VoiceFiles | None = None
        self.codec: Path | None = None
        self.config: dict[str, Any] = {}
        self.sampling: dict[str, Any] = {}
        self._epoch, self._order, self._starts = -1, list[int](), np.zeros(0, int)

    def chosen(self, step: int) -> list[Spoken]:
        """The batch of a step: each epoch shuffles anew; sentences of a batch are of like length."""
        batches = max(1, len(self.corpus) // self.batch)
        epoch, place = divmod(step, batches)
        if self._epoch != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            order = rng.permutation(len(self.corpus))
            pools = [sorted(order[i : i + POOL * self.batch], key=self._length) for i in range(0, len(order), POOL * self.batch)]
            self._order = [int(i) for pool in pools for i in pool]
            self._starts = rng.permutation(batches) * self.batch
            self._epoch = epoch
        return [self.corpus[i] for i in self._order[self._starts[place] : self._starts[place] + self.batch]]

    def loss(self, step: int) -> tuple[mx.array, Any]:
        whole = self.chosen(step)
        rng = np.random.default_rng([self.seed, step, self.team.rank, 1])
        part = list(self.team.share(whole)) or whole[:1]
        inputs, targets, counted = rows(part, self.layout, rng, self.masked)
        if not self.layout.phases:
            return cross_entropy(self.network(inputs), targets, counted), None
        guide = Guide(places(inputs, self.layout), counted)
        with in_llama(guide.see):
            loss = cross_entropy(self.network(inputs), targets, counted)
        return loss + GUIDED * guide.loss(), None

    def after(self, step: int, seen: Any) -> None:
        pass

    def check(self) -> Mapping[str, float]:
        """Over sentences that are not trained on: ``watched``, nats a token; ``named``, of the symbols to be named the share that is known."""
        total = right = names = 0.0
        for i in range(0, len(self.watched), self.batch):
            part = self.watched[i : i + self.batch]
            inputs, targets, counted = rows(part, self.layout, None)
            logits = self.network(inputs)
            total += len(part) * number(cross_entropy(logits, targets, counted))
            if self.layout.phases:
                first = self.layout.slots[0].first
                naming = (targets < first) * counted
                right += number(((logits[..., :first].argmax(axis=-1) == targets) * naming).sum())
                names += number(naming.sum())
        return {"watched": total / len(self.watched), **({"named": right / names} if names else {})}

    def save(self, record: Mapping[str, Any]) -> None:
        """A voice's folder: the model and the codec in float16, what ties them together; beside it prompts for drafters."""
        assert self.voice is not None and self.codec is not None
        folder = self.voice.folder
        folder.mkdir(parents=True, exist_ok=True)
        with stock(self.network):
            parts: Any = tree_flatten(self.network.parameters())
            weights = {name: value.astype(mx.float16) for name, value in parts}
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
        (folder / "config.json").write_text(json.dumps(self.config, indent=1) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(self.sampling, indent=1) + "\n")
        write_voice(folder, replace(self.voice, card=dict(record)))
        card = json.loads((self.codec / "config.json").read_text("utf-8")).get("trained", {})
        save_codec(folder / "codec", load_codec(self.codec), {"trained": card}, mx.float16)
        prompts = (json.dumps({"prompt": as_words(self.layout, symbols)}, ensure_ascii=False) for symbols in self.prompts)
        (work_folder(folder) / "prompts.jsonl").write_text("\n".join(prompts) + "\n", "utf-8")

    def _length(self, i: int) -> int:
        return size(self.corpus[i], self.layout)


def named(one: Spoken) -> list[str]:
    """The symbols of a line."""
    return [SYMBOLS[i] for i in one.symbols]


def size(one: Spoken, layout: Layout) -> int:
    """The tokens of a line, start and end left out."""
    return len(one.symbols) * (2 if layout.phases else 1) + len(one.codes)


def rows(part: Sequence[Spoken], layout: Layout, rng: np.random.Generator | None, masked: float = 0.3) -> tuple[mx.array, mx.array, mx.array]:
    """What is read, what is to follow, and where that counts, each (n, longest).

    ``rng`` chooses the first symbol's phase, and masks a share of the codes that are read, of its own for every line, at most ``masked``.
    """
    longest = max(size(one, layout) for one in part) + 1
    inputs, targets, counted = (np.zeros((len(part), longest), kind) for kind in (np.int32, np.int32, np.float32))
    for i, one in enumerate(part):
        text = layout.text(named(one), int(rng.integers(layout.phases)) if rng is not None and layout.phases else 0)
        codes = [layout.token(0, code) for code in one.codes]
        whole = np.array([*text, layout.start, *layout.speech(text, codes, one.ends), layout.end])
        inputs[i, : len(whole) - 1], targets[i, : len(whole) - 1] = whole[:-1], whole[1:]
        counted[i, len(text) : len(whole) - 1] = 1
        if rng is not None and layout.mask is not None:
            heard = np.flatnonzero(np.isin(whole[:-1], layout.slots[0].ids))
            inputs[i, heard[rng.random(len(heard)) < rng.uniform(0, masked)]] = layout.mask
    return mx.array(inputs), mx.array(targets), mx.array(counted)


def cross_entropy(logits: mx.array, targets: mx.array, counted: mx.array) -> mx.array:
    losses = logsumexp(logits) - mx.take_along_axis(logits, targets[..., None], axis=-1)
    return (losses[..., 0] * counted).sum() / counted.sum()


# ---- The command -------------------------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m mlxspec.recipes.voice", description="Train the speech model of a voice.")
    result.add_argument("--texts", type=Path, required=True, help="sentences, one a line")
    result.add_argument("--sounds", type=Path, help="folder of NNNNN.ogg, named by line; not needed where --spoken has all")
    result.add_argument("--spoken", type=Path, help="file of lines as codes: what it has is used, what the sounds have besides is put there")
    result.add_argument("--codec", type=Path, required=True, help="folder of the trained codec")
    result.add_argument("--out", type=Path, required=True, help="the voice's folder; its name is the voice's")
    result.add_argument("--minutes", type=float, default=180)
    result.add_argument("--steps", type=int, help="instead of minutes")
    result.add_argument("--from", dest="start", type=Path, help="begin with the weights of this voice, of the same shape and codec")
    result.add_argument("--resume", action="store_true")
    shape = (("width", 256), ("layers", 6), ("heads", 4), ("hidden", 704), ("phases", PHASES))
    for name, default in (*shape, ("batch", 16), ("seed", 0), ("processes", 2)):
        result.add_argument(f"--{name}", type=int, default=default)
    result.add_argument("--takes", type=int, default=TAKES, choices=range(1, TAKES + 1), help="how often a sound is read, a quarter of a frame apart")
    result.add_argument("--rate", type=float, default=1.2e-3)
    result.add_argument("--decay", type=float, default=0.4, help="the last share of the steps, over which the rate falls; 0 for a mere beginning")
    result.add_argument("--masked", type=float, default=0.3, help="share of the codes a sentence reads that are masked, at most")
    result.add_argument(
        "--espeak",
        type=line_range,
        default=range(0),
        metavar="FIRST:LAST",
        help="lines whose sound was made from espeak-ng's phonemes, LAST not among them",
    )
    result.add_argument("--temperature", type=float, default=0.4, help="of the voice's default sampling")
    result.add_argument("--top-p", type=float, default=0.95)
    return result


def llama(layout: Layout, width: int, layers: int, heads: int, hidden: int) -> tuple[nn.Module, dict[str, Any]]:
    """A stock model, and its config."""
    from mlx_lm.models.llama import Model, ModelArgs

    config = {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": layout.vocab_size,
        "rope_theta": 10000.0,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
        "eos_token_id": layout.end,
    }
    network: nn.Module = Model(ModelArgs.from_dict(config))
    return network, config


def alphabet(codec: NeuralCodec) -> str:
    """Names what its codes mean: the encoder and the codebook, as they are saved. The decoder may be trained on under the same name."""
    made: Any = codec.network.encoder
    parts: Any = tree_flatten({"encoder": made.parameters(), "codebook": codec.network.codebook})
    return hashlib.sha256(b"".join(np.array(value.astype(mx.float16)).tobytes() for _, value in sorted(parts))).hexdigest()[:12]


def take_weights(network: nn.Module, folder: Path, codec: NeuralCodec) -> None:
    """Those of another voice, of the same shape and alphabet."""
    try:
        weights: Any = mx.load(str(folder / "model.safetensors"))
        same = alphabet(NeuralCodec.load(folder / "codec")) == alphabet(codec)
        network.load_weights([(name, value.astype(mx.float32)) for name, value in weights.items()])
    except (OSError, RuntimeError, AudioError) as error:
        raise UsageError(f"{folder} cannot be read as a voice ({error!s:.80}): give the folder of one, or leave --from out.") from error
    except ValueError as error:
        raise UsageError(f"{folder} is of another shape: give its --width, --layers, --heads and --hidden, or leave --from out.") from error
    if not same:
        raise UsageError(f"{folder} speaks the codes of another codec: give --codec {folder / 'codec'}, or leave --from out.")


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    given = parser().parse_args(argv)

    def work(team: Team, say: Callable[[str], None]) -> None:
        codec, folder = NeuralCodec.load(given.codec), work_folder(given.out)
        layout = Layout.of(SYMBOLS, codec.codes[0], given.phases)
        name = alphabet(codec)
        kept = given.spoken or folder / f"spoken-{name}.npz"
        if given.sounds is None and not kept.is_file():
            raise UsageError(f"There is nothing to learn from: give --sounds{f' (there is no {kept})' if given.spoken else ', or --spoken'}.")
        with team.leader_first():
            sounds = open_sounds(given.sounds, folder / f"sounds-{codec.sample_rate}", codec.sample_rate, say) if given.sounds else None
            clock = Timer(len(given.espeak) > 0) if given.phases else None
            found = read_corpus(given.texts, sounds, codec, kept, {"codec": name}, say, clock, given.espeak, given.takes)
        timed = [one for one in found if one.timed or not given.phases]
        corpus = [one for one in timed if size(one, layout) + 2 <= POSITIONS]
        mx.random.seed(given.seed)
        network, config = llama(layout, given.width, given.layers, given.heads, given.hidden)
        if given.start is not None:
            take_weights(network, given.start, codec)
        phase_in(network, layout, given.start is None)
        task = VoiceTask(network, layout, corpus, team, batch=given.batch, seed=given.seed, masked=given.masked)
        per_symbol = sum(len(one.codes) for one in corpus) / sum(len(one.symbols) for one in corpus)
        tokens = round(per_symbol + bool(given.phases), 3)
        task.voice, task.codec, task.config = VoiceFiles(given.out.resolve().name, given.out, layout, tokens), given.codec, config
        task.prompts = unspoken(given.texts, found, PROMPTS) if team.leads else ()
        task.sampling = {"temperature": given.temperature, "top_p": given.top_p}
        say(f"{len(task.corpus)} sentences, {per_symbol:.2f} codes a symbol, {sum(len(one.codes) for one in corpus)} codes in all.")
        if len(timed) < len(found):
            say(f"{len(found) - len(timed)} more have no timing.")
        settings = {key: getattr(given, key) for key in SETTINGS} | {"codec": name}
        with in_llama():
            plan = Plan(given.steps or 1000, given.rate, decay=given.decay)
            train(task, folder, plan, None if given.steps else given.minutes, given.resume, settings, team, say)

    return command("mlxspec.recipes.voice", given, argv, work)


if __name__ == "__main__":
    sys.exit(main())
