"""Samples of several runs side by side, on the page that compares them."""

import html
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Union

from paragan_tf.outputs import embedded, html_parts
from paragan_tf.outputs.compared_runs import Run

# What decides the latent codes and the place of each class in a grid.
CODES = ("z_dim", "truncation", "num_classes")


class Drawn(NamedTuple):
  """Samples that were drawn for the page.

  Attributes:
    png: The bytes of a picture.
    step: Of the checkpoint.
    seed: Of the latent codes.
    codes: What else decides them: `z_dim`, `truncation`, `num_classes`.
  """

  png: bytes
  step: int
  seed: int
  codes: Mapping[str, Any]


# By the names of runs: samples, or why they could not be drawn.
AllDrawn = Mapping[str, Union[Drawn, str]]


def make_samples(runs: Sequence[Run], drawn: AllDrawn) -> str:
  """Returns the samples of all runs, and whether their codes are equal.

  A run whose samples could not be drawn shows its newest grid.
  """
  figures = "".join(_make_figure(run, drawn.get(run.name)) for run in runs)
  paragraphs = map(html_parts.make_paragraph, describe(runs, drawn))
  reasons = [f"{k}: {v}" for k, v in drawn.items() if isinstance(v, str)]
  parts = [*paragraphs, f'<div class="side">{figures}</div>']
  if reasons:
    listed = html_parts.make_list(reasons)
    details = html_parts.make_details("Why not all are drawn anew", listed)
    parts.append(html_parts.make_card(details))
  return "\n".join(parts)


def describe(runs: Sequence[Run], drawn: AllDrawn) -> List[str]:
  """Returns what the samples are, and whether their codes are equal."""
  found = {run.name: drawn.get(run.name) for run in runs}
  anew = {k: v for k, v in found.items() if isinstance(v, Drawn)}
  grids = [run for run in runs if run.name not in anew and run.history.grids]
  notes = [_describe_drawn(anew)] if anew else []
  if grids and anew:
    names = ", ".join(run.name for run in grids)
    notes.append(f"Not drawn anew, so with other latent codes: {names}.")
  elif grids:
    notes.append(f"The newest grids. {_describe_grids(grids)}".rstrip())
  return notes


def _describe_drawn(drawn: Mapping[str, Drawn]) -> str:
  (seed,) = {one.seed for one in drawn.values()}
  start = f"Drawn for this page from the newest checkpoints, seed {seed}."
  differ = name_differences({run: one.codes for run, one in drawn.items()})
  if differ:
    return f"{start} Latent codes or classes differ in place: {differ}."
  if len(drawn) == 1:
    return start
  return f"{start} In each place they have the same latent code and class."


def _describe_grids(runs: Sequence[Run]) -> str:
  if len(runs) == 1:
    return ""
  missing = [run.name for run in runs if not run.history.starts]
  if missing:
    return (
      "Whether latent codes are equal is not known: not recorded by "
      f"{', '.join(missing)}."
    )
  differ = name_differences(
    {run.name: {x: run.history.read_start(x) for x in CODES} for run in runs}
  )
  if differ:
    return f"Latent codes or classes differ in place: {differ}."
  return "In each place all runs have the same latent code and class."


def name_differences(codes: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns the codes in which runs differ, each with all values, or ''."""
  parts = []
  for name in CODES:
    values: Dict[str, Any] = {run: one[name] for run, one in codes.items()}
    if len(set(map(str, values.values()))) > 1:
      each = ", ".join(f"{run} {value}" for run, value in values.items())
      parts.append(f"{name} ({each})")
  return "; ".join(parts)


def _make_figure(run: Run, drawn: Union[Drawn, str, None]) -> str:
  alt = f"Samples of {run.name}"
  picture, words = "", "no samples yet"
  if isinstance(drawn, Drawn):
    picture = embedded.embed_bytes(drawn.png, alt)
    words = f"step {drawn.step:,}"
  elif run.history.grids:
    step, path = list(run.history.grids.items())[-1]
    picture = embedded.embed(path, alt)
    words = f"step {step:,}, its newest grid" if picture else words
  return (
    f'<figure class="card">{picture}<figcaption>{run.label}'
    f"<small>{html.escape(words)}</small></figcaption></figure>"
  )
