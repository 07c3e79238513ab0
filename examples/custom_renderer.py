#!/usr/bin/env python
"""A model dialect of your own, used in an episode. docs/renderers.md explains the protocol.

    .venv/bin/python examples/custom_renderer.py

This one is for a model that you train yourself: a command is written between two tags without any escaping, and
results are returned in a turn of the role ``shell``. One class describes the format in pieces:
`Control("<|end|>")` is a control token, and a plain string is text that can never become a control token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import gymnasium as gym
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.policies import heredoc
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import Action, Message, Renderer
from rtl_agent_gym.renderers.actions import CallError, check_command, limit_calls
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import Control, Piece, char_bytes, printable

ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"

TEACHING = """\
To run a command in the persistent bash shell, write it between two tags, as it is:
<bash>
ls -la /code/rtl
</bash>
What it printed comes back. A reply without a command ends the task."""


class TaggedRenderer(Renderer):
    """Commands between tags, raw. See `Renderer` for what each method does."""

    END = Control("<|end|>")

    def initial_messages(self, system: str, user: str) -> list[Message]:
        return [{"role": "system", "content": f"{system}\n\n{TEACHING}".strip()}, {"role": "user", "content": user}]

    def initial_pieces(self, system: str, user: str) -> list[Piece]:
        opening: list[Piece] = []
        for message in self.initial_messages(system, user):
            opening += [Control(f"<|{message['role']}|>"), message["content"], self.END]
        return [*opening, Control("<|assistant|>")]

    def reply_pieces(self, contents: Sequence[Sequence[Piece]]) -> list[Piece]:
        return [piece for content in contents for piece in [*content, "\n"]][:-1]

    def turn_pieces(self, reply: Sequence[Piece]) -> list[Piece]:
        return [Control("<|shell|>"), *reply, self.END, Control("<|assistant|>")]

    def parse_completion(self, completion: str, *, truncated: bool) -> Action:
        found = re.findall(r"<bash>\n?(.*?)</bash>", completion, re.DOTALL)
        rest = re.sub(r"<bash>.*?</bash>", "", completion, flags=re.DOTALL)
        if "<bash>" in rest or "</bash>" in rest:
            return _malformed("a tag has no partner", truncated)
        if not found:
            if truncated or not rest.strip():
                return _malformed("the reply is empty or was cut off", truncated)
            return Action("final", text=printable(rest).strip())
        try:
            commands, notes = limit_calls([check_command(command) for command in found])
        except CallError as error:
            return _malformed(str(error), truncated)
        return Action("command", commands, printable(rest).strip(), notes=notes)


def _malformed(what: str, truncated: bool) -> Action:
    cut = " Your reply was cut off by the token limit: be briefer." if truncated else ""
    return Action("malformed", correction=f"ERROR: {what}.{cut} Nothing was run.\n{TEACHING}")


def byte_tokenizer() -> Tokenizer:
    """A vocabulary of single bytes and this dialect's control tokens. Use your model's own instead."""
    tokenizer = Tokenizer(models.BPE(vocab=char_bytes(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ("<|system|>", "<|user|>", "<|assistant|>", "<|shell|>", "<|end|>")
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    return tokenizer


def main() -> None:
    """Play an episode with `gym.make`, and collect its tokens as a trainer would."""
    problem = load_problems("bundled", ids=[ARBITER])[0]
    assert problem.golden is not None
    design = "\n".join(heredoc(path, text) for path, text in problem.golden.items())
    completions = [
        "I look around.\n<bash>ls docs rtl verif</bash>",
        "<bash>iverilog -V | head -n 1",  # a mistake: the closing tag is missing
        f"The design:\n<bash>\n{design}\niverilog -g2012 -o rundir/sim rtl/*.sv && echo compiled\n</bash>",
        "The arbiter is written, and it compiles.",
    ]
    tokenizer = byte_tokenizer()
    renderer = TaggedRenderer("tagged", tokenizer)
    env = gym.make("CVDPAgentic-v0", problems=[problem], renderer=renderer)
    try:
        _, info = env.reset(seed=0)
        system, user = (message["content"] for message in info["messages"])
        print(f"the system message ends:\n{system[-len(TEACHING) :]}\n")
        tokens = TokenTranscript(renderer.initial_ids(system.removesuffix(TEACHING).rstrip(), user))
        for completion in completions:
            observation, reward, terminated, _, info = env.step(completion)
            sampled = [*tokenizer.encode(completion).ids, *renderer.stop]
            tokens.add_action(sampled)
            answer = observation.splitlines() or ["(the files are scored)"]
            shown = answer[0] if info["action"] == "malformed" else answer[-1]
            print(f"turn {info['turn']}, {info['action']}: {completion.splitlines()[0]} → {shown}")
            if info["action"] == "malformed":
                tokens.append(renderer.correction_ids(observation, sampled))
            elif not terminated:
                tokens.append(renderer.observation_ids([observation], sampled))
        tail = tokenizer.decode(tokens.tokens[-72:], skip_special_tokens=False)
        print(f"\nthe end of the {len(tokens)} tokens, of which {sum(tokens.mask)} were sampled:\n{tail}")
        print(f"reward {reward:g}: {info['score']['tests_passed']} of {info['score']['tests_total']} hidden tests pass")
    finally:
        env.close()


if __name__ == "__main__":
    main()
