"""From messages to what a model reads: the chat template's text, and its tokens. Knows the tokenizer; knows no model and no loop.

The template's own marks are control tokens. What a message says is text, whatever it spells: a ``MARK`` stands before each spelling of a
control token in a message, so that template and message stay apart up to the tokens.
"""

import copy
import json
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from mlxspec.display import one_line
from mlxspec.errors import UsageError

Message = dict[str, str]
MARK = "\udc00"  # a lone surrogate: no message holds one


class PromptReader:
    """Reads prompts for one tokenizer. ``say`` takes one-line notices."""

    def __init__(self, tokenizer: Any, model_name: str, say: Callable[[str], None]) -> None:
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.say = say
        self._told = False  # that the template has no system role
        self._special: dict[str, int] | None = None
        self._written: tuple[str, dict[str, int]] = ("", {})  # a template, and the marks it writes that are no special tokens
        self._twin: Any = None
        self._codes: dict[int, str] = {}  # what stands for a control token in the text for the twin
        self._nonce = secrets.token_hex(8)

    # ---- Text ----------------------------------------------------------------------------------------------------------------------------

    def marked(self, messages: Sequence[Message], template_config: str | None = None) -> str:
        """Messages as the text the model reads, ready for its reply, with a MARK before each control token's spelling in a message.

        Without a chat template just the contents, a blank line between.
        """
        extra = json.loads(template_config) if template_config else {}
        check_text(messages)
        text, messages = self._with_system(list(messages), extra)
        literal = [{key: self.literal(value, message["role"], extra) for key, value in message.items()} for message in messages]
        if literal == messages:
            return text
        found = self._template(literal, extra)
        if found.replace(MARK, "") != text:
            raise UsageError(
                f"The chat template of {self.model_name} rewrites a message that spells a control token, such as "
                f"{self._spelt(literal)}: write it otherwise."
            )
        return found

    def literal(self, text: Any, role: str = "assistant", extra: dict[str, Any] | None = None) -> Any:
        """What a message says, with its MARKs. What the model says may hold the marks that are no special tokens: thoughts, calls of tools."""
        if not isinstance(text, str):
            return text
        there = [spelling for spelling in self._spellings(role, extra or {}) if spelling in text]
        return re.sub(f"(?={_any(there)})", MARK, text) if there else text

    def _with_system(self, messages: list[Message], extra: dict[str, Any]) -> tuple[str, list[Message]]:
        """The text of messages, and the messages it is of: a template without a system role gets the system prompt in the first user message."""
        system, rest = _split(messages)
        merged = [{**rest[0], "content": _joined(system, rest[0])}, *rest[1:]] if system and rest and rest[0]["role"] == "user" else None
        try:
            text = self._template(messages, extra)
        except UsageError as refusal:
            if merged is None:
                raise
            try:
                text = self._template(merged, extra)
            except UsageError:
                raise refusal from None
        else:
            if merged is None or system[0]["content"].strip() in text or not self._is_of(text, rest, extra):
                return text, messages
            text = self._template(merged, extra)
        if not self._told:
            self._told = True
            self.say(f"The chat template of {self.model_name} has no system role: the system prompt stands at the start of the first user message.")
        return text, merged

    def _is_of(self, text: str, messages: list[Message], extra: dict[str, Any]) -> bool:
        """Whether a text is what the template makes of these messages."""
        try:
            return self._template(messages, extra) == text
        except UsageError:
            return False

    def _template(self, messages: list[Message], extra: dict[str, Any]) -> str:
        if self.tokenizer.chat_template is None:
            return "\n\n".join(message["content"] for message in messages)
        self._check_name(extra.get("chat_template"), extra)
        try:
            return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **extra))
        except Exception as error:  # a template is foreign code and raises what it likes
            raise UsageError(
                f"The chat template of {self.model_name} refuses these messages ({one_line(str(error))}): check roles and --chat-template-config."
            ) from error

    def _check_name(self, wanted: Any, extra: dict[str, Any]) -> None:
        """Refuse to guess among named templates. A text with braces is a template itself."""
        templates = self.tokenizer.chat_template
        if not isinstance(templates, dict) or wanted in templates or (isinstance(wanted, str) and "{" in wanted):
            return
        if wanted is None and ("default" in templates or ("tools" in extra and "tool_use" in templates)):
            return
        names = sorted(templates)
        which = "none of them is the default" if wanted is None else f"{wanted!r:.60} is none of them"
        example = json.dumps({"chat_template": names[0]})
        raise UsageError(
            f"{self.model_name} has the chat templates {one_line(', '.join(names))}, and {which}: choose one, as --chat-template-config '{example}'."
        )

    # ---- Tokens --------------------------------------------------------------------------------------------------------------------------

    def tokens(self, messages: Sequence[Message], template_config: str | None = None) -> list[int]:
        """The tokens of messages."""
        return self.encode(self.marked(messages, template_config), self.tokenizer.chat_template is None)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The tokens of a marked text. One without MARKs is encoded as it stands."""
        if MARK not in text:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens)) if text else []
        control = self._control()
        written = 0

        def coded(match: re.Match[str]) -> str:
            nonlocal written
            if match[0].startswith(MARK):
                return match[0]
            written += 1
            return self._code(control[match[0]])

        there = [spelling for spelling in control if spelling in text]
        text = re.sub(f"{MARK}?(?:{_any(there)})", coded, text).replace(MARK, "")
        ids = self._twin.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)
        added = set(self._twin.encode("", add_special_tokens=add_special_tokens))  # by the tokenizer itself, such as the first token of a text
        back = {self._twin.convert_tokens_to_ids(code): token for token, code in self._codes.items()}
        added.add(self.tokenizer.unk_token_id)
        read = next((spelling for spelling, token in control.items() if token in ids and token not in added), None)
        if read is not None or sum(token in back for token in ids) != written:
            what = read or max(there, key=len)
            raise UsageError(f"The tokenizer of {self.model_name} reads {what} as a control token only, never as text: write it otherwise.")
        return [back.get(token, token) for token in ids]

    def _code(self, token: int) -> str:
        """What stands for a control token in the text for the twin: nobody can know it."""
        if token not in self._codes:
            from tokenizers import AddedToken

            self._codes[token] = f"<{self._nonce}:{token}>"
            flags = {name: getattr(self._added().get(token), name, False) for name in ("lstrip", "rstrip", "single_word")}
            self._twin.add_tokens([AddedToken(self._codes[token], special=False, normalized=False, **flags)])
        return self._codes[token]

    def _spelt(self, literal: list[Message]) -> str:
        """A control token that is spelt in marked messages."""
        found = "\n".join(value for message in literal for value in message.values() if isinstance(value, str)).partition(MARK)[2]
        return max((one for one in self._marks() | self._written[1] if found.replace(MARK, "").startswith(one)), key=len)

    def _control(self) -> dict[str, int]:
        """Control tokens by spelling. They are special tokens in the twin, the copy of the tokenizer that reads their spellings as text."""
        control = self._marks() | self._written[1]
        if self._twin is None:
            self._twin = copy.deepcopy(self.tokenizer._tokenizer)
        if ordinary := [spelling for spelling in self._written[1] if not self._twin.added_tokens_decoder[control[spelling]].special]:
            from tokenizers import AddedToken

            self._twin.add_tokens([AddedToken(spelling, special=True, normalized=False) for spelling in ordinary], special_tokens=True)
        return control

    def _spellings(self, role: str, extra: dict[str, Any]) -> dict[str, int]:
        """The spellings that stand for text in a message of this role."""
        return self._marks() if role == "assistant" else self._marks() | self._written_by_template(extra)

    def _marks(self) -> dict[str, int]:
        """The special tokens by spelling."""
        if self._special is None:
            found = {str(token.content): i for i, token in self._added().items() if token.special}
            found |= dict(zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True))
            self._special = {spelling: token for spelling, token in found.items() if spelling.strip()}
        return self._special

    def _written_by_template(self, extra: dict[str, Any]) -> dict[str, int]:
        """The added tokens by spelling that the template writes though they are no special tokens. A plain word is none of them."""
        if self.tokenizer.chat_template is None:
            return {}
        source = self.tokenizer.get_chat_template(extra.get("chat_template"), extra.get("tools"))
        if source != self._written[0]:
            literals = "\0".join(value for _, kind, value in jinja2.Environment().lex(source) if kind in ("data", "string"))
            added = {str(token.content): i for i, token in self._added().items() if not token.special}
            self._written = source, {one: i for one, i in added.items() if one in literals and one.strip() and not one.isalnum()}
        return self._written[1]

    def _added(self) -> dict[int, Any]:
        return dict(self.tokenizer.added_tokens_decoder)


def check_text(messages: Sequence[Message]) -> None:
    """Raise UsageError for what is no text."""
    try:
        "".join(value for message in messages for value in message.values() if isinstance(value, str)).encode()
    except UnicodeEncodeError:
        raise UsageError("The prompt has characters that are no text (lone surrogates): remove them.") from None


def _any(spellings: Sequence[str]) -> str:
    """A pattern for any of these, the longest first."""
    return "|".join(re.escape(one) for one in sorted(spellings, key=len, reverse=True))


def _split(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """The system messages at the start, and the others."""
    at = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return messages[:at], messages[at:]


def _joined(system: list[Message], first: Message) -> str:
    return "\n\n".join(message["content"] for message in [*system, first] if message["content"].strip())
