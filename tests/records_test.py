"""Records survive a stop, an incomplete line and a rewind."""

import io
import json
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf.outputs import records

FID = {
  "name": "fid",
  "value": 9.5,
  "real_score": 1.5,
  "protocol": {"samples": 10},
}


def events(folder, run=""):
  """Returns the events of a run in the order TensorBoard reads them."""
  folder = os.path.join(folder, "events", run)
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if os.path.isfile(path):
      yield from tf.compat.v1.train.summary_iterator(path)


def scalars(folder, run=""):
  return [
    (event.step, value.tag, value.simple_value)
    for event in events(folder, run)
    for value in event.summary.value
  ]


class RecordsTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.get_temp_dir()
    self.path = os.path.join(self.folder, "metrics.jsonl")

  def text(self):
    with open(self.path) as f:
      return f.read()

  def append(self, text):
    with open(self.path, "a") as f:
      f.write(text)

  def write_steps(self, *steps):
    run = records.Records(self.folder)
    for step in steps:
      run.write(step, {"d/loss": step / 10})
    run.close()

  def steps(self):
    return [line["step"] for line in records.read(self.folder)]

  def test_line_is_plain_json(self):
    run = records.Records(self.folder)
    with mock.patch.object(records.time, "monotonic", lambda: run._start + 2):
      run.write(np.int64(3), {"d/loss": np.float64(0.25), "g/loss": 7})
    self.assertEqual(
      self.text(),
      '{"step": 3, "seconds": 2.0, "d/loss": 0.25, "g/loss": 7.0}\n',
    )

  def test_line_is_on_disk_before_the_run_closes(self):
    run = records.Records(self.folder)
    run.write(1, {"d/loss": 0.5})
    self.assertEqual(self.steps(), [1])
    self.assertEqual(scalars(self.folder), [(1, "d/loss", 0.5)])

  @parameterized.named_parameters(
    ("nan", np.nan), ("infinity", np.inf), ("minus_infinity", -np.inf)
  )
  def test_values_that_are_not_finite_are_null_in_the_file_only(self, value):
    run = records.Records(self.folder)
    run.write(1, {"g/loss": value})
    self.assertIn('"g/loss": null', self.text())
    self.assertAllEqual(scalars(self.folder)[0][2], value)

  def test_tensors_are_numbers(self):
    run = records.Records(self.folder)
    run.write(tf.constant(4), {"d/loss": tf.constant(0.5)})
    self.assertEqual(records.read(self.folder)[0]["d/loss"], 0.5)
    self.assertEqual(self.steps(), [4])

  @parameterized.parameters("step", "seconds", "metrics")
  def test_reserved_names_are_refused_and_nothing_is_written(self, name):
    run = records.Records(self.folder)
    with self.assertRaisesRegex(ValueError, f"`values`.*'{name}'"):
      run.write(1, {name: 1.0})
    self.assertEqual(records.read(self.folder), [])

  def test_metric_keeps_its_protocol(self):
    run = records.Records(self.folder)
    run.metric(5, [{**FID, "value": np.float32(9.5)}])
    (line,) = records.read(self.folder)
    self.assertEqual(line["step"], 5)
    self.assertEqual(line["metrics"], [FID])

  def test_protocols_do_not_share_a_curve(self):
    run = records.Records(self.folder)
    run.metric(5, [FID, {**FID, "protocol": {"samples": 20}}])
    run.metric(6, [{**FID, "value": 8.5}])
    self.assertEmpty(scalars(self.folder))
    runs = os.listdir(f"{self.folder}/events")
    curves = sorted((scalars(self.folder, run) for run in runs), key=len)
    self.assertEqual(
      curves,
      [
        [(5, "metrics/fid", 9.5)],
        [(5, "metrics/fid", 9.5), (6, "metrics/fid", 8.5)],
      ],
    )

  def test_metric_without_a_name_is_refused(self):
    run = records.Records(self.folder)
    with self.assertRaisesRegex(ValueError, "`entries`.*name"):
      run.metric(1, [{"value": 1.0}])

  @parameterized.named_parameters(("gray", 1), ("color", 3))
  def test_image_is_in_the_events(self, channels):
    pixels = np.arange(6 * channels, dtype=np.uint8).reshape([2, 3, channels])
    records.Records(self.folder).image(7, "samples", pixels)
    _, event = events(self.folder)
    (value,) = event.summary.value
    self.assertEqual((event.step, value.tag), (7, "samples"))
    self.assertEqual((value.image.height, value.image.width), (2, 3))
    self.assertEqual(value.image.colorspace, channels)
    image = Image.open(io.BytesIO(value.image.encoded_image_string))
    self.assertAllEqual(np.array(image).reshape([2, 3, channels]), pixels)

  def test_events_have_a_version_and_continue_on_resume(self):
    self.write_steps(1)
    self.write_steps(2)
    versions = [event.file_version for event in events(self.folder)]
    self.assertEqual(versions, ["brain.Event:2", ""] * 2)
    self.assertEqual([step for step, _, _ in scalars(self.folder)], [1, 2])

  def test_events_are_written_inside_a_graph_too(self):
    run = records.Records(self.folder)
    with tf.Graph().as_default():
      run.write(1, {"d/loss": 0.5})
    self.assertEqual(scalars(self.folder), [(1, "d/loss", 0.5)])

  def test_close_may_be_called_twice_and_before_a_write(self):
    run = records.Records(self.folder)
    run.close()
    run.write(1, {"d/loss": 0.5})
    run.close()
    run.close()
    run.write(2, {"d/loss": 0.5})
    self.assertEqual([step for step, _, _ in scalars(self.folder)], [1, 2])

  def test_rewind_drops_exactly_the_later_steps(self):
    self.write_steps(10, 20, 30)
    records.Records(self.folder).metric(30, [FID])
    kept = self.text().splitlines(keepends=True)[:2]
    run = records.Records(self.folder)
    run.rewind(20)
    self.assertEqual(self.text(), "".join(kept))
    run.write(21, {"d/loss": 0.5})
    self.assertEqual(self.steps(), [10, 20, 21])

  def test_rewind_to_the_start_leaves_nothing(self):
    self.write_steps(10, 20)
    records.Records(self.folder).rewind(0)
    self.assertEqual(self.text(), "")

  def test_rewind_without_a_record_makes_no_file(self):
    records.Records(self.folder).rewind(5)
    self.assertFalse(os.path.exists(self.path))

  def test_killed_rewind_loses_nothing(self):
    self.write_steps(10, 20, 30)
    before = self.text()
    run = records.Records(self.folder)
    self.enter_context(
      mock.patch.object(tf.io.gfile, "rename", side_effect=KeyboardInterrupt)
    )
    with self.assertRaises(KeyboardInterrupt):
      run.rewind(10)
    self.assertEqual(self.text(), before)

  @parameterized.named_parameters(
    ("half_a_name", '{"step": 30, "d/l'),
    ("half_a_number", '{"step": 3'),
    ("no_object", "30"),
    ("zeros_after_a_power_cut", "\0\0\0\0"),
    ("half_a_letter", "\udcc3"),
  )
  def test_incomplete_last_line_is_dropped(self, torn):
    self.write_steps(10, 20)
    whole = self.text()
    with open(self.path, "ab") as f:
      f.write(torn.encode(errors="surrogateescape"))
    self.assertEqual(self.steps(), [10, 20])
    run = records.Records(self.folder)
    self.assertEqual(self.text(), whole)
    run.write(21, {"d/loss": 0.5})
    self.assertEqual(self.steps(), [10, 20, 21])

  def test_rewind_drops_an_incomplete_line(self):
    self.write_steps(10, 20)
    run = records.Records(self.folder)
    self.append('{"step": 15, "d/l')
    run.rewind(15)
    self.assertEqual(self.steps(), [10])
    self.assertEndsWith(self.text(), "}\n")

  def test_last_line_without_a_newline_is_kept(self):
    self.append('{"step": 10, "seconds": 1.0}')
    self.write_steps(20)
    self.assertEqual(self.steps(), [10, 20])

  def test_clean_record_is_not_rewritten_on_resume(self):
    self.write_steps(10, 20)
    with mock.patch.object(records, "write_file") as write_file:
      records.Records(self.folder).rewind(20)
    write_file.assert_not_called()

  def test_seconds_continue_on_resume_and_return_with_a_rewind(self):
    now = 100.0
    with mock.patch.object(records.time, "monotonic", lambda: now):
      run = records.Records(self.folder)
      for step, now in ((1, 110.0), (2, 120.0), (3, 130.0)):  # noqa: B007
        run.write(step, {})
      now = 900.0
      run = records.Records(self.folder)
      now = 905.0
      run.write(4, {})
      run.rewind(2)
      now = 906.0
      run.write(3, {})
    seconds = [line["seconds"] for line in records.read(self.folder)]
    self.assertEqual(seconds, [10.0, 20.0, 21.0])

  def test_read_without_a_run_is_empty(self):
    self.assertEqual(records.read(os.path.join(self.folder, "none")), [])

  def test_values_that_json_does_not_support_become_text(self):
    run = records.Records(self.folder)
    protocol = {"seed": np.int32(3), "range": (0, np.nan), "dtype": np.uint8}
    run.metric(1, [{**FID, "protocol": protocol}])
    (entry,) = json.loads(self.text())["metrics"]
    self.assertEqual(entry["protocol"]["seed"], 3)
    self.assertEqual(entry["protocol"]["range"], [0, None])
    self.assertIsInstance(entry["protocol"]["dtype"], str)

  def test_starts_are_in_a_file_of_their_own(self):
    run = records.Records(self.folder)
    run.start(0, {"num_devices": 4, "versions": {"numpy": np.float32(1.5)}})
    run.start(7, {"num_devices": 2})
    first, second = records.read_starts(self.folder)
    self.assertEqual(first["versions"], {"numpy": 1.5})
    self.assertEqual((first["step"], second["step"]), (0, 7))
    self.assertEqual(second["num_devices"], 2)
    self.assertEqual(records.read(self.folder), [])


if __name__ == "__main__":
  tf.test.main()
