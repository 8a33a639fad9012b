"""Samples as files: grids, arrays, animations, single images."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from PIL import Image

from paragan_tf.outputs import pictures


class PicturesTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    random = np.random.RandomState(0)
    self.images = random.randint(256, size=[6, 8, 8, 3]).astype(np.uint8)

  def write(self, name, **more):
    path = os.path.join(self.folder, name)
    arrays = dict(images=self.images, z=np.zeros([6, 2]))
    return pictures.write(path, self.images, 3, lambda: arrays, **more)

  def test_a_folder_has_single_images(self):
    path = self.write("single")
    names = sorted(os.listdir(path))
    self.assertEqual(names, [f"{i:06d}.png" for i in range(6)])
    with Image.open(f"{path}/000004.png") as image:
      self.assertAllEqual(np.asarray(image), self.images[4])

  def test_a_grid_is_large_enough_to_see(self):
    with Image.open(self.write("grid.png")) as image:
      self.assertEqual(image.size, (12 * 26, 12 * 17))

  def test_arrays_are_kept(self):
    found = np.load(self.write("all.npz"))
    self.assertAllEqual(found["images"], self.images)
    self.assertEqual(found["z"].shape, (6, 2))

  @parameterized.parameters(
    (".gif", 3), (".webp", 3), (".gif", 1), (".webp", 1)
  )
  def test_an_animation_goes_forth_and_back(self, ending, channels):
    frames = np.linspace(0, 255, 4).astype(np.uint8)
    frames = np.broadcast_to(
      frames[:, None, None, None, None], [4, 2, 8, 8, channels]
    )
    with Image.open(self.write(f"moves{ending}", frames=frames)) as image:
      self.assertEqual(image.n_frames, 6)
      levels = []
      for i in range(6):
        image.seek(i)
        levels.append(np.asarray(image.convert("L"))[4, 4])
    self.assertAllClose(levels, [0, 85, 170, 255, 170, 85], atol=3)

  def test_the_same_images_give_the_same_bytes(self):
    for name in ("a.png", "a.npz"):
      contents = []
      for _ in range(2):
        with open(self.write(name), "rb") as f:
          contents.append(f.read())
      self.assertEqual(*contents)

  @parameterized.parameters(
    ("x.jpg", False, r"\.png.*\.npz.*folder.*got 'x.jpg': change"),
    ("x.gif", False, "interpolation only, got 'x.gif': add"),
    ("x.txt", True, "`output` must end in"),
  )
  def test_unknown_endings_are_refused(self, path, animated, words):
    with self.assertRaisesRegex(ValueError, words):
      pictures.check_path(path, animated)

  @parameterized.parameters("x.png", "x.npz", "some/folder", "some/folder/")
  def test_known_endings_are_taken(self, path):
    pictures.check_path(path)
    pictures.check_path("x.gif", animated=True)

  def test_a_path_that_cannot_be_written_is_one_sentence(self):
    os.makedirs(self.folder)
    with open(f"{self.folder}/file", "w"):
      pass
    with self.assertRaisesRegex(ValueError, "can be written, got .*file"):
      self.write("file/x.png")


if __name__ == "__main__":
  tf.test.main()
