"""The flag of all programs that read a gin config."""

from absl import flags

from tools import cli

_ALLOW = flags.DEFINE_multi_string(
  "allow_gin_imports",
  [],
  "A module that gin configs may import, beside paragan_tf; may be repeated.",
)


def allow_imports() -> None:
  """Lets configs import what the flag names; call it before one is read."""
  allow = cli.import_quietly("paragan_tf.gin_imports").allow_gin_imports
  cli.exit_on_error(lambda: allow(*_ALLOW.value))
