"""Training engines: the local one (`local`), and a run's access to it or to Tinker's service (`connect`, `requests`).

Import from the modules: `protocol` needs no extra, `local` needs the extras ``train`` and ``local``. This file imports
neither torch nor tinker.
"""
