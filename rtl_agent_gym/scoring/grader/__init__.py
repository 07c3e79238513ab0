"""The grader: the program that runs inside a scoring sandbox. Standard library only.

`supervisor` runs the services of a harness and reports what happened; `guard` stands in front of the simulators;
`witness` and `plugin` tell the supervisor how the tests ended. They talk over one socket, in the words of `messages`.
The files of this folder are sent to each scoring sandbox as the keeper's (`scoring/harness.py`), so the image knows
nothing of them but the folder's name.
"""
