"""Plans: what they choose, what they refuse, and what their files bind."""

import math

from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import bindings, plan
from paragan_tf.engine.scaling.links import LINKS, Link
from paragan_tf.engine.scaling.plan import Goal, Plan, Refused
from paragan_tf.engine.scaling.profile import Fit
from paragan_tf.engine.scaling.schemes import SCHEMES
from tests.profile_test import make_profile

FAST = Link("fast", 1e15, 0.0)


def make_plan(scheme="sync", profile=None, **goal) -> Plan:
  """Returns a plan for 4 workers and 64 images, unless a goal says more."""
  goal = Goal(**{"num_workers": 4, "bs": 64, "link": FAST, **goal})
  return plan.make_plan(profile or make_profile(), goal, SCHEMES[scheme])


class PlanTest(parameterized.TestCase):
  def test_steps_time_hours_and_money_by_hand(self):
    found = make_plan(num_updates=1000, price=2.0)
    # 16 images of a worker: 10 ms + 16 x 1 ms; the link takes no time.
    self.assertAlmostEqual(found.prediction.step_seconds, 0.026, places=6)
    self.assertEqual((found.batch_per_worker, found.accumulate), (16, 1))
    self.assertEqual(found.num_steps, 1000)
    self.assertAlmostEqual(found.seconds, 26.0, places=3)
    self.assertAlmostEqual(found.device_hours, 4 * 26.0 / 3600, places=5)
    self.assertAlmostEqual(found.price, 8 * 26.0 / 3600, places=5)
    self.assertEqual(found.memory_bytes, 1_016_000_000)

  def test_a_number_of_images_becomes_updates(self):
    self.assertEqual(make_plan(num_images=6401).num_steps, 101)
    two = make_profile(num_batches=2)  # Two batches of real images a step.
    self.assertEqual(make_plan(profile=two, num_images=6400).num_steps, 50)

  def test_gradients_add_up_where_memory_is_short(self):
    # 90 % of 1.12 GB - 1 GB leaves room for 8 images of 1 MB.
    short = make_profile(memory_limit=1_120_000_000)
    found = make_plan(profile=short, num_updates=100)
    self.assertEqual((found.batch_per_worker, found.accumulate), (8, 2))
    self.assertEqual((found.batch_size, found.num_steps), (32, 200))
    self.assertEqual(found.scheme, "gradients_every_other_step")
    self.assertLessEqual(found.memory_bytes, 0.9 * found.memory_limit)
    with self.assertRaisesRegex(ValueError, "cannot add gradients up"):
      make_plan("every_other_step", short)

  def test_workers_of_a_cpu_share_its_memory(self):
    machine = plan.Machine(workers=2, cores=2)
    profile = make_profile(memory_limit=4 * 10**9)
    found = make_plan(profile=profile, machine=machine)
    self.assertEqual(found.memory_limit, 2 * 10**9)

  def test_a_gpu_is_not_shared(self):
    profile = make_profile(memory_source="measured on this GPU")
    machine = plan.Machine(workers=2, cores=2)
    found = make_plan(profile=profile, machine=machine)
    self.assertEqual(found.memory_limit, 2 * 10**9)

  def test_rates_follow_the_rule_of_each_player(self):
    profile = make_profile(noise_scale={"g": 0.0, "d": 64.0})
    found = make_plan(
      profile=profile,
      bs=192,
      base_batch=64,
      rate_rule="linear",
      num_updates=2000,
    )
    self.assertAlmostEqual(found.rate_factors["g"], 3.0)
    self.assertAlmostEqual(found.rate_factors["d"], 1.5)
    self.assertEqual(found.warm_up_steps, {"g": 100, "d": 100})
    self.assertIn("above the noise scale of `d`", found.notes[0])
    none = make_plan(profile=profile, bs=192, base_batch=64)
    self.assertEqual(none.rate_factors, {"g": 1.0, "d": 1.0})
    self.assertEqual(none.warm_up_steps, {"g": 0, "d": 0})

  def test_roles_get_the_shares_that_balance_them(self):
    even = make_profile(player_seconds={"g": Fit(0, 0.001), "d": Fit(0, 0.001)})
    self.assertEqual(make_plan("async", even, bs=96).roles, (1, 1))
    heavy = make_profile(
      player_seconds={"g": Fit(0, 0.003), "d": Fit(0, 0.001)}
    )
    self.assertEqual(make_plan("async", heavy, bs=96).roles, (3, 1))
    with self.assertRaisesRegex(ValueError, "fit no shares of G and D"):
      make_plan("async", even, num_workers=5, bs=50)

  def test_a_batch_should_fill_tiles(self):
    found = make_plan(bs=48, tile=8)
    self.assertEqual(found.batch_per_worker, 12)
    self.assertIn("`bs` 64 fills it", found.notes[0])

  def test_schemes_are_ordered_and_refused(self):
    slow = Link("slow", 1e7, 1e-3)
    goal = Goal(num_workers=4, bs=64, link=slow)
    rows = plan.compare(make_profile(), goal)
    plans = [x for x in rows if isinstance(x, Plan)]
    rates = [x.prediction.images_per_second for x in plans]
    self.assertEqual(rates, sorted(rates, reverse=True))
    self.assertEqual(plans[0].scheme, "per_label")
    winner = plan.best(rows)
    self.assertNotIn(winner.scheme, ("per_label", "sync"))
    sync = next(x for x in plans if x.scheme == "sync")
    self.assertIn("by its time on the wire", plan.why(winner, sync))
    self.assertIn("is the fastest", plan.why(winner, winner))
    odd = plan.compare(make_profile(), goal._replace(num_workers=1, bs=7))
    refused = {x.scheme: x.reason for x in odd if isinstance(x, Refused)}
    self.assertIn("even share", refused["gradients_every_other_step"])

  @parameterized.named_parameters(
    ("no_workers", dict(num_workers=0), "`num_workers` must be an integer"),
    (
      "few_images",
      dict(num_workers=128),
      "`bs` must be at least `num_workers`",
    ),
    (
      "negative_bandwidth",
      dict(link=Link("odd", -1.0, 0.0)),
      "`bytes_per_second` of a link must be above 0, got -1",
    ),
    (
      "another_config",
      dict(config_hash="f" * 16),
      "The profile is of another config .*measure this one",
    ),
    ("negative_target", dict(num_updates=-1), "`num_updates` must be at least"),
    ("negative_price", dict(price=-0.1), "`price` must be at least 0"),
    ("two_goals", dict(num_updates=1, num_images=1), "One of `num_updates`"),
    ("rule", dict(rate_rule="cubic"), "`rate_rule` must be one of"),
    (
      "too_many_for_the_link",
      dict(num_workers=64, link=LINKS["nvlink3"]),
      "`num_workers` must be at most 8 on 'nvlink3'",
    ),
  )
  def test_nonsense_is_refused(self, goal, words):
    with self.assertRaisesRegex(ValueError, words):
      make_plan(**goal)

  @parameterized.parameters(
    (dict(link=Link("odd", 0.0, 0.0)), "`bytes_per_second`"),
    (dict(num_workers=0), "`num_workers`"),
    (dict(rate_rule="cubic"), "`rate_rule`"),
  )
  def test_a_goal_is_refused_before_anything_is_measured(self, goal, words):
    with self.assertRaisesRegex(ValueError, words):
      plan.check_goal(Goal(**{"num_workers": 4, "bs": 64, **goal}))

  def test_a_target_beyond_memory_is_refused(self):
    tiny = make_profile(memory_limit=1_000_000_000)
    with self.assertRaisesRegex(ValueError, "does not fit: a worker's memory"):
      make_plan(profile=tiny)
    with self.assertRaisesRegex(ValueError, "does not fit"):
      plan.compare(tiny, Goal(num_workers=4, bs=64))


