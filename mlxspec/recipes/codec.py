"""Trains the codec on a folder of sounds: ``python -m mlxspec.recipes.codec --sounds DIR --out DIR --minutes 120``.

First encoder, codebook and decoder together; then, with ``--from``, the decoder alone, its tokens frozen, as long as it pays: that never touches a
speech model. The codebook follows running means of what is near each code; it starts from k-means, and codes that nothing is near are placed anew.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxspec.core.sampling import number
from mlxspec.errors import UsageError
from mlxspec.models.codec import Codec, CodecArgs, add_up, load, save
from mlxspec.recipes.loop import Plan, train, work_folder
from mlxspec.recipes.sounds import Sounds, open_sounds
from mlxspec.recipes.two_processes import Team, command

SIZES = (256, 512, 1024, 2048)  # of the spectra that are compared
MEMORY = 0.98  # of the codebook's running means
DEAD = 0.05  # a code with fewer vectors a step than this share of the mean is placed anew
EVERY = 25  # steps between looks for such codes
CLIP = 0.8  # seconds


class CodecTask:
    """The codec and its losses. ``state`` has the running counts and sums of the codebook."""

    def __init__(
        self, network: Codec, sounds: Sounds, out: Path, team: Team, *, batch: int = 12, free: int = 300, seed: int = 0, decoder_only: bool = False
    ) -> None:
        """``free`` steps are made before there is a codebook; the result goes to ``out``."""
        self.network, self.sounds, self.out, self.team = network, sounds, out, team
        self.batch, self.seed, self.decoder_only = batch, seed, decoder_only
        self.free = 0 if decoder_only else free
        self.clip = round(CLIP * network.args.sample_rate / network.args.hop) * network.args.hop
        self.places, self.watched = sounds.split()
        args = network.args
        self.state = {"counts": mx.ones((args.codes,)), "sums": mx.array(network.codebook)}
        network.freeze(keys="codebook", recurse=False)
        if decoder_only:
            network.encoder.freeze()

    def clips(self, step: int) -> mx.array:
        """This process's clips of a step, (n, clip)."""
        rng = np.random.default_rng([self.seed, step])
        chosen = [(int(place), float(rng.random())) for place in rng.choice(self.places, self.batch)]
        return mx.array(np.stack([self._clip(place, where) for place, where in self.team.share(chosen)]))

    def loss(self, step: int) -> tuple[mx.array, Any]:
        net, sound = self.network, self.clips(step)
        wanted = net.mels(sound)
        vectors = net.encoder(wanted)
        commitment, codes = mx.array(0.0), None
        x = vectors
        if step >= self.free:
            codes = mx.stop_gradient(net.nearest(vectors))
            near = mx.stop_gradient(net.codebook[codes])
            x = vectors + mx.stop_gradient(near - vectors)
            commitment = mx.square(vectors - near).mean()
        made = add_up(net.decoder(x), net.args.hop)
        loss = 3 * mx.abs(net.mels(made) - wanted).mean() + 0.5 * spectral(made, sound) + 0.25 * commitment
        return loss, (mx.stop_gradient(vectors).reshape(-1, net.args.code_size), codes)

    def after(self, step: int, seen: Any) -> None:
        if self.decoder_only:
            return
        vectors, codes = seen
        if step + 1 == self.free:
            self._begin(step)
        elif codes is not None:
            self._follow(step, vectors, codes.reshape(-1))

    def check(self) -> Mapping[str, float]:
        """``mel``: mean difference of log-mel frames; ``perplexity``: how many codes are in even use."""
        net = self.network
        sound = mx.array(np.stack([self._clip(int(place), 0.3) for place in self.watched[:24]]))
        codes = net.encode(sound)
        made = net.decode(codes)
        share = np.bincount(np.array(codes).reshape(-1), minlength=net.args.codes) / codes.size
        entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
        return {"mel": number(mx.abs(net.mels(made) - net.mels(sound)).mean()), "perplexity": float(np.exp(entropy))}

    def save(self, record: Mapping[str, Any]) -> None:
        save(self.out, self.network, {"trained": dict(record)})

    def _clip(self, place: int, where: float) -> np.ndarray:
        sound = self.sounds.sound(place)
        if len(sound) < self.clip:
            return np.pad(sound, (0, self.clip - len(sound)))
        start = int(where * (len(sound) - self.clip + 1))
        return sound[start : start + self.clip]

    def _begin(self, step: int) -> None:
        """The codebook from k-means over what the encoder makes of some clips."""
        args = self.network.args
        found: list[np.ndarray] = []
        while sum(map(len, found)) < 16 * args.codes and len(found) < 400:
            rows = self.network.encoder(self.network.mels(self.clips(step + len(found))))
            found.append(np.array(rows.reshape(-1, args.code_size)))
        centres, counts = k_means(np.concatenate(found), args.codes, self.seed)
        leading = 1.0 if self.team.leads else 0.0
        self.network.codebook = self.team.total(mx.array(centres) * leading)
        self.state["counts"] = self.team.total(mx.array(np.maximum(counts / counts.mean(), DEAD), mx.float32) * leading)
        self.state["sums"] = self.network.codebook * self.state["counts"][:, None]

    def _follow(self, step: int, vectors: mx.array, codes: mx.array) -> None:
        args = self.network.args
        counts = self.team.total(mx.zeros((args.codes,)).at[codes].add(1.0))
        sums = self.team.total(mx.zeros((args.codes, args.code_size)).at[codes].add(vectors))
        even = counts.sum() / args.codes
        self.state["counts"] = MEMORY * self.state["counts"] + (1 - MEMORY) * counts / even
        self.state["sums"] = MEMORY * self.state["sums"] + (1 - MEMORY) * sums / even
        if step % EVERY == 0:
            self._revive(step, vectors)
        self.network.codebook = self.state["sums"] / mx.maximum(self.state["counts"], 1e-4)[:, None]

    def _revive(self, step: int, vectors: mx.array) -> None:
        """Codes that nothing is near take the place of a vector of this step, the leader's choice."""
        dead = np.flatnonzero(np.array(self.state["counts"]) < DEAD)
        if len(dead):
            chosen = np.random.default_rng([self.seed, step, 1]).choice(vectors.shape[0], len(dead))
            fresh = self.team.total(vectors[mx.array(chosen)] * (1.0 if self.team.leads else 0.0))
            places = mx.array(dead)
            self.state["counts"][places] = 0.5
            self.state["sums"][places] = 0.5 * fresh


