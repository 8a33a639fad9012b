"""NumPy in double precision, as the papers write it: slow, plain, no layers."""

import numpy as np


def kernel(weight):
  """Returns a layer's kernel as it is used; spectral norm by the SVD."""
  w = np.array(weight.w, np.float64)
  if weight.u is None:
    return w
  matrix = w.reshape([-1, w.shape[-1]])
  return w / np.linalg.svd(matrix, compute_uv=False)[0]


def conv(x, layer):
  """Returns a convolution that keeps the resolution, pixel by pixel."""
  w = kernel(layer.weight)
  size, _, _, outputs = w.shape
  b, height, width, _ = x.shape
  border = size // 2
  padded = np.pad(x, [(0, 0), (border, border), (border, border), (0, 0)])
  y = np.zeros([b, height, width, outputs])
  for i in range(height):
    for j in range(width):
      patch = padded[:, i : i + size, j : j + size]
      y[:, i, j] = np.tensordot(patch, w, 3)
  return y if layer.bias is None else y + np.array(layer.bias, np.float64)


def up(x):
  """Returns every pixel four times."""
  return x.repeat(2, 1).repeat(2, 2)


def down(x):
  """Returns the mean of every four pixels."""
  return (
    x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]
  ) / 4


def relu(x):
  """Returns what is above zero."""
  return np.maximum(x, 0.0)


def batch_norm(x, gamma, beta, epsilon=1e-5):
  """Returns batch norm with a scale and shift for each sample, `[b, c]`."""
  mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
  y = (x - mean) / np.sqrt(variance + epsilon)
  return y * (1 + gamma)[:, None, None] + beta[:, None, None]


def attention(x, layer):
  """Returns self-attention, one pixel after the other."""
  query, key, value = (
    conv(x, part) for part in (layer.query, layer.key, layer.value)
  )
  b, height, width, _ = x.shape

  def largest(y):
    blocks = y.reshape([b, height // 2, 2, width // 2, 2, y.shape[-1]])
    return blocks.max((2, 4)).reshape([b, -1, y.shape[-1]])

  keys, values = largest(key), largest(value)
  mixed = np.zeros([b, height, width, values.shape[-1]])
  for n in range(b):
    for i in range(height):
      for j in range(width):
        likeness = np.exp(keys[n] @ query[n, i, j])
        mixed[n, i, j] = likeness / likeness.sum() @ values[n]
  return x + float(layer.gamma) * conv(mixed, layer.out)
