"""Harbor: problems as task folders, and a verifier with the exact score.

`tasks` writes the folders, `verifier` grades on the host. `collect` and `grade` run in a task's containers, as root and
with only the standard library: `collect` in the agent's container after the agent has ended, `grade` in the verifier's.
`tasks` copies the modules that they import; none needs an installed package. Only `verifier` imports Harbor.
"""
