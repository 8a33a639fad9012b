"""Imports point one way, and few files know the large libraries."""

import ast
import pathlib
import subprocess
import sys

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "paragan_tf"

FREE = {
  "array_files",
  "types",
  "hashing",
  "quiet",
  "shipped",
  "tf_private",
  "child_process",
  "label_queue",
  "stopping",
  "termination",
}
ROOMS = {
  "data": {"array_files", "types", "collectives", "hashing", "hardware"},
  "nets": {"types", "collectives", "hardware", "tf_private"},
  "game": {"types", "collectives", "hashing", "hardware"},
  "sync": {"types", "collectives", "hashing", "pairs"},
  "outputs": {"array_files", "types", "collectives", "__version__"},
  "engine": {"types", "collectives", "pairs", "tf_private", "game", "sync"},
}
ONLY = {
  "tensorflow_gan": set(),
  "keras": set(),
  "tf_keras": set(),
}


def imports(path: pathlib.Path):
  """Yields the full names that a file imports, at any depth."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: relative import"
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: pathlib.Path):
  """Returns the first part after `paragan_tf.` of each import of our own."""
  names = (name.split(".") for name in imports(path))
  return {name[1] for name in names if name[0] == "paragan_tf"}


def sources():
  """Returns every source file of the package."""
  return sorted(PACKAGE.rglob("*.py"))


class ArchitectureTest(parameterized.TestCase):
  @parameterized.parameters(*sorted(FREE))
  def test_the_ground_imports_nothing_of_ours(self, name):
    self.assertEmpty(ours(PACKAGE / f"{name}.py"))

  def test_below_collectives_is_what_tensorflow_does_not_publish(self):
    self.assertEqual(ours(PACKAGE / "collectives.py"), {"tf_private"})

  @parameterized.parameters("hardware", "pairs")
  def test_only_collectives_lie_below(self, name):
    self.assertEqual(ours(PACKAGE / f"{name}.py"), {"collectives"})

  def test_configs_know_only_what_they_may_read(self):
    known = {"gin_imports", "gin_values", "shipped"}
    self.assertEqual(ours(PACKAGE / "config.py"), known)

  @parameterized.named_parameters(*((room, room) for room in ROOMS))
  def test_a_room_imports_only_what_lies_before_it(self, room):
    for path in sorted((PACKAGE / room).rglob("*.py")):
      self.assertLessEqual(ours(path), ROOMS[room] | {room}, str(path))

  def test_every_folder_is_a_known_room(self):
    folders = {
      p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()
    }
    self.assertEqual(folders, set(ROOMS))

  def test_tools_import_the_front_only(self):
    # Not so the suites of the benchmark, which measure what is inside.
    front = {
      "api",
      "child_process",
      "comparison",
      "config",
      "experiment",
      "following",
      "planning",
      "quiet",
      "run",
      "sample_files",
      "shipped",
      "start",
      "stopping",
      "trained",
      "training",
    }
    for path in sorted((ROOT / "tools").glob("*.py")):
      self.assertLessEqual(ours(path), front, str(path))

  def test_the_front_is_in_order(self):
    order = [
      "evaluation",
      "generator",
      "label_generator",
      "checks",
      "experiment",
      "choices",
      "trained",
      "sample_files",
      "measuring",
      "following",
      "facts",
      "callbacks",
      "worker_profile",
      "profiling",
      "planning",
      "holding",
      "run_control",
      "run_results",
      "run",
      "start",
      "label_trainer",
      "label_worker",
      "label_process",
      "label_finish",
      "label_pool",
      "training",
      "scaling_manager",
      "api",
    ]
    for i, name in enumerate(order):
      self.assertEmpty(ours(PACKAGE / f"{name}.py") & set(order[i:]), name)

  def test_nets_keep_nothing_in_threads(self):
    # Replicas are traced in threads; what layers know of a pass is passed on.
    for path in sorted((PACKAGE / "nets").rglob("*.py")):
      names = {name.split(".")[0] for name in imports(path)}
      self.assertNoCommonElements(names, {"threading", "contextvars"}, path)

  def test_one_file_calls_estimators(self):
    for path in sources():
      nodes = ast.walk(ast.parse(path.read_text()))
      names = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
      if {"TPUEstimator", "EstimatorSpec", "ModeKeys"} & names:
        self.assertEqual(path, PACKAGE / "engine" / "estimator.py")

  def test_one_file_looks_inside_tensorflow(self):
    inside = "tensorflow.python", "tensorflow.compiler"
    found = [p for p in sources() if any(x in p.read_text() for x in inside)]
    self.assertEqual(found, [PACKAGE / "tf_private.py"])

  def test_large_libraries_stay_in_their_files(self):
    for path in sources():
      for name in imports(path):
        allowed = ONLY.get(name.split(".")[0])
        if allowed is not None:
          self.assertIn(str(path.relative_to(PACKAGE)), allowed, name)

  def test_one_file_knows_the_versions_of_keras(self):
    # A user's net has its own Keras; what is measured with loads by `tf`'s; a
    # run records the version.
    allowed = {
      "nets/keras_versions.py",
      "outputs/environment.py",
      "outputs/extractors.py",
      "outputs/mobile_net.py",
    }
    for path in sources():
      names = {
        getattr(node, "attr", getattr(node, "value", None))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Attribute, ast.Constant))
      }
      if names & {"keras", "tf_keras"}:
        self.assertIn(str(path.relative_to(PACKAGE)), allowed)

  def test_flags_are_defined_in_tools_only(self):
    for path in sources():
      for name in imports(path):
        self.assertNotStartsWith(name, "absl.", f"{path} imports {name}")

  def test_no_tensor_is_made_at_import(self):
    # The CPU can be split only before the runtime has started.
    modules = [
      ".".join(path.relative_to(ROOT).with_suffix("").parts)
      for path in sources()
      if path.name != "__init__.py"
    ]
    code = "\n".join(
      [f"import {module}" for module in modules]
      + ["from tensorflow.python.eager import context"]
      + ["raise SystemExit(context.context()._initialized)"]
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

  def test_the_folder_gin_does_not_hide_gin_config(self):
    self.assertEmpty(list((ROOT / "gin").rglob("*.py")))
    code = "import gin; print(gin.__file__); gin.configurable"
    found = subprocess.run(
      [sys.executable, "-c", code],
      cwd=ROOT,
      check=True,
      capture_output=True,
      text=True,
    )
    self.assertIn("site-packages", found.stdout)


if __name__ == "__main__":
  absltest.main()
