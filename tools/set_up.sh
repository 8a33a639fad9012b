#!/bin/sh
# Makes the virtual environment from the lock file and installs the package:
# set_up.sh PYTHON VENV LOCK. With an empty PYTHON an environment stays with the
# Python that it has; a new one gets the first of the versions below.
set -eu
python=$1 venv=$2 lock=$3

is_supported() {
  "$1" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 13))' \
    2>/dev/null
}

version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

if [ -z "$python" ]; then
  for found in "$venv/bin/python" python3.11 python3.12 python3.13 python3.10 \
    python3.9 python3; do
    if is_supported "$found"; then
      python=$found
      break
    fi
  done
fi
if [ -z "$python" ] || ! is_supported "$python"; then
  found=$("${python:-python3}" --version 2>/dev/null) || found=none
  echo "paragan_tf needs Python 3.9 to 3.13, found $found:" \
    "install one, or name it with 'make PYTHON=/path/to/python3.11 ...'." >&2
  exit 2
fi
if cat "$lock" setup.py | cmp -s - "$venv/installed" &&
  [ "$(version "$venv/bin/python")" = "$(version "$python")" ]; then
  exit 0
fi
# Not the Python of the environment itself, which is made anew.
python=$("$python" -c 'import os, sys
base = sys._base_executable if sys.prefix != sys.base_prefix else sys.executable
print(os.path.realpath(base))')
echo "Installing the pinned packages for Python $(version "$python") into" \
  "$venv (once, a few minutes) ..." >&2
"$python" -m venv --clear "$venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$venv/bin/python" -m pip install --quiet --requirement "$lock"
# Editable: programs in any folder import this checkout.
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation \
  --editable .
cat "$lock" setup.py > "$venv/installed"
