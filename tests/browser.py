"""A real browser for tests: the Chromium in Qt's wheels.

    python -m tests.browser        # installs it, or says why it cannot be

It has an environment of its own, about 265 MB from the package index.
"""

import functools
import json
import pathlib
import subprocess
from typing import Any, Dict, List, Optional, Sequence

from tools.own_environment import OwnEnvironment

_HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = OwnEnvironment(
  "browser", "The test browser", _HERE / "files" / "browser.txt"
)


def visit(scheme: str, jobs: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
  """Opens pages in `light` or `dark`, as browser_program.py says."""
  process = subprocess.run(
    [ENVIRONMENT.get_python(), str(_HERE / "browser_program.py"), scheme],
    input=json.dumps(list(jobs)),
    capture_output=True,
    text=True,
    timeout=300,
  )
  if process.returncode:
    raise RuntimeError(f"The browser failed: {process.stderr[-2000:]}")
  return json.loads(process.stdout)


@functools.cache
def find_problem() -> Optional[str]:
  """Returns why there is no browser here, or `None`."""
  if not ENVIRONMENT.is_installed():
    return "no browser is installed; `make browser` does it"
  try:
    visit("light", [])
  except (RuntimeError, OSError) as e:
    # Its last line names the library of the system that is missing.
    return f"the browser does not start: {str(e).strip().splitlines()[-1]}"
  return None


def main() -> None:
  """Installs the browser, unless it is there; tests are skipped without it."""
  if not ENVIRONMENT.is_installed():
    print("Installing a browser for tests, 265 MB.", flush=True)
    try:
      ENVIRONMENT.install()
    except ValueError as e:
      print(f"Tests of pages will be skipped: {e}", flush=True)
      return
  problem = find_problem()
  if problem:
    print(f"Tests of pages will be skipped: {problem}.", flush=True)


if __name__ == "__main__":
  main()
