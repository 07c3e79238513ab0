"""An agent of Harbor's that plays a script; imported where Harbor is installed."""

from __future__ import annotations

import json
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from rtl_agent_gym.sandboxes.daemon import connect
from tests.integrations.conformance import Script

SERVICE, PROJECT = "com.docker.compose.service", "com.docker.compose.project"


class ScriptedAgent(BaseAgent):
    """Runs the commands of a script as the agent's user; the model is cut off where the script ends.

    Args:
        script: A file with the pickled `Script`.
        fault_once: A file that is made when the script's fault has happened; it happens only without the file. None
            for a fault in every trial.
        harbor: Harbor's own arguments.
    """

    def __init__(self, *, script: str, fault_once: str | None = None, **harbor: Any) -> None:
        super().__init__(**harbor)
        self.script: Script = pickle.loads(Path(script).read_bytes())
        self.mark = None if fault_once is None else Path(fault_once)

    @staticmethod
    def name() -> str:
        return "scripted"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        return

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        for number, turn in enumerate(self.script.turns, 1):
            if number == self.script.fault_in and not (self.mark and self.mark.exists()):
                kill_main(environment.session_id)
                if self.mark:
                    self.mark.touch()
            for call in turn if isinstance(turn, tuple) else ():
                command = json.loads(call.arguments).get("command")
                if isinstance(command, str):
                    await self._execute(environment, command)

    async def _execute(self, environment: BaseEnvironment, command: str) -> None:
        """Run a command. What its time limit ends, or its container, the agent reads as text, as others' agents do."""
        try:
            await environment.exec(command, timeout_sec=int(self.script.config.command_timeout))
        except RuntimeError as error:
            self.logger.info("the agent reads: %s", error)


def kill_main(session: str) -> None:
    """End the agent's container from outside, as a machine would."""
    with closing(connect()) as client:
        containers = client.containers.list(filters={"label": f"{SERVICE}=main"})
        (found,) = (each for each in containers if each.labels[PROJECT].lower() == session.lower())
        found.kill()
