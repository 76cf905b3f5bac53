"""How much the shared noise is worth: ReDrafter's beams drawn with the target's noise against plain beams of the same shape, on the same text.

Usage: python examples/compare_beams.py FOLDER PROMPTS.jsonl [COUNT] [TEMPERATURE]

Both runs emit the very same tokens (the rule is coupled), so rounds compare like with like. Beside them stands what a sampled chain could reach under
the ratio rule: the overlap of both distributions, the sum of min(p, q), at each depth along the text, and the tokens a round that makes.
"""

import json
import sys
from typing import Any

import mlx.core as mx

import mlxspec
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Request, result
from mlxspec.drafters.redrafter import Draws, RecurrentDrafter

SEED = 7
TOKENS = 96


def overlaps(engine: Any, drafter: RecurrentDrafter, prompt: list[int], reply: list[int], temperature: float) -> list[list[float]]:
    """Sum of min(p, q) at depths 1 to ``drafter.depth``, for every fourth place of the reply."""
    found: list[list[float]] = [[] for _ in range(drafter.depth)]
    text = TokenSequence(engine.target)
    result(text.read(prompt[:-1]))
    settings = engine.checked({"temperature": temperature})
    sampler = engine.sampler(settings, SEED)
    (rows,) = engine.target.forward([Request(engine.target, text.cache, mx.array([prompt[-1], *reply[:-1]]), ("last",))])
    history = [*prompt, *reply]
    for place in range(0, len(reply) - drafter.depth - 1, 4):
        hidden, state = rows.hidden["last"][place], None
        for depth in range(drafter.depth):
            state = drafter.network.step(drafter.embed(mx.array([reply[place + depth]])), state)
            context = sampler.at(history[: len(prompt) + place + depth + 1])
            draws = Draws(context, drafter.vocabulary, False, drafter.stray)
            scores, _ = draws.scores(drafter.network.logits(hidden, state), [])
            q = drafter.vocabulary.spread(scores[0])
            p = context.probs(rows.logits[place + depth + 1])
            found[depth].append(float(mx.minimum(p, mx.softmax(q)).sum()))
    return found


def main(folder: str, prompts: str, count: int = 12, temperature: float = 0.8) -> None:
    engine = mlxspec.load("smollm2-135m", drafter=f"redrafter:{folder}")
    drafter = engine.drafter
    with open(prompts, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file][: 1000 * count]
    texts = [line["turns"][0] if "turns" in line else line["prompt"] for line in lines[:: max(1, len(lines) // count)]][:count]
    rounds: dict[bool, int] = {True: 0, False: 0}
    emitted = 0
    shares: list[list[float]] = [[] for _ in range(drafter.depth)]
    for text in texts:
        prompt = engine.prompt_tokens(text)
        replies = []
        for coupled in (True, False):
            drafter.coupled = coupled
            reply = engine.generate(prompt, temperature=temperature, seed=SEED, max_tokens=TOKENS, draft_tokens=drafter.depth)
            rounds[coupled] += reply.stats["rounds"]
            replies.append(reply.tokens)
        assert replies[0] == replies[1] or temperature > 0
        emitted += len(replies[0]) - 1
        for depth, found in enumerate(overlaps(engine, drafter, prompt, list(replies[0]), temperature)):
            shares[depth] += found
    means = [sum(found) / len(found) for found in shares]
    chain, reach = 1.0, 1.0
    for mean in means:
        reach *= mean
        chain += reach
    coupled, plain = (emitted / rounds[kind] for kind in (True, False))
    print(f"{len(texts)} prompts, {emitted} tokens, temperature {temperature:g}, {drafter.depth} steps, at most {drafter.rows} rows")
    print(f"beams with the target's noise  {coupled:.2f} tokens a round, {coupled - 1:.2f} accepted")
    print(f"plain beams                    {plain:.2f} tokens a round, {plain - 1:.2f} accepted")
    print(f"accepted: with noise / plain   {(coupled - 1) / (plain - 1):.2f}")
    print(f"sum of min(p, q) by depth      {', '.join(f'{mean:.2f}' for mean in means)}: a sampled chain makes {chain:.2f} tokens a round")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(kind(word) for kind, word in zip((int, float), sys.argv[3:], strict=False)))
