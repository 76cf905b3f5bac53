"""The streamed text is the full decode for byte-level and sentencepiece-like tokenizers; stop strings cut it at the right place."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.llm.text import Decode, Detokenizer, TextStream
from tests.tiny import byte_tokenizer

SAMPLES = [
    "Hello world, how are you?  Two  spaces,   three;\n\ttabs\r\nand lines.",
    "naïve café, Größe, Привет мир, שלום, مرحبا",
    "中文 和 日本語 と 한국어、混ぜて。",
    "👩‍👩‍👧 family, 🎉🎉, 🏳️‍🌈 flag, e\u0301 and ê, \U0001f468\U0001f3fd‍🚀",
    " leading space, trailing space ",
    "don't  we 're it 's .  , ! ?",  # what a clean-up would change
    "literal \ufffd in the middle \ufffd",
]


def byte_level() -> Tokenizer:
    """GPT-2's kind: merges over bytes, some of them across the bytes of a character."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(SAMPLES * 3, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    return inner


def sentencepiece_bpe() -> Tokenizer:
    """Llama 2's kind: ▁ for spaces, bytes as tokens where no piece fits, one space stripped from the start."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehlnortuwy,.", "▁a", "▁w", "or", "he", "▁he", "ll", "▁hell", "中"]
    merges = [("▁", "a"), ("▁", "w"), ("o", "r"), ("h", "e"), ("▁", "he"), ("l", "l"), ("▁he", "ll")]
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return inner


def sentencepiece_unigram() -> Tokenizer:
    """T5's and Gemma's kind: a unigram model with bytes, Metaspace on both sides."""
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256)), *((c, -5.0) for c in "▁abcdefghilmnoprstuwy,.")]
    pieces += [("▁the", -3.0), ("ing", -3.5), ("▁w", -3.5), ("or", -4.0), ("▁", -4.0)]
    inner = Tokenizer(models.Unigram(list(dict(pieces).items()), unk_id=0, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return inner


def byte_tokens(inner: Tokenizer, data: bytes) -> list[int]:
    """The bytes as tokens of their own."""
    return [inner.get_vocab()[f"<0x{byte:02X}>"] for byte in data]


MAKERS = {"byte-level": byte_level, "sentencepiece-bpe": sentencepiece_bpe, "sentencepiece-unigram": sentencepiece_unigram}


@cache
def tokenizer(kind: str) -> Tokenizer:
    return MAKERS[kind]()


def decode_of(kind: str) -> Decode:
    return lambda tokens: str(tokenizer(kind).decode(list(tokens), skip_special_tokens=False))


def bytes_decode(tokens: Sequence[int]) -> str:
    """A token a byte."""
    return bytes(tokens).decode("utf-8", "replace")


def streamed(decode: Decode, tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_a_text_streams_as_it_decodes(kind: str, text: str) -> None:
    tokens = tokenizer(kind).encode(text).ids
    whole = decode_of(kind)(tokens)
    assert len(tokens) > 5 and len(whole) > 5
    pieces = streamed(decode_of(kind), tokens)
    assert "".join(pieces) == whole
    for end in range(len(tokens)):  # and at any end, a split character shown as U+FFFD
        text = "".join(streamed(decode_of(kind), tokens[:end]))
        assert whole.startswith(text.rstrip("\ufffd"))
        if kind == "byte-level":  # a sentencepiece decoder would spoil the characters before the split one too
            assert text == decode_of(kind)(tokens[:end])


@pytest.mark.parametrize("seed", range(40))
def test_any_tokens_of_a_byte_level_tokenizer_stream_as_they_decode(seed: int) -> None:
    rng = random.Random(seed)
    size = tokenizer("byte-level").get_vocab_size()
    tokens = [rng.randrange(size) for _ in range(60)]
    assert "".join(streamed(decode_of("byte-level"), tokens)) == decode_of("byte-level")(tokens)
    wrapper = byte_tokenizer()
    tokens = [rng.randrange(256) for _ in range(60)]
    assert "".join(streamed(lambda ids: str(wrapper.decode(list(ids))), tokens)) == wrapper.decode(tokens)


@pytest.mark.parametrize("kind", ["sentencepiece-bpe", "sentencepiece-unigram"])
def test_any_valid_mixture_of_pieces_and_bytes_streams_as_it_decodes(kind: str) -> None:
    rng = random.Random(7)
    inner = tokenizer(kind)
    plain = [i for text, i in inner.get_vocab().items() if not text.startswith("<")]
    for _ in range(100):
        tokens: list[int] = []
        while len(tokens) < 40:
            if rng.random() < 0.5:
                tokens.append(rng.choice(plain))
            else:
                tokens += byte_tokens(inner, rng.choice("é中🎉~A").encode())
        pieces = streamed(decode_of(kind), tokens)
        assert "".join(pieces) == decode_of(kind)(tokens)
        assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("kind", ["sentencepiece-bpe", "sentencepiece-unigram"])
def test_invalid_bytes_among_pieces_never_raise_nor_lose_a_piece(kind: str) -> None:
    """There the whole decode replaces even the good bytes of a run that a bad one joins; the stream keeps what is out."""
    rng = random.Random(8)
    inner = tokenizer(kind)
    high = byte_tokens(inner, bytes(range(128, 256)))
    letters = {inner.get_vocab()[c]: c for c in "abc"}
    for _ in range(100):
        tokens = [rng.choice([*letters]) if rng.random() < 0.4 else rng.choice(high) for _ in range(40)]
        text = "".join(streamed(decode_of(kind), tokens))
        assert "".join(c for c in text if c in "abc") == "".join(letters.get(token, "") for token in tokens)
    a = inner.get_vocab()["a"]
    assert "".join(streamed(decode_of(kind), [a, *byte_tokens(inner, "中".encode() + b"\xff"), a])) == "a中\ufffda"


@pytest.mark.parametrize("char", ["é", "中", "🎉"])
def test_an_incomplete_character_is_held_back_until_it_is_whole(char: str) -> None:
    data = char.encode()
    assert streamed(bytes_decode, [65, *data, 66]) == ["A", *[""] * (len(data) - 1), char, "B", ""]
    assert streamed(bytes_decode, [65, *data[:-1]]) == ["A", *[""] * (len(data) - 1), "\ufffd"]
    assert "".join(streamed(bytes_decode, [65, *data[:-1], 66])) == "A\ufffdB"  # only the invalid bytes are replaced


def test_a_long_reply_decodes_a_short_tail_a_token() -> None:
    decoded = []

    def counting(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return bytes_decode(tokens)

    streamed(counting, list(("Ein Satz mit Größe. " * 50).encode()))
    assert max(decoded) < 8


def steps_of(tokens: Sequence[int], rng: random.Random) -> list[Step]:
    """The tokens as rounds of one to five, each a chain accepted but for its last token."""
    steps = [Step(tuple(tokens[:1]))]
    at = 1
    while at < len(tokens):
        size = rng.randrange(1, 6)
        part = tuple(tokens[at : at + size])
        steps.append(Step(part, Proposal.chain(part[:-1]), tuple(range(len(part) - 1))))
        at += size
    return steps


def replied(data: bytes, stop: Sequence[str], seed: int = 0, stop_tokens: frozenset[int] = frozenset()) -> tuple[list[str], list[Step], TextStream]:
    stream = TextStream(bytes_decode, stop, stop_tokens)
    pieces, steps = [], []
    for step in steps_of(data, random.Random(seed)):
        piece, cut = stream.push(step)
        pieces.append(piece)
        steps.append(cut)
        if stream.stopped:
            break
    pieces.append(stream.flush())
    assert "".join(pieces) == stream.text
    return pieces, steps, stream


@pytest.mark.parametrize("seed", range(12))
def test_rounds_change_nothing(seed: int) -> None:
    """Split anywhere, with characters across the joints, held back or not."""
    text = "".join(SAMPLES[:4])
    for stop in ((), ("zzz",), ("混ぜて。",), ("Größe", "مرحبا", "🎉🎉, "), ("H",)):
        _, _, stream = replied(text.encode(), stop, seed)
        expected = min((text.find(s) for s in stop if s in text), default=len(text))
        assert stream.text == text[:expected]
        assert stream.stopped == (expected < len(text))


@pytest.mark.parametrize(
    ("data", "stop", "text"),
    [
        ("one STOP two", ("STOP",), "one "),
        ("STOP", ("STOP",), ""),
        ("x", ("x",), ""),  # in the very first token
        ("STOSTOP!", ("STOP",), "STO"),  # its beginning comes twice
        ("aaab!", ("aab",), "a"),
        ("ababac!", ("abac",), "ab"),
        ("one two three", ("three", "two"), "one "),  # the earliest wins
        ("abcd", ("bc", "abcx"), "a"),
        ("abcd", ("cd", "bcd"), "a"),  # both complete at once
        ("say end", ("END", "end"), "say "),
        ("one STO", ("STOP",), "one STO"),  # held back, then released
        ("one ST end", ("STOP", "TEND"), "one ST end"),
        ("ab\ncd\n\nef", ("\n\n",), "ab\ncd"),
        ("中文字", ("文",), "中"),
        ("🎉🎊", ("🎊",), "🎉"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_stop_strings(data: str, stop: tuple[str, ...], text: str, seed: int) -> None:
    _, _, stream = replied(data.encode(), stop, seed)
    assert stream.text == text
    assert stream.stopped == any(s in data for s in stop)


def test_the_step_is_cut_behind_the_token_that_completed_the_stop_string() -> None:
    tokens = tuple(b"ab--cd")
    stream = TextStream(bytes_decode, ("--",))
    piece, step = stream.push(Step(tokens, Proposal.chain(tokens[:5]), (0, 1, 2, 3, 4)))
    assert piece == "ab" and stream.stopped
    assert step.tokens == tuple(b"ab--")
    assert step.path == (0, 1, 2)  # as where a stop token cuts: its last token counts as the round's own
    assert len(step.tokens) == len(step.path) + 1
    piece, step = TextStream(bytes_decode, ("a",)).push(Step((97,)))
    assert (piece, step.tokens, step.path) == ("", (97,), ())


def test_a_possible_stop_string_is_held_and_nothing_else() -> None:
    stream = TextStream(bytes_decode, ("END",))
    shown = [stream.push(Step((token,)))[0] for token in b"xE.EN.ENx"]
    assert shown == ["x", "", "E.", "", "", "EN.", "", "", "ENx"]
    assert stream.flush() == ""


def test_text_is_released_as_early_as_it_can_be() -> None:
    pieces, steps, _ = replied(("plain text " * 5).encode(), ("<stop>",))
    shown = [sum(map(len, pieces[: i + 1])) for i in range(len(steps))]
    read = [sum(len(step.tokens) for step in steps[: i + 1]) for i in range(len(steps))]
    assert shown == read
    assert all(a < b for a, b in pairwise(shown))


def test_stop_tokens_have_no_text_but_count() -> None:
    _, steps, stream = replied(b"hi\x03", (), stop_tokens=frozenset({3}))
    assert stream.text == "hi" and not stream.stopped
    assert sum(len(step.tokens) for step in steps) == 3


def test_a_stop_string_found_in_what_was_held_back_still_cuts() -> None:
    stream = TextStream(bytes_decode, ("\ufffd",))
    assert stream.push(Step((65, 0xE4)))[0] == "A"
    assert stream.flush() == "" and stream.text == "A" and stream.stopped
