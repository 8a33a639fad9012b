"""The network emulator: latency, rate, and ends of connections."""

import contextlib
import functools
import json
import math
import socket
import struct
import threading
import time

import tensorflow as tf

from tools.suites.wire import network_emulator_check as check
from tools.suites.wire.network_emulator import Link, NetworkEmulator
from tools.suites.workers import Worker, close_all

MBIT = 1e6 / 8
SECONDS = 30.0  # To try again in, on a busy machine.


class LinkTest(tf.test.TestCase):
  """On a busy machine messages may be late: the best of some tries counts.

  The emulator has a process of its own, as in the benchmark; in this one, its
  thread would wait for ours.
  """

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    cls.emulator = Worker("emulator", functools.partial(NetworkEmulator, 3))
    stack.enter_context(close_all([cls.emulator]))
    for i in (1, 2):
      real = cls.emulator.call("get_address", i, i)
      stack.enter_context(check.run_receiver(real))

  def address(self, j, i):
    return self.emulator.call("get_address", j, i)

  def assert_found(self, measure, low, high):
    """Measures until the value is in the range, or the time is over."""
    found, give_up_at = [], time.monotonic() + SECONDS
    while not found or not low <= found[-1] <= high:
      self.assertLess(time.monotonic(), give_up_at, found)
      found.append(measure())

  def assert_rate(self, addresses, rate, num_bytes, latency=0.0, times=1):
    """Checks the rate of all connections together, a multiple of `rate`."""
    self.emulator.call("set_link", Link(latency, rate))
    self.assert_found(
      lambda: check.measure_rate(addresses, num_bytes) / rate,
      0.9 * times,
      1.1 * times,
    )

  def test_a_byte_takes_the_latency_each_way(self):
    for latency in (0.01, 0.03):
      self.emulator.call("set_link", Link(latency))
      took = []
      with check.connect(self.address(0, 1)) as connection:

        def ping(connection=connection, took=took):
          started = time.perf_counter()
          check.send_bytes(connection, 0)
          took.append(time.perf_counter() - started)
          return took[-1]

        self.assert_found(ping, 2 * latency, 1.1 * 2 * latency)
      self.assertGreaterEqual(min(took), 2 * latency)  # Never sooner.

  def test_the_overhead_is_subtracted_from_the_latency(self):
    here, there = self.address(1, 0), self.address(0, 0)
    with socket.create_server(there) as server:
      near, far = check.connect_pair(here, server)
      with near, far:
        measure = functools.partial(check.measure_latency, (near, far), 3)
        self.emulator.call("set_link", Link(0.03), 0.015)
        self.assert_found(measure, 0.015, 0.025)
        self.emulator.call(
          "set_link", Link(0.03), 0.2
        )  # Never sooner than at once.
        self.assert_found(measure, 0.0, 0.012)
        near.close()
        with self.assertRaisesRegex(ConnectionError, "has closed"):
          while True:  # Until the end has arrived.
            check._has_arrived(far)

  def test_bytes_take_as_long_as_the_rate_says(self):
    for mbit, num_bytes in ((40, 1_000_000), (100, 2_000_000)):
      self.assert_rate([self.address(0, 1)], mbit * MBIT, num_bytes)

  def test_latency_does_not_cost_rate(self):
    self.assert_rate([self.address(0, 1)], 100 * MBIT, 4_000_000, latency=0.03)

  def test_connections_share_a_workers_uplink(self):
    both = [self.address(0, 1), self.address(0, 2)]
    self.assert_rate(both, 40 * MBIT, 500_000)

  def test_connections_share_a_workers_downlink(self):
    both = [self.address(0, 2), self.address(1, 2)]
    self.assert_rate(both, 40 * MBIT, 500_000)

  def test_uplinks_and_downlinks_of_workers_are_independent(self):
    both = [self.address(0, 1), self.address(1, 2)]
    self.assert_rate(both, 40 * MBIT, 500_000, times=2)


class EndsTest(tf.test.TestCase):
  """The ends of connections, with an emulator in this process."""

  def setUp(self):
    super().setUp()
    self.emulator = NetworkEmulator(2)
    self.closed = False
    self.server = socket.create_server(self.emulator.get_address(1, 1))
    self.enter_context(self.server)
    self.addCleanup(self.close)

  def close(self):
    if not self.closed:
      self.emulator.close()
    self.closed = True

  def pair(self):
    """Returns both ends of a new connection."""
    both = check.connect_pair(self.emulator.get_address(0, 1), self.server)
    for end in both:
      self.enter_context(end)
    return both

  def test_one_direction_may_end_before_the_other(self):
    client, server = self.pair()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    self.assertEqual(server.recv(8, socket.MSG_WAITALL), b"question")
    self.assertEqual(server.recv(1), b"")
    server.sendall(b"answer")
    server.close()
    self.assertEqual(client.recv(6, socket.MSG_WAITALL), b"answer")
    self.assertEqual(client.recv(1), b"")

  def test_a_reset_connection_leaves_others_open(self):
    other = self.pair()
    client, server = self.pair()
    linger = struct.pack("ii", 1, 0)  # A reset, not a regular end.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    server.close()
    self.assertEqual(client.recv(1), b"")
    other[0].sendall(b"still")
    self.assertEqual(other[1].recv(5, socket.MSG_WAITALL), b"still")

  def test_all_bytes_arrive_in_order(self):
    self.emulator.set_link(Link(0.001, 800 * MBIT))
    client, server = self.pair()
    sent = bytes(range(256)) * 4000
    thread = threading.Thread(target=client.sendall, args=(sent,))
    thread.start()
    got = b""
    while len(got) < len(sent):
      got += server.recv(1 << 16)
    thread.join()
    self.assertEqual(got, sent)

  def test_a_worker_that_does_not_listen_yet_refuses(self):
    here, there = (
      self.emulator.get_address(1, 0),
      self.emulator.get_address(0, 0),
    )
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(here, timeout=5.0)
    with socket.create_server(there):
      check.connect(here).close()

  def test_close_ends_all_connections(self):
    client, server = self.pair()
    self.close()
    for end in (client, server):
      self.assertEqual(end.recv(1), b"")
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(self.emulator.get_address(0, 0))
    self.assertFalse(self.emulator._thread.is_alive())

  def test_only_its_own_address_is_real_for_a_worker(self):
    found = [
      json.loads(x["TF_CONFIG"]) for x in self.emulator.make_environments()
    ]
    self.assertEqual([x["task"]["index"] for x in found], [0, 1])
    first, second = (x["cluster"]["worker"] for x in found)
    self.assertEqual(
      second[1], "{}:{}".format(*self.emulator.get_address(1, 1))
    )
    self.assertLen({*first, *second}, 4)

  def test_without_limits_nothing_is_delayed(self):
    self.assertEqual(Link(), Link(0.0, math.inf))
    client, server = self.pair()
    client.sendall(b"now")
    self.assertEqual(server.recv(3, socket.MSG_WAITALL), b"now")


if __name__ == "__main__":
  tf.test.main()
