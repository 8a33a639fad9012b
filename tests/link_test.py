"""Links between processes: as late and as slow as they are told to be."""

import contextlib
import functools
import json
import math
import socket
import struct
import threading
import time

import tensorflow as tf

from tools.suites import link_check
from tools.suites.link import Link, Links
from tools.suites.workers import Worker, closing

MBIT = 1e6 / 8
SECONDS = 30.0  # To try again in, on a busy machine.


class LinkTest(tf.test.TestCase):
  """A machine with moods is late now and then: the best of some tries counts.

  The links are a process, as in the benchmark: its thread would wait for ours.
  """

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    cls.links = Worker("links", functools.partial(Links, 3))
    stack.enter_context(closing([cls.links]))
    for i in (1, 2):
      real = cls.links.ask("address", i, i)
      stack.enter_context(link_check.peer(real))

  def address(self, j, i):
    return self.links.ask("address", j, i)

  def assert_found(self, measure, low, high):
    """What is measured is in the range, as soon as the machine lets it."""
    found, give_up_at = [], time.monotonic() + SECONDS
    while not found or not low <= found[-1] <= high:
      self.assertLess(time.monotonic(), give_up_at, found)
      found.append(measure())

  def assert_rate(self, addresses, rate, num_bytes, latency=0.0, times=1):
    """All connections together have so many times the rate."""
    self.links.ask("set", Link(latency, rate))
    self.assert_found(
      lambda: link_check.bulk_rate(addresses, num_bytes) / rate,
      0.9 * times,
      1.1 * times,
    )

  def test_a_word_takes_the_latency_each_way(self):
    for latency in (0.01, 0.03):
      self.links.ask("set", Link(latency))
      took = []
      with link_check.connected(self.address(0, 1)) as connection:

        def word(connection=connection, took=took):
          started = time.perf_counter()
          link_check.give(connection, 0)
          took.append(time.perf_counter() - started)
          return took[-1]

        self.assert_found(word, 2 * latency, 1.1 * 2 * latency)
      self.assertGreaterEqual(min(took), 2 * latency)  # Never sooner.

  def test_what_the_relay_itself_takes_is_taken_off(self):
    here, there = self.address(1, 0), self.address(0, 0)
    with socket.create_server(there) as server:
      near, far = link_check.ends(here, server)
      with near, far:
        measure = functools.partial(link_check.latency, (near, far), 3)
        self.links.ask("set", Link(0.03), 0.015)
        self.assert_found(measure, 0.015, 0.025)
        self.links.ask("set", Link(0.03), 0.2)  # Never sooner than at once.
        self.assert_found(measure, 0.0, 0.012)
        near.close()
        with self.assertRaisesRegex(ConnectionError, "has gone"):
          while True:  # It takes some time to be known.
            link_check._has_come(far)

  def test_bytes_take_as_long_as_the_rate_says(self):
    for mbit, num_bytes in ((40, 1_000_000), (100, 2_000_000)):
      self.assert_rate([self.address(0, 1)], mbit * MBIT, num_bytes)

  def test_latency_does_not_cost_rate(self):
    self.assert_rate([self.address(0, 1)], 100 * MBIT, 4_000_000, latency=0.03)

  def test_connections_share_a_worker_s_uplink(self):
    both = [self.address(0, 1), self.address(0, 2)]
    self.assert_rate(both, 40 * MBIT, 500_000)

  def test_and_its_downlink(self):
    both = [self.address(0, 2), self.address(1, 2)]
    self.assert_rate(both, 40 * MBIT, 500_000)

  def test_up_and_down_are_apart_and_so_are_workers(self):
    both = [self.address(0, 1), self.address(1, 2)]
    self.assert_rate(both, 40 * MBIT, 500_000, times=2)


class EndsTest(tf.test.TestCase):
  """The ends of connections, with links of this process."""

  def setUp(self):
    super().setUp()
    self.links = Links(2)
    self.closed = False
    self.server = socket.create_server(self.links.address(1, 1))
    self.enter_context(self.server)
    self.addCleanup(self.close)

  def close(self):
    if not self.closed:
      self.links.close()
    self.closed = True

  def pair(self):
    """Returns both ends of a new connection."""
    both = link_check.ends(self.links.address(0, 1), self.server)
    for end in both:
      self.enter_context(end)
    return both

  def test_one_may_end_and_the_other_go_on(self):
    client, server = self.pair()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    self.assertEqual(server.recv(8, socket.MSG_WAITALL), b"question")
    self.assertEqual(server.recv(1), b"")
    server.sendall(b"answer")
    server.close()
    self.assertEqual(client.recv(6, socket.MSG_WAITALL), b"answer")
    self.assertEqual(client.recv(1), b"")

  def test_who_breaks_off_breaks_nothing_else(self):
    other = self.pair()
    client, server = self.pair()
    linger = struct.pack("ii", 1, 0)  # Without a last word.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    server.close()
    self.assertEqual(client.recv(1), b"")
    other[0].sendall(b"still")
    self.assertEqual(other[1].recv(5, socket.MSG_WAITALL), b"still")

  def test_all_bytes_come_and_in_order(self):
    self.links.set(Link(0.001, 800 * MBIT))
    client, server = self.pair()
    sent = bytes(range(256)) * 4000
    thread = threading.Thread(target=client.sendall, args=(sent,))
    thread.start()
    got = b""
    while len(got) < len(sent):
      got += server.recv(1 << 16)
    thread.join()
    self.assertEqual(got, sent)

  def test_who_is_not_there_yet_refuses(self):
    here, there = self.links.address(1, 0), self.links.address(0, 0)
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(here, timeout=5.0)
    with socket.create_server(there):
      link_check.connected(here).close()

  def test_closing_cuts_everything(self):
    client, server = self.pair()
    self.close()
    for end in (client, server):
      self.assertEqual(end.recv(1), b"")
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(self.links.address(0, 0))
    self.assertFalse(self.links._thread.is_alive())

  def test_each_finds_itself_at_its_real_address_only(self):
    found = [json.loads(x["TF_CONFIG"]) for x in self.links.environments()]
    self.assertEqual([x["task"]["index"] for x in found], [0, 1])
    first, second = (x["cluster"]["worker"] for x in found)
    self.assertEqual(second[1], "{}:{}".format(*self.links.address(1, 1)))
    self.assertLen({*first, *second}, 4)

  def test_without_limits_nothing_is_held_back(self):
    self.assertEqual(Link(), Link(0.0, math.inf))
    client, server = self.pair()
    client.sendall(b"now")
    self.assertEqual(server.recv(3, socket.MSG_WAITALL), b"now")


if __name__ == "__main__":
  tf.test.main()
