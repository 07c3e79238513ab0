"""Rows that need a commercial simulator, graded in an image of the caller's.

No commercial tool is used: the image is made from the simulation image, without what this package puts into it, and
with a "simulator" that refuses to start without a licence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from rtl_agent_gym.episodes import runtime
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.errors import ImageError, ProblemError, SandboxError, SandboxLost, ServiceDown, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.evaluation.evaluate import require_images
from rtl_agent_gym.policies import Completion
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.problems.compose import SIM_IMAGES, base_images, named_images
from rtl_agent_gym.renderers import ToolCall, get_renderer
from rtl_agent_gym.retries import START
from rtl_agent_gym.sandboxes import DockerSandboxes, SandboxProvider, SandboxSpec
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.compose import HarnessImages, read_services
from rtl_agent_gym.scoring.harness import run_harness
from rtl_agent_gym.scoring.options import HIDDEN, GradingOptions, HarnessOptions
from rtl_agent_gym.scoring.scorer import why_unscorable
from rtl_agent_gym.scoring.submission import sift
from tests.cli.in_process import call
from tests.evaluation.recording import final_turn, record, score
from tests.scoring.conftest import COMPOSE, ENV, GOLDEN, TARGET, make_problem

LICENCE = "5280@licence.example.org"
STAND_IN = r"""FROM {base}
RUN mv /opt/rtl-agent-gym/real /opt/eda && rm -rf /opt/rtl-agent-gym && mv /venv /opt/python \
 && rm -f /opt/python/lib/python3*/site-packages/*rtl_gym* && rm -f /usr/local/bin/iverilog /usr/local/bin/vvp \
 && printf '#!/bin/sh\nexec /opt/python/bin/python3 "$@"\n' > /usr/local/bin/python3 \
 && printf '#!/bin/sh\nexec /usr/local/bin/python3 -m pytest "$@"\n' > /usr/local/bin/pytest \
 && printf '#!/bin/sh\necho licence: $EDA_LICENCE >&2\ntest "$EDA_LICENCE" = {licence} || exit 9\n%s\n' \
      'exec /opt/eda/iverilog "$@"' > /usr/local/bin/eda-compile \
 && chmod 755 /usr/local/bin/*
"""
RUNNER = """\
import os
import subprocess

def test_design():
    sources = os.environ["VERILOG_SOURCES"].split()
    assert subprocess.run(["eda-compile", "-g2012", "-o", "sim", *sources]).returncode == 0

def test_result_{name}():
    assert subprocess.run(["eda-compile", "-V"], capture_output=True, text=True).returncode == 0, os.environ

def test_hidden_files_cannot_be_written():
    assert not os.access("/src/test_runner.py", os.W_OK)
"""


def commercial(**changes: object) -> Problem:
    compose = COMPOSE.replace("__OSS_SIM_IMAGE__", "__VERIF_EDA_IMAGE__")
    compose += "    networks: [licnetwork]\nnetworks:\n  licnetwork: {name: licnetwork, external: true}\n"
    harness = {"docker-compose.yml": compose, "src/test_runner.py": RUNNER.format(name="x"), "src/test_adder.py": None}
    return make_problem(**{"id": "cvdp_agentic_closed_0001", "category": 14, "harness": harness, **changes})


@pytest.fixture
async def image(provider: DockerSandboxes) -> str:
    """The stand-in; built once."""
    text = STAND_IN.format(base=await provider.image(), licence=LICENCE)
    return await provider.build_image({"Dockerfile": text.encode()})


def options(image: str, folder: Path, licence: str = LICENCE) -> HarnessOptions:
    env = folder / "licence.env"
    env.write_text(f"# mine\nEDA_LICENCE={licence}\n", encoding="utf-8")
    return HarnessOptions.read([f"VERIF_EDA_IMAGE={image}"], env)


def test_without_an_image_it_says_what_is_needed() -> None:
    with pytest.raises(ProblemError) as caught:
        read_services(commercial())
    for found in (str(why_unscorable(commercial())), str(caught.value)):
        assert "needs a commercial simulator" in found
        assert "--harness-image VERIF_EDA_IMAGE=IMAGE" in found


def test_another_image_does_not_help() -> None:
    for name, helps in (("VERIF_EDA_IMAGE", True), ("OTHER", False)):
        reason = why_unscorable(commercial(), GradingOptions(harness=HarnessOptions.read([f"{name}=my/image:1"])))
        assert (reason is None) == helps
        assert helps or "--harness-image VERIF_EDA_IMAGE=IMAGE" in str(reason)


def test_an_image_that_no_row_names_is_an_error(tmp_path: Path) -> None:
    argv = ("--policy", "golden", "--harness-image", "VERIF_EDA_IMAG=my/image:1", "--out", str(tmp_path / "run"))
    done = call("eval", *argv)
    assert done.returncode == 2
    assert "no selected problem names this image (did you mean __VERIF_EDA_IMAGE__?)" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


def test_a_replay_is_graded_in_the_image_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, lease = commercial(), MagicMock()
    lease.__aenter__.return_value, lease.__aexit__.return_value = lease, None
    lease.runtime.scorer.side_effect = SandboxError("as far as this")
    monkeypatch.setattr("rtl_agent_gym.cli.replay.load_problems", lambda _: [problem])
    monkeypatch.setattr("rtl_agent_gym.cli.replay.acquire", lambda: lease)
    path = str(record(tmp_path, [final_turn(1, "done")], problem=problem.id, graded=score(True)))
    refused = call("replay", path)
    assert (refused.returncode, lease.runtime.scorer.called) == (2, False)
    assert "--harness-image VERIF_EDA_IMAGE=IMAGE" in " ".join(refused.stderr.split())
    assert "needs a terminal" in call("replay", path, "--to-turn", "1", "--shell").stderr
    assert call("replay", path, "--harness-image", "VERIF_EDA_IMAGE=mine").returncode == 3
    assert lease.runtime.scorer.call_args.kwargs["options"].harness.image("__VERIF_EDA_IMAGE__") == "mine"


@pytest.mark.parametrize(
    ("images", "text", "network", "words"),
    [
        (["x"], None, "", "expected NAME=IMAGE"),
        (["=x"], None, "", "expected NAME=IMAGE"),
        (["OSS_SIM_IMAGE=x"], None, "", "the package's own simulation image"),
        (["hdlc/sim:osvb=x"], None, "", "the package's own simulation image"),
        (["a=b"], "KEY", "", "line 1 is not NAME=value"),
        (["a=b"], "A-B=secret", "", "line 1 is not NAME=value"),
        ([], "A=b", "", "are for the images of --harness-image"),
        (["a=b"], None, "x y", "is not the name of a Docker network"),
    ],
)
def test_bad_options(images: Sequence[str], text: str | None, network: str, words: str, tmp_path: Path) -> None:
    env = None if text is None else tmp_path / "env"
    if env is not None:
        env.write_text(str(text), encoding="utf-8")
    with pytest.raises(UsageError, match=words) as caught:
        HarnessOptions.read(images, env, network)
    assert "secret" not in str(caught.value)


def test_the_file_of_an_editor_that_marks_utf_8_is_read(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("LICENCE=1234@here", encoding="utf-8-sig")
    assert HarnessOptions.read(["a=b"], tmp_path / "env").env == (("LICENCE", "1234@here"),)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="--harness-env /nowhere: cannot be read"):
        HarnessOptions.read(["a=b"], "/nowhere")
    with pytest.raises(UsageError, match="there is no home folder for ~no-such-user"):
        HarnessOptions.read(["a=b"], "~no-such-user/env")


def test_the_options_do_not_show_the_licence(tmp_path: Path) -> None:
    found = options("image", tmp_path)
    assert LICENCE not in repr(found)
    assert found.hide(f"at {LICENCE}!") == f"at {HIDDEN}!"


@pytest.mark.parametrize("name", ["IMAGE", "sim", "hdlc/sim", "python", "__OSS", "SIM_IMAGE__"])
@pytest.mark.parametrize("build", [False, True])
def test_a_part_of_a_name_is_not_the_name(name: str, build: bool) -> None:
    """Otherwise an ordinary row would be graded without its walls, beside the licence."""
    options = HarnessOptions(images=((name, "mine"),), env=(("EDA_LICENCE", LICENCE),))
    for sim_image in SIM_IMAGES:
        image = "build: ." if build else f"image: {sim_image}"
        files = {"docker-compose.yml": COMPOSE.replace("image: __OSS_SIM_IMAGE__", image)}
        if build:
            files["Dockerfile"] = f"FROM {sim_image}\nRUN python --version\n"
        (service,) = read_services(make_problem(harness=files), options)
        assert (service.image, service.env.get("EDA_LICENCE")) == (None, None)


def test_only_the_images_of_a_dockerfile_are_replaced() -> None:
    options = HarnessOptions.read(["VERIF_EDA_IMAGE=mine:1", "tools=mine:2"])
    before = "FROM --platform=linux/arm tools AS a\nFROM __VERIF_EDA_IMAGE__\nCOPY --from=tools /x /tools\nRUN tools\n"
    after = "FROM --platform=linux/arm mine:2 AS a\nFROM mine:1\nCOPY --from=mine:2 /x /tools\nRUN tools\n"
    for text, changed in (
        ("RUN --mount=type=bind,from=tools,target=/x ls\n", "RUN --mount=type=bind,from=mine:2,target=/x ls\n"),
        ("FROM \\\n  tools\n", "FROM \\\n  mine:2\n"),
        ("from tools\n", "from mine:2\n"),
    ):
        assert options.resolve(text) == changed
    assert named_images(before) == ["tools", "tools", "__VERIF_EDA_IMAGE__"]
    assert base_images(before) == ["tools", "__VERIF_EDA_IMAGE__"]
    assert options.resolve(before) == after


def test_a_dockerfile_that_copies_from_the_callers_image_is_not_graded_from_the_cache() -> None:
    options = HarnessOptions(images=(("__VERIF_EDA_IMAGE__", "mine"),), env=(("EDA_LICENCE", LICENCE),))
    dockerfile = "FROM __OSS_SIM_IMAGE__\nCOPY --from=__VERIF_EDA_IMAGE__ /opt /opt\n"
    files = {"docker-compose.yml": COMPOSE.replace("image: __OSS_SIM_IMAGE__", "build: ."), "Dockerfile": dockerfile}
    (service,) = read_services(make_problem(harness=files), options)
    assert (service.image, service.env["EDA_LICENCE"]) == ("mine", LICENCE)


@pytest.mark.parametrize(("own", "network"), [(None, ""), ("mine", "licences")])
async def test_only_the_callers_images_join_the_network(own: str | None, network: str) -> None:
    problem = make_problem()
    services = [replace(service, image=own) for service in read_services(problem)]
    provider = Mock(create=AsyncMock(side_effect=SandboxError("enough")))
    with pytest.raises(SandboxError, match="enough"):
        await run_harness(sift(problem, {}), services, provider, HarnessImages("sha256:0"), network="licences")
    assert provider.create.call_args.args[0].network == network


@pytest.mark.parametrize(("count", "seconds"), [(1, 40.0), (3, 80.0)])
async def test_each_service_of_a_sandbox_has_its_own_time(count: int, seconds: float) -> None:
    problem = make_problem()
    box = AsyncMock()
    box.standby.communicate.side_effect = SandboxError("enough")
    services, provider = count * list(read_services(problem)), Mock(create=AsyncMock(return_value=box))
    with pytest.raises(SandboxError, match="enough"):
        await run_harness(sift(problem, {}), services, provider, HarnessImages("sha256:0"), timeout=10.0)
    assert box.standby.communicate.call_args.kwargs["timeout"] == seconds


@pytest.mark.docker
@pytest.mark.daemon  # an image of the caller's, which has less than the simulation image, needs Docker
async def test_a_design_is_graded_in_the_callers_image(image: str, provider: DockerSandboxes, tmp_path: Path) -> None:
    problem = commercial()
    async with Scorer(provider, harness=options(image, tmp_path), cache=tmp_path / "cache") as scorer:
        right, wrong = await asyncio.gather(
            *(scorer.score(problem, {TARGET: text}) for text in (GOLDEN, GOLDEN.replace("endmodule", "oops")))
        )
    assert (right.passed, right.tests_passed, right.tests_total) == (True, 3, 3), right.reason
    assert (wrong.passed, wrong.tests_passed) == (False, 2), wrong.reason
    assert not list((tmp_path / "cache").glob("*/*"))  # what such a tool says is in no key


