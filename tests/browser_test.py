"""Pages in a real browser: on a screen and on a phone, light and dark."""

import os
import pathlib
import tempfile

import pytest
from absl.testing import absltest, parameterized

from paragan_tf import comparison
from paragan_tf.outputs import report
from tests import browser, fake_runs

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
LONG = "a_run_whose_name_is_so_long_that_no_phone_can_show_it_on_one_line_0123"

# What a page looks like: pictures, labels and texts that can be seen.
LOOK = """(() => {
  const isSeen = x => x.checkVisibility && x.checkVisibility();
  const box = x => x.getBoundingClientRect();
  const all = s => [...document.querySelectorAll(s)];
  const rgba = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(
    v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4
  ).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = x => {
    for (; x; x = x.parentElement) {
      const color = rgba(getComputedStyle(x).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const contrast = x => {
    const lights = [rgba(getComputedStyle(x).color), ground(x)].map(light);
    return (Math.max(...lights) + .05) / (Math.min(...lights) + .05);
  };
  const hasText = x => [...x.childNodes].some(
    n => n.nodeType === 3 && n.data.trim()) && isSeen(x);
  const overlaps = plot => {
    const boxes = [...plot.querySelectorAll(".x")].map(box);
    return boxes.some((a, i) => i && boxes[i - 1].right > a.left);
  };
  const texts = all("body *").filter(hasText);
  const outside = x => {
    const card = x.closest(".card");
    const edges = card ? box(card) : {left: 0, right: innerWidth};
    return box(x).left < edges.left - .5 || box(x).right > edges.right + .5 ||
      box(x).left < -.5 || box(x).right > innerWidth + .5;
  };
  return {
    width: innerWidth,
    isDark: matchMedia("(prefers-color-scheme: dark)").matches,
    scrollWidth: document.documentElement.scrollWidth,
    broken: all("img").filter(x => !x.complete || !x.naturalWidth).length,
    cut: all("img").filter(isSeen).filter(outside).length,
    seen: all("img").filter(isSeen).filter(x => box(x).width > 40).length,
    textsOutside: texts.filter(x => !x.closest("pre")).filter(outside)
      .map(x => x.textContent).slice(0, 3),
    overlapping: all(".plot").filter(isSeen).filter(overlaps).length,
    pale: texts.filter(x => contrast(x) < 4.5).map(
      x => `${x.className || x.tagName}: ${x.textContent.slice(0, 30)}`
    ).slice(0, 3),
    plots: all(".plot").filter(isSeen).length,
  };
})()"""
STEP = """[...document.querySelectorAll(".grids figcaption")].find(
  x => x.checkVisibility()).textContent"""
PLOTS = """[...new Set([...document.querySelectorAll(".plot")].filter(
  x => x.checkVisibility()).map(x => x.className))]"""


def make_pages(folder):
  """Writes a report and two comparisons; returns their paths."""
  runs = [fake_runs.write(os.path.join(folder, "runs", "first"))]
  both = {
    step: [
      fake_runs.make_metric(90.0 / i),
      fake_runs.make_metric(80.0 / i, num_samples=50_000),
      *(
        fake_runs.make_metric(i / 9, "classes_recognized", num_samples=num)
        for num in (5000, 12_000)
      ),
      {**fake_runs.make_metric(0.5 / i, "kid"), "deviation": 0.001},
    ]
    for i, step in enumerate((500, 1000), 1)
  }
  runs.append(fake_runs.write(os.path.join(folder, LONG), metrics=both))
  runs.append(
    fake_runs.write(
      os.path.join(folder, "old"), facts=None, num_grids=0, config=None
    )
  )
  config = "run.Run.num_steps = 500\ng/optimizers.Adam.learning_rate = 0.002\n"
  runs += [
    fake_runs.write(
      os.path.join(folder, f"run{i}"), 500, 1 + i / 9, 1, config=config
    )
    for i in range(9)
  ]
  paths = {"report": report.write(runs[1])}
  for name, chosen in {"few": runs[:3], "many": runs}.items():
    paths[name] = os.path.join(folder, f"{name}.html")
    page = comparison.compare(chosen, price=2.5).page
    pathlib.Path(paths[name]).write_text(page)
  return paths


