"""Sets of tensorflow-datasets are read, or an error tells how to build them."""

from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl.testing import parameterized

from paragan_tf.data import index_files, preflight, sources, tfrecords
from paragan_tf.data.input_fn import InputFn

NUM = {"train": 12, "test": 5, "validation": 4}
IMAGE = tfds.features.Image(shape=(8, 8, 3))
LABEL = tfds.features.ClassLabel(names=["cat", "dog", "owl"])


def pixels(i):
  """Returns an image whose color is its number."""
  return np.full([8, 8, 3], 10 * i, np.uint8)


class TfdsTest(tf.test.TestCase, parameterized.TestCase):
  def store(self, name="tiny", splits=("train", "test"), **features):
    """Stores a set on disk; images of `test` are numbered from 12 on."""
    features = features or {
      "picture": IMAGE,
      "kind": LABEL,
    }
    values = {
      "picture": pixels,
      "image": pixels,
      "mask": lambda i: pixels(0),
      "kind": lambda i: i % 3,
      "label": lambda i: i % 3 if i < 12 or i > 16 else -1,
      "text": str,
    }
    firsts = {"train": 0, "test": 12, "validation": 17}
    tfds.dataset_builders.store_as_tfds_dataset(
      name=name,
      version="1.0.0",
      features=tfds.features.FeaturesDict(features),
      split_datasets={
        split: [
          (i, {key: values[key](i) for key in features})
          for i in range(firsts[split], firsts[split] + NUM[split])
        ]
        for split in splits
      },
      data_dir=self.get_temp_dir(),
      file_format="tfrecord",
      download_config=tfds.download.DownloadConfig(num_shards=2),
    )

  def source(self, name="tiny", **options):
    """Returns the source."""
    return sources.tfds(name, data_dir=self.get_temp_dir(), **options)

  def read_epoch(self, source):
    """Returns the numbers and labels of the images of an epoch."""
    input_fn = InputFn(lambda: source, resolution=8)
    (element,) = input_fn({"batch_size": input_fn.num_images}).take(1)
    numbers = np.round((element[0][:, 0, 0, 0] + 1.0) * 12.75).astype(int)
    return numbers, element[1].numpy(), input_fn

  def test_images_and_labels_come_from_the_split(self):
    self.store()
    numbers, labels, input_fn = self.read_epoch(self.source())
    self.assertCountEqual(numbers, range(12))
    self.assertAllEqual(labels, numbers % 3)
    self.assertEqual(input_fn.source.label_names, ("cat", "dog", "owl"))
    heldout = input_fn.heldout()
    self.assertCountEqual(heldout.pixels[:, 0, 0, 0] // 10, range(12, 17))
    self.assertAllEqual(heldout.labels, heldout.pixels[:, 0, 0, 0] // 10 % 3)

  def test_a_slice_of_a_split_can_be_taken(self):
    self.store()
    numbers, _, _ = self.read_epoch(self.source(split="train[:4]"))
    self.assertLen(set(numbers), 4)

  def test_without_a_test_split_some_images_are_held_out(self):
    self.store("single", splits=("train",))
    source = self.source("single", num_heldout=3)
    numbers, _, input_fn = self.read_epoch(source)
    kept = input_fn.heldout().pixels[:, 0, 0, 0] // 10
    self.assertCountEqual([*numbers, *kept], range(12))

  def test_a_set_that_is_not_built_is_refused_with_the_command(self):
    folder = self.get_temp_dir()
    with self.assertRaisesRegex(
      ValueError,
      f"'mnist' is not in '{folder}': build it with `tfds build mnist "
      f"--data_dir={folder}`.*'{folder}/downloads/manual'",
    ):
      self.source("mnist")

  def test_an_unknown_set_is_refused(self):
    with self.assertRaisesRegex(ValueError, "has no set 'no_such_set'"):
      self.source("no_such_set")

  def test_an_unknown_split_is_refused(self):
    self.store()
    with self.assertRaisesRegex(ValueError, r"one of \['train', 'test'\] or a"):
      self.source(split="nope")

  def test_a_set_without_images_is_refused(self):
    self.store("words", splits=("train",), text=tfds.features.Text())
    with self.assertRaisesRegex(ValueError, "'words' must have an image.*text"):
      self.source("words")

  def test_of_several_features_those_of_the_default_names_are_taken(self):
    both = dict(image=IMAGE, mask=IMAGE, kind=LABEL, label=LABEL)
    self.store("usual", **both)
    # Labels of the split `test` are unknown, so two images are held out.
    numbers, labels, _ = self.read_epoch(self.source("usual"))
    self.assertLen(set(numbers), 10)
    self.assertAllEqual(labels, numbers % 3)
    other = self.source("usual", image_key="mask", label_key="kind")
    self.assertAllEqual(self.read_epoch(other)[0], [0] * 12)
    with self.assertRaisesRegex(
      ValueError, r"`label_key` must be one of \['kind', 'label'\].*got 'x'"
    ):
      self.source("usual", label_key="x")

  def test_of_several_features_one_must_be_named(self):
    self.store("others", picture=IMAGE, mask=IMAGE, kind=LABEL)
    with self.assertRaisesRegex(
      ValueError, "several: set `sources.tfds.image_key`"
    ):
      self.source("others")
    source = self.source("others", image_key="picture")
    self.assertCountEqual(self.read_epoch(source)[0], range(12))

  def test_heldout_images_have_known_labels(self):
    splits = ("train", "test", "validation")
    self.store("half", splits=splits, image=IMAGE, label=LABEL)
    _, _, input_fn = self.read_epoch(self.source("half"))
    heldout = input_fn.heldout().pixels[:, 0, 0, 0] // 10
    self.assertCountEqual(heldout, range(17, 21))
    unknown = self.source("half", heldout_split="test")
    with self.assertRaisesRegex(
      ValueError, "Images to measure with .*from 0 to 2, got -1"
    ):
      preflight.check(InputFn(lambda: unknown, resolution=8), 4)
    free = InputFn(lambda: unknown, resolution=8, conditional=False)
    preflight.check(free, 4)

  def test_the_next_start_reads_no_headers(self):
    self.store("again")
    folder = f"{self.get_temp_dir()}/run"
    for expected in (2, 0):  # Splits.
      with (
        mock.patch.object(tfrecords, "scan", wraps=tfrecords.scan) as scan,
        index_files.reading_from(folder),
      ):
        input_fn = InputFn(lambda: self.source("again"), resolution=8)
      self.assertEqual(scan.call_count, expected)
      self.assertLen(input_fn.source.train, 12)
      input_fn.save_index(folder)

  def test_another_file_format_is_refused(self):
    builder = mock.Mock()
    builder.info.file_format.value = "array_record"
    with (
      mock.patch.object(tfds, "builder", lambda *args, **kwargs: builder),
      self.assertRaisesRegex(ValueError, "got 'array_record': build it"),
    ):
      self.source()


if __name__ == "__main__":
  tf.test.main()
