"""Harbor: problems as task folders, and a verifier with the exact score.

`export` writes the folders, `verifier` grades on the host, and `inside` has the programs that a task takes with it into
its containers. Only `verifier` imports Harbor.
"""
