"""Training engines: the in-process one, the tiny model for it, and what both it and Tinker's service offer.

Import from the modules: `protocol` needs nothing, `local` needs the extras ``train`` and ``local``, and `tiny` needs
``local``. This file imports neither torch nor tinker.
"""
