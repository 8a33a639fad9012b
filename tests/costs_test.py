import math

import numpy as np
from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import costs, links, messages
from paragan_tf.engine.scaling.costs import SCHEMES, Machine
from paragan_tf.engine.scaling.links import LINKS, Link
from paragan_tf.engine.scaling.profile import Fit, Profile

# 10 MB/s and 0.5 s a hop; a torus of two axes.
SWITCH = Link("switch", 1e7, 0.5)
TORUS = Link("torus", 1e7, 0.5, axes=2, sharers=2)


def make_profile(**changes) -> Profile:
  """A profile whose step takes 1 s and 0.25 s an image."""
  profile = Profile(
    device="tpu_v3",
    num_threads=1,
    num_cores=2,
    config_hash="",
    batches=(4,),
    num_batches=1,
    step_seconds=Fit(1.0, 0.25),
    scheme_seconds={"quantized": Fit(2.0, 0.25), "gossip": Fit(1.5, 0.25)},
    player_seconds={"g": Fit(0.0, 0.25), "d": Fit(0.0, 0.125)},
    memory_bytes=Fit(0.0, 0.0),
    memory_limit=0,
    memory_source="TPU compiler",
    input_images_per_second=math.inf,
    gradient_bytes={"g": 24_000_000, "d": 16_000_000},
    state_bytes={"g": 4_000_000, "d": 0},
    message_bytes=10_000_000,
    codec_seconds={"encode": 0.5, "decode": 0.25},
    noise_scale={},
    exchange_engine="",
    exchange_workers=0,
    exchange_seconds={},
  )
  return profile._replace(**changes)


def predict(name, num_workers=4, batch=4, link=SWITCH, machine=None, **changes):
  """The prediction of a scheme by name."""
  scheme = SCHEMES[name]
  profile = make_profile(**changes)
  return costs.predict(profile, scheme, num_workers, batch, link, machine)


