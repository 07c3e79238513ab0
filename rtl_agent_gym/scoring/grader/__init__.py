"""The grader: the program that runs inside a scoring sandbox. Standard library only.

`scoring/harness.py` sends the files of this folder to each scoring sandbox as the keeper's files, so the image contains
only the folder's name.
"""
