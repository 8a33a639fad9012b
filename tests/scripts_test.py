"""The printed scripts, run by the real shell with stand-ins for the clouds."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from tools import scripts

FLAGS = [
  "--gin_file=gin/runs/fashion.gin",
  """--gin_bindings=a.b = 'it is "so" $(no) $HOME `x` \\ @flags@ #'""",
  "--gin_bindings=two\nlines; é",
  "--model_dir=runs/my run",
]
# Says what it was given, one line of JSON a call.
STAND_IN = f"""#!{sys.executable} -IS
import json, os, shutil, subprocess, sys
print(json.dumps(sys.argv), flush=True)
"""
# Has no TPU until one is made, and is its host.
GCLOUD = f"""{STAND_IN}
verb = sys.argv[4]
if verb == "describe":
  sys.exit(1)
if verb == "scp":
  shutil.copy(sys.argv[5], "host/" + sys.argv[6].partition(":")[2])
if verb == "ssh":
  command = [x for x in sys.argv if x.startswith("--command=")][0]
  sys.exit(subprocess.call(["bash", "-c", command[10:]], cwd="host"))
"""


class ScriptsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder)
    for name in ("gin", "paragan_tf", "tools", "host"):
      (self.folder / name).mkdir()
    lock = "tensorflow==2.15.1\n    # via x\ntensorflow-gan==2.1.0\n"
    (self.folder / "requirements.lock").write_text(lock)

  def calls(self, kind, programs, code=0, per_label=False, **variables):
    """Runs a script; returns the arguments that the stand-ins were given."""
    for name, text in programs.items():
      (self.folder / name).write_text(text)
      (self.folder / name).chmod(0o755)
    path = f"{self.folder}:{os.environ['PATH']}"
    process = subprocess.run(
      ["bash", "-c", scripts.render(kind, 4, FLAGS, per_label)],
      cwd=self.folder,
      env={"PATH": path, **variables},
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual((process.returncode, process.stderr), (code, ""))
    calls = [json.loads(line) for line in process.stdout.splitlines()]
    return [[pathlib.Path(name).name, *rest] for name, *rest in calls]

  @parameterized.parameters("slurm", "gcloud")
  def test_the_shell_can_read_it(self, kind):
    text = scripts.render(kind, 4, FLAGS)
    self.assertStartsWith(text, "#!/bin/bash\n# Trains ")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)

  def test_slurm_is_asked_for_the_nodes_before_the_first_command(self):
    header, _, _ = scripts.render("slurm", 4, FLAGS).partition("\nset -e")
    self.assertIn("\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n", header)
    for line in header.splitlines():
      self.assertStartsWith(line, "#")

  def test_slurm_runs_the_trainer_with_the_flags_as_given(self):
    (call,) = self.calls("slurm", {"srun": STAND_IN}, PYTHON="a python")
    at = call.index("a python")
    self.assertEqual(call[0], "srun")
    self.assertIn("--kill-on-bad-exit=1", call[:at])
    self.assertEqual(call[at + 1 :], ["-m", "paragan_tf", "train", *FLAGS])

  @parameterized.parameters((75, True), (130, True), (2, False), (1, False))
  def test_slurm_starts_again_what_was_stopped(self, code, is_queued):
    programs = {"srun": f"{STAND_IN}\nsys.exit({code})\n", "scontrol": STAND_IN}
    calls = self.calls("slurm", programs, code, SLURM_JOB_ID="7")
    self.assertEqual(
      calls[1:], [["scontrol", "requeue", "7"]] if is_queued else []
    )

  @parameterized.named_parameters(
    ("one_host", "tpu-vm-tf-2.15.1-pjrt", "all", "local"),
    ("slice", "tpu-vm-tf-2.15.1-pod-pjrt", "0", "mine"),
  )
  def test_gcloud_makes_installs_and_runs(self, runtime, worker, tpu):
    create, copy, install, pip, run, train = self.calls(
      "gcloud",
      {"gcloud": GCLOUD, "python3": STAND_IN},
      TPU_NAME="mine",
      RUNTIME=runtime,
    )
    for call, verb in ((create, "create"), (copy, "scp"), (run, "ssh")):
      self.assertEqual(
        call[:5], ["gcloud", "compute", "tpus", "tpu-vm", verb], call
      )
    self.assertIn(f"--version={runtime}", create)
    self.assertIn("--worker=all", copy)
    self.assertIn("--worker=all", install)
    self.assertEqual(pip[:5], ["python3", "-m", "pip", "install", "--quiet"])
    self.assertIn("--no-deps", pip)
    self.assertIn(f"--worker={worker}", run)
    self.assertEqual(
      train, ["python3", "-m", "paragan_tf", "train", f"--tpu={tpu}", *FLAGS]
    )
    # The image's own TensorFlow stays.
    lock = (self.folder / "host" / pip[-1]).read_text().splitlines()
    self.assertNotIn("tensorflow==2.15.1", lock)
    self.assertIn("tensorflow-gan==2.1.0", lock)

  def test_slurm_gives_each_task_of_an_array_its_labels(self):
    call, *more = self.calls(
      "slurm", {"srun": STAND_IN}, per_label=True, PYTHON="py"
    )
    self.assertEmpty(more)
    expected = ["-m", "paragan_tf", "train", *FLAGS, "--label_shard=array/4"]
    self.assertEqual(call[call.index("py") + 1 :], expected)
    header = scripts.render("slurm", 4, FLAGS, True).partition("\nset -e")[0]
    self.assertIn("\n#SBATCH --array=0-3\n#SBATCH --nodes=1\n", header)

  def test_kubernetes_gives_each_pod_its_labels_and_no_port(self):
    text = scripts.render("kubernetes", 4, FLAGS, True)
    kinds = re.findall(r"^kind: (.*)$", text, re.M)
    self.assertEqual(kinds, ["PersistentVolumeClaim", "Job"])
    self.assertIn("\n  completionMode: Indexed\n  completions: 4\n", text)
    self.assertIn('\n            - "--label_shard=array/4"\n', text)
    for word in ("TF_CONFIG", "port", "Service"):
      self.assertNotIn(word, text.partition("apiVersion")[2])
    self.assertNotRegex(text, r"\t|@\w+@(?! #)")

  def test_what_labels_do_not_have_is_refused(self):
    with self.assertRaisesRegex(ValueError, "slurm, kubernetes for a GAN"):
      scripts.render("gcloud", 4, FLAGS, True)
    flags = [*FLAGS, "--label_shard=0/2"]
    with self.assertRaisesRegex(ValueError, "`--label_shard` must be left out"):
      scripts.render("slurm", 4, flags, True)

  def test_kubernetes_has_a_service_a_volume_and_a_job(self):
    text = scripts.render("kubernetes", 4, FLAGS)
    self.assertStartsWith(text, "# Trains ")
    self.assertNotRegex(text, r"\t|@\w+@(?! #)")
    kinds = [
      re.search(r"^kind: (.*)$", part, re.M)[1] for part in text.split("---\n")
    ]
    self.assertEqual(kinds, ["Service", "PersistentVolumeClaim", "Job"])
    for line in text.splitlines():
      if not line.startswith("#"):
        # A mapping's key, a list's item, or a comment, indented by twos.
        self.assertRegex(line, r"^(  )*(---|#.*|(- )?[\w-]+:( .+)?|- .+)$")
    self.assertIn("\n  completions: 4\n  parallelism: 4\n", text)

  def test_kubernetes_tells_each_pod_who_it_is(self):
    text = scripts.render("kubernetes", 3, FLAGS)
    value = re.search(r"name: TF_CONFIG\n +value: '(.*)'\n", text)[1]
    config = json.loads(value.replace("$(TASK_INDEX)", "2"))
    # Indexed jobs name their pods so, below the service of `subdomain`.
    hosts = [f"paragan-{i}.paragan:2222" for i in range(3)]
    self.assertEqual(config["cluster"], {"worker": hosts})
    self.assertEqual(config["task"], {"type": "worker", "index": 2})
    self.assertIn("\n      subdomain: paragan\n", text)
    # A variable is only replaced after it has been set.
    self.assertLess(text.index("name: TASK_INDEX"), text.index(value))

  def test_kubernetes_gives_the_flags_as_they_are(self):
    text = scripts.render("kubernetes", 3, FLAGS)
    lines = re.search(r"\n +args:\n((?: +- \".*\"\n)+)", text)[1].splitlines()
    found = [json.loads(line.strip()[2:]) for line in lines]
    for flag in found:  # Else Kubernetes would replace `$(no)`.
      self.assertNotIn("$", flag.replace("$$", ""))
    self.assertEqual([flag.replace("$$", "$") for flag in found], FLAGS)

  @parameterized.parameters(
    (["--model_dir=runs/my run"], "/paragan/runs/my run", "my run"),
    (["--model_dir", "/data/run"], "/data/run", "run"),
    (["--model_dir=gs://bucket/run"], "/paragan/runs", "runs"),
    (["--gin_file=x"], "/paragan/runs", "runs"),
  )
  def test_kubernetes_keeps_the_run_on_the_volume(self, flags, path, name):
    text = scripts.render("kubernetes", 3, flags)
    self.assertIn(f'mountPath: "{path}"\n', text)
    self.assertIn(f'subPath: "{name}"\n', text)


if __name__ == "__main__":
  absltest.main()
