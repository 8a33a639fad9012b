"""Comparisons: names, facts, costs, metrics by protocol, configs, errors."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import comparison, config
from paragan_tf.outputs import records, run_history, samples
from tests import fake_runs
from tests.report_test import EVIL, Page

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CompareTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.get_temp_dir()

  def write(self, name, **options):
    options = {"num_grids": 1, **options}
    return fake_runs.write(os.path.join(self.folder, name), **options)

  def compare(self, *paths, price=None):
    """Returns the page, and the table as a dict of dicts."""
    result = comparison.compare(paths, price)
    self.source = result.page
    starts = result.table.splitlines()[0]
    names = [x for x in starts.split("  ") if x]
    places = [starts.index(x) for x in names] + [None]
    rows = {}
    for line in result.table.splitlines()[1:]:
      cells = [line[a:b].strip() for a, b in zip(places, places[1:])]
      rows[cells[0]] = dict(zip(map(str.strip, names), cells))
    return Page(result.page), rows

  def test_table_has_state_time_and_cost(self):
    _, rows = self.compare(self.write("a"), self.write("b", num_steps=500))
    self.assertEqual(
      {k: v for k, v in rows["a"].items() if not k.startswith("frechet")},
      {
        "run": "a",
        "state": "finished",
        "step": "1,000",
        "images": "64,000",
        "time": "4 min 17 s",
        "images/s": rows["a"]["images/s"],
        "devices": "2",
        "device-hours": "0.143",
      },
    )
    self.assertEqual(rows["b"]["state"], "running")
    hours = 2 * 257 / 3600
    _, rows = self.compare(os.path.join(self.folder, "a"), price=10.0)
    self.assertEqual(rows["a"]["cost"], f"{10 * hours:.2f}")

  def test_a_run_that_writes_nothing_has_stopped(self):
    path = self.write("a", num_steps=500)
    os.utime(os.path.join(path, "metrics.jsonl"), (1, 1))
    self.assertEqual(self.compare(path)[1]["a"]["state"], "stopped")

  def test_device_hours_follow_the_devices_of_each_start(self):
    path = self.write("a", facts=None)
    starts = [
      {"step": 0, "seconds": 0.0, "num_devices": 4},
      {"step": 400, "seconds": 100.0, "num_devices": 1},
    ]
    text = "\n".join(map(json.dumps, starts))
    records.write_file(os.path.join(path, "starts.jsonl"), text.encode())
    history = run_history.read(path)
    self.assertAllClose(history.device_hours, (4 * 100 + 157) / 3600)

  def test_an_old_run_has_what_it_recorded(self):
    path = self.write("old", facts=None, config=None, num_grids=0)
    page, rows = self.compare(self.write("a"), path, price=1.0)
    for name in ("images", "devices", "device-hours", "cost"):
      self.assertEqual(rows["old"][name], "not recorded")
    self.assertEqual(rows["old"]["state"], "end not recorded")
    self.assertIn("no samples yet", page.text)
    self.assertIn("No config.gin: old.", page.text)

  def test_a_checkpoint_alone_is_a_run(self):
    path = os.path.join(self.folder, "estimator")
    records.write_file(f"{path}/model.ckpt-70.index", b"")
    page, rows = self.compare(path)
    self.assertEqual(rows["estimator"]["step"], "70")
    self.assertIn("Nothing in metrics.jsonl yet", page.text)

  def test_protocols_have_columns_of_their_own(self):
    few = fake_runs.make_metric(7.0)
    many = fake_runs.make_metric(5.0, num_samples=50_000, resizer="clean")
    self.write("a", metrics={1000: [few]})
    self.write("b", metrics={1000: [many]})
    self.write("c", metrics={1000: [few | {"deviation": 0.5}]})
    paths = [os.path.join(self.folder, x) for x in "abc"]
    page, rows = self.compare(*paths)
    first = "frechet_fashion (resizer none, 2000 samples)"
    second = "frechet_fashion (resizer clean, 50,000 samples)"
    self.assertEqual(rows["a"][first], "7")
    self.assertEqual(rows["a"][second], "-")
    self.assertEqual(rows["b"][second], "5")
    self.assertEqual(rows["c"][first], "7 ± 0.5")
    self.assertIn("cannot be compared", page.text)
    self.assertIn(f"Protocol of {first}", page.text)

  def test_equal_protocols_share_a_column_and_a_chart(self):
    page, rows = self.compare(self.write("a"), self.write("b", scale=2.0))
    self.assertEqual(rows["a"]["frechet_fashion"], "40")
    self.assertEqual(rows["b"]["frechet_fashion"], "80")
    self.assertNotIn("cannot be compared", page.text)
    chart = self.source.split('class="card chart')[1]
    self.assertIn("<em>frechet_fashion</em>", chart)
    for name, color in (("a", 0), ("b", 1)):
      self.assertIn(f'<b style="--c:var(--r{color})">{name}</b>', chart)
    # Seconds differ, so the curve of `b` is longer there only.
    ends = [
      [x.split()[-1].split(",")[0].lstrip("M") for x in page.paths("line")[i:j]]
      for i, j in ((0, 2), (2, 4), (4, 6))
    ]
    self.assertEqual(ends[0], ["1000.0", "1000.0"])
    self.assertEqual(ends[1], ["1000.0", "1000.0"])
    self.assertLess(float(ends[2][0]), 600)

  def test_only_lines_that_differ_are_shown(self):
    common = "run.Run.num_steps = 7\n"
    rates = {"a": "1", "b": "2", "c": "1"}
    paths = [
      self.write(
        x, config=f"{common}g/optimizers.Adam.learning_rate = {rate}\n"
      )
      for x, rate in rates.items()
    ]
    page, _ = self.compare(*paths)
    text = page.text.partition("Config\n")[2]
    self.assertIn("g/optimizers.Adam.learning_rate1a c2b", text)
    self.assertNotIn("num_steps", text)
    page, _ = self.compare(paths[0], paths[2])
    self.assertIn("All values are the same.", page.text)

  def test_configs_of_older_versions_are_compared_by_todays_names(self):
    old = "x.Layout.multiple = 8\n"
    new = "x.Layout.pad_channels = 8\ng/experiment.player.jit_compile = False\n"
    self.assertEqual(config.compare([old, new]), [])
    rows = config.compare([old, new.replace("8", "9"), new])
    self.assertEqual(rows, [("x.Layout.pad_channels", ["8", "9", "8"])])

  def test_samples_say_whether_their_codes_are_equal(self):
    a, b = self.write("a"), self.write("b")
    c = self.write("c", facts={**fake_runs.FACTS, "z_dim": 99})
    page, _ = self.compare(a, b)
    self.assertIn("all runs have the same latent code and class", page.text)
    self.assertLen(page.all("img"), 2)
    page, _ = self.compare(a, c)
    self.assertIn("differ in place: z_dim (a 16, c 99)", page.text)
    page, _ = self.compare(a, self.write("d", facts=None))
    self.assertIn("not recorded by d", page.text)

  def test_the_newest_grid_of_each_run_is_shown(self):
    path = self.write("a", num_grids=2)
    pixels = np.full([4, 4, 3], 9, np.uint8)
    samples.write_png(samples.png_path(path, 2000), pixels)
    page, _ = self.compare(path)
    (image,) = page.all("img")
    self.assertEqual(image["width"], "4")
    self.assertIn("step 2,000", page.text)

  def test_why_a_run_is_not_drawn_is_said(self):
    page, _ = self.compare(self.write("a"), self.write("old", config=None))
    self.assertIn("a: The run in '", page.text)
    self.assertIn("has no checkpoint yet.", page.text)
    self.assertIn("old: It has no config.gin.", page.text)
    self.assertNotIn("Drawn for this page", page.text)

  def test_runs_of_one_name_get_longer_names(self):
    paths = [self.write("x/run"), self.write("y/run"), self.write("y/other")]
    _, rows = self.compare(*paths)
    self.assertEqual([*rows], ["x/run", "y/run", "y/other"])

  def test_text_is_escaped_wherever_it_comes_from(self):
    name = "<b>run &amp; 'x'"
    entry = fake_runs.make_metric(1.0, EVIL, extractor=EVIL)
    facts = {**fake_runs.FACTS, "device_kind": EVIL, "z_dim": EVIL}
    one = self.write(
      name, metrics={1: [entry], 2: [entry]}, facts=facts, num_grids=1
    )
    other = {**entry, "protocol": {EVIL: EVIL}}
    two = self.write("b", metrics={1: [other]}, config=f"a.b = '{EVIL}'\n")
    page, _ = self.compare(one, two)
    self.assertLen(page.all("script"), 1)
    self.assertLen(page.all("img"), 2)
    self.assertIn(name, page.text)
    self.assertGreaterEqual(page.text.count(EVIL), 6)

  def test_page_needs_no_network(self):
    page, _ = self.compare(self.write("a"))
    for tag, attributes in page.tags:
      self.assertNotIn(tag, ("link", "iframe", "object", "base", "use"))
      self.assertStartsWith(attributes.get("src", "data:"), "data:")
    self.assertNotRegex(self.source, r"https?:|url\(|@import|fetch\(")

  @parameterized.named_parameters(
    ("missing", ["none"], "got '.*none': there is no such folder"),
    (
      "no_run",
      ["empty"],
      "it has no metrics, config, samples or checkpoints.$",
    ),
    ("above_runs", ["."], "there are runs in .*/a"),
    ("same", ["a", "empty/../a"], "different folders, got '.*a' twice"),
  )
  def test_wrong_folders_are_refused(self, names, message):
    self.write("a")
    os.makedirs(os.path.join(self.folder, "empty"))
    with self.assertRaisesRegex(ValueError, message):
      comparison.compare([os.path.join(self.folder, x) for x in names])

  def run_tool(self, *arguments):
    return subprocess.run(
      [sys.executable, "-m", "tools.compare", *arguments],
      cwd=self.folder,
      env={**os.environ, "PYTHONPATH": str(ROOT)},
      capture_output=True,
      text=True,
    )

  def test_the_tool_writes_a_page_and_prints_a_table(self):
    self.write("a")
    process = self.run_tool("a", "--price_per_device_hour=3")
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertRegex(process.stdout, r"(?s)run +state.*cost.*a +finished.*0.43")
    self.assertIn("Page: compare.html", process.stdout)
    Page(pathlib.Path(self.folder, "compare.html").read_text())

  @parameterized.named_parameters(
    ("no_runs", [], "needs the folders of runs, got none"),
    ("price", ["a", "--price_per_device_hour=-1"], "price_per_device_hour"),
    ("output", ["a", "--output=no/x.html"], "`--output` must be a file in"),
  )
  def test_the_tool_refuses_in_one_line(self, arguments, message):
    process = self.run_tool(*arguments)
    self.assertEqual(process.returncode, 2)
    self.assertRegex(process.stderr, f"^Error: .*{message}.*\n$")


if __name__ == "__main__":
  tf.test.main()
