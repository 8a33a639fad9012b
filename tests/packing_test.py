"""A file is written whole, and what is in it is kept."""

import hashlib
import json
import os
import pathlib

import numpy as np
import tensorflow as tf

from tools import encoded_images, packing


class PackingTest(tf.test.TestCase):
  def test_a_file_without_images_is_empty(self):
    images = encoded_images.FolderImages("x", "", (), np.zeros([0]), None, ())
    folder = self.get_temp_dir()
    content = packing.write_shard(folder, "a", images)
    self.assertEqual(content.pop("sha256"), hashlib.sha256(b"").hexdigest())
    self.assertEqual(
      content,
      dict(count=0, bytes=0, offsets=[], sizes=[], labels=[], broken=[]),
    )
    self.assertEqual(os.path.getsize(os.path.join(folder, "a")), 0)

  def test_what_was_kept_is_json(self):
    folder = self.get_temp_dir()
    packing.save_content(folder, "a", {"bytes": 3})
    self.assertIsNone(packing.load_content(folder, "a"))
    pathlib.Path(folder, "a").write_bytes(b"abc")
    self.assertEqual(packing.load_content(folder, "a"), {"bytes": 3})
    text = pathlib.Path(folder, "parts", "a.json").read_text()
    self.assertEqual(json.loads(text), {"bytes": 3})


if __name__ == "__main__":
  tf.test.main()
