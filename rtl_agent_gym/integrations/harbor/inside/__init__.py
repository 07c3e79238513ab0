"""The programs of a task that run in Harbor's containers, as root and with the standard library alone.

`collect` runs in the agent's container once the agent has ended, `grade` in the verifier's. Nothing here imports a
module that needs an installed package; `task_program` copies what is imported.
"""
