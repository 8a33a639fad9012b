"""How a photo is to be turned, by TensorFlow's ops alone.

Cameras store pixels as the sensor read them, and in the EXIF header of a JPEG a
number from 1 to 8 that says how to hold the picture (CIPA DC-008, tag 0x112).
"""

import tensorflow as tf

# EXIF is the first segment, or the second, after a JFIF header of fixed length.
FIRST, SECOND = 2, 20
SEGMENT = b"\xff\xe1"
_TAG = 0x112
_HEAD, _MAX_ENTRIES = 4096, 64  # Where the first table lies, and its length.
_MIRRORED, _UPSIDE_DOWN = (2, 3, 6, 7), (3, 4, 7, 8)


def orientation(encoded: tf.Tensor) -> tf.Tensor:
  """Returns the number from 1 to 8, int32; 1 if a JPEG or PNG says nothing."""
  is_first = tf.equal(tf.strings.substr(encoded, FIRST, 2), SEGMENT)
  start = tf.where(is_first, FIRST, SECOND) + 4
  start = tf.minimum(start, tf.strings.length(encoded))
  head = tf.strings.substr(encoded, start, _HEAD)
  is_exif = tf.equal(tf.strings.substr(head, 0, 6), b"Exif\0\0")
  data = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int32)
  data = tf.pad(data, [[0, 2 * _HEAD]])[6:]
  value = tf.where(is_exif, _read_orientation(data), 1)
  return tf.where((value >= 1) & (value <= 8), value, 1)


def _read_orientation(data: tf.Tensor) -> tf.Tensor:
  """Returns the value of the tag in the first table, 1 if it is not there."""
  is_little = tf.equal(data[0], ord("I"))

  def read(position):
    first, second = tf.gather(data, position), tf.gather(data, position + 1)
    return tf.where(is_little, first + 256 * second, 256 * first + second)

  table = tf.minimum(read(tf.where(is_little, 4, 6)), _HEAD)
  entries = tf.range(_MAX_ENTRIES)
  positions = table + 2 + 12 * entries
  is_tag = tf.equal(read(positions), _TAG) & (entries < read(table))
  found = read(positions + 8)
  return tf.where(
    tf.reduce_any(is_tag),
    tf.reduce_max(tf.where(is_tag, found, 0)),
    1,
  )


def turn(image: tf.Tensor, how: tf.Tensor) -> tf.Tensor:
  """Returns an image, `[h, w, c]`, held as its orientation says."""
  image = tf.cond(
    how >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image
  )
  mirrored = tf.reduce_any(tf.equal(how, _MIRRORED))
  image = tf.where(mirrored, image[:, ::-1], image)
  upside_down = tf.reduce_any(tf.equal(how, _UPSIDE_DOWN))
  return tf.where(upside_down, image[::-1], image)
