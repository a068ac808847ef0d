"""`python -m penstock` is the `penstock` command.

Python puts the working directory first on the module path then, and a file `http.py` there would be taken for the
standard library's. The command needs nothing from there, so the entry goes before anything else is imported.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from penstock.cli.main import main

if __name__ == "__main__":
    main()
