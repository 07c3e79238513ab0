"""Dialects of the library ``renderers`` in coded text, without a vocabulary: rendering prompts and replies, parsing.

In coded text, one character replaces each control token. The library works on token ids; it gets a tokenizer whose ids
are the characters of coded text (`CharacterTokenizer`), so text that only spells a control token stays text. Some
families are rendered by tinker-cookbook (`CookbookEngine`). `LibraryRenderer` makes a `Renderer` of a `CodedDialect`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, importing
from .families import FAMILIES, VARIANTS, Family, Variant
from .protocol import TOOL, TOOL_ARGUMENT, TOOL_NAME
from .vocabularies import Control, Piece, printable

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall

FIRST_CONTROL, FIRST_BODY, FIRST_ESCAPE = 0xD800, 0xDB00, 0xDC00
"""First surrogates (valid text has none) for control tokens, for the bodies in `CodedDialect.shape`, and for the first
letters of control tokens that are only spelled. Bytes that are not UTF-8 are U+DC80 and above."""

CODES, NO_TEXT = re.compile("[\ud800-\udc7f]"), "\udfff"
"""The lone surrogates that have a meaning in coded text, and one without a meaning, which replaces them in text from a
chat service."""

CONTROLS = re.compile("([\ud800-\udaff])")
BODIES = re.compile("([\udb00-\udbff])")


class CharacterTokenizer:
    """A tokenizer for the library, whose ids are the characters of coded text.

    Only a few of the library's renderers depend on `model`, the model's name.
    """

    unk_token_id = -1
    eos_token_id = None

    def __init__(self, controls: Sequence[str], model: str) -> None:
        self.name_or_path = model
        self._codes = {text: chr(FIRST_CONTROL + number) for number, text in enumerate(controls)}
        self._texts = {code: Control(text) for text, code in self._codes.items()}
        spelled = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
        self._spelled = re.compile(spelled)
        firsts = sorted({text[0] for text in controls})
        self._escapes = {first: chr(FIRST_ESCAPE + number) for number, first in enumerate(firsts)}
        self._unescaped = str.maketrans({escape: first for first, escape in self._escapes.items()})

    def encode(self, text: str, **_: Any) -> list[int]:
        """The ids of a text in which control tokens are written out."""
        return list(map(ord, self.coded(text)))

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text of ids, control tokens written out; those that are only spelled stay hidden, see `protected`."""
        return "".join(self._texts.get(char, char) for char in map(chr, ids))

    def convert_tokens_to_ids(self, token: str) -> int:
        """The id of a control token; -1 for any other text."""
        return ord(self._codes[token]) if token in self._codes else self.unk_token_id

    def coded(self, text: str) -> str:
        """The text with one character in place of each control token that is written out in it."""
        return self._spelled.sub(lambda found: self._codes[found[0]], text)

    def protected(self, text: str) -> str:
        """The text with the control tokens spelled in it hidden from `coded`; `pieces` and `written` restore them."""
        return self.hidden(printable(text))

    def hidden(self, text: str) -> str:
        """Like `protected`, for text of a model, which has lone surrogates for bytes that are not UTF-8."""
        return self._spelled.sub(lambda found: self._escapes[found[0][0]] + found[0][1:], text)

    def written(self, coded: Iterable[str]) -> str:
        """Coded characters as text, control tokens written out."""
        return "".join(self._texts.get(char, char) for char in coded).translate(self._unescaped)

    def pieces(self, coded: str) -> list[Piece]:
        split = filter(None, CONTROLS.split(coded))
        return [self._texts[text] if text in self._texts else text.translate(self._unescaped) for text in split]

    def from_pieces(self, pieces: Sequence[Piece]) -> str:
        """Coded text from pieces. A control token of another family becomes text."""
        return "".join(
            self._codes.get(piece, piece) if isinstance(piece, Control) else self.hidden(piece) for piece in pieces
        )

    def ids_of_turn(self, turn: str) -> list[int]:
        """The ids of a coded turn to parse, without Llama's optional first token: the library does not know it."""
        tag = self._codes.get("<|python_tag|>")
        return id_list(" " + turn[1:] if tag is not None and turn.startswith(tag) else turn)


