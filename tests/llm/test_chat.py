"""A conversation reads only what is new, and says what a cold start would have said."""

from collections.abc import Callable
from typing import Any

import pytest

from mlxspec.core.events import Done, Notice
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import UsageError
from mlxspec.llm.chat import Chat
from tests.tiny import FAMILIES, RECURRENT, tiny_engine, tiny_model

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def engine_of(drafter: Any = "lookup", family: str = "llama", **load: Any) -> Any:
    engine = tiny_engine(drafter, tiny_model(family, scale=2.0 if family in RECURRENT else 4.0), **load)
    engine.tokenizer.chat_template = TEMPLATE
    return engine


def last(events: Any) -> Done:
    *_, done = events
    assert isinstance(done, Done)
    return done


DRAFTERS: dict[str, Callable[[str], Any]] = {
    "none": lambda family: "none",
    "lookup": lambda family: "lookup",
    "small": lambda family: SmallDrafter(tiny_model(family, seed=5, scale=2.0 if family in RECURRENT else 4.0)),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("family", [*FAMILIES, *RECURRENT])
def test_turns_equal_a_cold_start(family: str, drafter: str) -> None:
    """Three turns of twelve tokens; the prompt of each is the same tokens read from nothing."""
    warm, cold = engine_of(DRAFTERS[drafter](family), family), engine_of("none", family)
    chat = warm.chat(system="be kind", temperature=0, max_tokens=12)
    for turn, text in enumerate(("hello", "go on", "and then?")):
        reply = last(chat.stream(text))
        prompt = warm.sequence.tokens[: reply.stats["prompt_tokens"]]
        assert cold.generate(prompt, temperature=0, max_tokens=12).tokens == reply.tokens
        new = reply.stats["prompt_tokens"] - reply.stats["reused_tokens"]
        if turn and family not in RECURRENT:
            assert new <= len("[user];[assistant]") + len(text) + 2  # the pending token, the template and the message


def test_only_the_new_tokens_are_read_with_recurrent_layers_too() -> None:
    """Without a rewind (the reply is followed by what comes next) a state serves as well as a growing cache."""
    engine = engine_of("none", "mamba")
    chat = engine.chat(temperature=0, max_tokens=12)
    chat.send("hello")
    reply = chat.send("go on")
    assert reply.stats["reused_tokens"] > 20


@pytest.mark.parametrize("family", ["mamba", "qwen3_next", "falcon_h1"])
def test_a_recurrent_model_replies_again_from_the_end_of_the_prompt(family: str) -> None:
    """Its states go back to where the reply began, attention layers beside them too, and the other reply is that of a fresh start."""
    chat = engine_of("lookup", family).chat(temperature=0, max_tokens=24)
    first = chat.send("hello there")
    again = last(chat.regenerate())
    assert again.tokens == first.tokens
    assert again.stats["reused_tokens"] == again.stats["prompt_tokens"] - 1


def test_regenerate_edit_undo_and_going_on() -> None:
    chat = engine_of().chat(temperature=0, max_tokens=10)
    first = chat.send("hello there")
    second = chat.send("what is new?")
    asked = chat._said[-2][1]
    again = last(chat.regenerate())
    assert again.tokens == second.tokens
    assert again.stats["prompt_tokens"] - again.stats["reused_tokens"] == 1
    assert [m["content"] for m in chat.messages] == ["hello there", first.text, "what is new?", second.text]
    more = last(chat.proceed())
    assert chat.messages[-1]["content"] == second.text + more.text
    assert engine_of("none").generate(asked, temperature=0, max_tokens=20).tokens == second.tokens + more.tokens
    chat.edit(2, "what else?")
    assert len(chat.messages) == 3
    edited = last(chat.regenerate())
    assert edited.stats["reused_tokens"] > len(first.tokens)
    chat.undo()
    assert [m["content"] for m in chat.messages] == ["hello there", first.text]
    chat.undo()
    assert chat.messages == []
    with pytest.raises(UsageError, match="no message"):
        last(chat.regenerate())
    with pytest.raises(UsageError, match="none of the user's"):
        chat.edit(0, "x")


def test_a_reply_that_is_cut_off_is_kept_and_can_go_on() -> None:
    """Closing a reply midway: its text stays, and going on from it equals the unbroken reply."""
    whole = engine_of("none").chat(temperature=0, max_tokens=24).send("tell me").tokens
    chat = engine_of("none").chat(temperature=0, max_tokens=24)
    events = chat.stream("tell me")
    got: list[int] = []
    for event in events:
        got += event.step.tokens if getattr(event, "step", None) is not None else ()
        if len(got) >= 9:
            events.close()
            break
    assert chat.messages[-1]["role"] == "assistant"
    rest = last(chat.proceed(max_tokens=24 - len(got)))
    assert tuple(got) + rest.tokens == whole


def test_a_full_context_drops_whole_turns_and_says_so() -> None:
    engine = engine_of("lookup", context=160)
    chat = engine.chat(system="be kind", temperature=0, max_tokens=16)
    notices = []
    for turn in range(8):
        for event in chat.stream(f"message number {turn}"):
            if isinstance(event, Notice):
                notices.append(event.text)
        text = engine.tokenizer.decode(engine.sequence.tokens)
        assert text.startswith("[system]be kind;[user]message number")
        assert len(engine.sequence.tokens) <= 160
    assert notices and all("oldest" in text and "160" in text for text in notices)
    assert len(chat.messages) == 16
    assert "message number 0" not in text and "message number 7" in text


def test_a_stop_string_ends_the_message_for_the_model_too() -> None:
    engine = engine_of("none")
    plain = engine.chat(temperature=0, max_tokens=20).send("hello").text
    stop = plain[4]
    chat = engine.chat(temperature=0, max_tokens=20, stop=[stop])
    first = chat.send("hello")
    assert first.finish_reason == "stop_string" and stop not in first.text
    chat.send("go on")
    assert engine.tokenizer.decode(engine.sequence.tokens).startswith(f"[user]hello;[assistant]{first.text};[user]go on;")


def test_what_cannot_be_sent_leaves_the_conversation_as_it_was() -> None:
    engine = engine_of("lookup", context=120)
    chat = engine.chat(temperature=0, max_tokens=8)
    chat.send("hello")
    before = [dict(message) for message in chat.messages]
    for options in ({"temperature": -1}, {"temprature": 1}):
        with pytest.raises(UsageError):
            chat.send("again", **options)
        with pytest.raises(UsageError):
            last(chat.regenerate(**options))
    with pytest.raises(UsageError, match="at most 120"):
        chat.send("x" * 500)
    unread = chat.stream("never asked for")
    assert chat.messages == before
    unread.close()
    assert chat.send("and now?").text


def test_the_system_prompt_by_either_name() -> None:
    engine = engine_of("none")
    engine.chat(system_prompt="be brief", max_tokens=2).send("hello")
    assert engine.tokenizer.decode(engine.sequence.tokens).startswith("[system]be brief;[user]hello")


def test_empty_messages_and_unknown_options() -> None:
    engine = engine_of()
    with pytest.raises(UsageError, match="empty"):
        engine.chat().send("  ")
    with pytest.raises(UsageError, match="temperature"):
        engine.chat(temprature=1)
    assert isinstance(engine.chat(), Chat)


def test_going_on_after_an_undo_or_in_another_run() -> None:
    """What goes on is the last message as it stands, whatever was said after it and whoever said it."""
    whole = engine_of("none").chat(temperature=0, max_tokens=24).send("tell me")
    chat = engine_of().chat(temperature=0, max_tokens=10)
    first = chat.send("tell me")
    chat.send("something else")
    chat.undo()
    more = last(chat.proceed(max_tokens=14))
    assert first.tokens + more.tokens == whole.tokens
    again = engine_of().chat(temperature=0, max_tokens=10)
    again.messages = [{"role": "user", "content": "tell me"}, {"role": "assistant", "content": "It was"}]
    rest = last(again.proceed())
    asked = again.engine.tokenizer.encode("[user]tell me;[assistant]It was", add_special_tokens=False)
    assert engine_of("none").generate(asked, temperature=0, max_tokens=10).tokens == rest.tokens
    assert again.messages[-1]["content"] == "It was" + rest.text