@pytest.mark.browser
class BrowserTest(parameterized.TestCase):
  """Opens all pages once for each scheme; tests look at the results.

  `PARAGAN_SCREENSHOTS` names a folder for pictures of all pages.
  """

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    problem = browser.find_problem()
    if problem:
      raise absltest.SkipTest(problem)
    paths = make_pages(tempfile.mkdtemp())
    cls.looks = {}
    for scheme in SCHEMES:
      jobs = {
        (page, width, scheme): cls.make_job(path, page, width, scheme)
        for page, path in paths.items()
        for width in WIDTHS
      }
      results = browser.visit(scheme, list(jobs.values()))
      cls.looks.update(zip(jobs, results))
    keys = [STEP, "document.querySelector('.slider input').focus()"]
    keys += ["key:Left", STEP, "key:Home", STEP, "key:End", STEP]
    click = "document.querySelector('label[for=axis-{}]').click()"
    axes = [
      PLOTS,
      click.format("images"),
      PLOTS,
      click.format("seconds"),
      PLOTS,
    ]
    play = ["document.querySelector('.slider button').click()", STEP]
    pick = "document.querySelector('.grids label').click()"
    plain = ["document.querySelector('.slider')", STEP, pick, STEP, LOOK]
    cls.keys, cls.axes, cls.play, cls.plain = browser.visit(
      "light",
      [
        {"path": paths["report"], "width": 390, "do": keys},
        {"path": paths["few"], "width": 390, "do": axes},
        {"path": paths["report"], "width": 390, "do": play},
        {"path": paths["report"], "width": 390, "do": plain, "scripts": False},
      ],
    )

  @classmethod
  def make_job(cls, path, page, width, scheme):
    folder = os.environ.get("PARAGAN_SCREENSHOTS", "")
    picture = os.path.join(folder, f"{page}_{width}_{scheme}.png")
    return {
      "path": path,
      "width": width,
      "do": [LOOK],
      "screenshot": picture if folder else "",
    }

  @parameterized.product(
    page=("report", "few", "many"), width=WIDTHS, scheme=SCHEMES
  )
  def test_all_of_the_page_can_be_seen(self, page, width, scheme):
    result = self.looks[page, width, scheme]
    self.assertEqual(result["console"], [])
    (look,) = result["values"]
    self.assertEqual(look["width"], width)
    self.assertEqual(look["isDark"], scheme == "dark")
    self.assertLessEqual(look["scrollWidth"], width)
    self.assertEqual((look["broken"], look["cut"]), (0, 0))
    self.assertEqual(look["seen"], {"report": 2, "few": 2, "many": 11}[page])
    self.assertEqual(look["textsOutside"], [])
    self.assertEqual(look["overlapping"], 0)
    self.assertEqual(look["pale"], [])
    self.assertGreaterEqual(look["plots"], 5)

  def test_the_slider_obeys_keys(self):
    self.assertEqual(self.keys["console"], [])
    before, _, left, home, end = self.keys["values"]
    self.assertEqual(before, "Step 1,000")
    self.assertEqual(left, "Step 833")
    self.assertEqual((home, end), ("Step 166", "Step 1,000"))

  def test_the_axis_of_all_charts_is_chosen_together(self):
    steps, _, images, _, seconds = self.axes["values"]
    self.assertEqual(steps, ["plot by-steps"])
    self.assertEqual(images, ["plot by-images"])
    self.assertEqual(seconds, ["plot by-seconds"])

  def test_playing_starts_over(self):
    self.assertEqual(self.play["values"][-1], "Step 166")

  def test_without_scripts_each_step_has_a_button(self):
    self.assertEqual(self.plain["console"], [])
    slider, newest, _, first, look = self.plain["values"]
    self.assertIsNone(slider)
    self.assertEqual((newest, first), ("Step 1,000", "Step 166"))
    self.assertEqual((look["scrollWidth"], look["seen"]), (390, 2))
    self.assertEqual((look["cut"], look["textsOutside"]), (0, []))


if __name__ == "__main__":
  absltest.main()
