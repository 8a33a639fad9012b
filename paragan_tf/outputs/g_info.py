"""What a trained G is like: all that is needed to use it without its data."""

import json
from typing import NamedTuple, Optional, Tuple

import tensorflow as tf

from paragan_tf.outputs.records import write_file
from paragan_tf.types import ImageSpec


class GInfo(NamedTuple):
  """What a trained G is like.

  Attributes:
    resolution: Height and width of its images.
    channels: 3 for color, 1 for gray.
    num_classes: Of its labels; 0 if it is unconditional.
    z_dim: Length of a latent code.
    label_names: Of the classes, if they are known.
    mixes_classes: Whether it takes weights of classes in place of an id.
    own_net: Whether a user's program made it, and not a config.
    mean_of_replicas: Whether the mean over replicas is the model.
    step: Steps it was trained for.
    truncation: Of its latent codes, by default.
  """

  resolution: int
  channels: int
  num_classes: int
  z_dim: int
  label_names: Tuple[str, ...] = ()
  mixes_classes: bool = False
  own_net: bool = False
  mean_of_replicas: bool = False
  step: Optional[int] = None
  truncation: Optional[float] = None

  @property
  def spec(self) -> ImageSpec:
    """The images that it was trained on."""
    return ImageSpec(self.resolution, self.channels, self.num_classes)

  def write(self, path: str) -> None:
    """Writes a JSON file."""
    write_file(path, (json.dumps(self._asdict(), indent=2) + "\n").encode())

  @classmethod
  def read(cls, path: str) -> "GInfo":
    """Returns what `write` wrote."""
    try:
      with tf.io.gfile.GFile(path) as f:
        found = json.loads(f.read())
      known = {k: v for k, v in found.items() if k in cls._fields}
      info = cls(**known)
      return info._replace(label_names=tuple(info.label_names))
    except (ValueError, TypeError, AttributeError) as e:
      raise ValueError(
        f"'{path}' cannot be read ({e}): it is damaged; remove it, or export "
        "again."
      ) from e
