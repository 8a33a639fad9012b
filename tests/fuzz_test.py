"""A bounded number of bad inputs; `make fuzz` tries thousands."""

import tempfile

import tensorflow as tf

from tests import fuzz, train_test


class FuzzTest(train_test.ServerTestCase):
  def test_bad_inputs_end_with_one_sentence(self):
    with tempfile.TemporaryDirectory(dir=self.get_temp_dir()) as folder:
      fuzzer = fuzz.run_all(folder, 0.04, self.server)
    for target, given, words in fuzzer.failures:
      self.fail(f"{target}: {given!r}\n{words}")
    self.assertGreater(fuzzer.counts["bindings"]["refused"], 0)
    self.assertGreater(fuzzer.counts["flags"]["refused"], 0)


if __name__ == "__main__":
  tf.test.main()
