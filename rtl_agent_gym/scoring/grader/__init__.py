"""The grader: the program that runs inside a scoring sandbox. Standard library only.

`supervisor` runs the services of a harness and reports what happened; `guard` checks each call of a simulator;
`witness` and `plugin` report to the supervisor how the tests ended. They communicate over one socket with the messages
of `messages`. `scoring/harness.py` sends the files of this folder to each scoring sandbox as the keeper's, so the image
contains only the folder's name.
"""
