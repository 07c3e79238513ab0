"""The dialects of the library ``renderers`` as a `Renderer`.

The library works on coded text (see `coded`), and the model's own vocabulary encodes the result (`Codec`). This module
adds what the library lacks: corrections, refusing calls of which it would drop some text, truncated turns, the text
side, and which part of a turn is thinking, text or a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .actions import (
    EXAMPLE_COMMAND,
    Call,
    CallError,
    TurnRules,
    check_command,
    check_tool,
    command_of_arguments,
    command_of_call,
    decode_whole,
    excerpt,
    spells_call,
    with_text,
)
from .coded import (
    BODIES,
    CODES,
    CONTROLS,
    FIRST_BODY,
    NO_TEXT,
    CharacterTokenizer,
    CodedDialect,
    call_id,
    coded_dialect,
)
from .families import ALIASES, FAMILIES, VARIANTS
from .protocol import (
    ANSWERED,
    MAX_CALLS_READ,
    TOOL,
    TOOL_ARGUMENT,
    TOOL_NAME,
    Action,
    Kind,
    Message,
    ModelTurn,
    Part,
    Phrase,
)
from .renderer import Renderer, each_output, one_below_another, split_results, with_example
from .vocabularies import Control, Piece, printable

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall

LIBRARY_NAMES = tuple(VARIANTS)


class LibraryRenderer(Renderer):
    """A dialect of `families.VARIANTS` or `families.ALIASES`. See `Renderer` for the methods."""

    def __init__(self, name: str, tokenizer: Any = None) -> None:
        name = ALIASES.get(name, name)
        if name not in VARIANTS:
            raise UsageError(f"no renderer {name!r} in the library; choose one of {', '.join(LIBRARY_NAMES)}")
        super().__init__(name, tokenizer)
        self.family = FAMILIES[VARIANTS[name].family]
        self.END, self.one_call = Control(self.family.stops[1]), self.family.one_call

    @property
    def _coded(self) -> CodedDialect:
        return coded_dialect(self.name)

    @property
    def _characters(self) -> CharacterTokenizer:
        return self._coded.characters

    @property
    def thinks(self) -> bool:  # type: ignore[override]
        return self._coded.thinks

    @property
    def stop(self) -> list[str] | list[int]:
        names = self._characters.pieces("".join(self._coded.stops))
        if self._tokenizer is None:
            return names
        needed = (name for name in names if name in self.family.stops or name in self.codec)
        return [self.codec.control(name) for name in needed]

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        return self._protected_opening(system, user, tool=True)

    def plain_pieces(self, system: str, user: str) -> list[Piece]:
        return self._protected_opening(system, user, tool=False)

    def _protected_opening(self, system: str, user: str, *, tool: bool) -> list[Piece]:
        hide = self._characters.protected
        return self._characters.pieces(self._coded.opening(hide(system), hide(user), tool=tool))

    def initial_messages(self, system: str, user: str) -> list[Message]:
        begin, end = self.family.system
        if begin:
            pieces = self._protected_opening(system, "-", tool=True)
            opening = self._characters.from_pieces(pieces).partition(self._characters.coded(begin))[2]
            declared = self._characters.written(opening.partition(self._characters.coded(end))[0])
        else:  # system prompt and tool are not in one turn
            tool = f"# Tools\n\nYou may call this tool:\n{json.dumps(TOOL['function'])}\n\n{self._rules.form}"
            declared = "\n\n".join(filter(None, [system, tool]))
        return [{"role": "system", "content": declared}, {"role": "user", "content": user}]

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        contents = list(map(self._characters.from_pieces, each_output(outputs)))
        turn = self._coded_ids(action_ids)
        replies = self._coded.result_messages(turn, contents)
        return self.codec.encode(self._characters.pieces(self._coded.extension(turn, replies)))

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        turn = self._coded_ids(action_ids)
        content = self._characters.from_pieces(self.correction_pieces(printable(message)))
        calls = len(self._coded.parse(self._coded.until_stop(turn)[0]).tool_calls)
        if calls or self.family.corrections == "tool":
            more = [ANSWERED] * (calls - 1) if calls <= MAX_CALLS_READ else []
            replies = self._coded.result_messages(turn, [content, *more])
        else:
            replies = [{"role": "user", "content": content}]
        return self.codec.encode(self._characters.pieces(self._coded.extension(turn, replies)))

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        begin, end = (self._characters.pieces(self._characters.coded(text)) for text in self.family.result)
        if self.family.quoted:
            contents = [[json.dumps(text, ensure_ascii=False)[1:-1] for text in content] for content in contents]
        return one_below_another(contents, begin, end)

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        content = self._characters.from_pieces(reply)
        turn = self._coded.complete_turn(self._characters.coded(self.END))
        return self._characters.pieces(self._coded.extension(turn, [{"role": "user", "content": content}]))

    def correction_pieces(self, message: str) -> list[Piece]:
        return with_example(message, self._characters.pieces(self._characters.coded(self._example)))

    def results(self, pieces: Sequence[Piece]) -> list[str]:
        begin, end = map(self._characters.coded, self.family.result)
        begin = re.escape(begin).replace(re.escape(call_id(0)), r"[^\n]*")  # the model may have written any id
        coded = self._characters.from_pieces(pieces)
        found = list(map(self._characters.written, re.findall(f"(?s){begin}(.*?){re.escape(end)}", coded)))
        if found:
            return [json.loads(f'"{text}"') if self.family.quoted else text for text in found]
        stop = self._characters.coded(self.END)  # begins these pieces, or ended the turn before them
        begin, _, end = self._characters.from_pieces(self.turn_pieces(["\0"])).partition("\0")
        _, corrected, text = (stop + coded).rpartition(stop + begin)
        return [self._characters.written(text.removesuffix(end))] if corrected else []

    def read_observation(self, observation: str, count: int) -> list[str]:
        found = split_results(observation, self.family.result, count)
        if found is None or not self.family.quoted:
            return found or [observation]
        try:
            return [json.loads(f'"{text}"') for text in found]
        except ValueError:  # not this dialect's quoting
            return [observation]

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        coded = self._characters.coded(CODES.sub(NO_TEXT, completion))
        for stop in self._coded.stops:  # it is inside a call: elsewhere it would have ended the turn
            coded = coded.replace(stop, self._characters.protected(self._characters.written(stop)))
        return self._action(coded, truncated)

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        before_stop, stopped = self._coded.until_stop(self._coded_ids(ids))
        return self._action(before_stop, not stopped)

    def text_until_stop(self, text: str) -> tuple[str, bool]:
        """`until_stop` for text. A stop token between the tags of a call is part of that call."""
        coded = self._characters.coded(CODES.sub(NO_TEXT, text))
        begin, end = map(self._characters.coded, self.family.call)
        position = 0
        for _ in range(MAX_CALLS_READ):
            found = self._coded.until_stop(coded[position:])
            if not found[1]:
                return text, False
            stop = position + len(found[0])
            call = coded.find(begin, position, stop) if begin else -1
            close = coded.find(end, stop) if call >= 0 else -1
            inner = coded.find(end, call, stop) if call >= 0 else -1
            if inner >= 0:
                position = inner + len(end)
            elif close < 0 or coded.find(begin, call + len(begin), close) >= 0:
                break
            else:
                position = close + len(end)
        before, stopped = self._coded.until_stop(coded[position:])
        return self._characters.written(coded[:position] + before), stopped

    def _coded_ids(self, ids: Sequence[int]) -> str:
        return self._characters.from_pieces(self.codec.pieces(ids))

    @cached_property
    def _example(self) -> str:
        """A correct call, as text."""
        body = json.dumps({TOOL_ARGUMENT: EXAMPLE_COMMAND}) if self.family.json else EXAMPLE_COMMAND
        turn = BODIES.sub(lambda _: body, self._coded.shape(thinking=False, text=False, calls=1))[:-1]
        begin, closed = self._characters.coded(self.family.call[0]), self._characters.coded(self.family.think[1])
        rest = turn.partition(closed)[2] if closed else ""
        return self._characters.written(rest if rest and begin in rest else turn).strip()

    @cached_property
    def _rules(self) -> TurnRules:
        return TurnRules(f"The right form of a call:\n{self._example}")

    def _action(self, coded: str, truncated: bool) -> Action:
        parsed = self._coded.parse(coded)
        thinking = self._characters.written(parsed.reasoning_content or "")
        text = self._characters.written(parsed.content)
        return with_text(self._decide(coded, parsed, truncated), text, thinking)

    def _decide(self, coded: str, parsed: ParsedResponse, truncated: bool) -> Action:
        rules, begin = self._rules, self.family.call[0]
        if parsed.tool_calls:
            found = [self._read_call(coded, call) for call in parsed.tool_calls[:MAX_CALLS_READ]]
            return rules.run(found, truncated=truncated, unread=max(0, len(parsed.tool_calls) - MAX_CALLS_READ))
        thought = parsed.reasoning_content or ""
        if parsed.reasoning_complete is False:
            if truncated:
                return rules.cut_off(thinking=True)
            return rules.malformed(f"Your thinking was never closed with {self.family.think[1]}, so nothing was read.")
        if truncated:
            return rules.cut_off()
        if not parsed.content.strip():
            if begin and begin in self._characters.written(thought):
                return rules.malformed("Your tool call was inside your thinking, where calls are not run.")
            return rules.silent(thought=bool(thought.strip()))
        text = self._characters.written(parsed.content)
        marks = filter(None, map(str.strip, (*self.family.call, self.family.argument[0])))
        if spells_call(text) or (TOOL_NAME in text and any(mark in text for mark in marks)):
            return rules.malformed("Your reply has a tool call that is not in the right form.")
        return Action("final")

    def _read_call(self, coded: str, call: ParsedToolCall) -> Call:
        """Read a call that the library found. It is an error if the library dropped any of its text."""
        status, closed = str(call.status), str(call.status) != "unclosed_block"
        if not closed:
            return Call(None, f"it was never closed with {self.family.call[1]}", closed=False)
        if status in ("missing_name", "malformed_structure"):
            return Call(None, f"it does not have the right form: {excerpt(self._characters.written(call.raw).strip())}")
        block = coded if call.token_span is None else coded[slice(*call.token_span)]
        try:
            check_tool(call.name)
            command, notes = self._command(block, call)
        except CallError as error:
            return Call(None, str(error))
        return Call(command, notes=notes)

    def _command(self, block: str, call: ParsedToolCall) -> tuple[str, tuple[str, ...]]:
        begin, end = map(self._characters.coded, self.family.argument)
        if self.family.argument[0].startswith('"'):  # name and arguments are in one object
            whole = self._characters.written(block[block.find("{") : block.rfind("}") + 1])
            own = self.family.argument[0].strip('": ')
            return command_of_call(decode_whole(whole), list(dict.fromkeys((own, "arguments", "args", "parameters"))))
        if self.family.json:
            _, opened, rest = block.partition(begin)
            body = self._characters.written(rest.rpartition(end)[0]) if opened else json.dumps(call.arguments)
            return command_of_arguments(decode_whole(body))
        if not isinstance(call.arguments, dict):
            raise CallError("it has no arguments")
        written = self._characters.written
        read = {written(key): written(text) if isinstance(text, str) else text for key, text in call.arguments.items()}
        command, notes = command_of_arguments(read)
        # Some templates write false as False and "30" as 30, but the model may have written JSON.
        dumped = {key: json.dumps(value, ensure_ascii=False) for key, value in read.items()}
        texts = {key: value if isinstance(value, str) else dumped[key] for key, value in read.items()}
        quoted = {key: value if value == command else dumped[key] for key, value in read.items()}
        squeezed = self._squeezed(block)
        if all(squeezed != self._squeezed(self._coded.rendered_call(shown)) for shown in (read, texts, quoted)):
            raise CallError(
                f"part of it would be lost: the argument ends at the first {self.family.argument[1].strip()}, and "
                "there is text that belongs to no argument"
            )
        exact = written(block.partition(begin)[2].rpartition(end)[0])
        return check_command(exact if exact.strip() == command.strip() else command), notes

    def _squeezed(self, coded: str) -> str:
        return "".join(self._characters.written(coded).split())

    def _write(self, phrases: Sequence[Phrase]) -> tuple[list[Piece], list[Part | None]]:
        kinds = [phrase.kind for phrase in phrases]
        thinking = [n for n, kind in enumerate(kinds) if kind == "thinking" and self.thinks][:1]
        calls = [n for n, kind in enumerate(kinds) if kind == "call"][: 1 if self.one_call else None]
        texts = [n for n, kind in enumerate(kinds) if kind == "text" and not (calls and n > calls[0])]
        slots = [*filter(None, [thinking, texts]), *([n] for n in calls)]
        shape = self._coded.shape(thinking=bool(thinking), text=bool(texts), calls=len(calls))
        pieces: list[Piece] = []
        parts: list[Part | None] = [None] * len(phrases)
        frame = ""
        for chunk in BODIES.split(shape):
            if not BODIES.fullmatch(chunk):
                frame = chunk
                continue
            for number in slots[ord(chunk) - FIRST_BODY]:
                begin, end = self._opening(phrases[number].kind, frame)
                sizes = []
                for framing in (frame[:begin], frame[begin:end], frame[end:]):
                    pieces += self._characters.pieces(framing)
                    sizes.append(len(pieces))
                opens = (sizes[0], sizes[1]) if end > begin else None
                body = self._body(phrases[number])
                parts[number] = Part(phrases[number].kind, body, len(pieces), opens, raw=not self.family.json)
                pieces.append(body)
                frame = "\n"  # between two texts: without thinking in the dialect, thinking is a text
            frame = ""
        pieces += self._characters.pieces(frame)
        return pieces, [part if part is None else self._with_end(part, pieces, parts) for part in parts]

    def _opening(self, kind: Kind, frame: str) -> tuple[int, int]:
        """Bounds of the span that determines a part's kind in the coded framing before it; equal if there is none.

        The span is after the end of the previous part. Before the first call, it includes the opening of the section.
        """
        closes = [self._characters.coded(tag[1]) for tag in (self.family.think, self.family.call) if tag[1]]
        start = max((found.end() for close in closes for found in re.finditer(re.escape(close), frame)), default=0)
        controls = [found.start() for found in CONTROLS.finditer(frame, start)]
        if not controls:
            return start, start
        if kind != "call":
            return controls[0], controls[-1] + 1
        section, call = (self._characters.coded(mark) for mark in (self.family.section, self.family.call[0]))
        places = [place for mark in (section, call) if mark and (place := frame.find(mark, start)) >= 0]
        found = frame.find(call, start)  # Inkling's models can also write another token that opens a call
        return min([controls[0], *places]), found + len(call) if found >= 0 else controls[-1] + 1

    @cached_property
    def _text_opening(self) -> str:
        """The coded framing that shows that a text follows; empty if only the text itself shows it."""
        frame = BODIES.split(self._coded.shape(thinking=self.thinks, text=True, calls=0))[2 if self.thinks else 0]
        return frame[slice(*self._opening("text", frame))]

    def _with_end(self, part: Part, pieces: Sequence[Piece], parts: Sequence[Part | None]) -> Part:
        later = [other.place for other in parts if other is not None and other.place > part.place]
        if not later:
            return replace(part, ends=len(pieces), stops=part.kind != "thinking")
        close = {"thinking": self.family.think[1], "call": self.family.call[1]}.get(part.kind)
        end = next((n for n in range(part.place + 1, min(later)) if close and close in pieces[n]), None)
        return part if end is None else replace(part, ends=end + 1)

    def _body(self, phrase: Phrase) -> str:
        if phrase.kind != "call" or (self.family.json and not self.family.compact):
            return phrase.text
        try:
            arguments = json.loads(phrase.text)
        except ValueError:
            return phrase.text
        if self.family.json:
            return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        command = arguments.get(TOOL_ARGUMENT) if isinstance(arguments, dict) else None
        return command if isinstance(command, str) else phrase.text

    def turn_text(self, turn: ModelTurn) -> str:
        """See `Renderer.turn_text`. A closing tag in the thinking gets a space, so that it does not close it."""
        close = self.family.think[1]
        thinking = turn.thinking.replace(close, close[:1] + " " + close[1:]) if close else turn.thinking
        text = super().turn_text(replace(turn, thinking=thinking))
        return next((text.removesuffix(stop) for stop in set(self.family.stops) if text.endswith(stop)), text)

    def instead_of_text(self, *, first: bool) -> list[Control]:
        marks = [self.family.call[0]]
        if first and self.thinks and not self._coded.prompt_thinks:
            marks.append(self.family.think[0])
        found = (self._characters.pieces(self._characters.coded(mark))[:1] for mark in marks if mark)
        return [piece for pieces in found for piece in pieces if isinstance(piece, Control)]

    def read_parts(self, ids: Sequence[int], *, trimmed: bool) -> list[Part]:
        coded = self._coded_ids(ids)
        before, stopped = self._coded.until_stop(coded)
        parts = list(self._parts(before))
        if trimmed:
            parts = [inner for part in parts for inner in self._trimmed(part)]
            if stopped and parts and parts[-1].kind != "thinking":
                last = parts[-1]
                end = last.ends if last.kind == "call" else last.place + len(last.body)
                if end is not None and not self._frames.sub("", before[end:]).strip():
                    parts[-1] = replace(last, ends=len(before) + 1, stops=True)
        sizes = (len(self._characters.written(char)) for char in coded)
        offset = list(accumulate(sizes, initial=0)).__getitem__
        return [replace(part.at(offset), body=self._characters.written(part.body)) for part in parts]

    def _parts(self, turn: str) -> Iterator[Part]:
        """The parts of a coded turn, with everything between their tags; offsets count coded characters."""
        parsed = self._coded.parse(turn)
        think_open, think_close = map(self._characters.coded, self.family.think)
        position = 0
        spans = [call.token_span or (0, len(turn)) for call in parsed.tool_calls]
        if parsed.reasoning_content is not None or parsed.reasoning_complete is False:
            blank = len(turn) - len(turn.lstrip())
            explicit = bool(think_open) and turn.startswith(think_open, blank)
            begin = blank + len(think_open) if explicit else 0
            close = turn.find(think_close, begin) if think_close else -1
            end = close if close >= 0 else spans[0][0] if spans else len(turn)
            position = end + len(think_close) if close >= 0 else end
            opens, ends = (blank, begin) if explicit else None, position if close >= 0 else None
            yield Part("thinking", turn[begin:end], begin, opens, ends)
        begin_tag, end_tag = map(self._characters.coded, self.family.call)
        for call, (begin, end) in zip(parsed.tool_calls, spans, strict=True):
            texts = list(self._texts(turn, position, begin))
            yield from texts
            said = max((text.place + len(text.body.rstrip()) for text in texts if text.body.strip()), default=position)
            closed = str(call.status) != "unclosed_block"
            tag = turn.find(begin_tag, begin, end)  # in Inkling's turns, the call's name is before it
            inner = (tag if tag >= 0 else begin) + len(begin_tag)
            inner_end = end - len(end_tag) if closed and end_tag and turn.endswith(end_tag, inner, end) else end
            opening = self._opening("call", turn[said:inner])
            opens = (said + opening[0], said + opening[1]) if opening[1] > opening[0] else None
            yield Part("call", turn[inner:inner_end], inner, opens, end if closed else None)
            position = end
        yield from self._texts(turn, position, len(turn))

    @cached_property
    def _frames(self) -> re.Pattern[str]:
        """Matches control tokens, and the text that opens or closes a section of calls."""
        section = self._characters.coded(self.family.section)
        marks = [re.escape(mark) for mark in (section, f"</{section[1:]}") if len(section) > 1]
        return re.compile(f"({'|'.join([*marks, CONTROLS.pattern[1:-1]])})")

    def _texts(self, turn: str, begin: int, end: int) -> Iterator[Part]:
        place = begin
        for chunk in self._frames.split(turn[begin:end]):
            if chunk and not self._frames.fullmatch(chunk):
                mark = self._text_opening
                size = next((n for n in range(len(mark), 0, -1) if turn.endswith(mark[-n:], begin, place)), 0)
                yield Part("text", chunk, place, (place - size, place) if size else None)
            place += len(chunk)

    def _trimmed(self, part: Part) -> Iterator[Part]:
        if part.kind != "call":
            yield from part.stripped()
            return
        begin, end = map(self._characters.coded, self.family.argument)
        start = part.body.find(begin)
        if start < 0:
            return
        start += len(begin)
        stop = part.body.rfind(end, start)
        if self.family.json:
            try:
                _, stop = json.JSONDecoder(strict=False).raw_decode(part.body, start)
            except (ValueError, RecursionError):
                return
        if stop < 0:
            return
        yield replace(part, body=part.body[start:stop], place=part.place + start, raw=not self.family.json)
