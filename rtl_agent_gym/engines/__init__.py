"""Training engines: the local one (`local`), and guarded access to it and to Tinker's service (`guarded`, `connect`).

Import from the modules: `protocol` needs no extra, `local` needs the extras ``train`` and ``local``. This file imports
neither torch nor tinker.
"""
