"""Opens pages in Chromium, runs scripts in them and takes screenshots.

    python browser_program.py light < jobs.json > results.json

A job has `path`, `width` and `do`, a list of expressions in JavaScript or of
keys, as in `key:Left`; maybe `screenshot`, a file for a picture of all of the
page, and `scripts`, false for a page without them. The result of a job has
`console`, the messages of the page, and `values`, those of the expressions.

Runs in an environment of its own and imports nothing of this project.
"""

import functools
import json
import os
import sys

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = " ".join(
  [
    "--no-sandbox",  # Root has none, and the pages are our own.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    f"--blink-settings=preferredColorScheme={int('dark' not in sys.argv)}",
  ]
)

from PySide6.QtCore import QEventLoop, Qt, QTimer, QUrl
from PySide6.QtTest import QTest
from PySide6.QtWebEngineCore import (
  QWebEnginePage,
  QWebEngineScript,
  QWebEngineSettings,
)
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

_HEIGHT, _MAX_HEIGHT = 844, 16_000
_SECONDS = 60


class Page(QWebEnginePage):
  """A page that keeps what is written to its console."""

  def __init__(self):
    super().__init__()
    self.console = []

  def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802
    """Keeps a message; Chromium reports its own errors in the same way."""
    self.console.append(f"{message} ({os.path.basename(source)}:{line})")


def wait(start, signal=None, milliseconds=_SECONDS * 1000):
  """Runs the event loop until `start` calls back, or a signal is sent."""
  loop, results = QEventLoop(), []

  def finish(*values):
    results.extend(values)
    loop.quit()

  if signal is not None:
    signal.connect(finish)
  QTimer.singleShot(milliseconds, loop.quit)
  start(finish)
  if not results:
    loop.exec()
  return results[0] if results else None


def pause(milliseconds):
  """Lets the page draw."""
  wait(lambda finish: None, milliseconds=milliseconds)


def run(job):
  """Opens the page of one job, and does what it says."""
  page, view = Page(), QWebEngineView()
  scripts = QWebEngineSettings.WebAttribute.JavascriptEnabled
  page.settings().setAttribute(scripts, job.get("scripts", True))
  page.settings().setAttribute(
    QWebEngineSettings.WebAttribute.ShowScrollBars, False
  )
  view.setPage(page)
  view.resize(job["width"], _HEIGHT)
  view.show()
  url = QUrl.fromLocalFile(os.path.abspath(job["path"]))
  if not wait(lambda finish: view.load(url), view.loadFinished):
    raise RuntimeError(f"{job['path']} was not loaded.")
  pause(150)
  values = []
  for action in job["do"]:
    if action.startswith("key:"):
      key = getattr(Qt.Key, f"Key_{action[4:]}")
      QTest.keyClick(view.focusProxy(), key)
      pause(100)
    else:
      # In a world of its own, which runs where the page's scripts do not.
      call = f"JSON.stringify({action})", QWebEngineScript.ApplicationWorld
      text = wait(functools.partial(page.runJavaScript, *call))
      values.append(json.loads(text) if text else None)
  if job.get("screenshot"):
    height = int(page.contentsSize().height())
    view.resize(job["width"], min(max(height, _HEIGHT), _MAX_HEIGHT))
    pause(400)
    view.grab().save(job["screenshot"])
  view.close()
  return {"console": page.console, "values": values}


def main():
  """Does the jobs of the standard input."""
  jobs = json.load(sys.stdin)
  app = QApplication(sys.argv[:1])
  results = [run(job) for job in jobs]
  json.dump(results, sys.stdout)
  sys.stdout.flush()
  del app
  os._exit(0)  # Qt may crash when it takes Chromium down.


if __name__ == "__main__":
  main()
