"""The documentation: its links, paths, commands and programs are true."""

import ast
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import gin
from absl.testing import absltest, parameterized

from paragan_tf import config
from paragan_tf import run as run  # Registers what configs name.
from tests import testing

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = (
  ROOT / "README.md",
  ROOT / "CONTRIBUTING.md",
  *sorted((ROOT / "docs").glob("*.md")),
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"python3? -m tools\.(\w+)(.*)")
_BINDING = re.compile(r"[\w/.]+\.\w+ = (?!@losses\.yours).+")
_FOLDERS = ("docs", "gin", "paragan_tf", "tests", "tools")

# Imports TensorFlow once, then runs all programs at the same time, each in a
# process of its own. Imports nothing of ours, so that a missing import shows.
_RUN_ALL = """
import json, os, sys, traceback
import tensorflow
pids = []
for i, program in enumerate(json.load(sys.stdin)):
  os.mkdir(str(i))
  pids.append(os.fork())
  if not pids[-1]:
    code = 1
    try:
      os.chdir(str(i))
      for number in (1, 2):
        os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
      exec(compile(program, "program", "exec"), {"__name__": "__main__"})
      code = 0
    except BaseException:
      traceback.print_exc()
    finally:
      sys.stdout.flush()
      os._exit(code)
for pid in pids:
  print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def name(path):
  return str(path.relative_to(ROOT))


def prose(path):
  """Returns a page without its code blocks."""
  return _FENCE.sub("", path.read_text())


def spans(path):
  """Returns what a page has in backticks, each on one line."""
  return [" ".join(x.split()) for x in _SPAN.findall(prose(path))]


def programs():
  """Returns `(page, code)` of every Python program that TensorFlow can run."""
  return [
    (name(path), code)
    for path in PAGES
    for language, code in _FENCE.findall(path.read_text())
    if language == "python"
    and (testing.HAS_ESTIMATOR or "engine.estimator" not in code)
  ]


def anchors(path):
  """Returns the anchors that GitHub gives to the headings of a page."""
  found = []
  for heading in re.findall(r"^#+ (.*)$", prose(path), re.M):
    text = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    count = found.count(text)
    found.append(f"{text}-{count}" if count else text)
  return found


def commands(path):
  """Returns `(tool, arguments)` of every command that a page shows."""
  blocks = [code for _, code in _FENCE.findall(path.read_text())]
  lines = [
    line for code in blocks for line in code.replace("\\\n", "").splitlines()
  ]
  found = (_COMMAND.search(line) for line in [*lines, *spans(path)])
  return [(x[1], shlex.split(x[2], comments=True)) for x in found if x]


def values_of(flag, arguments):
  """Returns the values that a command gives to a flag."""
  start = f"--{flag}="
  return [x.removeprefix(start) for x in arguments if x.startswith(start)]


@functools.cache
def flags_of(tool):
  """Returns the flags that a tool defines, each with its values if it says."""
  found = {}
  text = (ROOT / "tools" / f"{tool}.py").read_text()
  if "gin_flags" in text:
    text += (ROOT / "tools" / "gin_flags.py").read_text()
  for node in ast.walk(ast.parse(text)):
    called = getattr(getattr(node, "func", None), "attr", "")
    if called.startswith("DEFINE_"):
      values = node.args[2] if called == "DEFINE_enum" else None
      found[node.args[0].value] = values and ast.literal_eval(values)
  return found


class PagesTest(parameterized.TestCase):
  def test_the_readme_can_be_read_to_its_end(self):
    lines = (ROOT / "README.md").read_text().splitlines()
    self.assertLessEqual(len(lines), 250)

  @parameterized.parameters(*map(name, PAGES))
  def test_links_lead_somewhere(self, page):
    path = ROOT / page
    for link in _LINK.findall(prose(path)):
      if "://" in link:
        continue
      file, _, anchor = link.partition("#")
      target = (path.parent / file) if file else path
      self.assertTrue(target.is_file(), link)
      if anchor:
        self.assertIn(anchor, anchors(target), link)

  @parameterized.parameters(*map(name, PAGES))
  def test_paths_exist(self, page):
    text = (ROOT / page).read_text()
    found = re.findall(r"\bgin/[\w/]+(?:\.gin|/)", text)
    for span in spans(ROOT / page):
      if re.fullmatch(rf"({'|'.join(_FOLDERS)})/[\w/.]*", span):
        found.append(span)
      elif re.fullmatch(r"\w+/[\w/]+\.py", span):  # A room of the package.
        found.append(f"paragan_tf/{span}")
    for file in found:
      self.assertTrue((ROOT / file).exists(), file)

  def test_every_page_is_in_the_index(self):
    readme = (ROOT / "README.md").read_text()
    for path in PAGES[1:]:
      self.assertIn(f"]({name(path)})", readme)


class CommandsTest(parameterized.TestCase):
  @parameterized.parameters(*map(name, PAGES))
  def test_tools_and_their_flags_exist(self, page):
    for tool, arguments in commands(ROOT / page):
      self.assertTrue((ROOT / "tools" / f"{tool}.py").is_file(), tool)
      own, rest = arguments, []
      if tool == "launch" and "--" in arguments:  # What follows is `train`'s.
        at = arguments.index("--")
        own, rest = arguments[:at], arguments[at:]
      self.check_flags(tool, own)
      self.check_flags("train", rest)

  def check_flags(self, tool, arguments):
    for flag in arguments:
      key, _, value = flag[2:].partition("=")
      if not flag.startswith("--") or not key:
        continue
      self.assertIn(key, flags_of(tool), f"{tool} {flag}")
      self.assertIn(value, flags_of(tool)[key] or [value], f"{tool} {flag}")

  @parameterized.parameters(*map(name, PAGES))
  def test_flags_that_stand_alone_are_those_of_some_tool(self, page):
    tools = [path.stem for path in (ROOT / "tools").glob("*.py")]
    known = {flag for tool in tools for flag in flags_of(tool)}
    for span in spans(ROOT / page):
      for flag in span.split() if span.startswith("--") else ():
        self.assertIn(flag.lstrip("-").partition("=")[0], known, span)

  @parameterized.parameters(*map(name, PAGES))
  def test_suites_exist(self, page):
    text = (ROOT / "tools" / "benchmark.py").read_text()
    known = re.search(r"^SUITES.*?^}", text, re.M | re.S)[0]
    for suite in re.findall(r"--suite=(\w+)", (ROOT / page).read_text()):
      self.assertIn(f'"{suite}":', known)

  @parameterized.parameters(*map(name, PAGES))
  def test_configs_can_be_read(self, page):
    self.addCleanup(gin.clear_config)
    for _, arguments in commands(ROOT / page):
      files = values_of("gin_file", arguments)
      if files and "..." not in files:
        config.load(files, values_of("gin_bindings", arguments))
    every = ["gin/runs/fashion.gin", "gin/sync/quantized.gin"]
    config.load(every, list(filter(_BINDING.fullmatch, spans(ROOT / page))))


class ProgramsTest(parameterized.TestCase):
  """Programs run as they are printed, where a user has only the package."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    process = subprocess.run(
      [sys.executable, "-c", _RUN_ALL],
      cwd=cls.folder,
      env={
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": folder.name,
        "TF_ENABLE_ONEDNN_OPTS": "1",  # As `paragan_tf` sets it.
      },
      input=json.dumps([code for _, code in programs()]),
      capture_output=True,
      text=True,
      check=False,
    )
    cls.codes = process.stdout.split()
    cls.words = process.stderr

  @parameterized.parameters(
    *((i, page) for i, (page, _) in enumerate(programs()))
  )
  def test_it_runs(self, i, page):
    self.assertLen(self.codes, len(programs()), self.words)
    log = (self.folder / str(i) / "log").read_text()
    self.assertEqual(self.codes[i], "0", f"{page}:\n{log}")

  def test_they_leave_what_they_say(self):
    left = {
      str(path.relative_to(self.folder)).partition("/")[2]
      for path in self.folder.glob("*/runs/*/*")
    }
    for file in (
      "runs/mine/model.ckpt-40.index",
      "runs/mine/report.html",
      "runs/mine/export",
      "runs/async/model.ckpt-20.index",
      *(["runs/estimator/model.ckpt-40.index"] * testing.HAS_ESTIMATOR),
      "runs/smoke/model.ckpt-40.index",
      "runs/smoke/export",
    ):
      self.assertIn(file, left)


if __name__ == "__main__":
  absltest.main()
