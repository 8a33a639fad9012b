"""Transforms against NumPy; random draws, gradients, and updates of `p`."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.game import augment
from paragan_tf.types import ImageSpec
from tests import testing

COLOR, GRAY = ImageSpec(8, 3, 0), ImageSpec(8, 1, 0)
STEP = 5
ADA = tuple(augment.Ada().policy)


def images(num=6, spec=COLOR):
  return testing.images(num, spec)


def ada(p, **options):
  made = augment.Ada(**options)
  made.p.assign(p)
  return made


def call(made, x, seed=1, step=STEP, purpose="real"):
  return made(
    tf.convert_to_tensor(x), seed, tf.constant(step, tf.int64), purpose
  )


def shift_by_hand(image, dy, dx):
  """Rolls an image, and sets pixels that wrapped around to gray."""
  image = np.roll(image, (dy, dx), (0, 1))
  h, w = image.shape[:2]
  rows, columns = np.arange(h) - dy, np.arange(w) - dx
  inside = ((rows >= 0) & (rows < h))[:, None] & (columns >= 0) & (columns < w)
  return np.where(inside[:, :, None], image, 0.0)


# The numbers of three images, and what becomes of each.
TRANSFORMS = (
  (
    "flip",
    augment.flip,
    [True, False, True],
    lambda x, on: x[:, ::-1] if on else x,
  ),
  ("rotate", augment.rotate, [1, 2, 3], np.rot90),
  ("rotate_none", augment.rotate, [0, 1, 0], np.rot90),
  ("brightness", augment.brightness, [0.3, -0.2, 0.0], lambda x, a: x + a),
  ("contrast", augment.contrast, [0.5, 2.0, 1.0], lambda x, a: x * a),
  (
    "saturation",
    augment.saturation,
    [0.0, 2.0, 1.0],
    lambda x, a: x.mean(2, keepdims=True) * (1 - a) + a * x,
  ),
)


class TransformTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*TRANSFORMS)
  def test_each_image_has_its_own_number(self, transform, numbers, by_hand):
    x = images(3)
    ours = transform(x, tf.constant(numbers))
    self.assertAllClose(
      ours, [by_hand(*pair) for pair in zip(x, numbers)], atol=1e-6
    )

  def test_shift_is_a_roll_with_gray_at_the_edges(self):
    x = testing.images(5, ImageSpec(6, 3, 0))[:, :, :5]
    dy, dx = [0, 2, -1, 6, 0], [0, -3, 1, 0, 4]
    ours = augment.shift(x, tf.constant(dy), tf.constant(dx))
    self.assertAllEqual(ours, [shift_by_hand(*args) for args in zip(x, dy, dx)])

  def test_scale_interpolates_around_the_center(self):
    row = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    x = np.tile(row[None, None, :, None], [3, 4, 1, 1])
    # Twice as large reads at .75, 1.25, 1.75 and 2.25, half as large at -1.5,
    # .5, 2.5 and 4.5; rows do not differ, but outside is gray.
    large, small = [1.75, 2.5, 3.5, 5.0], [0.0, 1.5, 6.0, 0.0]
    ours = augment.scale(x, tf.constant([2.0, 0.5, 1.0]))[:, :, :, 0]
    self.assertAllClose(ours[0], [large] * 4)
    self.assertAllClose(ours[1], [np.zeros(4), small, small, np.zeros(4)])
    self.assertAllEqual(ours[2], x[2, :, :, 0])

  @parameterized.named_parameters(("even", 8, 4, 2), ("odd", 6, 3, 1))
  def test_cutout_grays_half_of_each_side(self, side, size, before):
    x = np.ones([3, side, side, 3], np.float32)
    y, w = [4, 0, side - 1], [3, 2, side]
    ours = augment.cutout(x, tf.constant(y), tf.constant(w))
    for i in range(3):
      top, left = max(0, y[i] - before), max(0, w[i] - before)
      x[i, top : y[i] - before + size, left : w[i] - before + size] = 0
    self.assertAllEqual(ours, x)

  def test_gray_images_have_no_saturation(self):
    x = images(3, GRAY)
    ours = augment.saturation(tf.constant(x), tf.constant([0.0, 0.5, 3.0]))
    self.assertAllEqual(ours, x)

  def test_flip_and_shift_reaches_four_pixels_and_no_more(self):
    x = images(100)
    step = tf.constant(STEP, tf.int64)
    ours = augment.flip_and_shift(x, augment.Draw(100, 1, step, "cr")).numpy()
    found = set()
    for before, after in zip(x, ours):
      ways = [
        (on, dy, dx)
        for on in (0, 1)
        for dy in range(-4, 5)
        for dx in range(-4, 5)
        if np.array_equal(
          after, shift_by_hand(before[:, :: 1 - 2 * on], dy, dx)
        )
      ]
      self.assertLen(ways, 1)
      found.update(ways)
    self.assertGreater(len({way[1:] for way in found}), 40)
    for axis, values in enumerate(([0, 1], range(-4, 5), range(-4, 5))):
      self.assertEqual({way[axis] for way in found}, set(values))


POLICIES = (
  ("color", lambda: augment.DiffAugment(["color"])),
  ("translation", lambda: augment.DiffAugment(["translation"])),
  ("cutout", lambda: augment.DiffAugment(["cutout"])),
  ("diff_augment", augment.DiffAugment),
  ("ada", lambda: ada(0.8)),
)
NOTHING = (
  ("base", augment.Augment),
  ("diff_augment", lambda: augment.DiffAugment(())),
  ("ada", lambda: ada(1.0, policy=())),
  ("ada_at_zero", lambda: ada(0.0)),
)


class AugmentTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*NOTHING)
  def test_augment_that_is_off_is_the_exact_identity(self, make):
    for spec in (COLOR, GRAY):
      x = images(spec=spec)
      self.assertAllEqual(call(make(), x), x)

  @parameterized.named_parameters(*POLICIES)
  def test_equal_images_come_out_different(self, make):
    x = np.repeat(images(1), 6, 0)
    ours = call(make(), x).numpy()
    self.assertEqual(ours.shape, x.shape)
    # At 8 pixels there are nine shifts: two may agree.
    self.assertGreater(len(np.unique(ours, axis=0)), 3)

  @parameterized.named_parameters(*POLICIES)
  def test_draws_depend_on_seed_step_and_purpose(self, make):
    x, made = images(), make()
    first = call(made, x)
    self.assertAllEqual(call(made, x), first)
    for other in ({"seed": 2}, {"step": 6}, {"purpose": "fake"}):
      self.assertNotAllClose(call(made, x, **other), first)

  @parameterized.named_parameters(
    ("diff_augment", augment.DiffAugment),
    ("ada", lambda: ada(0.8, policy=["flip", "brightness"])),
  )
  def test_replicas_together_equal_one(self, make):
    x = images(4)
    with strategies.scope(testing.strategy()):
      made = make()
    parts = testing.run_on_replicas(lambda y: call(made, y), x[:, None])
    self.assertAllClose(np.concatenate(parts), call(made, x), atol=1e-5)

  @parameterized.named_parameters(*POLICIES[3:])
  def test_xla_computes_the_same(self, make):
    x, made = tf.constant(images()), make()
    compiled = tf.function(
      lambda y: call(made, y), jit_compile=True, autograph=False
    )
    self.assertAllClose(compiled(x), call(made, x), atol=1e-5)

  @parameterized.named_parameters(*POLICIES, ("gray", lambda: ada(1.0), GRAY))
  def test_gradients_equal_finite_differences(self, make, spec=COLOR):
    # All transforms are linear in the image but for a constant: one difference
    # along any direction is exact.
    x, made = tf.constant(images(spec=spec)), make()
    there = tf.constant(testing.images(6, spec, seed=1))
    toward = tf.constant(testing.images(6, spec, seed=2))
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.reduce_sum(toward * call(made, x))
    grad = tape.gradient(y, x)
    change = tf.reduce_sum(toward * (call(made, there) - call(made, x)))
    self.assertAllClose(tf.reduce_sum(grad * (there - x)), change, rtol=1e-3)
    self.assertGreater(np.abs(grad).max(), 0.1)

  @parameterized.named_parameters(*((name, name) for name in ADA))
  def test_p_is_the_fraction_of_images_that_change(self, what):
    x = np.repeat(images(1), 2000, 0)
    touched = call(ada(0.3, policy=[what]), x).numpy() != x
    # Half of flips, a quarter of turns and 1 of 9 shifts do nothing.
    idle = {"flip": 1 / 2, "rotation": 1 / 4, "translation": 1 / 9}.get(what, 0)
    share = touched.any((1, 2, 3)).mean()
    self.assertAllClose(share, 0.3 * (1 - idle), atol=0.04)

  def test_transforms_are_applied_independently(self):
    x = np.repeat(images(1), 2000, 0)
    made = [ada(0.5, policy=[what]) for what in ("contrast", "brightness")]
    touched = [(call(m, x).numpy() != x).any((1, 2, 3)) for m in made]
    self.assertAllClose((touched[0] & touched[1]).mean(), 0.25, atol=0.04)

  def test_color_stays_within_its_ranges(self):
    x = np.zeros([2000, 2, 2, 3], np.float32)
    x[..., 0, :], x[..., 1, :] = 0.5, -0.5
    y = call(augment.DiffAugment(["color"]), x).numpy()
    added, factor = y.mean((1, 2, 3)), y[:, 0, 0, 0] - y[:, 0, 1, 0]
    self.assertAllInRange(added, -0.5, 0.5)
    self.assertAllClose([added.min(), added.max()], [-0.5, 0.5], atol=0.01)
    self.assertAllInRange(factor, 0.5, 1.5)
    self.assertAllClose([factor.min(), factor.max()], [0.5, 1.5], atol=0.01)

  @parameterized.named_parameters(("even", 8, 3 / 9), ("odd", 6, 2 / 6))
  def test_cutout_is_as_likely_at_both_edges(self, side, share):
    # An even number of rows has one place more than there are rows.
    x = np.ones([4000, side, side, 1], np.float32)
    gray = call(augment.DiffAugment(["cutout"]), x).numpy() == 0
    for axis in (1, 2):
      lines = gray.any((axis, 3)).mean(0)
      self.assertAllClose(lines[[0, -1]], [share, share], atol=0.03)
      self.assertAllGreater(lines[2:-2], share + 0.05)
    corner = gray[:, 0, 0, 0].mean()
    self.assertAllClose(corner, share**2, atol=0.03)

  def test_saturation_goes_from_none_to_twice(self):
    x = np.zeros([2000, 2, 2, 3], np.float32)
    x[..., 0], x[..., 1] = 0.5, -0.5
    y = call(augment.DiffAugment(["color"]), x).numpy()
    # Contrast multiplies by .5 to 1.5 on top.
    factor = y[:, 0, 0, 0] - y[:, 0, 0, 1]
    self.assertAllInRange(factor, 0.0, 3.0)
    self.assertAllClose(factor.mean(), 1.0, atol=0.05)
    self.assertGreater(factor.max(), 2.7)

  def test_ada_has_the_transforms_of_the_paper(self):
    self.assertNotIn("cutout", augment.Ada().policy)
    self.assertEqual(augment.Ada(["cutout"]).policy, ("cutout",))
    blitting, colors = {"flip", "rotation", "translation"}, {"brightness"}
    self.assertContainsSubset({*blitting, "scale", *colors}, ADA)

  def test_ada_has_the_strengths_of_the_paper(self):
    x = np.full([4000, 2, 2, 1], 0.5, np.float32)
    added = call(ada(1.0, policy=["brightness"]), x).numpy() - x
    self.assertAllClose(added[:, 0, 0, 0].std(), 0.2, atol=0.01)
    factor = call(ada(1.0, policy=["contrast"]), x).numpy() / x
    self.assertAllClose(np.log2(factor).std(), 0.5, atol=0.02)

  @parameterized.named_parameters(
    ("diff", augment.DiffAugment, {"policy": ["hue"]}, "`color`.*got 'hue'"),
    ("ada", augment.Ada, {"policy": ["flip", "color"]}, "`flip`.*got 'color'"),
    ("target", augment.Ada, {"target": 1.0}, "`target`.*1.0"),
    ("speed", augment.Ada, {"speed": 0}, "`speed`.*0"),
  )
  def test_bad_values_are_refused(self, make, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make(**options)


class AdaptTest(tf.test.TestCase):
  def test_p_follows_the_signs_of_real_logits(self):
    made = augment.Ada(target=0.5, speed=40)
    self.assertEqual(made.p.name, "augment/p:0")
    self.assertFalse(made.p.trainable)
    update = tf.function(lambda logits: made.update(logits, 1), autograph=False)
    # Of four signs the means are 1, 1, .5 and 0; the size does not matter.
    for logits, p in (
      ([1.0, 9.0, 1.0, 0.1], 0.1),
      ([0.1, 0.1, 0.1, 0.1], 0.2),
      ([9.0, 9.0, 9.0, 0.0], 0.3),
      ([9.0, 9.0, -0.1, 0.0], 0.2),
      ([-9.0, -9.0, 0.1, 0.1], 0.1),
    ):
      update(tf.constant(logits))
      self.assertAllClose(made.p, p, atol=1e-6)

  def test_at_its_target_p_stays(self):
    made = ada(0.3, target=0.5, speed=40)
    made.update(tf.constant([1.0, 1.0, 1.0, -1.0]), 1)
    self.assertAllClose(made.p, 0.3)

  def test_p_stays_between_0_and_1(self):
    made = ada(0.95, speed=40)
    made.update(tf.ones([4]), 1)
    self.assertAllEqual(made.p, 1.0)
    made.p.assign(0.05)
    made.update(-tf.ones([4]), 1)
    self.assertAllEqual(made.p, 0.0)

  def test_p_rises_from_0_to_1_in_speed_images(self):
    made = augment.Ada(speed=40)
    for _ in range(9):
      made.update(tf.ones([4]), 1)
    self.assertAllLess(made.p, 0.95)
    made.update(tf.ones([4]), 1)
    self.assertAllClose(made.p, 1.0)

  def test_other_augments_have_no_state(self):
    for make in (augment.Augment, augment.DiffAugment):
      made = make()
      made.update(tf.ones([4]), 1)
      self.assertEmpty(made.variables)

  def run_update(self, signs, weights, num_playing=4):
    strategy = testing.strategy()
    with strategies.scope(strategy):
      made = augment.Ada(target=0.4, speed=160)
    logits = [np.full([4], sign, np.float32) for sign in signs]
    weights = [np.float32(weight) for weight in weights]

    def update(logits, weight):
      made.update(logits, num_playing, weight)

    for _ in range(2):
      testing.run_on_replicas(update, logits, weights)
    return [float(p) for p in strategies.copies(strategy, made.p)]

  def test_replicas_agree_on_the_mean_of_all(self):
    # The mean is .5: a replica alone would have lowered its own `p`. Two
    # updates of 16 images each.
    ps = self.run_update([1, 1, 1, -1], [1.0] * 4)
    self.assertAllClose(ps, [0.2] * 4)

  def test_only_replicas_that_train_d_count(self):
    # Two updates of 8 images, of 160.
    ps = self.run_update([1, 1, -1, -1], [2.0, 2.0, 0.0, 0.0], num_playing=2)
    self.assertAllClose(ps, [0.1] * 4)

  def test_replicas_count_by_their_weights(self):
    # Means of .5 without the weights, and of 0 with them.
    ps = self.run_update([1, 1, 1, -1], [1.0, 1.0, 0.0, 2.0])
    self.assertAllClose(ps, [0.0] * 4)


if __name__ == "__main__":
  testing.main()
