"""The TPU compiler's own virtual environment, installed on first use.

It needs another version of NumPy than TensorFlow does, so it has a folder of
its own, with the versions of `requirements.txt` beside this file: about 700 MB.
"""

import pathlib

from tools.own_environment import OwnEnvironment

_PINS = pathlib.Path(__file__).resolve().with_name("requirements.txt")
_OLDEST = (3, 11)
_ENVIRONMENT = OwnEnvironment("tpu", "The TPU compiler", _PINS, _OLDEST)
get_folder = _ENVIRONMENT.get_folder
is_installed = _ENVIRONMENT.is_installed
get_python = _ENVIRONMENT.get_python
install = _ENVIRONMENT.install