def spectral(made: mx.array, wanted: mx.array) -> mx.array:
    """How far spectra of several resolutions differ: their magnitudes, of the wanted ones', and their logarithms."""
    total = mx.array(0.0)
    for size in SIZES:
        a, b = magnitudes(made, size), magnitudes(wanted, size)
        total = total + mx.abs(a - b).sum() / (b.sum() + 1e-3) + mx.abs(mx.log(a) - mx.log(b)).mean()
    return total / len(SIZES)


def magnitudes(sound: mx.array, size: int) -> mx.array:
    """Spectra of windows a quarter apart, (..., n, bins)."""
    hop = size // 4
    count = sound.shape[-1] // hop
    hops = sound[..., : count * hop].reshape(*sound.shape[:-1], count, hop)
    frames = mx.concatenate([hops[..., i : count - 3 + i, :] for i in range(4)], axis=-1)
    window = mx.array(np.hanning(size + 1)[:-1].astype(np.float32))
    power = mx.fft.rfft(frames * window, axis=-1)
    return mx.sqrt(power.real**2 + power.imag**2 + 1e-6)


def k_means(rows: np.ndarray, count: int, seed: int, rounds: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Centres and how many rows are nearest to each."""
    rng = np.random.default_rng(seed)
    centres = rows[rng.choice(len(rows), count, replace=len(rows) < count)].astype(np.float64)
    counts: np.ndarray = np.zeros(count)
    for _ in range(rounds):
        nearest = np.concatenate([((centres**2).sum(1) - 2 * part @ centres.T).argmin(1) for part in np.array_split(rows, max(1, len(rows) // 4096))])
        counts = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, rows[:, i], count) for i in range(rows.shape[1])], axis=1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], rows[rng.choice(len(rows), count)])
    return centres.astype(np.float32), counts


# ---- The command -------------------------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m mlxspec.recipes.codec", description="Train the codec of a voice on a folder of sounds.")
    result.add_argument("--sounds", type=Path, required=True, help="folder of NNNNN.ogg, named by line")
    result.add_argument("--out", type=Path, required=True, help="folder of the trained codec")
    result.add_argument("--minutes", type=float, default=120)
    result.add_argument("--steps", type=int, help="instead of minutes")
    result.add_argument("--from", dest="start", type=Path, help="train the decoder of this codec alone; its tokens stay as they are")
    result.add_argument("--resume", action="store_true")
    result.add_argument("--sample-rate", type=int, default=16000, choices=(16000, 24000))
    result.add_argument("--batch", type=int, default=12)
    result.add_argument("--rate", type=float, default=1e-3)
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--processes", type=int, default=2, help="that train together, a core each")
    return result


def main(argv: Sequence[str] | None = None, args: CodecArgs | None = None, free: int = 300) -> int:
    """The command; ``args`` and ``free`` are for small trials."""
    given = parser().parse_args(argv)

    def work(team: Team, say: Callable[[str], None]) -> None:
        hop = given.sample_rate // 50
        shape = args or replace(CodecArgs(), sample_rate=given.sample_rate, hop=hop, window=4 * hop)
        with team.leader_first():
            sounds = open_sounds(given.sounds, work_folder(given.out) / f"sounds-{shape.sample_rate}", shape.sample_rate, say)
        mx.random.seed(given.seed)
        network = load(given.start) if given.start else Codec(shape)
        if network.args.sample_rate != sounds.sample_rate:
            raise UsageError(f"{given.start} is for {network.args.sample_rate} Hz: give --sample-rate {network.args.sample_rate}.")
        task = CodecTask(network, sounds, given.out, team, batch=given.batch, free=free, seed=given.seed, decoder_only=given.start is not None)
        plan = Plan(given.steps or 1000, given.rate, shape="cosine", checks=24)
        settings = {"codec": asdict(network.args), "batch": given.batch, "rate": given.rate, "seed": given.seed, "decoder_only": task.decoder_only}
        train(task, work_folder(given.out), plan, None if given.steps else given.minutes, given.resume, settings, team, say)

    return command("mlxspec.recipes.codec", given, argv, work)


if __name__ == "__main__":
    sys.exit(main())
