"""A gin config is only data: every way in that would run code is refused."""

import os
import pathlib
import sys
import tempfile

import gin
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, gin_imports
from tests import train_test

# What a config could say to write a file. `MARK` is the file's path.
_DYNAMIC = "from __gin__ import dynamic_registration\n"
ATTACKS = (
  ("import", "import MODULE"),
  ("from", "from MODULE import inner"),
  ("alias", "import MODULE as experiment"),
  ("from_alias", "from MODULE import inner as experiment"),
  ("after_registration", f"{_DYNAMIC}import MODULE"),
  ("our_name_is_a_prefix_only", "import paragan_tf_MODULE"),
  (
    "through_our_modules",
    f"{_DYNAMIC}from paragan_tf import experiment\n"
    "from paragan_tf import trained\n"
    "trained.os.mkdir.path = 'MARK'\n"
    "Experiment.input_fn = @trained.os.mkdir",
  ),
  (
    "called_at_once",
    f"{_DYNAMIC}from paragan_tf import trained\nx = @trained.os.mkdir()",
  ),
  (
    "a_function_of_ours_that_is_no_choice",
    f"{_DYNAMIC}from paragan_tf.outputs import records\n"
    "records.write_file.path = 'MARK'",
  ),
  (
    "a_method_of_ours",
    f"{_DYNAMIC}from paragan_tf.nets import dcgan\n"
    "x = @dcgan.Generator.__init__",
  ),
  ("a_block", f"{_DYNAMIC}from paragan_tf import trained\ntrained.os.mkdir:\n"),
  ("included_file", "include 'FOLDER/inner.gin'"),
  ("included_package", "include 'PACKAGE/none/x.gin'"),
  ("included_twice_removed", "include 'FOLDER/outer.gin'"),
  ("gin_itself", "import gin.tf.external_configurables"),
  ("python_paths", "import os"),
  ("tools", "from tools import launch"),
)
SAFE = (
  ("itself", "include 'FOLDER/itself.gin'", "include"),
  ("a_fifo", "include 'FOLDER/fifo.gin'", "Unable to open"),
  ("a_folder", "include 'FOLDER'", "Unable to open"),
  ("a_device", "include '/dev/zero'", "Unable to open"),
  ("much_text", "include 'FOLDER/large.gin'", "at most 1,048,576 characters"),
  ("no_text", "include 'FOLDER/zeros.gin'", "config"),
  ("an_open_bracket", "Run.num_steps = [1, (2", "config"),
  ("deep_brackets", "Run.num_steps = " + "[" * 9000, "config"),
  ("no_such_name", "x = @no.such", "config"),
  ("an_unhashable_key", "x = {[1]: 2}", "config"),
  ("a_module_that_was_not_imported", f"{_DYNAMIC}dcgan.Generator.a = 1", "dcg"),
)
# A run of a second, with a checkpoint.
SHORT = (
  "run.Run.num_steps = 2",
  "run.Run.save_every = 2",
  "Experiment.extractor = None",
)


class GinImportsTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory(dir=self.get_temp_dir())
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    self.mark = self.folder / "mark"
    self.module = f"stranger_{self._testMethodName.rsplit('_', 1)[-1]}"
    code = f"open({str(self.mark)!r}, 'w').close()\n"
    for name in (self.module, f"paragan_tf_{self.module}"):
      (self.folder / name).mkdir()
      (self.folder / name / "__init__.py").write_text(code)
      (self.folder / name / "inner.py").write_text(code)
    self.write("inner.gin", f"import {self.module}")
    self.write("outer.gin", f"include '{self.folder}/inner.gin'")
    self.write("itself.gin", f"include '{self.folder}/itself.gin'\n" * 2)
    self.write("large.gin", "# much\n" * 200_000)
    self.write("zeros.gin", "\0" * 10)
    os.mkfifo(self.folder / "fifo.gin")
    self.enter_context(
      tf.compat.v1.test.mock.patch.object(
        sys, "path", [str(self.folder), *sys.path]
      )
    )
    self.addCleanup(gin.clear_config)
    self.addCleanup(os.environ.pop, gin_imports._VARIABLE, None)

  def write(self, name, text):
    """Writes a file of the test's folder; returns its path."""
    path = self.folder / name
    path.write_text(text)
    return str(path)

  def fill(self, text):
    """Returns a config with the names of this test."""
    values = dict(
      MODULE=self.module,
      PACKAGE=self.module,
      FOLDER=self.folder,
      MARK=self.mark,
    )
    for name, value in values.items():
      text = text.replace(name, str(value))
    return text

  @parameterized.named_parameters(*ATTACKS)
  def test_code_is_not_run(self, text):
    text = self.fill(text)
    path = self.write("attack.gin", text)
    for files, bindings in (([path], []), ([], [text])):
      with self.assertRaisesRegex(ValueError, "config") as caught:
        config.load(files, bindings)
      self.assertNotIn("\n", str(caught.exception))
    with self.assertRaisesRegex(ValueError, "config.gin' cannot be used"):
      config.load_saved(text, "runs/downloaded/config.gin")
    self.assertFalse(self.mark.exists())
    self.assertNotIn(self.module, sys.modules)

  @parameterized.named_parameters(*SAFE)
  def test_what_is_no_config_is_one_sentence(self, text, words):
    with self.assertRaisesRegex(ValueError, words) as caught:
      config.load([], [self.fill(text)])
    self.assertNotIn("\n", str(caught.exception))

  def test_the_remedy_is_named_and_works(self):
    text = f"{_DYNAMIC}import {self.module}\n{self.module}.Net.width = 3"
    code = "import os\nclass Net:\n  def __init__(self, width): pass\n"
    (self.folder / self.module / "__init__.py").write_text(code)
    words = f"add `--allow_gin_imports={self.module}`"
    with self.assertRaisesRegex(ValueError, words):
      config.load([], [text])
    gin_imports.allow_gin_imports(self.module)
    config.load([], [text])
    self.assertEqual(gin.query_parameter(f"{self.module}.Net.width"), 3)
    # Even then only what the module itself defines may be called.
    more = f"{_DYNAMIC}import {self.module}\nx = @{self.module}.os.mkdir"
    with self.assertRaisesRegex(ValueError, "posix"):
      config.load([], [more])

  @parameterized.parameters("", "a b", "a;b", "a/b", ".a", "1a")
  def test_a_module_must_be_a_name(self, name):
    with self.assertRaisesRegex(ValueError, "`allow_gin_imports` must be"):
      gin_imports.allow_gin_imports(name)

  def test_gin_is_as_before_for_programs_of_users(self):
    with self.assertRaises(ValueError):
      config.load([], ["import os"])
    gin.clear_config()
    gin.parse_config("import os")


class ToolsTest(train_test.ServerTestCase):
  """All programs that read a config, in processes of their own."""

  def test_no_program_runs_code_of_a_config(self):
    folder = pathlib.Path(self.get_temp_dir())
    mark, run = folder / "mark", folder / "run"
    module = "this"  # Prints a poem when it is imported.
    smoke = "--gin_file=gin/runs/smoke.gin"
    trained = self.server.run(
      "tools.train",
      smoke,
      f"--model_dir={run}",
      *(f"--gin_bindings={x}" for x in SHORT),
    )
    self.assertEqual(trained.returncode, 0, trained.stderr)
    config_file = run / "config.gin"
    config_file.write_text(f"import {module}\n{config_file.read_text()}")
    attack = f"--gin_bindings=import {module}"
    saved = [f"--model_dir={run}"]
    commands = (
      ("train", [smoke, attack, f"--model_dir={mark}", "--dry_run"]),
      ("doctor", [smoke, attack]),
      ("layout", [smoke, attack]),
      ("sample", [*saved, f"--output={mark}.png"]),
      ("export", [*saved, f"--output={mark}"]),
      ("evaluate", saved),
    )
    for name, flags in commands:
      process = self.server.run(f"tools.{name}", *flags)
      output = process.stdout + process.stderr
      self.assertEqual(process.returncode, 2, output)
      self.assertIn("--allow_gin_imports=this", output)
      self.assertNotIn("Zen of Python", output)
      self.assertNotIn("Traceback", output)
      self.assertFalse(mark.exists())
    # Nor a network that only the config of a run names.
    text = config_file.read_text().replace(f"import {module}\n", "")
    text = text.replace("extractor = None", "extractor = 'keras:/no/such.h5'")
    self.assertIn("keras:", text)
    config_file.write_text(text)
    named = self.server.run("tools.evaluate", f"--model_dir={run}")
    self.assertEqual(named.returncode, 2, named.stdout)
    self.assertIn("`--extractor` must be given", named.stderr)
    allowed = self.server.run(
      "tools.train", *commands[0][1], "--allow_gin_imports=this"
    )
    self.assertEqual(allowed.returncode, 0, allowed.stderr)
    self.assertIn("Zen of Python", allowed.stdout)


if __name__ == "__main__":
  tf.test.main()
