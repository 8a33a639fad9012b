"""Pictures inside an HTML page: their bytes are part of it."""

import base64
import html
import io
from typing import Mapping

import tensorflow as tf
from PIL import Image

from paragan_tf.outputs.curves import spread, tick

_MAX_BYTES = 500_000  # A larger picture is embedded as a JPEG.
_MAX_ALL_BYTES = 6_000_000  # Of all pictures of one slider.
_MAX_JPEG_SIDE = 1280
_MAX_GRIDS = 16
_LARGE = 720  # The page shows it smaller, so its pixels are not to be seen.


def embed(path: str, alt: str, max_bytes: int = _MAX_BYTES) -> str:
  """Returns the image with its bytes; empty if it is missing or damaged."""
  if not tf.io.gfile.exists(path):
    return ""
  with tf.io.gfile.GFile(path, "rb") as f:
    return embed_bytes(f.read(), alt, max_bytes)


def embed_bytes(data: bytes, alt: str, max_bytes: int = _MAX_BYTES) -> str:
  """Returns the image of these bytes; empty if they are damaged."""
  try:
    image = Image.open(io.BytesIO(data))
    image.load()
  except (OSError, SyntaxError, ValueError):
    return ""
  kind, large = "png", " data-large" if image.width > _LARGE else ""
  if len(data) > max_bytes:
    kind, jpeg = "jpeg", io.BytesIO()
    image.thumbnail((_MAX_JPEG_SIDE, _MAX_JPEG_SIDE))
    image.convert("RGB").save(jpeg, "JPEG", quality=88)
    data = jpeg.getvalue()
  return (
    f'<img src="data:image/{kind};base64,{base64.b64encode(data).decode()}"'
    f' width="{image.width}" height="{image.height}"'
    f' alt="{html.escape(alt)}"{large}>'
  )


def make_figure(picture: str, caption: str) -> str:
  """Returns an embedded picture with its caption."""
  text = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
  return f"<figure>{picture}{text}</figure>"


def make_slider(paths: Mapping[int, str]) -> str:
  """Returns pictures of several steps, of which one is shown; or nothing.

  They are radio buttons, so that it works without scripts; the script of the
  page puts a slider in their place.
  """
  steps = spread(list(paths), _MAX_GRIDS)
  max_bytes = min(_MAX_BYTES, _MAX_ALL_BYTES // max(1, len(steps)))
  pictures = {
    step: embed(paths[step], f"Samples at step {step:,}", max_bytes)
    for step in steps
  }
  pictures = {step: picture for step, picture in pictures.items() if picture}
  parts = [
    f'<input type="radio" name="grid" id="grid{step}"'
    f"{' checked' if step == max(pictures) else ''}>"
    f'<label for="grid{step}">{tick(step)}</label>'
    + make_figure(picture, f"Step {step:,}")
    for step, picture in pictures.items()
  ]
  if not parts:
    return ""
  return '<div class="card grids">' + "\n".join(parts) + "</div>"
