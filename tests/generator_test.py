"""A trained G: samples, sweeps, interpolations, nearest images, exports."""

import os
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import evaluation, stopping
from paragan_tf.generator import Generator
from paragan_tf.nets import dcgan, linear, norms, standing
from paragan_tf.outputs import export, nearest, samples
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.types import Mode
from tests import testing

INFO = GInfo(
  *testing.SPEC,
  z_dim=4,
  label_names=("ape", "bee", "cat"),
  mixes_classes=True,
  step=7,
)
# Runs where `paragan_tf` cannot be imported, on an export's path.
_WITHOUT_US = """
import sys
import numpy as np
sys.modules["paragan_tf"] = None
import tensorflow as tf
signatures = tf.saved_model.load(sys.argv[1]).signatures
given = np.load(sys.argv[2])
z, labels = tf.constant(given["z"]), tf.constant(given["labels"])
found = {name: signatures[name](z=z, labels=labels)["images"].numpy()
         for name in ("serving_default", "floats")}
seeded = signatures["sample"](seed=tf.constant(5, tf.int64), labels=labels)
np.savez(sys.argv[3], z=seeded["z"], sample=seeded["images"], **found)
"""


def generator(**changes):
  """Returns a generator of a linear net."""
  info = INFO._replace(**changes)
  return Generator(linear.Generator(info.spec, seed=1), info)


class GeneratorTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.g = generator()

  def test_samples_are_pixels_of_classes_in_turn(self):
    found = self.g.sample(7, seed=5)
    self.assertEqual(found.images.shape, (7, 8, 8, 1))
    self.assertEqual(found.images.dtype, np.uint8)
    self.assertAllEqual(found.labels, [0, 1, 2, 0, 1, 2, 0])
    net = linear.Generator(testing.SPEC, seed=1)
    expected = net(tf.constant(found.z), tf.constant(found.labels), Mode.EVAL)
    expected = samples.to_pixels(expected.numpy()).astype(int)
    self.assertAllClose(found.images.astype(int), expected, atol=1)

  def test_a_sample_does_not_depend_on_how_many_there_are(self):
    few, many = self.g.sample(8, seed=5), self.g.sample(300, seed=5)
    self.assertAllEqual(few.images, many.images[:8])
    self.assertAllEqual(few.z, many.z[:8])
    self.assertNotAllEqual(few.images, self.g.sample(8, seed=6).images)

  def test_classes_have_numbers_and_names(self):
    self.assertAllEqual(self.g.sample(4, ["cat", 0]).labels, [2, 0, 2, 0])
    self.assertAllEqual(self.g.sample(2, ["1"]).labels, [1, 1])

  @parameterized.named_parameters(
    ("class", dict(classes=[3]), "`classes` must be from 0 to 2.*ape.*'3'"),
    ("negative", dict(classes=[-1]), "`classes` must be .*'-1'"),
    ("name", dict(classes=["dog"]), "`classes` must be .*'dog'"),
    ("num", dict(num=0), "`num` must be at least 1, got 0"),
    ("truncation", dict(truncation=0.0), "`truncation` must be above 0"),
  )
  def test_wrong_arguments_are_refused(self, given, words):
    with self.assertRaisesRegex(ValueError, words):
      self.g.sample(**{"num": 2, **given})

  def test_without_classes_there_are_no_labels(self):
    g = generator(num_classes=0, label_names=(), mixes_classes=False)
    found = g.sample(3)
    self.assertIsNone(found.labels)
    self.assertCountEqual(found.arrays(), ["images", "z"])
    with self.assertRaisesRegex(ValueError, "`classes` needs a G .* leave it"):
      g.sample(3, [0])
    with self.assertRaisesRegex(ValueError, "two of them.*got 0 class"):
      g.interpolate("class")

  def test_truncation_is_that_of_the_run_until_another_is_given(self):
    g = generator(truncation=0.5)
    self.assertAllInRange(g.sample(99).z, -0.5, 0.5)
    self.assertGreater(np.abs(g.sample(99, truncation=2.0).z).max(), 0.5)
    free = g.sample(9, truncation=float("inf"))
    self.assertAllEqual(free.z, self.g.sample(9).z)

  def test_a_sweep_has_related_codes(self):
    found = self.g.sweep([0.5, 2.0], num=50)
    rows = found.z.reshape([2, -1])
    self.assertAllEqual(np.argsort(rows[0]), np.argsort(rows[1]))
    self.assertAllInRange(rows[0], -0.5, 0.5)
    self.assertLen(found.images, 100)
    for wrong in ([], [1.0, 0.0]):
      with self.assertRaisesRegex(ValueError, "above 0"):
        self.g.sweep(wrong)

  def test_codes_are_interpolated_along_an_arc(self):
    found = self.g.interpolate("z", num=3, num_frames=5, seed=2)
    z = found.z.reshape([3, 5, 4])
    ends = self.g.sample(6, seed=2).z
    self.assertAllEqual(z[:, 0], ends[0::2])
    self.assertAllEqual(z[:, -1], ends[1::2])
    self.assertAllEqual(found.labels.reshape([3, 5])[:, 2], [0, 1, 2])
    # Halfway, the angles to both ends are equal, and the length is between.
    unit = z / np.linalg.norm(z, axis=2, keepdims=True)
    cosines = [(unit[:, 2] * unit[:, i]).sum(1) for i in (0, 4)]
    lengths = np.linalg.norm(z, axis=2)
    same = np.abs(lengths[:, 0] - lengths[:, 4]).argmin()
    self.assertAllClose(cosines[0][same], cosines[1][same], atol=0.2)
    self.assertGreater(lengths[:, 2].min(), 0.7 * lengths[:, [0, 4]].min())

  def test_classes_are_interpolated_with_one_code(self):
    found = self.g.interpolate("class", num=2, num_frames=3, classes=[2, 0])
    self.assertAllClose(
      found.labels,
      [
        [0, 0, 1],
        [0.5, 0, 0.5],
        [1, 0, 0],
        [1, 0, 0],
        [0.5, 0, 0.5],
        [0, 0, 1],
      ],
    )
    self.assertAllEqual(found.z[0], found.z[2])
    three = self.g.interpolate("class", num=3, num_frames=2, classes=[2, 0, 1])
    self.assertAllEqual(np.argmax(three.labels, 1), [2, 0, 0, 1, 1, 2])
    whole = self.g.sample(2, [2, 0])
    self.assertAllClose(
      found.images[[0, 3]].astype(int), whole.images.astype(int), atol=1
    )
    with self.assertRaisesRegex(ValueError, "`num_frames` must be at least 2"):
      self.g.interpolate(num_frames=1)
    with self.assertRaisesRegex(ValueError, "`kind` must be 'z' or 'class'"):
      self.g.interpolate("y")

  def test_standing_statistics_are_those_of_the_truncation(self):
    info = GInfo(32, 1, 3, 4)
    g = dcgan.Generator(info.spec, seed=0, width=1, z_dim=4)
    made = Generator(g, info, num_standing=1)
    found = []
    for truncation in (0.2, 2.0):
      made.make_sampler(truncation)
      found.append(norms.batch_norms(g)[0].variance.numpy())
    self.assertAllGreater(found[1] - found[0], 0.0)
    # Those of the run's own metrics.
    other = dcgan.Generator(info.spec, seed=0, width=1, z_dim=4)
    codes = (
      Generator(other, info)
      .make_sampler(2.0)
      .codes(standing.BATCH_SIZE, evaluation.STANDING_SEED)
    )
    standing.assign_standing_statistics(
      other, standing.make_batches(codes, info.num_classes)
    )
    variance = norms.batch_norms(other)[0].variance
    self.assertAllClose(variance, found[1], rtol=1e-5)

  def test_nearest_images_are_found_in_parts(self):
    random = np.random.RandomState(0)
    pixels = random.randint(256, size=[700, 8, 8, 1]).astype(np.uint8)
    path = f"{self.get_temp_dir()}/near.npz"
    np.savez(path, images=pixels)
    found = self.g.find_nearest(pixels[[3, 600]], f"npz:{path}", num=3)
    cut = pixels[:560].astype(float)  # The others are held out.
    for i, row in enumerate((3, 600)):
      error = np.sqrt(((cut - pixels[row]) ** 2).mean((1, 2, 3)))
      order = np.argsort(error)[:3]
      self.assertAllClose(found.distances[i], error[order])
      self.assertAllEqual(found.images[i], pixels[order])
    self.assertEqual(found.distances[0, 0], 0.0)
    np.savez(path, images=pixels.repeat(3, 3))
    with self.assertRaisesRegex(ValueError, "1 channel.* with 3: give"):
      self.g.find_nearest(pixels[:1], f"npz:{path}")

  def test_few_images_are_all_near(self):
    pixels = np.zeros([2, 4, 4, 1], np.uint8)
    found = nearest.find(pixels[:1] + 3, [pixels[:1], pixels[1:]], 2)
    self.assertAllClose(found.distances, [[3.0, 3.0]])


class ExportTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)

  def test_an_export_needs_none_of_our_code_and_draws_the_same(self):
    info = GInfo(32, 1, 3, 4, mixes_classes=True)
    g = Generator(dcgan.Generator(info.spec, 0, width=2, z_dim=4), info)
    path = g.export(self.folder)
    asked = g.sample(16, seed=5)  # A whole batch: bits are the same.
    floats = g.make_sampler()(asked.labels, 5)
    given, out = f"{self.folder}/given.npz", f"{self.folder}/out.npz"
    np.savez(given, z=asked.z, labels=asked.labels)
    subprocess.run(
      [sys.executable, "-c", _WITHOUT_US, path, given, out],
      cwd=self.get_temp_dir(),
      check=True,
      env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},  # As we set it.
    )
    found = np.load(out)
    self.assertAllEqual(found["floats"], floats)
    self.assertEqual(found["serving_default"].dtype, np.uint8)
    self.assertAllEqual(found["serving_default"], asked.images)
    self.assertAllEqual(found["sample"], asked.images)
    self.assertAllEqual(found["z"], asked.z)

  def test_what_was_exported_is_loaded_as_a_generator(self):
    before = generator(truncation=0.7)
    path = before.export(self.folder, truncation=1.5)
    self.assertEqual(export.find(self.folder), path)
    self.assertEqual(export.find(path), path)
    after = Generator(*export.load(path))
    self.assertEqual(after.info, INFO._replace(truncation=1.5))
    for draw in (
      lambda g: g.sample(20, truncation=1.5),
      lambda g: g.interpolate("class", truncation=1.5),
    ):
      expected, found = draw(before), draw(after)
      self.assertAllEqual(found.z, expected.z)
      self.assertAllEqual(found.images, expected.images)

  def test_one_that_a_signal_cuts_off_leaves_nothing(self):
    def save(module, path, signatures):
      tf.io.gfile.makedirs(os.path.join(path, "variables"))
      raise stopping.Stopped

    with (
      mock.patch.object(tf.saved_model, "save", save),
      self.assertRaises(stopping.Stopped),
    ):
      generator().export(self.folder)
    self.assertEqual(os.listdir(self.folder), [])

  def test_the_newest_of_several_exports_is_found(self):
    self.assertIsNone(export.find(self.folder))
    paths = [generator().export(self.folder) for _ in range(2)]
    self.assertNotEqual(*paths)
    self.assertEqual(export.find(self.folder), max(paths))

  def test_without_classes_a_seed_takes_a_number(self):
    g = generator(num_classes=0, label_names=(), mixes_classes=False)
    served = tf.saved_model.load(g.export(self.folder)).signatures
    self.assertCountEqual(served, ["serving_default", "sample", "floats"])
    images = served["sample"](
      seed=tf.constant(3, tf.int64), num=tf.constant(16)
    )["images"]
    self.assertAllEqual(images, g.sample(16, seed=3).images)

  def test_pixels_are_rounded_as_ours(self):
    values = np.concatenate([np.linspace(-1.1, 1.1, 4001), [np.nan, np.inf]])
    values = values.astype(np.float32)
    found = export.to_pixels(tf.constant(values))
    self.assertAllEqual(found, samples.to_pixels(values))

  def test_a_missing_converter_is_named(self):
    with (
      mock.patch.dict(sys.modules, {"tf2onnx": None}),
      self.assertRaisesRegex(ValueError, r"`tf2onnx`.*paragan_tf\[onnx\]"),
    ):
      generator().export_onnx(f"{self.folder}/g.onnx")

  @parameterized.parameters(0, 2, 3)
  def test_an_onnx_file_must_draw_what_g_draws(self, difference):
    # Both packages are installed apart, so that others stand in for them.
    g, path = generator(), f"{self.folder}/g.onnx"
    made = mock.Mock(**{"SerializeToString.return_value": b"model"})
    convert = mock.Mock(**{"from_function.return_value": (made, None)})
    drawn = g.sample(16).images.astype(int)
    drawn += np.where(drawn < 128, difference, -difference)
    session = mock.Mock(**{"run.return_value": [drawn]})
    runtime = mock.Mock(**{"InferenceSession.return_value": session})
    stand_ins = {
      "tf2onnx": types.SimpleNamespace(__version__="1"),
      "tf2onnx.convert": convert,
      "onnxruntime": runtime,
    }
    with mock.patch.dict(sys.modules, stand_ins):
      if difference <= 2:
        g.export_onnx(path)
        with open(path, "rb") as f:
          self.assertEqual(f.read(), b"model")
        return
      with self.assertRaisesRegex(ValueError, "differs by 3: export a Saved"):
        g.export_onnx(path)
      convert.from_function.side_effect = KeyError("no such op")
      with self.assertRaisesRegex(ValueError, "cannot convert.*no such op"):
        g.export_onnx(path)
    self.assertFalse(os.path.exists(path))

  def test_damaged_exports_are_refused(self):
    path = generator().export(self.folder)
    with open(f"{path}/saved_model.pb", "wb") as f:
      f.write(b"nothing")
    with self.assertRaisesRegex(ValueError, "cannot be read.*export the run"):
      export.load(path)
    info = f"{path}/assets.extra/paragan_tf.json"
    with open(info, "w") as f:
      f.write('{"resolution": 8')
    with self.assertRaisesRegex(ValueError, "paragan_tf.json' cannot be read"):
      export.load(path)
    os.remove(info)
    with self.assertRaisesRegex(ValueError, "must be an export of this"):
      export.load(path)


if __name__ == "__main__":
  tf.test.main()
