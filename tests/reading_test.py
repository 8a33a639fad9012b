"""Bytes come whole, or with the name of the file that lacks them."""

import http.server
import threading

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import reading

CONTENT = bytes(range(256))


class Handler(http.server.BaseHTTPRequestHandler):
  """Knows `/there`, also in parts, and `/broken`."""

  def do_GET(self):
    """Answers."""
    status, content = 404, b""
    if self.path == "/there":
      status, content = 200, CONTENT
      if "Range" in self.headers:
        first, last = self.headers["Range"].split("=")[1].split("-")
        status = 206
        content = CONTENT[int(first) : int(last) + 1 if last else None]
    elif self.path == "/broken":
      status = 503
    self.send_response(status)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def log_message(self, *args):
    """Says nothing."""


class ReadTest(tf.test.TestCase, parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=cls.server.serve_forever, daemon=True).start()

  @classmethod
  def tearDownClass(cls):
    cls.server.shutdown()
    cls.server.server_close()
    super().tearDownClass()

  def path(self, kind, name="there"):
    """Returns where the content is."""
    if kind == "http":
      return f"http://127.0.0.1:{self.server.server_port}/{name}"
    path = f"{self.get_temp_dir()}/{name}"
    if name == "there":
      with open(path, "wb") as f:
        f.write(CONTENT)
    return f"file://{path}" if kind == "gfile" else path

  @parameterized.product(
    kind=["local", "gfile", "http"],
    part=[(0, None), (0, 256), (3, 10), (250, None), (255, 1)],
  )
  def test_a_part_is_read(self, kind, part):
    start, size = part
    end = None if size is None else start + size
    got = reading.read(self.path(kind), start, size)
    self.assertEqual(got, CONTENT[start:end])

  @parameterized.parameters("local", "gfile", "http")
  def test_a_part_beyond_the_end_is_an_error(self, kind):
    with self.assertRaisesRegex(OSError, "6 of 10 bytes from 250 on"):
      reading.read(self.path(kind), 250, 10)

  @parameterized.parameters("local", "gfile", "http")
  def test_what_is_not_there_is_told_at_once(self, kind):
    patient = reading.Patient(sleep=self.fail)
    path = self.path(kind, "missing")
    with self.assertRaisesRegex(ValueError, f"'{path}' cannot be read, tried"):
      patient(path)
    self.assertEqual(patient.num_retries, 0)

  def test_what_the_server_cannot_is_tried_again(self):
    pauses = []
    patient = reading.Patient(num_tries=3, sleep=pauses.append)
    with self.assertRaisesRegex(ValueError, r"3 times \(HTTP status 503\)"):
      patient(self.path("http", "broken"))
    self.assertEqual(pauses, [0.2, 0.4])
    self.assertEqual(patient.num_retries, 2)


class PatientTest(tf.test.TestCase):
  def test_what_passes_is_forgotten_but_counted(self):
    errors = [OSError("away"), tf.errors.UnavailableError(None, None, "busy")]
    pauses = []

    def read(path, start, size):
      if errors:
        raise errors.pop(0)
      return f"{path} {start} {size}".encode()

    patient = reading.Patient(read, sleep=pauses.append)
    self.assertEqual(patient("x", 1, 2), b"x 1 2")
    self.assertEqual(pauses, [0.2, 0.4])
    self.assertEqual(patient.num_retries, 2)
    self.assertEqual(patient("y", 0, None), b"y 0 None")
    self.assertEqual(patient.num_retries, 2)

  def test_what_is_no_fault_of_the_storage_is_not_caught(self):
    def read(path, start, size):
      raise TypeError("ours")

    with self.assertRaisesRegex(TypeError, "ours"):
      reading.Patient(read, sleep=self.fail)("x")

  def test_no_try_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`num_tries` must be at least 1"):
      reading.Patient(num_tries=0)

  def test_words_of_tensorflow_come_without_its_nodes(self):
    data = tf.data.Dataset.from_tensors(b"\xff\xd8\xff").map(tf.io.decode_jpeg)
    with self.assertRaises(tf.errors.OpError) as caught:
      next(iter(data))
    text = reading.plain(caught.exception)
    self.assertRegex(text, r"^jpeg::Uncompress failed.*\w\.?$")
    self.assertNotIn("{{", text)
    self.assertNotIn("[", text)
    self.assertEqual(reading.plain(OSError()), "OSError")


if __name__ == "__main__":
  tf.test.main()
