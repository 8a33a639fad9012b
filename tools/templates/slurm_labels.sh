#!/bin/bash
# Trains a GAN for each label: @num_workers@ tasks of a SLURM array, each with a
# part of the labels. They never communicate, and may start at any time.
#
#   sbatch job.sh                       in this folder, if all nodes share it
#   sbatch --array=3 job.sh             one of the tasks again
#
# Two minutes before its time is up a task saves and ends with exit code 75, and
# goes back into the queue, where it resumes its labels.
#SBATCH --job-name=paragan-labels
#SBATCH --array=0-@last_worker@
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
##SBATCH --gpus-per-task=1
##SBATCH --partition=NAME
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=paragan-labels-%A-%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
set -euo pipefail

PYTHON="${PYTHON:-@python@}"
FLAGS=(
@flags@
  --label_shard=array/@num_workers@
)

export PYTHONUNBUFFERED=1
code=0
# srun does not take the number of cores over from sbatch.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" \
  "$PYTHON" -m paragan_tf train "${FLAGS[@]}" || code=$?
# 75 is "stopped and saved, start again"; 130 was interrupted as it started.
if [[ "$code" == 75 || "$code" == 130 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
