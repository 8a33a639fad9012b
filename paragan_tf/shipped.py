"""Where the configs and programs are that come with the package."""

import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parent
_SHARE = _PACKAGE / "share"

# Whether this is a checkout of the repository, not an installed wheel.
IS_CHECKOUT = not _SHARE.is_dir()
# The folder of gin/, tools/ and requirements.lock: a wheel has them inside.
ROOT = _PACKAGE.parent if IS_CHECKOUT else _SHARE
