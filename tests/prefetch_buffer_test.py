"""The buffer keeps the order, bounds its memory, and hedges late reads."""

import collections
import threading
import time
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import congestion, prefetch_buffer
from paragan_tf.data.congestion import Bounds, Plan
from paragan_tf.data.prefetch_buffer import PrefetchBuffer, Request

BOUNDS = Bounds(Plan(2, 2), Plan(16, 32), 1 << 20)


def requests(num):
  """Returns requests of one key each."""
  return [Request(k, [k], [1]) for k in range(num)]


class Storage:
  """Returns the key, ten bytes long, after a latency; counts reads."""

  def __init__(self, latency_fn=lambda key: 0.0):
    self.latency_fn = latency_fn
    self.lock = threading.Lock()
    self.reads = []
    self.num_now = self.num_most = 0

  def __call__(self, key):
    with self.lock:
      self.reads.append(key)
      self.num_now += 1
      self.num_most = max(self.num_most, self.num_now)
    time.sleep(self.latency_fn(key))
    with self.lock:
      self.num_now -= 1
    return b"%010d" % key


def settle(buffer, late=()):
  """Waits until nothing more may be read, except the late keys."""
  for _ in range(20000):
    with buffer._work:
      if not buffer._may_read() and buffer._pending.keys() <= set(late):
        return
    time.sleep(0.001)
  raise TimeoutError("Reads are still pending.")


class PrefetchBufferTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("calm", lambda key: 0.0),
    ("the_first_is_late", lambda key: 0.03 if key % 7 == 0 else 0.0),
    ("swinging", lambda key: 0.002 * (key * 7919 % 11)),
  )
  def test_the_order_never_changes(self, latency_fn):
    storage = Storage(latency_fn)
    got = list(PrefetchBuffer(storage, requests(60), BOUNDS))
    self.assertEqual([request.tag for request, _ in got], list(range(60)))
    self.assertEqual([p for _, p in got], [[b"%010d" % k] for k in range(60)])
    self.assertCountEqual(set(storage.reads), range(60))

  def test_a_shared_key_is_fetched_once_and_dropped_after_its_last_use(self):
    # Element k needs the keys k and k + 1.
    uses = collections.Counter(k for i in range(20) for k in (i, i + 1))
    elements = [
      Request(i, [i, i + 1], [uses[i], uses[i + 1]]) for i in range(20)
    ]
    storage = Storage()
    buffer = PrefetchBuffer(storage, elements, BOUNDS)
    for request, payloads in buffer:
      self.assertEqual(
        payloads, [b"%010d" % request.tag, b"%010d" % (request.tag + 1)]
      )
    self.assertCountEqual(storage.reads, range(21))
    self.assertEqual(buffer.meter().num_bytes, 0)
    self.assertLessEqual(
      buffer.meter().peak_bytes, 10 * (BOUNDS.most.depth + 2)
    )

  def test_it_reads_no_further_ahead_than_the_depth(self):
    storage = Storage()
    buffer = PrefetchBuffer(storage, requests(100), BOUNDS, adaptive=False)
    elements = iter(buffer)
    next(elements)
    settle(buffer)
    self.assertCountEqual(storage.reads, range(3))
    elements.close()

  def test_a_chunk_has_what_is_ready_and_does_not_wait_for_more(self):
    released = threading.Event()  # When key 5 has come.
    storage = Storage(lambda key: released.wait(20) and 0 if key == 6 else 0.0)
    buffer = PrefetchBuffer(
      storage, requests(20), Bounds(Plan(4, 8), Plan(4, 8), 999)
    )
    tags = []
    for chunk in buffer.chunks(4):
      tags.append([request.tag for request, _ in chunk])
      if 5 in tags[-1]:
        released.set()
      settle(buffer, late=() if released.is_set() else (6,))
    self.assertEqual([x for chunk in tags for x in chunk], list(range(20)))
    self.assertEqual(max(map(len, tags)), 4)
    (late,) = [i for i, chunk in enumerate(tags) if 6 in chunk]
    self.assertEqual(tags[late - 1][-1], 5)  # A full chunk would wait for it.

  @parameterized.parameters(55, 1000)
  def test_a_chunk_counts_as_held_until_the_next_one(self, max_bytes):
    bounds = Bounds(Plan(1, 8), Plan(1, 8), max_bytes)
    buffer = PrefetchBuffer(Storage(), requests(40), bounds, adaptive=False)
    tags, most_bytes = [], 0
    for chunk in buffer.chunks(4, lambda element: 20):
      settle(buffer)
      tags += [request.tag for request, _ in chunk]
      meter = buffer.meter()
      self.assertEqual(meter.chunk_bytes, 20 * len(chunk))
      most_bytes = max(most_bytes, meter.chunk_bytes)
    self.assertEqual(tags, list(range(40)))
    # The first element of a chunk is always yielded; it grows from 10 to 20.
    self.assertBetween(buffer.meter().peak_bytes, 40, max_bytes + 10)
    self.assertEqual(most_bytes == 80, max_bytes == 1000)
    self.assertEqual(buffer.meter().num_bytes, 0)

  def test_in_chunks_an_error_is_raised_when_its_element_is_due(self):
    def fetch(key):
      if key == 5:
        raise ValueError("gone")
      return b"x"

    buffer = PrefetchBuffer(
      fetch, requests(9), Bounds(Plan(2, 8), Plan(2, 8), 999)
    )
    tags = []
    with self.assertRaisesRegex(ValueError, "gone"):
      for chunk in buffer.chunks(4):
        settle(buffer)
        tags += [request.tag for request, _ in chunk]
    self.assertEqual(tags, list(range(5)))

  def test_elements_of_a_chunk_take_equal_parts_of_its_time(self):
    # By a clock that advances only while a chunk is used.
    clock = mock.Mock(monotonic=mock.Mock(return_value=100.0))
    advance = mock.Mock(wraps=congestion.advance)
    self.enter_context(mock.patch.object(prefetch_buffer, "time", clock))
    self.enter_context(mock.patch.object(congestion, "advance", advance))
    bounds = Bounds(Plan(2, 8), Plan(2, 8), 9999)
    buffer, sizes = PrefetchBuffer(Storage(), requests(40), bounds), []
    for chunk in buffer.chunks(4):
      sizes.append(len(chunk))
      settle(buffer)
      clock.monotonic.return_value += 0.01 * len(chunk)
    self.assertEqual(max(sizes), 4)
    seen = [call.args[1] for call in advance.call_args_list]
    self.assertLen(seen, 40 - sizes[0])  # The first chunk is not observed.
    self.assertAllClose([x.interval for x in seen], [0.01] * len(seen))

  def test_latency_adds_readers(self):
    storage = Storage(lambda key: 0.05)
    buffer = PrefetchBuffer(storage, requests(100), BOUNDS)
    for _ in buffer:
      time.sleep(0.004)
    # With two readers the run would wait 2.5 s.
    self.assertBetween(storage.num_most, 5, 16)
    self.assertGreater(buffer.meter().wait_seconds, 0.05)

  def test_after_a_burst_the_plan_shrinks(self):
    storage = Storage(lambda key: 0.04 if key < 40 else 0.0)
    buffer = PrefetchBuffer(storage, requests(9000), BOUNDS)
    plans = []
    for request, _ in buffer:
      plans.append(buffer.meter().plan)
      # A busy machine makes other bursts.
      if request.tag > 100 and plans[-1] == BOUNDS.least:
        break
      time.sleep(0.0005)
    self.assertGreaterEqual(max(p.num_readers for p in plans), 8)
    self.assertEqual(plans[-1], Plan(2, 2))

  def test_bytes_are_bounded(self):
    # More readers than fit into memory, all of them slow.
    bounds = Bounds(Plan(8, 30), Plan(8, 30), max_bytes=65)
    fetch = Storage(lambda key: 0.02 if key < 8 else 0.0)
    buffer, held = PrefetchBuffer(fetch, requests(100), bounds), []
    for _ in buffer:
      settle(buffer)
      held.append(buffer.meter().num_bytes)
    # Six of ten bytes each, until there are no more.
    self.assertEqual(held, [60] * 94 + [50, 40, 30, 20, 10, 0])
    self.assertEqual(buffer.meter().peak_bytes, 60)

  def test_without_free_memory_the_plan_does_not_grow(self):
    bounds = Bounds(Plan(2, 4), Plan(16, 32), max_bytes=5)
    buffer = PrefetchBuffer(Storage(lambda key: 0.005), requests(30), bounds)
    self.assertLen(list(buffer), 30)
    self.assertLessEqual(buffer.meter().plan.num_readers, 4)

  def test_an_idle_reader_wakes_up_when_its_read_is_due(self):
    # The second key does not fit, and no payload is ever dropped.
    elements = [Request(i, [i // 40], [99]) for i in range(80)]
    bounds = Bounds(Plan(2, 10), Plan(2, 10), max_bytes=1)
    buffer, got = PrefetchBuffer(Storage(), elements, bounds), []
    reader = threading.Thread(target=lambda: got.extend(buffer), daemon=True)
    reader.start()
    reader.join(timeout=10)
    self.assertLen(got, 80)

  def test_an_error_is_raised_when_its_element_is_due(self):
    def fetch(key):
      if key == 7:
        raise ValueError("'x' cannot be read")
      return b"%d" % key

    got = []
    with self.assertRaisesRegex(ValueError, "'x' cannot be read"):
      for request, _ in PrefetchBuffer(fetch, requests(20), BOUNDS):
        got.append(request.tag)
    self.assertEqual(got, list(range(7)))

  def make_blocker(self):
    """Returns a function that blocks until the test is over."""
    over = threading.Event()
    self.addCleanup(over.set)
    return lambda: over.wait(10)

  def test_a_late_read_is_hedged(self):
    num_reads, block = collections.Counter(), self.make_blocker()

    def fetch(key):
      num_reads[key] += 1
      late = key % 20 == 15 and num_reads[key] == 1
      block() if late else time.sleep(0.005)
      return b"%010d" % key

    bounds = Bounds(Plan(8, 4), Plan(16, 32), 1 << 20)
    buffer = PrefetchBuffer(fetch, requests(100), bounds)
    got = [request.tag for request, _ in buffer]
    self.assertEqual(got, list(range(100)))
    for key in (15, 35, 55, 75, 95):
      self.assertBetween(num_reads[key], 2, 4)
    self.assertGreaterEqual(buffer.meter().num_hedged, 5)
    self.assertEqual(buffer.meter().num_bytes, 0)

  def test_a_late_hedged_read_is_hedged_again(self):
    num_reads, block = collections.Counter(), self.make_blocker()

    def fetch(key):
      num_reads[key] += 1
      block() if key == 40 and num_reads[key] < 4 else time.sleep(0.005)
      return b"%010d" % key

    bounds = Bounds(Plan(8, 4), Plan(16, 32), 1 << 20)
    self.assertLen(list(PrefetchBuffer(fetch, requests(60), bounds)), 60)
    self.assertEqual(num_reads[40], 4)

  def test_congestion_is_not_hedged(self):
    storage = Storage(lambda key: 0.1 if 60 <= key < 120 else 0.005)
    buffer = PrefetchBuffer(storage, requests(200), BOUNDS)
    self.assertLen(list(buffer), 200)
    self.assertLess(buffer.meter().num_hedged, 30)

  def test_a_hedged_read_succeeds_if_the_first_fails(self):
    num_reads = collections.Counter()
    again, failed = threading.Event(), threading.Event()

    def fetch(key):
      num_reads[key] += 1
      if key == 30 and num_reads[key] == 1:
        again.wait(10)
        failed.set()
        raise ValueError("lost")
      if key == 30:
        again.set()
        failed.wait(10)
        time.sleep(0.05)  # The failure is known by then.
        return b"%010d" % key
      time.sleep(0.005)
      return b"%010d" % key

    got = [
      request.tag for request, _ in PrefetchBuffer(fetch, requests(40), BOUNDS)
    ]
    self.assertEqual(got, list(range(40)))
    self.assertBetween(num_reads[30], 2, 4)

  def test_threads_end_with_the_buffer(self):
    # Not by their number: threads of earlier tests may end meanwhile.
    before = set(threading.enumerate())
    elements = iter(
      PrefetchBuffer(Storage(lambda key: 0.01), requests(500), BOUNDS)
    )
    for _ in range(30):
      next(elements)
    readers = set(threading.enumerate()) - before
    self.assertNotEmpty(readers)
    elements.close()
    for _ in range(1000):
      if not any(reader.is_alive() for reader in readers):
        return
      time.sleep(0.02)
    self.fail("Readers are still running.")


if __name__ == "__main__":
  tf.test.main()