@pytest.mark.docker
async def test_no_image_of_the_callers_is_graded_from_the_cache(
    shared_provider: SandboxProvider, tmp_path: Path
) -> None:
    """Also where the harness names it plainly, which is nothing commercial."""
    compose = commercial().harness["docker-compose.yml"].replace("__VERIF_EDA_IMAGE__", "vendor/sim:1")
    problem = commercial(harness={**commercial().harness, "docker-compose.yml": compose})
    harness = HarnessOptions.read([f"vendor/sim:1={await shared_provider.image()}"])
    async with Scorer(shared_provider, harness=harness, cache=tmp_path / "cache") as scorer:
        await scorer.score(problem, {TARGET: GOLDEN})
    assert not list((tmp_path / "cache").glob("*/*"))


@pytest.mark.docker
async def test_nothing_is_hidden_where_no_image_is_the_callers(shared_provider: SandboxProvider) -> None:
    """Such a grading is kept, also for those who have other variables."""
    harness = HarnessOptions(images=(("__VERIF_EDA_IMAGE__", "mine"),), env=(("WORD", "test"),))
    async with Scorer(shared_provider, harness=harness) as scorer:
        score = await scorer.score(make_problem(), {TARGET: GOLDEN})
    assert "test" in score.tests[0].name


@pytest.mark.docker
@pytest.mark.slow  # more gradings in an image that takes long to build
async def test_without_its_licence_the_tool_fails(image: str, provider: DockerSandboxes, tmp_path: Path) -> None:
    """So the variables are what lets the other test pass; and a value that a test prints or is named by is hidden."""
    other = "0000@other.example.org"
    named = RUNNER.format(name="x").replace("def test_design():", "def test_design(capsys):")
    named += "\n\nimport pytest\n\n@pytest.mark.parametrize('at', [os.environ['EDA_LICENCE']])\n"
    named += "def test_at(at):\n    assert 0, at\n"
    problem = commercial(harness={**commercial().harness, "src/test_runner.py": named})
    async with Scorer(provider, harness=options(image, tmp_path, other)) as scorer:
        score = await scorer.score(problem, {TARGET: GOLDEN})
    assert (score.passed, score.tests_passed, score.tests_total) == (False, 1, 4), score.reason
    assert any(HIDDEN in test.name for test in score.tests)
    assert other not in score.model_dump_json()