def id_list(coded: str) -> list[int]:
    """The ids of coded text."""
    return list(map(ord, coded))


class CookbookEngine:
    """tinker-cookbook's renderer with the variant's name, behind the library's interface.

    Raises `UsageError` if tinker-cookbook is not installed, or this version has no such renderer.
    """

    def __init__(self, name: str, family: Family, tokenizer: CharacterTokenizer) -> None:
        needs = f"renderer {name!r} needs the package tinker-cookbook: pip install 'rtl-agent-gym[train]'"
        with importing(needs), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the version of transformers, whose tokenizers are not used
            from tinker_cookbook import renderers
            from tinker_cookbook.exceptions import RendererError
        try:
            self._renderer: Any = renderers.get_renderer(name, tokenizer)  # type: ignore[arg-type]
        except (RendererError, ValueError) as error:
            raise UsageError(f"this version of tinker-cookbook has no renderer {name!r}: update it") from error
        self._family, self._tokenizer = family, tokenizer

    def get_stop_token_ids(self) -> list[int]:
        return [self._tokenizer.convert_tokens_to_ids(stop) for stop in dict.fromkeys(self._family.stops)]

    def render_ids(
        self, messages: Sequence[dict[str, Any]], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The ids of a conversation; without a generation prompt, its last message must be the assistant's."""
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        rest = [_converted(message) for message in messages[bool(system) :]]
        first: list[Any] = [{"role": "system", "content": system}] if system else []
        if tools:
            specs = [tool["function"] for tool in tools]
            first = self._renderer.create_conversation_prefix_with_tools(specs, system_prompt=system)
        if add_generation_prompt:
            return list(self._renderer.build_generation_prompt([*first, *rest]).to_ints())
        return list(self._renderer.build_supervised_example([*first, *rest])[0].to_ints())

    def bridge_to_next_turn(self, *_: Any, **__: Any) -> None:
        """None: tinker-cookbook cannot extend a conversation."""


def parse_tags(family: Family, tokenizer: CharacterTokenizer, turn: str, prompt: str) -> ParsedResponse:
    """Parse the thinking, text and calls of a coded turn by the family's tags, in linear time.

    The end of the coded `prompt` determines whether the turn begins inside the thinking.
    """
    from renderers.base import ParsedResponse

    think, close = map(tokenizer.coded, family.think)
    turn = re.split("|".join(map(tokenizer.coded, family.stops)), turn)[0]
    blank = len(turn) - len(turn.lstrip())
    explicit = turn.startswith(think, blank)
    thinking, position = None, 0
    if explicit or prompt.endswith(think):
        begin = blank + 1 if explicit else 0
        thinking, closed, _ = turn[begin:].partition(close)
        if not closed:
            return ParsedResponse("", thinking, reasoning_complete=False)
        position = begin + len(thinking) + 1
    calls = _calls(family, tokenizer, turn, position)
    end = len(turn) if not calls or calls[0].token_span is None else calls[0].token_span[0]
    text = turn[position:end].partition(tokenizer.coded(family.section))[0] if calls else turn[position:]
    return ParsedResponse(text.strip(), None if thinking is None else thinking.strip(), calls)


def _calls(family: Family, tokenizer: CharacterTokenizer, turn: str, position: int) -> list[ParsedToolCall]:
    from renderers.base import ParsedToolCall, ToolCallParseStatus

    begin, end = map(tokenizer.coded, family.call)
    found: list[ParsedToolCall] = []
    while (start := turn.find(begin, position)) >= 0:
        stop = turn.find(end, start + len(begin))
        position = len(turn) if stop < 0 else stop + len(end)
        raw = tokenizer.decode(list(map(ord, turn[start:position])))
        name = re.search(family.name, raw)
        if stop < 0:
            call = ParsedToolCall(raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)
        elif name is None:
            call = ParsedToolCall(raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
        else:
            call = ParsedToolCall(raw, name[1].strip(), raw if family.json else _parameters(raw))
        call.token_span = (start, position)
        found.append(call)
    return found


_PARAMETER = re.compile(r'(?s)<｜DSML｜ ?parameter name="(.*?)" string="(true|false)">(.*?)</｜DSML｜ ?parameter>')


def _parameters(raw: str) -> dict[str, Any] | str:
    """The arguments of a call in DeepSeek's markup; the call's text if one of them should be JSON and is not."""
    try:
        return {key: text if is_text == "true" else json.loads(text) for key, is_text, text in _PARAMETER.findall(raw)}
    except (RecursionError, ValueError):
        return raw


def _converted(message: dict[str, Any]) -> dict[str, Any]:
    from tinker_cookbook.renderers.base import ToolCall

    made = {key: value for key, value in message.items() if key not in ("reasoning_content", "tool_calls")}
    if message["role"] != "assistant":
        return made
    parts: list[dict[str, str]] = []
    if "reasoning_content" in message:
        parts.append({"type": "thinking", "thinking": message["reasoning_content"]})
    if message["content"]:
        parts.append({"type": "text", "text": message["content"]})
    made["content"] = parts or [{"type": "text", "text": ""}]
    for call in message.get("tool_calls", []):
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        function = ToolCall.FunctionBody(name=call["function"]["name"], arguments=arguments)
        made.setdefault("tool_calls", []).append(ToolCall(id=call["id"], function=function))
    return made


class CodedDialect:
    """A variant of a family, with methods that take and return coded text.

    Raises `UsageError` if a package that the variant needs is not installed or too old.
    """

    def __init__(self, name: str, family: Family, variant: Variant) -> None:
        self._name, self.family, self._variant = name, family, variant
        self.characters = CharacterTokenizer(family.controls, variant.model)
        self.engine: Any
        """The library's renderer, or a `CookbookEngine`."""
        if family.config == "cookbook":
            self.engine = CookbookEngine(name, family, self.characters)
        else:
            with importing(f"dialect {family.config!r} needs the package renderers: pip install renderers"):
                from renderers import configs
                from renderers.base import create_renderer
            kinds = {kind.model_fields["name"].default: kind for kind in configs.BaseRendererConfig.__subclasses__()}
            self.engine = create_renderer(self.characters, kinds[family.config](**variant.options))
        self.stops = tuple(map(chr, self.engine.get_stop_token_ids()))

    @cached_property
    def prompt(self) -> str:
        """Any opening, for calls of the library that depend only on its end."""
        return self.opening("", "-", tool=True)

    @cached_property
    def prompt_thinks(self) -> bool:
        """Whether the prompt ends inside the thinking."""
        return self.parse("-").reasoning_complete is False

    @cached_property
    def thinks(self) -> bool:
        options = self._variant.options
        if self.prompt_thinks or not all(options.get(key, True) for key in ("enable_thinking", "thinking")):
            return self.prompt_thinks
        return chr(FIRST_BODY) in self.shape(thinking=True, text=False, calls=1)

    def opening(self, system: str, user: str, *, tool: bool) -> str:
        """The opening with this system message and request, which must be `protected`."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        ids = self.engine.render_ids(messages, tools=[TOOL] if tool else None, add_generation_prompt=True)
        return "".join(map(chr, ids))

    def parse(self, turn: str) -> ParsedResponse:
        """The thinking, text and calls of a turn without its stop token."""
        from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

        # The library takes quadratic time for a turn in DeepSeek's markup.
        if self.family.name or isinstance(self.engine, CookbookEngine):
            return parse_tags(self.family, self.characters, turn, self.prompt)
        try:
            ids = self.characters.ids_of_turn(turn)
            return self.engine.parse_response(ids, tools=[TOOL], prompt_ids=id_list(self.prompt))
        except (RecursionError, ValueError):  # JSON nested too deeply, or with too long a number: a broken call
            broken = ParsedToolCall(turn, status=ToolCallParseStatus.MALFORMED_STRUCTURE, token_span=(0, len(turn)))
            return ParsedResponse("", tool_calls=[broken])

    def until_stop(self, turn: str) -> tuple[str, bool]:
        """A turn up to its first stop token, and whether it has one."""
        end = next((place for place, char in enumerate(turn) if char in self.stops), None)
        return turn[:end], end is not None

    def result_messages(self, turn: str, contents: Sequence[str]) -> list[dict[str, Any]]:
        """The contents as tool messages, which refer to the turn's calls by their ids."""
        calls = self.parse(self.until_stop(turn)[0]).tool_calls
        ids = [self.characters.hidden(call.id or "") for call in calls]  # a model may sample a control token in an id
        usable = [id_ if "\n" not in id_ else "" for id_ in ids]  # in a result, the id is on one line
        names = [(usable[n] if n < len(ids) else "") or call_id(n) for n in range(len(contents))]
        return [
            {"role": "tool", "name": TOOL_NAME, "tool_call_id": name, "content": content}
            for name, content in zip(names, contents, strict=True)
        ]

    def extension(self, turn: str, replies: Sequence[dict[str, Any]]) -> str:
        """The coded text after a turn, up to where the model writes next.

        The library refuses turns that its template could not have rendered, such as one that ends while thinking. Such
        a turn stays unchanged, too, and gets the text that follows a complete turn.
        """
        if (extension := self._bridge(turn, replies)) is not None:
            return extension
        stopped = bool(turn) and turn[-1] in self.stops
        stop = turn[-1] if stopped else self.characters.coded(self.family.stops[1])
        extension = self._bridge(self.complete_turn(stop), replies)
        if extension is None:
            extension = self._rendered_extension(replies)
        return extension if stopped else stop + extension

    def _bridge(self, turn: str, replies: Sequence[dict[str, Any]]) -> str | None:
        extending = coded_dialect(self._variant.extends) if self._variant.extends else self
        return extending.bridge(self.prompt, turn, list(replies), [TOOL])

    def bridge(self, prompt: str, turn: str, messages: list[Any], tools: list[Any] | None) -> str | None:
        """The coded text after a turn, up to where the model writes next; None if the library cannot continue it."""
        found = self.engine.bridge_to_next_turn(id_list(prompt), id_list(turn), messages, tools=tools)
        if found is None:
            return None
        before, after = prompt + turn, "".join(map(chr, found.token_ids))
        return after[len(before) :] if after.startswith(before) else None

    def _rendered_extension(self, replies: Sequence[dict[str, Any]]) -> str:
        """The text after a turn with as many calls as there are results, taken from a full rendering."""
        mark = chr(FIRST_BODY)
        turn: dict[str, Any] = {"role": "assistant", "content": mark}
        if replies[0]["role"] == "tool":
            calls = [_call({TOOL_ARGUMENT: mark}, number) for number in range(len(replies))]
            ids = [reply["tool_call_id"] for reply in replies]
            turn["tool_calls"] = [call | {"id": id_} for call, id_ in zip(calls, ids, strict=True)]
            # Without text, the cookbook omits DeepSeek's end token; Gemma's template would move text after the results.
            turn["content"] = "-" if self.family.config == "cookbook" else ""
            if self.prompt_thinks:
                turn["reasoning_content"] = "-"
        messages: Any = [{"role": "user", "content": "-"}, turn, *replies]
        rendered = "".join(map(chr, self.engine.render_ids(messages, tools=[TOOL], add_generation_prompt=True)))
        stop = self.characters.coded(self.family.stops[0 if "tool_calls" in turn else 1])
        return rendered[rendered.index(stop, rendered.rindex(mark)) + 1 :]

    def complete_turn(self, stop: str) -> str:
        """A placeholder turn that ends with this token and that the library can continue."""
        if stop == self.characters.coded(self.family.stops[0]):
            shape = self.shape(thinking=False, text=False, calls=1)
            return BODIES.sub(lambda _: "-" if not self.family.json else '{"command": "-"}', shape)[:-1] + stop
        return BODIES.sub("-", self.shape(thinking=False, text=True, calls=0))[:-1] + stop

    def rendered_call(self, arguments: dict[str, Any]) -> str:
        """A call with these arguments as the template writes it."""
        hide = self.characters.protected
        shown = {hide(key): hide(value) if isinstance(value, str) else value for key, value in arguments.items()}
        message: dict[str, Any] = {"content": "", "tool_calls": [_call(shown)]}
        if self.prompt_thinks:
            message["reasoning_content"] = "-"
        turn = self._rendered_turn(message)
        span = self.parse(self.until_stop(turn)[0]).tool_calls[0].token_span
        return turn if span is None else turn[slice(*span)]

    def _rendered_turn(self, message: dict[str, Any]) -> str:
        """An assistant message as the model writes it, with the token that ends the turn."""
        request: dict[str, Any] = {"role": "user", "content": "-"}
        messages: Any = [request, {"role": "assistant", **message}]
        rendered = "".join(map(chr, self.engine.render_ids(messages, tools=[TOOL])))
        prompt = "".join(map(chr, self.engine.render_ids(messages[:1], tools=[TOOL], add_generation_prompt=True)))
        if not rendered.startswith(prompt):
            raise UsageError(f"renderer {self._name!r} cannot render this assistant message")
        turn = rendered[len(prompt) :]
        stop = self.characters.coded(self.family.stops[0 if message.get("tool_calls") else 1])
        return turn[: turn.rindex(stop) + 1] if stop in turn else turn + stop

    @lru_cache(maxsize=64)  # noqa: B019  # dialects live as long as the process
    def shape(self, *, thinking: bool, text: bool, calls: int) -> str:
        """A turn with these parts, where one character, from `FIRST_BODY` on, stands for each body."""
        if self.prompt_thinks and not thinking:
            shape = self.shape(thinking=True, text=text, calls=calls)[1:]
            return BODIES.sub(lambda body: chr(ord(body[0]) - 1), shape)
        bodies = map(chr, range(FIRST_BODY, FIRST_BODY + 0x100))
        message: dict[str, Any] = {"content": ""}
        if thinking:
            message["reasoning_content"] = thought = next(bodies)
        if text:
            message["content"] = next(bodies)
        if calls:
            message["tool_calls"] = [_call({TOOL_ARGUMENT: next(bodies)}, number) for number in range(calls)]
        turn = self._rendered_turn(message)
        if self.family.json:
            first = FIRST_BODY + thinking + text
            turn = re.sub(f'\\{{"{TOOL_ARGUMENT}": ?"([{chr(first)}-\udbff])"\\}}', r"\1", turn)
        if thinking and self.prompt_thinks and not turn.startswith(thought):
            return thought + turn  # a template may drop the thinking of a turn without calls
        return turn


@cache
def coded_dialect(name: str) -> CodedDialect:
    """The dialect of `families.VARIANTS` with this name, one object per process."""
    return CodedDialect(name, FAMILIES[VARIANTS[name].family], VARIANTS[name])


def call_id(number: int) -> str:
    """The id of a turn's call, counted from 0, in the form that Kimi's models write."""
    return f"functions.{TOOL_NAME}:{number}"


def _call(arguments: dict[str, Any], number: int = 0) -> dict[str, Any]:
    function = {"name": TOOL_NAME, "arguments": arguments}
    return {"type": "function", "id": call_id(number), "function": function}