class CostsTest(parameterized.TestCase):
  # 4 workers with 4 images each: 2 s. 40 MB of gradients, 4 MB of statistics;
  # an all-reduce of n bytes sends 1.5 n, in 6 hops.
  @parameterized.parameters(
    # Two turns, each with gradients and statistics: 4 calls.
    ("sync", 2.0, 0.0, 6.6 + 4 * 6 * 0.5),
    ("every_other_step", 2.0, 0.0, (6.6 + 2 * 6 * 0.5) / 2),
    ("gradients_every_other_step", 2.0, 0.0, (6.6 + 4 * 6 * 0.5) / 2),
    # G's workers have 8 images, 2 s; those of D 1 s. Both in one message.
    ("async", 1.5, 0.5, 6.6 + 2 * 6 * 0.5),
    ("paragan", 1.5, 0.5, (6.6 + 6 * 0.5) / 2),
    # Two neighbors, in one hop.
    ("gossip", 2.5, 0.0, 2 * 4.4001024 + 0.5),
    # 3 messages received, 3 more to decode than alone. Statistics take 6 hops,
    # most of which pass while gradients are computed.
    ("quantized", 3.75, 0.0, (3.0 + 3 * 0.5) + 0.6),
    # Parts to all and means of all; 1/4 to encode, 2 1/4 to decode.
    (
      "quantized_two_phase",
      3.0 + 0.125 + 0.5625,
      0.0,
      (1.5 + 0.5 + 3 * 0.5) + 0.6,
    ),
    ("per_label", 2.0, 0.0, 0.0),
  )
  def test_each_scheme_by_hand(self, name, compute, wait, wire):
    found = predict(name)
    self.assertAlmostEqual(found.compute, compute)
    self.assertAlmostEqual(found.wait, wait)
    self.assertAlmostEqual(found.wire, wire)
    self.assertEqual((found.software, found.input), (0.0, 0.0))
    step = compute + wait + wire
    self.assertAlmostEqual(found.step_seconds, step)
    self.assertAlmostEqual(found.images_per_second, 16 / step)
    self.assertAlmostEqual(found.efficiency, 2.0 / step)

  @parameterized.parameters(*SCHEMES)
  def test_parts_add_up_to_the_step(self, name):
    machine = Machine("m", 4, 2, 1.1, 0.1, 1e-3, 1e-3, 1e-9, 1)
    found = predict(name, machine=machine, input_images_per_second=0.5)
    parts = (found.compute, found.wait, found.software, found.wire, found.input)
    self.assertAlmostEqual(sum(parts), found.step_seconds)
    self.assertGreater(found.compute, 0.0)
    self.assertGreaterEqual(min(parts), 0.0)

  @parameterized.parameters(*SCHEMES)
  def test_one_worker_communicates_nothing(self, name):
    found = predict(name, num_workers=1)
    self.assertEqual((found.wait, found.wire, found.bytes_sent), (0, 0, 0))
    own = {"quantized": 3.0, "quantized_two_phase": 3.0, "gossip": 2.5}
    self.assertAlmostEqual(found.step_seconds, own.get(name, 2.0))

  def test_cores_of_a_chip_share_its_port_and_its_links(self):
    # 4 chips, 2 by 2: an all-reduce of 44 MB sends 1.5 of it, over hops of 2
    # passes along both axes, half way round; twice, with statistics.
    found = predict("sync", num_workers=8, link=TORUS)
    self.assertAlmostEqual(found.wire, 6.6 + 4 * 2 * (2 * 2 / 2) * 0.5)
    self.assertEqual(predict("sync", num_workers=2, link=TORUS).wire, 0.0)
    # A gather receives from the 6 cores of other chips.
    self.assertAlmostEqual(messages.gather(1e7, 8, TORUS).num_bytes, 6e7)
    # A ring uses the links of one axis only.
    ring = messages.neighbors(1e7, 8, TORUS)
    self.assertAlmostEqual(ring.seconds_of_bytes, 2 * (2.0 + 1024e-7 * 2))

  def test_an_all_to_all_on_a_large_torus_passes_other_chips(self):
    # 16 by 16 chips: 8 hops from a chip to another on average, not 1.
    found = messages.two_phase(1e7, 512, TORUS)
    first = 2 * 255 / 256 * 1e7
    self.assertAlmostEqual(
      found.seconds_of_bytes, (8 * first + 510 / 512 * 1e7) / 1e7
    )
    small = messages.two_phase(1e7, 8, TORUS)
    self.assertAlmostEqual(small.num_bytes, 1.5e7 + 0.75e7)

  def test_d_is_exchanged_once_a_batch_that_it_trains_on(self):
    twice = predict("sync", num_batches=2)
    self.assertAlmostEqual(
      twice.bytes_sent - predict("sync").bytes_sent, 1.5 * 16e6
    )
    self.assertAlmostEqual(twice.images_per_second * twice.step_seconds, 32)

  def test_workers_that_share_cores_are_slower(self):
    machine = Machine("laptop", workers=4, cores=2, contention=1.2)
    found = predict("per_label", machine=machine)
    self.assertAlmostEqual(found.compute, 2.0 * 2 * 1.2)
    two = predict("per_label", num_workers=2, machine=machine)
    self.assertAlmostEqual(two.compute, 2.0 * 1.2)
    one = predict("per_label", num_workers=1, machine=machine)
    self.assertAlmostEqual(one.compute, 2.0)

  def test_messages_take_processor_time_and_a_request(self):
    machine = Machine(
      "laptop",
      workers=4,
      cores=2,
      call_seconds=1.0,
      message_seconds=0.5,
      byte_seconds=1e-7,
      requests=1,
    )
    found = predict("every_other_step", machine=machine)
    # Two calls of 6 hops, 66 MB; two workers to a core; every other step.
    self.assertAlmostEqual(found.software, 2 * (2 + 6 + 6.6) / 2)
    self.assertAlmostEqual(found.wire, (6.6 + (12 + 2) * 0.5) / 2)

  def test_statistics_leave_before_quantized_updates(self):
    far = SWITCH._replace(latency=2.0)
    found = predict("quantized", link=far)
    # 6 hops, of which 2.5 s pass while gradients are computed; a gather has 3.
    self.assertAlmostEqual(found.wire, 3.0 + 0.6 + 6 * 2.0 - 3.75 * 2 / 3)
    # Statistics of D too are an all-reduce of their own, after that of G.
    state = {"g": 2_000_000, "d": 2_000_000}
    both = predict("quantized", link=far, state_bytes=state)
    self.assertAlmostEqual(both.wire - found.wire, 6 * 2.0)

  def test_both_players_quantized_updates_are_calls_of_their_own(self):
    machine = Machine(call_seconds=1.0, message_seconds=0.1)
    found = predict("quantized", machine=machine)
    # Two gathers of 3 messages, and an all-reduce of 6.
    self.assertAlmostEqual(found.software, 3 * 1.0 + 12 * 0.1)
    # The gathers take 2.6 s of that, and 3 s on the wire: half of the lesser
    # passes while the other of the two is handled.
    plain = predict("quantized")
    self.assertAlmostEqual(plain.wire - found.wire, 2.6 / 2)
    far = predict("quantized", machine=machine, message_bytes=1_000_000)
    self.assertAlmostEqual(far.wire, 0.3 / 2 + 3 * 0.5 + 0.6)

  def test_the_next_batch_is_read_meanwhile(self):
    # 4 images of a worker, at 1 a second, in a step of 2 s.
    self.assertAlmostEqual(
      predict("per_label", input_images_per_second=1.0).input, 2.0
    )
    self.assertEqual(
      predict("per_label", input_images_per_second=2.0).input, 0.0
    )

  @parameterized.parameters(
    (1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi))
  )
  def test_expected_maximum_of_a_few(self, num, expected):
    self.assertAlmostEqual(costs.expected_max(num), expected, places=5)

  def test_expected_maximum_of_many(self):
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(4000, 256)).max(1)
    error = 4 * drawn.std() / math.sqrt(4000)
    self.assertAlmostEqual(costs.expected_max(256), drawn.mean(), delta=error)
    self.assertGreater(costs.expected_max(1024), costs.expected_max(256))

  def test_sync_waits_for_the_slowest_and_local_steps_less(self):
    machine = Machine(jitter=0.1)
    sync = predict("sync", num_workers=1024, machine=machine).wait
    self.assertAlmostEqual(sync, 2.0 * 0.1 * costs.expected_max(1024))
    local = predict("every_other_step", num_workers=1024, machine=machine).wait
    self.assertAlmostEqual(local, sync / math.sqrt(2))
    gossip = predict("gossip", num_workers=1024, machine=machine).wait
    self.assertAlmostEqual(gossip, 2.5 * 0.1 * costs.GOSSIP_WAIT)
    self.assertEqual(
      predict("per_label", num_workers=1024, machine=machine).wait, 0.0
    )

  @parameterized.parameters(
    (dict(num_workers=0), "`num_workers` must be an integer above 0, got 0"),
    (dict(batch=0), "`batch_per_worker` must be an integer above 0"),
    (dict(link=SWITCH._replace(bytes_per_second=-1.0)), "must be above 0"),
    (dict(link=SWITCH._replace(bytes_per_second=math.nan)), "must be above 0"),
    (dict(link=SWITCH._replace(latency=-1.0)), "0 or more seconds"),
    (dict(link=SWITCH._replace(sharers=0)), "`sharers` at least 1"),
    (dict(link=LINKS["nvlink4"], num_workers=16), "at most 8 on 'nvlink4'"),
    (dict(machine=Machine(cores=0)), "at least 1"),
    (dict(machine=Machine(contention=0.5)), "at least 1"),
    (dict(machine=Machine(jitter=-0.1)), "must be 0 or more"),
  )
  def test_nonsense_is_refused(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      predict("sync", **arguments)

  def test_roles_need_whole_groups(self):
    with self.assertRaisesRegex(ValueError, "multiple of 2 with roles"):
      predict("paragan", num_workers=3)
    for change in (dict(period=0), dict(collective="all_together")):
      with self.assertRaisesRegex(ValueError, "must be"):
        costs.predict(
          make_profile(), SCHEMES["sync"]._replace(**change), 4, 4, SWITCH
        )


class LinksTest(parameterized.TestCase):
  @parameterized.parameters(*LINKS.values())
  def test_every_link_is_possible_and_says_where_it_is_from(self, *link):
    link = Link(*link)
    links.check(link, 2)
    self.assertRegex(link.source, "http|from memory|IEEE")
    self.assertIs(links.find(link.name), LINKS[link.name])
    # Between 1 Gbit/s and 1 TB/s, 1 us and 1 ms.
    self.assertBetween(link.bytes_per_second, 1.25e8, 1e12)
    self.assertBetween(link.latency, 1e-6, 1e-3)

  def test_a_v3_chip_has_four_links_of_656_gbits(self):
    self.assertAlmostEqual(
      LINKS["tpu_v3"].bytes_per_second / (4 * 656e9 / 8), 1.0, delta=0.02
    )

  def test_an_unknown_link_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`link` must be one of tpu_v2"):
      links.find("carrier_pigeon")


if __name__ == "__main__":
  absltest.main()