class FileTest(parameterized.TestCase):
  def test_intervals_become_multiples_of_the_period(self):
    found = make_plan("every_other_step", num_updates=9)
    text = bindings.to_gin(found, {"save_every": 25, "measure_every": 0})
    self.assertIn("run.Run.save_every = 26\n", text)
    self.assertIn("run.Run.num_steps = 9\n", text)
    self.assertNotIn("measure_every", text)

  def test_a_slow_input_is_read_further_ahead(self):
    slow = make_profile(input_images_per_second=700.0)
    text = bindings.to_gin(make_plan(profile=slow), {})
    self.assertIn("InputFn.prefetch = 'step_timing'", text)
    self.assertIn("StepTiming.min_depth = 4", text)
    own = bindings.to_gin(make_plan(profile=slow), {}, own_input=True)
    self.assertNotIn("StepTiming.", own)

  def test_labels_apart_are_no_single_run(self):
    with self.assertRaisesRegex(
      ValueError, "`per_label` is not trained by one"
    ):
      bindings.to_gin(make_plan("per_label"), {})

  def test_every_other_scheme_has_a_file(self):
    for scheme in SCHEMES:
      if scheme != "per_label":
        text = bindings.to_gin(make_plan(scheme), {"save_every": 4})
        self.assertIn("holding.Hold.step_seconds = ", text)
        self.assertFalse(math.isnan(make_plan(scheme).prediction.step_seconds))


if __name__ == "__main__":
  absltest.main()