def built_on_it() -> Problem:
    """A row whose Dockerfile builds on the caller's image."""
    compose = commercial().harness["docker-compose.yml"].replace("image: __VERIF_EDA_IMAGE__", "build: .")
    runner = RUNNER.format(name="x") + "\n\ndef test_added():\n    assert os.path.exists('/added')\n"
    files = {
        "Dockerfile": "FROM __VERIF_EDA_IMAGE__\nRUN touch /added\n",
        "src/test_runner.py": runner,
        "src/.env": ENV,
    }
    return commercial(harness={"docker-compose.yml": compose, **files})


@pytest.mark.docker
async def test_an_image_that_cannot_be_built_is_noticed_before_anything_is_played(tmp_path: Path) -> None:
    episode = EpisodeConfig(harness_images=("VERIF_EDA_IMAGE=localhost/rtl-agent-gym/nothing:1",))
    config = EvaluationConfig(problems=[built_on_it()], policy="golden", folder=tmp_path / "run", episode=episode)
    with pytest.raises(ImageError, match="building the image of Dockerfile failed"):
        await evaluate(config)
    assert (tmp_path / "run" / "results.jsonl").read_text() == ""
    assert not list((tmp_path / "run").glob("transcripts/*"))


async def test_an_image_that_does_not_start_is_noticed_before_anything_is_played(tmp_path: Path) -> None:
    problems, sandbox = [commercial(), commercial(id="cvdp_agentic_closed_0002")], Mock(close=AsyncMock())
    provider = Mock(image=AsyncMock(return_value="sha256:0"), create=AsyncMock(return_value=sandbox))
    episode = EpisodeConfig(workspace="answer", harness_images=("VERIF_EDA_IMAGE=mine",), harness_network="licences")
    config = EvaluationConfig(problems=problems, policy="golden", folder=tmp_path / "run", episode=episode)
    await require_images(config, problems, provider)
    assert [(made.args[0].image, made.args[0].network) for made in provider.create.call_args_list] == [
        ("mine", "licences")
    ]
    sandbox.close.assert_awaited_once()
    provider.create.side_effect = ImageError("it is not there")
    with pytest.raises(ImageError, match="it is not there"):
        await evaluate(config, provider=provider)
    assert (tmp_path / "run" / "results.jsonl").read_text() == ""


