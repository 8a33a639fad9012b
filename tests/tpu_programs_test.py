"""What is read out of compiled programs; those in `files` are shortened."""

import pathlib

import tensorflow as tf
from absl.testing import parameterized

from tools.tpu import hlo, programs

FILES = pathlib.Path(__file__).resolve().parent / "files"
# Two operations that count, one inside another, and a view.
TEXT = """
%fused (p: f32[8]) -> f32[8] {
  %inner = f32[16,8,8,96]{3,0,2,1:T(8,128)} add(%p), \
x={"estimated_cycles":"7"}
}
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[16,8,8,3]{3,0,2,1:T(8,128)} parameter(0)
  %one = (f32[]{:T(256)}, bf16[5,16,96]{2,1,0:T(8,128)(2,1)}) fusion(%a), \
calls=%fused, metadata={op_name="conv"}, \
backend_config={"estimated_cycles":"100"}
  %half = u32[]{:T(128)} custom-call(%a), custom_call_target="X64SplitLow"
  ROOT %two = f32[16,8,8,3]{3,0,2,1:T(8,128)} copy(%one), \
backend_config={"estimated_cycles":"20"}
}
"""
# A conditional with three branches, the last of which has a loop.
NESTED = """
%turn (p: f32[8]) -> f32[8] {
  %t = f32[8,3]{1,0:T(8,128)} sort(%p), x={"estimated_cycles":"10"}
  %u = f32[8,3]{1,0:T(8,128)} custom-call(%p), custom_call_target="@turn@"
}
%again (p: f32[8]) -> pred[] {
  ROOT %c = pred[] compare(%p), x={"estimated_cycles":"1"}
}
%g (p: f32[8]) -> f32[8] {
  %x = f32[8,3]{1,0:T(8,128)} add(%p), x={"estimated_cycles":"40"}
  %y = f32[8,3]{1,0:T(8,128)} custom-call(%p), custom_call_target="@g@"
}
%d (p: f32[8]) -> f32[8] {
  %v = f32[8,3]{1,0:T(8,128)} while(%p), condition=%again, body=%turn@trips@
}
%idle (p: f32[8]) -> f32[8] {
  %z = f32[8,3]{1,0:T(8,128)} custom-call(%p), custom_call_target="@idle@"
}
ENTRY %main (a: f32[8]) -> f32[8] {
  %b = f32[8,3]{1,0:T(8,128)} conditional(%a), branch_computations={%g, \
%d, %idle}
  ROOT %r = f32[8] all-reduce-start(%b), x={"estimated_cycles":"5"}
}
"""
# Of the loop in `tpu_turns_v5e.txt`.
START, STEP = (
  f"%constant.{name} = s32[]{{:T(128)}}" for name in ("7", "5..sunk")
)
KNOWN = ', backend_config={"known_trip_count":{"n":"5"}}'


def read(name):
  return hlo.parse((FILES / f"tpu_{name}.txt").read_text())


def nested(trips="", turn="TopK", g="TopK", idle="TopK"):
  text = NESTED
  for key, value in dict(trips=trips, turn=turn, g=g, idle=idle).items():
    text = text.replace(f"@{key}@", value)
  return hlo.parse(text)


