"""Harbor: problems as task folders, and a verifier with the exact score.

`tasks` writes the folders, `verifier` grades on the host. `collect` and `grade` run in a task's containers, as root and
with the standard library alone: the first in the agent's once the agent has ended, the second in the verifier's. They
import no module that needs an installed package; `tasks` copies what they import. Only `verifier` imports Harbor.
"""
