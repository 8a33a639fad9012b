"""Images of folders and tfds sets come as they were encoded, in any order."""

import io
import os
import pickle

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl.testing import parameterized
from PIL import Image

from tools import encoded_images

NUM = 10


def pixels(i):
  return np.random.RandomState(i).randint(256, size=[6, 5, 3]).astype(np.uint8)


def jpeg(i):
  """Returns an encoding that tfds itself would not make."""
  file = io.BytesIO()
  Image.fromarray(pixels(i)).save(file, "JPEG", quality=33 + i)
  return file.getvalue()


ENCODED = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
LABEL = tfds.features.ClassLabel(names=["a/b", "c", "d"])
TEXT = tfds.features.Text()
RAW = tfds.features.Tensor(shape=(6, 5, 3), dtype=np.uint8)


class TfdsTest(tf.test.TestCase, parameterized.TestCase):
  def store(self, features, make):
    """Stores a set called `tiny` on disk, two files of its split."""
    self.folder = self.get_temp_dir()
    tfds.dataset_builders.store_as_tfds_dataset(
      name="tiny",
      version="1.0.0",
      features=tfds.features.FeaturesDict(features),
      split_datasets={"train": [(i, make(i)) for i in range(NUM)]},
      data_dir=self.folder,
      disable_shuffling=True,
      file_format="tfrecord",
      download_config=tfds.download.DownloadConfig(num_shards=2),
    )

  def store_encoded(self, label=lambda i: i % 3):
    self.store(
      {"image": ENCODED, "label": LABEL, "file_name": TEXT},
      lambda i: {
        "image": io.BytesIO(jpeg(i)),
        "label": label(i),
        "file_name": f"f{i}.jpg",
      },
    )

  def open(self, name="tiny", split="train", keys=(None, None)):
    return encoded_images.open_source(
      f"tfds:{name}", split, self.folder, "refuse", keys
    )

  def test_encoded_images_come_as_they_are(self):
    self.store_encoded()
    images = self.open()
    self.assertEqual(images.title, "tiny/1.0.0")
    self.assertEqual(images.label_names, ("a/b", "c", "d"))
    self.assertLen(images.sizes, NUM)
    self.assertLen(images.paths, 2)
    self.assertEqual(
      list(images), [(jpeg(i), i % 3, f"f{i}.jpg") for i in range(NUM)]
    )

  def test_a_part_comes_in_its_order_from_another_process(self):
    self.store_encoded()
    part = self.open().part(np.array([7, 0, 9]))
    part = pickle.loads(pickle.dumps(part))
    self.assertEqual(
      [image.data for image in part], [jpeg(i) for i in (7, 0, 9)]
    )
    self.assertEqual(part.sizes.shape, (3,))

  @parameterized.named_parameters(
    ("first", "train[:3]", [0, 1, 2]),
    ("over_two_files", "train[3:8]", [3, 4, 5, 6, 7]),
    ("last", "train[90%:]", [9]),
  )
  def test_a_split_may_be_a_slice(self, split, rows):
    self.store_encoded()
    images = self.open(split=split)
    self.assertEqual([image.data for image in images], [jpeg(i) for i in rows])

  def test_labels_are_read_when_they_are_needed(self):
    self.store_encoded()
    images = self.open()
    self.assertIsNone(images.labels)
    images = encoded_images.load_labels(images)
    self.assertAllEqual(images.labels, np.arange(NUM) % 3)
    self.assertAllEqual(images.part(np.array([5, 1])).labels, [2, 1])

  def test_an_image_that_has_no_label_says_so(self):
    self.store_encoded(label=lambda i: -1)
    self.assertEqual([image.label for image in self.open()], [None] * NUM)
    with self.assertRaisesRegex(ValueError, "needs labels, 'tiny/1.0.0' has"):
      encoded_images.load_labels(self.open())

  def test_arrays_become_png_without_loss(self):
    self.store({"image": RAW}, lambda i: {"image": pixels(i)})
    images = list(self.open())
    for i, image in enumerate(images):
      self.assertStartsWith(image.data, b"\x89PNG")
      self.assertAllEqual(
        np.array(Image.open(io.BytesIO(image.data))), pixels(i)
      )
      self.assertIsNone(image.label)
      self.assertEqual(image.name, f"train-{i}")
    self.assertLen(images, NUM)

  def test_a_set_without_images_is_refused(self):
    self.store({"x": TEXT, "label": LABEL}, lambda i: {"x": "x", "label": 0})
    with self.assertRaisesRegex(ValueError, "'tiny' must have an im.*label, x"):
      self.open()

  def test_of_several_features_some_can_be_named(self):
    self.store(
      {"a": ENCODED, "b": ENCODED, "kind": LABEL, "label": LABEL},
      lambda i: {
        "a": io.BytesIO(jpeg(i)),
        "b": io.BytesIO(jpeg(i + NUM)),
        "kind": (i + 1) % 3,
        "label": i % 3,
      },
    )
    with self.assertRaisesRegex(ValueError, "`image_key` must be one of"):
      self.open()
    images = self.open(keys=("b", "kind"))
    self.assertEqual(
      [image[:2] for image in images],
      [(jpeg(i + NUM), (i + 1) % 3) for i in range(NUM)],
    )

  def test_an_unknown_split_is_refused(self):
    self.store_encoded()
    with self.assertRaisesRegex(ValueError, "nope"):
      self.open(split="nope")


class SourceTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters("photos", "folder:", "tfds:", "zip:a")
  def test_an_unknown_kind_is_refused(self, source):
    with self.assertRaisesRegex(ValueError, f"folder:PATH or.*got {source}"):
      encoded_images.open_source(source, "train", None, "refuse")

  def test_a_part_of_a_folder_comes_in_its_order(self):
    folder = os.path.join(self.get_temp_dir(), "photos")
    os.makedirs(os.path.join(folder, "a"))
    for i in range(4):
      with open(os.path.join(folder, "a", f"{i}.jpg"), "wb") as f:
        f.write(jpeg(i))
    images = encoded_images.open_source(
      f"folder:{folder}", "train", None, "refuse"
    )
    self.assertEqual(images.title, "photos")
    self.assertAllEqual(images.sizes, [len(jpeg(i)) for i in range(4)])
    part = pickle.loads(pickle.dumps(images.part(np.array([3, 1]))))
    self.assertEqual(
      list(part), [(jpeg(3), 0, "a/3.jpg"), (jpeg(1), 0, "a/1.jpg")]
    )


if __name__ == "__main__":
  tf.test.main()
