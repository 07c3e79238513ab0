"""The single-turn face: the real harness, rows of both formats, Gymnasium's own checks, and its Tinker twin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import rtl_agent_gym  # noqa: F401 - registers the environment
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.prompts import build_single_turn_prompt, file_order
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.renderer import ToollessRenderer
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer
from rtl_agent_gym.transcripts import read_transcript

LFSR = """module lfsr_8bit (
  input logic clock, input logic reset, input logic [7:0] lfsr_seed, output logic [7:0] lfsr_out);
  always_ff @(posedge clock or negedge reset)
    if (!reset) lfsr_out <= lfsr_seed;
    else lfsr_out <= {lfsr_out[0], lfsr_out[7], lfsr_out[6] ^ lfsr_out[0], lfsr_out[5] ^ lfsr_out[0], lfsr_out[4],
                      lfsr_out[3], lfsr_out[2], lfsr_out[1] ^ lfsr_out[0]};
endmodule
"""


def fenced(files: dict[str, str]) -> str:
    return "\n\n".join(f"```systemverilog {path}\n{text}```" for path, text in files.items())


@pytest.fixture
def env(arbiter: Problem) -> Iterator[gym.Env[str, str]]:
    made = gym.make("CVDPSingleTurn-v0", problems=[arbiter], render_mode="ansi")
    yield made
    made.close()


@pytest.mark.docker
def test_the_contract_of_reset_and_step(env: gym.Env[str, str], arbiter: Problem) -> None:
    prompt, info = env.reset(seed=0)
    assert arbiter.prompt.strip() in prompt
    for path, text in arbiter.context.items():
        assert path in prompt
        assert text.strip() in prompt
    assert "execute_bash" not in prompt
    assert {key: info[key] for key in ("problem_id", "category", "difficulty")} == {
        "problem_id": arbiter.id,
        "category": 3,
        "difficulty": "easy",
    }
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    assert arbiter.golden
    answer = f"<think>\n```verilog rtl/fixed_priority_arbiter.sv\nnot this\n```\n</think>\n\n{fenced(arbiter.golden)}"
    observation, reward, terminated, truncated, info = env.step(answer)
    assert reward == pytest.approx(1.4)
    assert (observation, terminated, truncated) == ("", True, False)
    assert (info["action"], info["stop_reason"], info["files"]) == ("final", "completed", list(arbiter.targets))
    assert info["score"]["passed"]
    screen = env.render()
    assert isinstance(screen, str)
    assert "── answer ──" in screen
    with pytest.raises(gym.error.ResetNeeded):
        env.step("more")


@pytest.mark.docker
@pytest.mark.parametrize(
    "answer",
    ["I do not know.", "", "<think>\n```verilog\nmodule fixed_priority_arbiter(); endmodule\n```", "```bash\nls\n```"],
)
def test_without_code_nothing_is_earned(env: gym.Env[str, str], answer: str) -> None:
    env.reset()
    _, reward, terminated, truncated, info = env.step(answer)
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["action"], info["stop_reason"], info["files"]) == ("malformed", "parse_error", [])
    assert (info["score"]["format"], info["score"]["syntax"]) == (0.0, 0.0)


@pytest.mark.docker
def test_a_given_file_that_was_not_answered_earns_nothing() -> None:
    given = next(problem for problem in load_problems("bundled") if set(problem.targets) & set(problem.context))
    env = gym.make("CVDPSingleTurn-v0", problems=[given])
    env.reset()
    assert env.step("It is right as it is.")[1] == 0.0
    env.close()


@pytest.mark.docker
def test_code_with_a_syntax_error_earns_the_format_alone(env: gym.Env[str, str]) -> None:
    env.reset()
    _, reward, *_, info = env.step("```verilog\nmodule fixed_priority_arbiter (input clk;\nendmodule\n```")
    assert reward == pytest.approx(0.1)
    assert (info["score"]["format"], info["score"]["syntax"]) == (1.0, 0.0)


@pytest.mark.docker
def test_a_non_agentic_row(cvdp_data: Path) -> None:
    source = cvdp_data / "cvdp_v1.1.0_example_nonagentic_code_generation_no_commercial.jsonl"
    env = gym.make("CVDPSingleTurn-v0", problems=source)
    prompt, info = env.reset(seed=0)
    assert "rtl/lfsr_8bit.sv" in prompt
    _, reward, *_, info = env.step(f"The design:\n\n{LFSR}")
    assert info["files"] == ["rtl/lfsr_8bit.sv"]
    assert reward == pytest.approx(1.4)
    env.close()


@pytest.mark.docker
@pytest.mark.usefixtures("shared_gradings")
def test_gpt_oss_answers_in_the_final_channel(arbiter: Problem) -> None:
    assert arbiter.golden
    env = gym.make("CVDPSingleTurn-v0", problems=[arbiter], renderer="gpt_oss")
    env.reset()
    said = (
        f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{fenced(arbiter.golden)}"
    )
    assert env.step(said + "<|return|>")[1] == pytest.approx(1.4)
    env.reset()
    assert env.step(said.replace("final", "analysis") + "<|end|>")[1] == 0.0
    env.reset()
    assert env.step(fenced(arbiter.golden))[1] == pytest.approx(1.4)  # a chat interface took the dialect off
    env.close()


def test_files_come_in_the_order_of_their_weight(arbiter: Problem) -> None:
    files = {"verif/tb.sv": "v", "rtl/a.sv": "a", "rtl/t.sv": "```inner```", "docs/s.md": "d"}
    problem = arbiter.model_copy(update={"context": files, "targets": ("rtl/t.sv",)})
    assert file_order(problem) == ["docs/s.md", "rtl/t.sv", "rtl/a.sv", "verif/tb.sv"]
    _, user = build_single_turn_prompt(problem)
    assert "````systemverilog\n```inner```\n````" in user  # the fence is longer than any in the files


def test_the_opening_without_a_tool_in_tokens() -> None:
    plain = ToollessRenderer(get_renderer("qwen3", qwen3_tokenizer()))
    text = qwen3_tokenizer().decode(plain.initial_ids("S", "U <|im_end|>"), skip_special_tokens=False)
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    end = qwen3_tokenizer().token_to_id("<|im_end|>")
    assert plain.initial_ids("S", "U <|im_end|>").count(end) == 2  # the one in the text is text
    without_system = plain.initial_ids("", "U")
    assert plain.initial_ids("S", "U")[-len(without_system) :] == without_system
    harmony = harmony_encoding().decode(ToollessRenderer(get_renderer("gpt_oss")).initial_ids("S", "U <|end|>"))
    assert "# Instructions\n\nS<|end|>" in harmony
    assert harmony.endswith("<|start|>user<|message|>U <|end|><|end|><|start|>assistant")
    assert "functions" not in harmony


def test_thinking_that_was_cut_off_is_no_answer() -> None:
    plain = ToollessRenderer(get_renderer("qwen3_5", qwen3_tokenizer()))
    assert plain.parse_completion("I would write a counter", truncated=True).text == ""
    assert plain.parse_completion("module counter; endmodule", truncated=False).text == "module counter; endmodule"


@pytest.mark.docker
@pytest.mark.usefixtures("shared_gradings")
async def test_the_tinker_twin(arbiter: Problem, tmp_path: Path) -> None:
    pytest.importorskip("tinker")
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from rtl_agent_gym.envs.tinker_data import CVDPDatasetBuilder
    from tests.envs.scripted_tinker import END, Script, decode

    assert arbiter.golden
    builder = CVDPDatasetBuilder(
        ids=[arbiter.id], model_name="Qwen/Qwen3-8B", single_turn=True, group_size=2, transcript_dir=str(tmp_path)
    )
    train, _ = await builder()
    (group,) = train.get_batch(0)
    script = Script([f"<think>\nhm\n</think>\n\n{fenced(arbiter.golden)}{END}"])
    done = await do_group_rollout(group, script)
    assert done.get_total_rewards() == [pytest.approx(1.4)] * 2
    trajectory = done.trajectories_G[0]
    assert (len(trajectory.transitions), trajectory.stop_reason) == (1, "completed")
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert "<tools>" not in decode(script.prompts[0])
    assert trajectory.transitions[0].metrics["format_valid"] == 1.0
    assert read_transcript(str(trajectory.transitions[0].logs["transcript"])).complete


@pytest.mark.docker
async def test_the_tinker_twin_shortens_files_and_says_when_an_answer_was_cut(arbiter: Problem) -> None:
    pytest.importorskip("tinker")
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
    from rtl_agent_gym.envs.tinker_env import CVDPEnvGroupBuilder
    from rtl_agent_gym.scoring import RewardWeights
    from tests.envs.scripted_tinker import END, Script, decode

    table = "\n".join(f"  8'd{i}: q = {i * 7 % 256};" for i in range(256))
    problem = arbiter.model_copy(
        update={"context": {**arbiter.context, "rtl/table.sv": f"module t;\n{table}\nendmodule\n"}}
    )
    config = TinkerEnvConfig(
        model_name="Qwen/Qwen3-8B",
        single_turn=True,
        max_prompt_tokens=3_000,
        max_tokens=8,
        reward=RewardWeights(simulate=False),
    )
    script = Script([f"```verilog\nmodule fixed_priority_arbiter (input clk);\nendmodule\n```{END}"])
    done = await do_group_rollout(CVDPEnvGroupBuilder(problem, config), script)
    prompt = decode(script.prompts[0])
    assert len(script.prompts[0]) <= 3_000
    assert "left out to fit the prompt]" in prompt
    assert arbiter.prompt.strip() in prompt
    assert done.trajectories_G[0].stop_reason == "max_tokens"