class CyclesTest(tf.test.TestCase, parameterized.TestCase):
  def test_what_is_inside_a_fusion_is_part_of_it(self):
    program = hlo.parse(TEXT)
    expected = {programs.ELEMENTWISE: 100, programs.COPIES: 20}
    self.assertEqual(programs.count_cycles(program), expected)
    kinds = [op.kind for _, op in hlo.list_operations(program)]
    self.assertEqual(kinds, ["parameter", "fusion", "custom-call", "copy"])

  def test_a_core_takes_the_longest_branch(self):
    # The branch with both products, not that with the sine, nor their sum.
    found = programs.count_cycles(read("branches_v3"))
    self.assertEqual(found, {programs.PRODUCTS: 135363})

  def test_a_loop_counts_once_where_its_turns_are_not_known(self):
    program = read("loop_v5e")
    expected = {
      programs.PRODUCTS: 16640,
      programs.COPIES: 272,
      programs.ELEMENTWISE: 31680,
    }
    self.assertEqual(programs.count_cycles(program), expected)
    self.assertEqual(programs.count_unknown_loops(program), 1)
    self.assertEqual(programs.count_unknown_loops(read("branches_v3")), 0)

  @parameterized.named_parameters(
    ("ten", "", "", 10),
    ("from_two", f"{START} constant(0)", f"{START} constant(2)", 8),
    ("by_threes", f"{STEP} constant(1)", f"{STEP} constant(3)", 4),
    ("none", "constant(10)", "constant(-1)", 0),
    ("other_way", "direction=LT", "direction=GT", None),
    ("no_limit", "constant(10)", "parameter(1)", None),
    ("no_start", f"{START} constant(0)", f"{START} parameter(2)", None),
    (
      "no_step",
      " add(%get-tuple-element.46",
      " subtract(%get-tuple-element.46",
      None,
    ),
  )
  def test_turns_of_a_loop_that_counts(self, old, new, turns):
    text = (FILES / "tpu_turns_v5e.txt").read_text()
    self.assertIn(old, text)
    program = hlo.parse(text.replace(old, new))
    self.assertEqual(programs.count_unknown_loops(program), turns is None)
    found = programs.count_cycles(program)
    each = 1 if turns is None else turns
    self.assertEqual(found[programs.PRODUCTS], 16640 * each)
    self.assertEqual(found[programs.ELEMENTWISE], 31680)  # Before the loop.

  @parameterized.named_parameters(
    ("once", "", {programs.ELEMENTWISE: 40}, 1),
    ("five_times", KNOWN, {programs.LOOKUPS: 50, programs.ELEMENTWISE: 5}, 0),
  )
  def test_a_loop_in_a_branch(self, trips, branch, num_unknown):
    program = nested(trips)
    expected = {**branch, programs.COLLECTIVES: 5}
    self.assertEqual(programs.count_cycles(program), expected)
    self.assertEqual(programs.count_unknown_loops(program), num_unknown)


class UncountedTest(tf.test.TestCase, parameterized.TestCase):
  """Operations that count minus one second: by the text, and by the time."""

  @parameterized.named_parameters(
    ("64_bits_and_slices", "chain_v5e", -3.9998035, 4),
    ("slices", "loop_v5e", -0.9999034, 1),
    ("none", "branches_v3", 0.0000700, 0),
  )
  def test_time_is_what_the_compiler_left_out(self, name, said, num):
    self.assertEqual(programs.count_uncounted(read(name)), num)
    self.assertBetween(said + num, 5e-5, 1e-3)

  @parameterized.named_parameters(
    ("nowhere", {}, 0),
    ("kernels", {"g": "tpu_custom_call"}, 0),
    ("in_all", {"g": "Cholesky", "turn": "X64Combine", "idle": "Other"}, 1),
    ("in_one", {"g": "Cholesky"}, None),
    ("in_two", {"g": "Cholesky", "turn": "X64Combine"}, None),
  )
  def test_branches_that_differ_leave_the_time_open(self, targets, expected):
    self.assertEqual(programs.count_uncounted(nested(**targets)), expected)

  def test_what_a_fusion_consists_of_is_not_counted(self):
    program = hlo.parse(
      TEXT.replace("add(%p)", 'custom-call(%p), custom_call_target="Other"')
    )
    self.assertEqual(programs.count_uncounted(program), 1)


class WasteTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (("f32", "16,8,8,3", "3,0,2,1", "8,128"), 12288, 524288),
    (("bf16", "5,16,96", "2,1,0", "8,128"), 15360, 20480),
    (("f32", "16,8,8,128", "3,0,2,1", "8,128"), 524288, 524288),
    (("f32", "96", "0", "256"), 384, 1024),
    (("f32", "", "", "256"), 4, 4),
    (("s64", "2,3", "", ""), 48, 48),
    (("pred", "2,3", "", ""), 6, 6),
  )
  def test_tiles(self, array, full, padded):
    self.assertEqual(programs.count_bytes(array), (full, padded))

  def test_the_largest_wastes(self):
    first, second = programs.find_waste(hlo.parse(TEXT))
    self.assertEqual(first.shape, "f32[16,8,8,3]")
    self.assertEqual((first.num, first.empty_bytes), (1, 512000))
    self.assertAlmostEqual(first.share, 0.977, delta=1e-3)
    self.assertEqual((second.shape, second.name), ("bf16[5,16,96]", "conv"))
    self.assertAlmostEqual(second.share, 0.25)

  def test_branches_and_loops_are_looked_into(self):
    (found,) = programs.find_waste(nested())
    # Not the results of the loop and the conditional: those of the bodies.
    self.assertEqual((found.shape, found.num), ("f32[8,3]", 5))


if __name__ == "__main__":
  tf.test.main()
