"""The buffers of fakes, as the docstring of their file shows them."""

import ast
import inspect
import re

from absl.testing import absltest, parameterized

from paragan_tf.game import cache

# The names that the docstring uses, and what they are.
OBJECTS = {"outbox": cache.Store, "cache": cache.Cache}
# What the docstring calls an argument, if not by the parameter's own name.
ARGUMENTS = {"received": "batches"}


def shown_calls():
  """Returns the calls of the docstring's pseudo-code."""
  lines = re.findall(r"^    (.*)$", cache.__doc__, re.M)
  tree = ast.parse("\n".join(line.partition("  #")[0] for line in lines))
  return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def name_of(call):
  return ast.unparse(call.func)


class DocstringTest(parameterized.TestCase):
  def test_the_calls_of_a_step_are_shown(self):
    self.assertEqual(
      {name_of(call) for call in shown_calls()},
      {"outbox.push", "make_batch", "cache.fill", "cache.take"},
    )

  @parameterized.named_parameters(
    (name_of(call).replace(".", "_"), call) for call in shown_calls()
  )
  def test_a_shown_call_has_the_parameters_of_the_code(self, call):
    owner, _, method = name_of(call).rpartition(".")
    fn = getattr(OBJECTS[owner] if owner else cache, method)
    names = [
      name for name in inspect.signature(fn).parameters if name != "self"
    ]
    self.assertLen(call.args, len(names))
    self.assertEmpty(call.keywords)
    for argument, name in zip(call.args, names):
      if isinstance(argument, ast.Name):  # `push` is shown with a call.
        self.assertEqual(ARGUMENTS.get(argument.id, argument.id), name)


if __name__ == "__main__":
  absltest.main()
