"""Run notebook cells in IPython without a kernel: needs nothing of Jupyter's.

stdin: JSON, a list of sessions, each a list of cell sources. stdout: JSON, for each cell its
output and the exception that it raised, or null. Every session starts with an empty namespace.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


def main() -> None:
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.colors = "nocolor"
    sessions = json.load(sys.stdin)
    json.dump([_session(shell, cells) for cells in sessions], sys.stdout)


def _session(shell: InteractiveShell, cells: list[str]) -> list[dict]:
    shell.reset(new_session=True)
    return [_cell(shell, source) for source in cells]


def _cell(shell: InteractiveShell, source: str) -> dict:
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        result = shell.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    return {"shown": shown.getvalue(), "error": repr(error) if error else None}


if __name__ == "__main__":
    main()
