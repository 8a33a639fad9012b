"""The report is well-formed, complete, and needs no network."""

import base64
import html.parser
import json
import os
import platform
import re
import warnings
from importlib import metadata

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import paragan_tf
from paragan_tf.outputs import curves, records, report, samples

VOID = ("meta", "img", "input")
EVIL = '<script>alert(1)</script><img src="x" onerror=\'y\'>&amp;"'


class Page(html.parser.HTMLParser):
  """Parses a page strictly: every open tag must be closed in order."""

  def __init__(self, text):
    super().__init__()
    self.open, self.tags, self.text = [], [], ""
    self.feed(text)
    self.close()
    if self.open:
      raise ValueError(f"Never closed: {self.open}.")

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    if not self.open or self.open.pop() != tag:
      raise ValueError(f"Unexpected </{tag}> at {self.getpos()}.")

  def handle_data(self, data):
    self.text += data

  def all(self, tag, **attributes):
    """Returns the attributes of the tags that have at least these."""
    return [
      found
      for name, found in self.tags
      if name == tag and attributes.items() <= found.items()
    ]

  def paths(self, kind):
    return [x["d"] for x in self.all("path", **{"class": kind})]


def coordinates(path):
  """Returns the points of a path that have two coordinates."""
  found = re.findall(r"(-?[\d.]+),(-?[\d.]+)", path)
  return np.array(found, np.float64).reshape([-1, 2])


class ReportTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), "biggan_run")
    self.enter_context(warnings.catch_warnings())
    warnings.simplefilter("error")

  def page(self):
    path = report.write(self.folder)
    self.assertEqual(path, os.path.join(self.folder, "report.html"))
    with open(path, encoding="utf-8") as f:
      self.source = f.read()
    return Page(self.source)

  def write(self, **curves):
    """Records scalars from step 1 on; two underscores stand for a slash."""
    run = records.Records(self.folder)
    for i, values in enumerate(zip(*curves.values())):
      names = [name.replace("__", "/") for name in curves]
      run.write(i + 1, dict(zip(names, values)))
    run.close()

  def write_grids(self, *steps, size=4):
    for step in steps:
      pixels = np.random.default_rng(step).integers(0, 256, [size, size, 3])
      path = samples.png_path(self.folder, step)
      samples.write_png(path, pixels.astype(np.uint8))

  def write_file(self, name, text):
    records.write_file(os.path.join(self.folder, name), text.encode())

  def write_all(self):
    self.write(
      d__loss=[1.0, 0.5],
      g__loss=[1.0, 2.0],
      g__grad_norm=[3.0, 4.0],
      images_per_second=[100.0, 300.0],
    )
    self.write_metric()
    self.write_grids(1, 2)
    self.write_file("config.gin", "train.num_steps = 2")

  def write_metric(self, at=2, **changes):
    entry = {
      "name": "fid",
      "value": 9.25,
      "real_score": 1.5,
      "protocol": {"num_samples": 10000},
    }
    records.Records(self.folder).metric(at, [{**entry, **changes}])

  def test_empty_folder_has_a_report_that_says_so(self):
    page = self.page()
    for text in (
      "No samples yet",
      "No metrics yet",
      "Nothing in metrics.jsonl",
    ):
      self.assertIn(text, page.text)
    self.assertIn("No config.gin", page.text)
    self.assertIn("Steps0", page.text)
    self.assertEqual(os.listdir(self.folder), ["report.html"])

  def test_report_has_all_sections_of_a_run(self):
    self.write_all()
    page = self.page()
    for text in ("biggan_run", "Images/s200", "fid9.251.52", "10,000"):
      self.assertIn(text, page.text)
    version = f"tensorflow{tf.__version__}"
    for text in ("train.num_steps = 2", version, "g/grad_norm"):
      self.assertIn(text, page.text)
    for text in ("No samples", "No metrics", "No config", "Nothing"):
      self.assertNotIn(text, page.text)

  def test_report_loads_nothing_from_the_network(self):
    self.write_all()
    page = self.page()
    for tag, attributes in page.tags:
      self.assertNotIn(tag, ("link", "iframe", "object", "base", "use"))
      self.assertNotIn("href", attributes)
      self.assertStartsWith(attributes.get("src", "data:"), "data:")
    self.assertNotRegex(self.source, r"https?:|url\(|@import|fetch")
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    self.assertStartsWith(policy[0]["content"], "default-src 'none'")

  def test_text_is_escaped_wherever_it_comes_from(self):
    self.folder = os.path.join(self.get_temp_dir(), "<b>run &amp; 'x'")
    run = records.Records(self.folder)
    for i in (1, 2):
      run.write(i, {EVIL: 1.0 * i, f"g/{EVIL}": 1.0 * i, f"d/{EVIL}": 1.0})
    self.write_metric(name=EVIL, value=EVIL, protocol={EVIL: EVIL})
    self.write_metric(name=EVIL, real_score=EVIL, protocol=EVIL)
    self.write_file("config.gin", f"# {EVIL}\nname = '</pre>{EVIL}'")
    page = self.page()
    self.assertLen(page.all("script"), 1)
    self.assertEmpty(page.all("img"))
    self.assertLen(page.all("b", style="--c:var(--g)"), 1)
    self.assertIn(f"not drawn: d/{EVIL} 1", page.text)
    self.assertIn("<b>run &amp; 'x'", page.text)
    self.assertIn(f"# {EVIL}\nname = '</pre>{EVIL}'", page.text)
    self.assertGreaterEqual(page.text.count(EVIL), 8)

  def test_facts_of_a_start_are_escaped(self):
    facts = {"device_kind": EVIL, "engine": [EVIL], "versions": {EVIL: EVIL}}
    records.Records(self.folder).start(0, facts)
    page = self.page()
    self.assertEmpty(page.all("img"))
    self.assertGreaterEqual(page.text.count(EVIL), 3)

  def test_newest_grid_is_shown_and_embedded_as_it_is(self):
    self.write_grids(100, 2000, 30)
    page = self.page()
    embedded = [x["src"].split(",")[1] for x in page.all("img")]
    for step, text in zip((30, 100, 2000), embedded):
      with open(samples.png_path(self.folder, step), "rb") as f:
        self.assertEqual(base64.b64decode(text), f.read())
    inputs = page.all("input", type="radio", name="grid")
    self.assertEqual([x["id"] for x in inputs if "checked" in x], ["grid2000"])
    labels = [x["for"] for x in page.all("label")]
    self.assertEqual(labels[:3], ["grid30", "grid100", "grid2000"])

  def test_interpolation_is_shown_if_it_exists(self):
    self.write_grids(1)
    self.assertNotIn("From class to class", self.page().text)
    path = samples.interpolation_path(self.folder)
    samples.write_png(path, np.full([4, 4, 3], 9, np.uint8))
    page = self.page()
    self.assertIn("From class to class", page.text)
    with open(path, "rb") as f:
      expected = base64.b64encode(f.read()).decode()
    self.assertEqual(page.all("img")[1]["src"].split(",")[1], expected)
    self.assertLen(page.all("input", name="grid"), 1)

  def test_few_of_many_grids_are_embedded_with_first_and_last(self):
    self.write_grids(*range(1, 31))
    steps = [int(x["id"][4:]) for x in self.page().all("input", name="grid")]
    self.assertLen(steps, 16)
    self.assertEqual((steps[0], steps[-1]), (1, 30))
    self.assertAllInRange(np.diff(steps), 1, 2)

  def test_large_grid_is_made_smaller(self):
    self.write_grids(1, size=1500)
    (image,) = self.page().all("img")
    self.assertStartsWith(image["src"], "data:image/jpeg;base64,")
    self.assertEqual((image["width"], image["height"]), ("1280", "1280"))
    self.assertLess(len(self.source), 2_500_000)

  def test_damaged_grid_is_skipped(self):
    self.write_grids(1)
    self.write_file("samples/00000002.png", "not a picture")
    (only,) = self.page().all("input", name="grid")
    self.assertEqual(only["id"], "grid1")
    self.assertIn("checked", only)

  def test_newest_value_of_each_protocol_is_in_the_table(self):
    self.write_metric(1, value=20.0)
    self.write_metric(2, value=10.0)
    self.write_metric(2, value=5.0, protocol={"num_samples": 50000})
    self.write_metric(
      3, name="recall", value=None, real_score=None, protocol=None
    )
    page = self.page()
    table = page.text.partition("MetricValueReal imagesStepProtocol")[2]
    rows = re.sub(r"\s+", " ", table.partition("Curves")[0])
    self.assertEqual(
      rows.strip(),
      "fid (10,000 samples)101.5210,000 samplesnumber of samples10,000 "
      "fid (50,000 samples)51.5250,000 samplesnumber of samples50,000 "
      "recallnot finitenot known3Protocol not known",
    )

  def test_value_has_its_deviation_and_versions(self):
    self.write_metric(deviation=0.25, versions={"tensorflow": "2.15.1"})
    text = self.page().text
    self.assertIn("fid9.25 ± 0.251.5", text)
    self.assertIn("versionstensorflow 2.15.1", text)

  def test_metric_has_a_curve_for_each_protocol_and_a_line_of_real_images(self):
    for step in (1, 2, 4):
      self.write_metric(step, value=40.0 / step)
      self.write_metric(step, value=20.0 / step, protocol={"num_samples": 7})
      self.write_metric(step, name="kid", value=1.0 / step, real_score=None)
    page = self.page()
    fid, kid = [x for x in self.source.split('class="card chart')[1:]]
    self.assertIn("<em>fid</em>", fid)
    for words in ("10,000 samples</b>", "7 samples</b>", "real images 1.5</b>"):
      self.assertIn(words, fid)
    self.assertNotIn("real images", kid)
    many, few, _ = map(coordinates, page.paths("line"))
    self.assertAllClose(many[:, 0], few[:, 0])
    self.assertAllClose(many[:, 0], [0, 1000 / 3, 1000], atol=0.1)
    self.assertLen(page.paths("real"), 1)  # Both protocols have the same.

  def test_metric_of_an_earlier_checkpoint_is_at_its_own_step(self):
    self.write(d__loss=[1.0, 2.0, 3.0])
    self.write_metric(3, value=1.0, step=1)
    self.write_metric(3, value=2.0, step=3)
    page = self.page()
    self.assertAllClose(coordinates(page.paths("line")[0])[:, 0], [0, 1000])
    self.assertIn("fid21.53", page.text)

  def test_curves_are_drawn_over_images_and_seconds_as_well(self):
    lines = [
      {"step": 10, "seconds": 20.0, "d/loss": 1.0},
      {"step": 20, "seconds": 60.0, "d/loss": 2.0},
      {"step": 40, "seconds": 80.0, "d/loss": 3.0},
    ]
    text = "\n".join(map(json.dumps, lines))
    self.write_file("metrics.jsonl", text)
    page = self.page()
    self.assertNotIn("axis-images", [x.get("id") for x in page.all("input")])
    records.Records(self.folder).start(0, {"images_per_step": 64})
    page = self.page()
    axes = [x["id"] for x in page.all("input", name="axis")]
    self.assertEqual(axes, ["axis-steps", "axis-images", "axis-seconds"])
    steps, images, seconds = map(coordinates, page.paths("line"))
    self.assertAllClose(steps[:, 0], [0, 1000 / 3, 1000], atol=0.1)
    self.assertAllClose(images, steps)
    self.assertAllClose(seconds[:, 0], [0, 2000 / 3, 1000], atol=0.1)
    for words in ("1,280 images: 2", "1 min 0 s: 2", "80 s"):
      self.assertIn(words, page.text)

  def test_curve_has_its_points(self):
    self.write(d__loss=[0.0, 4.0, 2.0], g__loss=[2.0, 2.0, 2.0])
    page = self.page()
    d, g = map(coordinates, page.paths("line")[:2])
    self.assertAllClose(d[:, 0], [0, 500, 1000])
    self.assertAllClose(g[:, 0], [0, 500, 1000])
    # From 0 to 4 and a twentieth more, downwards.
    heights = np.array([4.2, 0.2, 2.2]) / 4.2 * 1000
    self.assertAllClose(d[:, 1], heights, atol=0.1)
    self.assertAllClose(g[:, 1], [d[2, 1]] * 3)
    self.assertEqual(
      self.source.split('class="plot by-images"')[0].count('class="x"'), 3
    )

  def test_not_finite_values_break_the_line_and_are_marked(self):
    self.write(g__loss=[1.0, 2.0, np.nan, 1.5, np.inf])
    page = self.page()
    line, gone = page.paths("line")[0], page.paths("gone")[0]
    self.assertEqual(line.count("M"), 2)
    self.assertAllClose(coordinates(line)[:, 0], [0, 250, 750])
    self.assertAllClose(coordinates(gone)[:, 0], [500, 1000])
    self.assertIn("red: not finite", page.text)
    self.assertIn("step 3: not finite", page.text)
    self.assertNotRegex(" ".join(page.paths("rule")), "nan|inf")

  @parameterized.named_parameters(
    ("tiny", [1e-320, 2e-320]),
    ("negative", [-5.0, -7.0]),
    ("partly_finite", [1.0, np.nan]),
  )
  def test_any_values_make_a_chart(self, values):
    self.write(g__loss=values)
    page = self.page()
    for attributes in [x for _, x in page.tags]:
      drawing = attributes.get("d", "") + attributes.get("style", "")
      self.assertNotRegex(drawing, "nan|inf")
    self.assertLen(page.all("svg"), 2)  # Over steps, and over seconds.

  @parameterized.named_parameters(
    ("nothing_finite", [np.nan, np.nan], "not finite"),
    ("huge", [1e300, -1e300], "not finite"),
    ("constant", [3.0, 3.0], "3"),
    ("zero", [0.0, 0.0], "0"),
    ("one_point", [3.0], "3"),
    ("close", [0.001, 0.001 + 1e-12], "0.001"),
  )
  def test_constant_values_are_named_and_not_drawn(self, values, expected):
    self.write(d__rate=values, g__loss=values)
    page = self.page()
    self.assertEmpty(page.all("svg"))
    self.assertIn(
      f"Constant, so not drawn: g/loss {expected}, d/rate {expected}.",
      page.text,
    )

  def test_long_curve_is_downsampled_and_keeps_its_spike(self):
    values = np.sin(np.arange(2_000.0))
    values[1400] = 5
    self.write(d__loss=values)
    page = self.page()
    line, band = page.paths("line")[0], page.paths("band")[0]
    self.assertLen(coordinates(line), 400)
    self.assertAllClose(coordinates(line)[-1, 0], 1000)
    top = coordinates(band)[np.argmin(coordinates(band)[:, 1])]
    self.assertAllClose(top[0], 700, atol=3)
    self.assertLess(top[1], coordinates(line)[:, 1].min() - 100)
    self.assertIn("step 2,000:", page.text)
    self.assertLessEqual(len(page.all("rect")), 200)
    self.assertLess(len(self.source), 90_000)

  def test_rare_spike_is_cut_off_and_noted(self):
    values = np.tile([1.0, 2.0], 100)
    values[50] = 1e5
    self.write(d__loss=values)
    page = self.page()
    self.assertIn("from 1 to 100,000", page.text)
    heights = coordinates(page.paths("line")[0])[:, 1]
    self.assertEqual(heights[50], 0)
    usual = np.delete(heights, 50)
    self.assertGreater(usual.max() - usual.min(), 250)

  def test_losses_share_a_chart_and_the_rest_is_grouped(self):
    names = ("x__b", "run_size", "g__norm", "g__a", "g__loss", "d__a__b")
    self.write(**{x: [1.0, 3.0] for x in names}, d__loss=[2.0, 1.0])
    page = self.page()
    order = re.findall(
      r"<h3>(.*?)</h3>|<b style=.*?>(.*?)</b>", self.source, re.DOTALL
    )
    self.assertEqual(
      [title or f"- {name}" for title, name in order],
      [
        "Losses",
        "- d/loss",
        "- g/loss",
        "Discriminator",
        "- d/a/b",
        "Generator",
        "- g/a",
        "- g/norm",
        "Run",
        "- run_size",
        "x",
        "- x/b",
      ],
    )
    self.assertLen(page.all("svg"), 2 * 6)

  def test_hover_shows_step_and_values(self):
    self.write(d__loss=[0.5, 0.25], g__loss=[1.0, 1234.5])
    text = self.page().text
    self.assertIn("step 1: d/loss 0.5, g/loss 1", text)
    self.assertIn("step 2: d/loss 0.25, g/loss 1,234", text)

  @parameterized.named_parameters(
    ("unit", 0.0, 1.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ("steps", 1, 60000, 1.0, [20000, 40000, 60000]),
    ("whole_steps", 1, 3, 1.0, [1, 2, 3]),
    ("around_zero", -7, 7, 0.0, [-5, 0, 5]),
  )
  def test_ticks_are_round(self, low, high, least, expected):
    self.assertAllClose(curves.ticks(low, high, least), expected)

  @parameterized.named_parameters(
    ("seconds", 59.4, "59 s"),
    ("minutes", 61, "1 min 1 s"),
    ("hours", 2 * 3600 + 5 * 60 + 59, "2 h 5 min"),
  )
  def test_headline_has_the_duration(self, seconds, expected):
    line = json.dumps({"step": 1200, "seconds": seconds})
    self.write_file("metrics.jsonl", line + "\n" + '{"step": 99')
    text = self.page().text
    self.assertIn(f"Steps1,200Duration{expected}", text)

  def test_unknown_lines_are_ignored(self):
    lines = [{"a": 1}, {"step": "x"}, {"step": 1, "a": "text", "b": None}]
    self.write_file("metrics.jsonl", "\n".join(map(json.dumps, lines)))
    self.assertIn("drawn: a not finite, b not finite.", self.page().text)

  def test_versions_are_those_of_the_run(self):
    page = self.page()
    self.assertIn(f"paragan_tf{paragan_tf.__version__}", page.text)
    self.assertIn(f"Python{platform.python_version()}", page.text)
    self.assertIn(f"tensorflow{tf.__version__}", page.text)
    self.assertIn(f"keras{metadata.version('keras')}", page.text)
    self.assertNotIn("not installed", page.text)
    facts = {"num_devices": 4, "device_kind": "GPU"}
    facts["versions"] = {"tensorflow": "1.2.3"}
    records.Records(self.folder).start(0, facts)
    page = self.page()
    self.assertIn("Trained on4 x GPU", page.text)
    self.assertIn("tensorflow1.2.3", page.text)
    self.assertNotIn("numpy", page.text)


if __name__ == "__main__":
  tf.test.main()