async def test_a_start_that_fails_once_ends_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(require_images.__globals__, "START", START._replace(first=0.0))
    sandbox = Mock(close=AsyncMock())
    provider = Mock(
        image=AsyncMock(return_value="sha256:0"), create=AsyncMock(side_effect=[SandboxLost("it is gone"), sandbox])
    )
    config = EvaluationConfig(episode=EpisodeConfig(harness_images=("VERIF_EDA_IMAGE=mine",)))
    await require_images(config, [commercial()], provider)
    sandbox.close.assert_awaited_once()


async def test_no_sandbox_of_a_tried_image_is_kept_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes: list[Mock] = []

    async def create(spec: SandboxSpec) -> Mock:
        sandboxes.append(Mock(close=AsyncMock(), ping=AsyncMock()))
        return sandboxes[-1]

    image = AsyncMock(return_value="sha256:0")
    provider = Mock(image=image, create=create, create_ahead=create, close=AsyncMock())
    monkeypatch.setattr(runtime, "make_provider", lambda **_: provider)
    monkeypatch.setattr(runtime, "given_limits", lambda: {"ready": 2})
    episode = EpisodeConfig(workspace="answer", harness_images=("VERIF_EDA_IMAGE=mine",))
    config = EvaluationConfig(problems=[commercial()], policy="golden", folder=tmp_path / "run", episode=episode)
    grader = Mock(score=AsyncMock(side_effect=ServiceDown("enough")))
    with runtime.using(runtime.LocalRuntime), pytest.raises(ServiceDown, match="enough"):
        await evaluate(config, grader=grader)
    assert [sandbox.close.await_count for sandbox in sandboxes] == [1]


