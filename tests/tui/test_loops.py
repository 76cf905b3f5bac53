"""Replies that repeat themselves: found early, whatever the length of the block, never in ordinary text, and said on every face."""

import random
import time
from pathlib import Path

import pytest

from mlxspec.core.events import Done
from mlxspec.tui.chat.captions import about
from mlxspec.tui.chat.loops import LEAST, TIMES, Loops
from mlxspec.tui.chat.message import ChatMessage
from mlxspec.tui.chat.reports import Baseline, Compared
from mlxspec.tui.chat.tally import Tally
from mlxspec.tui.widgets.panel import speed_lines
from tests.tui.chatting import chatting
from tests.tui.pilot import run, until
from tests.tui.test_tally import rounds

LINE = "and round it goes, and round again it goes; "


def text(length: int, seed: int = 1) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(1000) for _ in range(length)]


def found(tokens: list[int]) -> int | None:
    """How many tokens had come when the loop was seen."""
    loops = Loops()
    for number, token in enumerate(tokens, 1):
        loops.see([token])
        if loops.now:
            return number
    return None


@pytest.mark.parametrize("period", [1, 2, 7, 8, 9, 40, 300])
def test_a_loop_is_found_whatever_its_period(period: int) -> None:
    """After a start that is none; no later than its block came once more than needed."""
    begin, block = text(50), text(period, 2)
    at = found(begin + block * 200)
    assert at is not None and at <= 50 + period + max(LEAST, (TIMES + 1) * period) + 8


def test_a_block_that_holds_the_same_words_twice_is_found() -> None:
    phrase = text(12)
    block = [*phrase, 5001, *phrase, 5002, *[7] * 20]
    assert found(block * 10) is not None


@pytest.mark.parametrize("tokens", [text(5000), text(200) * 2, text(20) * 3, [1, 2] * 20, [number // 30 for number in range(900)]])
def test_what_repeats_a_little_is_no_loop(tokens: list[int]) -> None:
    """A quotation, a verse with its refrain, a ruled line."""
    assert found(tokens) is None


def test_a_loop_that_ends_stays_counted() -> None:
    loops = Loops()
    loops.see([*text(30), *[3] * 100, *text(30, 3)])
    assert not loops.now and 90 <= loops.repeated <= 100


def test_a_token_costs_the_same_late_in_a_long_reply() -> None:
    """The odds of a false alarm are those of the machine's pauses: the best of several turns counts."""

    def seconds(loops: Loops) -> float:
        started = time.perf_counter()
        loops.see(text(2000, 5))
        return time.perf_counter() - started

    early, late = min(seconds(Loops()) for _ in range(5)), Loops()
    late.see(text(100_000))
    assert min(seconds(late) for _ in range(5)) < 10 * early


def test_the_panel_does_not_boast_of_a_loop() -> None:
    tally, baseline = Tally(), Baseline(16.0, 90, 0.0, True)
    for step in rounds():
        tally.add(step)
    assert any("2.50× plain" in line for line in speed_lines(tally, baseline, None))
    tally.loops.see([1] * 100)
    lines = speed_lines(tally, baseline, None)
    assert any("repeats itself" in line for line in lines) and not any("×" in line for line in lines)


def test_the_verdict_of_a_comparison_says_it() -> None:
    loop, other = ((*text(10), *[4] * 120), tuple(text(130)))
    done = [Done("a", tokens, "length", "m", "d", "coupled", True, 1, {"tokens_per_second": 2.0}) for tokens in (loop, other)]
    assert "repeats itself" in Compared(done[0], done[0], True).verdict
    assert Compared(done[1], done[1], True).verdict == "identical: yes"


def test_a_loop_is_said_while_it_runs_and_marked_when_it_ended(tmp_path: Path) -> None:
    """The status names the key that stops it; the line below the reply, /stats and the session keep the mark."""

    async def test() -> None:
        async with chatting(tmp_path, said=[LINE * 30, "An answer that ends."]) as chat:
            chat.engine.gate.close()
            await chat.say("sing", wait=False)
            chat.engine.gate.let(4)
            await until(chat.pilot, lambda: len(chat.talk.said[-1].pieces) == 4)
            await chat.drawn()
            assert "repeats itself" not in chat.shown
            chat.engine.gate.let(60)
            await until(chat.pilot, lambda: len(chat.talk.said[-1].pieces) >= 60)
            await chat.drawn()
            assert "repeats itself: esc stops it" in chat.shown
            await chat.pilot.press("escape")
            await chat.settled()
            reply = chat.talk.said[-1]
            assert reply.about["repeated"] > LEAST and "repeats itself" in about(reply)
            chat.app.live.draw_panel()
            await chat.drawn()
            assert chat.shown.count("repeats itself") == 2 and "× plain" not in chat.shown
            await chat.say("/stats")
            assert "so its speed-up says nothing" in chat.shown
            chat.engine.gate.open()
            await chat.say("and now?")
            assert "repeated" not in chat.talk.said[-1].about
            saved, _ = chat.store.read(chat.talk.session_id or "")
            assert saved.turns[1].about["repeated"] == reply.about["repeated"]

    run(test())


def test_the_line_below_a_saved_reply_keeps_the_mark() -> None:
    assert "repeats itself (80 tokens)" in about(ChatMessage("assistant", "x", "length", {"stats": {}, "repeated": 80}))
