"""What a pool leaves behind when all of its labels are trained."""

from paragan_tf import following, trained
from paragan_tf.outputs import metrics, report, samples

_ROWS, _MAX_COLUMNS = 8, 10


def finish(model_dir: str) -> None:
  """Draws the mixture, measures it, and writes the report of all labels."""
  path = draw_grid(model_dir)
  try:
    result = following.Follower(model_dir, following.Request()).measure()
    print(metrics.format_values(result.values))
  except ValueError as e:
    print(f"Nothing is measured: {e}", flush=True)
  print(f"Pictures: {path}")
  print(f"Report:   {report.write(model_dir)}", flush=True)


def draw_grid(model_dir: str) -> str:
  """Writes samples, a label in each column; returns the path."""
  g = trained.load(model_dir)
  columns = min(g.info.num_classes, _MAX_COLUMNS)
  images = g.sample(_ROWS * columns, range(columns), seed=1).images
  path = samples.png_path(model_dir, g.info.step or 0)
  scale = samples.scale_for(g.info.resolution)
  samples.write_png(path, samples.grid(images, columns), scale)
  return path
