#!/bin/sh
# Makes the virtual environment from the lock file: set_up.sh PYTHON VENV LOCK.
set -eu
python=$1 venv=$2 lock=$3
if [ -z "$python" ] || ! "$python" -c \
  'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))' \
  2>/dev/null; then
  echo "paragan_tf needs Python 3.9, 3.10 or 3.11, found" \
    "$("${python:-python3}" --version 2>&1 || echo none):" \
    "install one, or name it with 'make PYTHON=/path/to/python3.11 ...'." >&2
  exit 2
fi
if [ -f "$venv/installed" ] && cmp -s "$lock" "$venv/installed"; then
  touch "$venv/installed"
  exit 0
fi
echo "Installing the pinned packages into $venv (once, a few minutes) ..." >&2
"$python" -m venv --clear "$venv"
PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install --quiet \
  --requirement "$lock"
cp "$lock" "$venv/installed"
