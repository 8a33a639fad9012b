#!/bin/bash
# Trains on @num_workers@ nodes of a SLURM cluster, one worker each.
#
#   sbatch job.sh               in this folder, if all nodes share it
#   sbatch --nodes=4 job.sh     options given there win over those below
#
# Two minutes before its time is up the run saves and ends with exit code 75, and
# the job goes back into the queue, where it resumes. So it does if a node fails.
# The trainer finds its peers in SLURM's variables.
#SBATCH --job-name=paragan
#SBATCH --nodes=@num_workers@
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
##SBATCH --gpus-per-task=1
##SBATCH --partition=NAME
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=paragan-%j.log
#SBATCH --open-mode=append
set -euo pipefail

PYTHON="${PYTHON:-@python@}"
FLAGS=(
@flags@
)

export PYTHONUNBUFFERED=1
code=0
# srun does not take the number of cores over from sbatch.
srun --label --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" \
  "$PYTHON" -m paragan_tf train "${FLAGS[@]}" || code=$?
# 75 is "stopped and saved, start again"; 130 was interrupted as it started.
if [[ "$code" == 75 || "$code" == 130 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
