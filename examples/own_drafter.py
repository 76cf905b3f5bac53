"""A drafter of your own: it remembers what followed each pair of words and offers that. Run it: python examples/own_drafter.py

Any object with ``propose`` will do. The reply is the one the model gives without a drafter; a bad guess costs time, never text.
"""

from typing import Any

import mlxspec


class Pairs:
    name = "pairs"  # shown in the statistics
    taps: tuple[str, ...] = ()  # hidden states of the target it wants to see: none
    depth = 4  # tokens ahead, unless --draft-tokens says otherwise

    def begin(self, prompt: list[int], hidden: Any, reused: int) -> None:
        self.seen = list(prompt)
        self.after: dict[tuple[int, ...], int] = {(a, b): c for a, b, c in zip(prompt, prompt[1:], prompt[2:], strict=False)}

    def propose(self, token: int, limit: int, context: Any) -> mlxspec.Proposal:
        self.learn(token)  # the pending token is news to us
        guess: list[int] = []
        pair = tuple(self.seen[-2:])
        while len(guess) < limit and pair in self.after:
            guess.append(self.after[pair])
            pair = (pair[1], guess[-1])
        self.guess = guess
        return mlxspec.Proposal.chain(guess)

    def accept(self, path: tuple[int, ...], token: int, hidden: Any) -> None:
        for row in path:  # rows of our proposal that the target said too; ``token`` comes back as the next pending one
            self.learn(self.guess[row])

    def learn(self, token: int) -> None:
        self.after[tuple(self.seen[-2:])] = token
        self.seen.append(token)


if __name__ == "__main__":
    reply = mlxspec.load("smollm2-135m", drafter=Pairs()).generate("Repeat three times: the cat sat on the mat.", temperature=0, max_tokens=48)
    print(reply.text)
    print(f"accepted {reply.stats['accepted']} of {reply.stats['drafted']}, {reply.stats['tokens_per_round']:.2f} tokens a round")
