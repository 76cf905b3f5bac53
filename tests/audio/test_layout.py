"""The ids of a speech model: named once, checked, and out of the reach of what users write."""

import json

import numpy as np
import pytest

from mlxspec.audio.codes.layout import Layout, Span
from mlxspec.errors import AudioError

OURS = Layout.of(["a", "b", " ", "<", "|", ">"], 16)
NAMING = Layout.of(["a", "b", " "], 16, 4)
SNAC = Layout(200, 1, 2, tuple(Span(10 + 16 * slot, 16) for slot in range(7)), {"a": 3, "b": 4}, (5, 0))


def test_a_layout_of_our_own_names_every_id_once() -> None:
    assert (OURS.vocab_size, OURS.start, OURS.end, OURS.mask) == (25, 22, 23, 24)
    assert OURS.prompt(["b", " ", "a"]) == [1, 2, 0, 22]
    assert OURS.silent() == [0, 1, 2, 3, 4, 5, 22, 24]
    assert SNAC.prompt(["a"]) == [5, 0, 3, 1]


@pytest.mark.parametrize("layout", [OURS, SNAC, NAMING])
def test_codes_and_tokens_there_and_back(layout: Layout) -> None:
    """Code 0 and the last code, every slot, and a last frame that is cut short."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 16, (9, layout.tokens_per_frame)).astype(np.int32)
    frames[0], frames[-1] = 0, 15
    tokens = layout.tokens(frames)
    assert tokens[0] == layout.token(0, 0) and tokens[-1] == layout.token(layout.tokens_per_frame - 1, 15)
    assert np.array_equal(layout.frames(tokens), frames)
    if layout.tokens_per_frame > 1:
        assert np.array_equal(layout.frames(tokens[:-1]), frames[:-1])
    assert layout.frames([]).shape == (0, layout.tokens_per_frame)
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


def test_a_token_out_of_its_slot_is_an_error_and_no_shift() -> None:
    tokens = SNAC.tokens(np.zeros((3, 7), np.int32))
    tokens[9] = SNAC.token(3, 0)
    with pytest.raises(AudioError, match="slot 2 of frame 1 takes 42 to 57"):
        SNAC.frames(tokens)
    with pytest.raises(AudioError, match="said token 23"):
        OURS.frames([OURS.token(0, 3), OURS.end])


def test_speech_that_names_symbols_a_symbol_ahead_of_their_sound() -> None:
    """The ids of a symbol take turns; names are no frames, and no other id of text is let through as one."""
    assert (NAMING.vocab_size, NAMING.start, NAMING.end, NAMING.mask) == (31, 28, 29, 30)
    text = NAMING.text(["a", "a", "b", " ", "a"])
    assert text == [0, 1, 6, 11, 0] and NAMING.prompt(["a", "a", "b", " ", "a"]) == [*text, 28]
    assert NAMING.text(["a", "b"], 3) == [3, 4]
    codes = NAMING.tokens(np.array([[3], [4], [5], [6]]))
    said = NAMING.speech(text, codes, [2, 2, 3, 4, 4])
    assert said == [0, 1, codes[0], codes[1], 6, 11, codes[2], 0, codes[3]]
    assert NAMING.frames(said)[:, 0].tolist() == [3, 4, 5, 6]
    assert NAMING.names == frozenset(range(12)) and NAMING.silent() == [28, 30]
    assert OURS.speech([1, 0], [7, 8], []) == [7, 8] and not OURS.names
    with pytest.raises(AudioError, match="said token 28"):
        NAMING.frames([0, 28])
    with pytest.raises(AudioError, match="more than one slot"):
        Layout.from_json({**SNAC.to_json(), "symbols": {"a": 3}, "phases": 2})
    with pytest.raises(AudioError, match="for two things"):
        Layout.from_json({**OURS.to_json(), "phases": 2})


def test_text_that_looks_like_control_tokens_stays_text() -> None:
    """Whatever is written becomes text symbols: neither start, end, mask nor any audio id can come of it."""
    for text in ("<|s_0|>", "<|end|>", "<a>", "||||"):
        symbols = [symbol for symbol in text if symbol in OURS.symbols]
        ids = OURS.prompt(symbols)[:-1]
        assert set(ids) <= set(OURS.symbols.values())
    with pytest.raises(AudioError, match="no symbol '<end>'"):
        OURS.prompt(["<end>"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": []}, "no audio codes"),
        ({"slots": [[10, 4], [13, 4]]}, "overlap at id 13"),
        ({"slots": [[0, 4]]}, "id 1 for two things"),
        ({"slots": [[180, 40]]}, "outside 0 to 199"),
        ({"end": 1}, "id 1 for two things"),
        ({"symbols": {"a": 3, "b": 3}}, "id 3 for two things"),
        ({"start": 200}, "id 200 outside"),
        ({"prefix": [-1]}, "prefix has id -1"),
        ({"slots": None}, "cannot be read"),
        ({"symbols": ["a"]}, "cannot be read"),
    ],
)
def test_layouts_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(AudioError, match=words):
        Layout.from_json({**SNAC.to_json(), **changes})
