"""Trains the classifier whose features the default metrics use.

    python -m tools.train_classifier

A small convolutional net on all 60,000 training images of Fashion-MNIST. The
image set of the package is the test split, so it is held out here. Batch norm
is folded into the kernels before saving, so that `outputs/features.py` needs
plain ops only.
"""

import hashlib
import json
import sys
from typing import Dict

import numpy as np
import tensorflow as tf
import tqdm
from absl import app, flags

from tools import make_embedded

FLAGS = flags.FLAGS
flags.declare_key_flag("source_dir")
flags.DEFINE_string(
  "weights", "paragan_tf/outputs/files/fashion_classifier.npz", "File to write."
)
flags.DEFINE_integer("seed", 0, "Seed of initial weights, order and flips.")
flags.DEFINE_integer(
  "num_epochs", 10, "Passes over the 60,000 images.", lower_bound=1
)

BATCH_SIZE = 200
LEARNING_RATE = 3e-3
CHANNELS = (16, 32, 64)
NUM_FEATURES = 96
NUM_CLASSES = 10


def make_net(batch_norm: bool) -> tf.keras.Sequential:
  """Returns the net for training or, without batch norm, for inference."""
  layers = tf.keras.layers
  net = tf.keras.Sequential([layers.InputLayer((32, 32, 1))])
  for channels in CHANNELS:
    net.add(layers.Conv2D(channels, 3, padding="same", use_bias=not batch_norm))
    if batch_norm:
      net.add(layers.BatchNormalization(momentum=0.95))
    net.add(layers.ReLU())
    net.add(layers.MaxPool2D())
  net.add(layers.Flatten())
  net.add(layers.Dropout(0.25))
  net.add(layers.Dense(NUM_FEATURES, activation="relu"))
  net.add(layers.Dense(NUM_CLASSES))
  return net


def to_inputs(images: np.ndarray) -> np.ndarray:
  """Pads uint8 `[b, 28, 28]` with black to `[b, 32, 32, 1]`, in [-1, 1]."""
  images = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None]
  return (images / 127.5 - 1).astype(np.float32)


def flip_half(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Flips each image with probability 1/2."""
  flip = rng.random((len(images), 1, 1)) < 0.5
  return np.where(flip, images[:, :, ::-1], images)


def train(images: np.ndarray, labels: np.ndarray) -> tf.keras.Sequential:
  """Returns the net after `--num_epochs`, with a cosine learning rate."""
  net = make_net(batch_norm=True)
  steps_per_epoch = len(images) // BATCH_SIZE
  num_steps = steps_per_epoch * FLAGS.num_epochs
  optimizer = tf.keras.optimizers.Adam(
    tf.keras.optimizers.schedules.CosineDecay(
      0.0, num_steps, warmup_target=LEARNING_RATE, warmup_steps=100
    )
  )
  loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  @tf.function
  def step(x, y):
    with tf.GradientTape() as tape:
      loss = loss_fn(y, net(x, training=True))
    grads = tape.gradient(loss, net.trainable_variables)
    optimizer.apply_gradients(zip(grads, net.trainable_variables))
    return loss

  rng = np.random.default_rng(FLAGS.seed)
  seconds = 0.1 if sys.stderr.isatty() else 30  # Few lines in a log file.
  with tqdm.tqdm(total=num_steps, unit="step", mininterval=seconds) as bar:
    for _ in range(FLAGS.num_epochs):
      order = rng.permutation(len(images))
      for i in range(steps_per_epoch):
        rows = order[i * BATCH_SIZE : (i + 1) * BATCH_SIZE]
        x = to_inputs(flip_half(images[rows], rng))
        loss = step(x, labels[rows])
        if i % 20 == 0:
          bar.set_postfix(loss=f"{float(loss):.3f}", refresh=False)
        bar.update()
  return net


def fold(net: tf.keras.Sequential) -> Dict[str, np.ndarray]:
  """Returns float16 kernels and biases with batch norm folded in."""
  pairs = []
  for layer in net.layers:
    if isinstance(layer, tf.keras.layers.Conv2D):
      kernel = layer.get_weights()[0]
    elif isinstance(layer, tf.keras.layers.BatchNormalization):
      gamma, beta, mean, variance = layer.get_weights()
      scale = gamma / np.sqrt(variance + layer.epsilon)
      pairs.append((kernel * scale, beta - mean * scale))
    elif isinstance(layer, tf.keras.layers.Dense):
      pairs.append(tuple(layer.get_weights()))
  names = [f"conv{i}" for i in range(len(CHANNELS))] + ["features", "logits"]
  weights = {}
  for name, (kernel, bias) in zip(names, pairs):
    weights[f"{name}_kernel"] = kernel.astype(np.float16)
    weights[f"{name}_bias"] = bias.astype(np.float16)
  return weights


def accuracy(
  weights: Dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> float:
  """Returns the fraction of `images` that the folded net classifies right."""
  net = make_net(batch_norm=False)
  net.set_weights([w.astype(np.float32) for w in weights.values()])
  logits = net.predict(to_inputs(images), batch_size=500, verbose=0)
  return float(np.mean(np.argmax(logits, axis=-1) == labels))


def main(argv):
  """Trains, measures on the test split and writes `--weights`."""
  del argv
  try:
    images, labels = make_embedded.read_split(FLAGS.source_dir, "train")
    test_images, test_labels = make_embedded.read_split(
      FLAGS.source_dir, "t10k"
    )
  except (EOFError, OSError, ValueError) as error:
    print(error, file=sys.stderr)
    sys.exit(2)
  tf.keras.utils.set_random_seed(FLAGS.seed)
  tf.config.experimental.enable_op_determinism()
  weights = fold(train(images, labels))
  content = b"".join(weights[name].tobytes() for name in sorted(weights))
  metadata = {
    "test_accuracy": accuracy(weights, test_images, test_labels),
    "seed": FLAGS.seed,
    "num_epochs": FLAGS.num_epochs,
    "sha256": hashlib.sha256(content).hexdigest(),
  }
  np.savez_compressed(
    FLAGS.weights, metadata=np.array(json.dumps(metadata)), **weights
  )
  print(f"{FLAGS.weights}: {metadata}")


if __name__ == "__main__":
  app.run(main)