@pytest.mark.docker
@pytest.mark.slow  # builds another image
async def test_a_row_with_a_dockerfile_builds_on_it(image: str, provider: DockerSandboxes, tmp_path: Path) -> None:
    """And an agent has neither the image nor the variables; nothing of them is in the transcript."""
    problem, harness = built_on_it(), options(image, tmp_path)
    config = EpisodeConfig(
        transcript_dir=tmp_path / "transcripts",
        harness_images=(f"VERIF_EDA_IMAGE={image}",),
        harness_env=tmp_path / "licence.env",
    )
    assert config.grading.harness == harness
    assert why_unscorable(problem, config.grading) is None
    async with (
        Scorer(provider, harness=harness) as scorer,
        Episode(problem, provider=provider, grader=scorer, renderer=get_renderer("qwen3"), config=config) as episode,
    ):
        await episode.start()
        turn = await episode.act([ToolCall.of(f"env; command -v eda-compile; cat > {TARGET} <<'E'\n{GOLDEN}E")])
        last = await episode.step(Completion("Done."))
    assert "EDA" not in turn.observation
    assert "eda-compile" not in turn.observation
    assert last.score is not None
    assert (last.score.passed, last.score.tests_total) == (True, 4), last.score.reason
    (transcript,) = (tmp_path / "transcripts").iterdir()
    text = transcript.read_text(encoding="utf-8")
    assert LICENCE not in text
    assert json.loads(text.splitlines()[0])["options"].keys().isdisjoint({"harness_env", "harness_images"})
