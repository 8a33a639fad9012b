"""Bytes are read completely, or an error names the file."""

import http.server
import threading

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import reading

CONTENT = bytes(range(256))


class Handler(http.server.BaseHTTPRequestHandler):
  """Serves `/there`, also byte ranges, and fails at `/broken`."""

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
    span=[(0, None), (0, 256), (3, 10), (250, None), (255, 1)],
  )
  def test_a_span_is_read(self, kind, span):
    start, size = span
    end = None if size is None else start + size
    got = reading.read(self.path(kind), start, size)
    self.assertEqual(got, CONTENT[start:end])

  @parameterized.parameters("local", "gfile", "http")
  def test_a_span_beyond_the_end_is_an_error(self, kind):
    with self.assertRaisesRegex(OSError, "6 of 10 bytes from 250 on"):
      reading.read(self.path(kind), 250, 10)

  @parameterized.parameters("local", "gfile", "http")
  def test_a_missing_file_is_not_retried(self, kind):
    reader = reading.RetryingReader(sleep=self.fail)
    path = self.path(kind, "missing")
    with self.assertRaisesRegex(ValueError, f"'{path}' cannot be read, tried"):
      reader(path)
    self.assertEqual(reader.num_retries, 0)

  def test_an_error_of_the_server_is_retried(self):
    pauses = []
    reader = reading.RetryingReader(num_tries=3, sleep=pauses.append)
    with self.assertRaisesRegex(ValueError, r"3 times \(HTTP status 503\)"):
      reader(self.path("http", "broken"))
    self.assertEqual(pauses, [0.2, 0.4])
    self.assertEqual(reader.num_retries, 2)


class RetryingReaderTest(tf.test.TestCase):
  def test_transient_errors_are_retried_and_counted(self):
    errors = [OSError("away"), tf.errors.UnavailableError(None, None, "busy")]
    pauses = []

    def read(path, start, size):
      if errors:
        raise errors.pop(0)
      return f"{path} {start} {size}".encode()

    reader = reading.RetryingReader(read, sleep=pauses.append)
    self.assertEqual(reader("x", 1, 2), b"x 1 2")
    self.assertEqual(pauses, [0.2, 0.4])
    self.assertEqual(reader.num_retries, 2)
    self.assertEqual(reader("y", 0, None), b"y 0 None")
    self.assertEqual(reader.num_retries, 2)

  def test_errors_in_the_code_are_not_caught(self):
    def read(path, start, size):
      raise TypeError("ours")

    with self.assertRaisesRegex(TypeError, "ours"):
      reading.RetryingReader(read, sleep=self.fail)("x")

  def test_zero_tries_are_refused(self):
    with self.assertRaisesRegex(ValueError, "`num_tries` must be at least 1"):
      reading.RetryingReader(num_tries=0)

  def test_messages_of_tensorflow_lose_their_node_names(self):
    data = tf.data.Dataset.from_tensors(b"\xff\xd8\xff").map(tf.io.decode_jpeg)
    with self.assertRaises(tf.errors.OpError) as caught:
      next(iter(data))
    text = reading.clean_message(caught.exception)
    self.assertRegex(text, r"^jpeg::Uncompress failed.*\w\.?$")
    self.assertNotIn("{{", text)
    self.assertNotIn("[", text)
    self.assertEqual(reading.clean_message(OSError()), "OSError")


if __name__ == "__main__":
  tf.test.main()
