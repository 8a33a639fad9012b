"""A network of its own for the workers of this machine, which nobody reaches.

TensorFlow's worker servers ask nobody who they are and listen on every
interface: who reaches one reads and writes files with its rights. In a network
namespace there is a loopback interface and nothing else.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from typing import Optional

ENVIRONMENT = "PARAGAN_WORKERS_FENCED"
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def enter() -> Optional[str]:
  """Moves this process into a network of its own; returns why it cannot.

  Processes that it starts later are inside, too. Call it before threads start.
  """
  if not sys.platform.startswith("linux"):
    return "only Linux has network namespaces"
  libc = ctypes.CDLL(None, use_errno=True)
  uid, gid = os.getuid(), os.getgid()
  if libc.unshare(_CLONE_NEWNET) != 0:
    # Without root it takes a user namespace, where that is allowed.
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
      return os.strerror(ctypes.get_errno())
    with contextlib.suppress(OSError):
      _map_to_self(uid, gid)
  try:
    _raise_loopback()
  except OSError as e:
    return e.strerror
  return None


def _map_to_self(uid: int, gid: int) -> None:
  """Keeps the user's and the group's number, so that files stay theirs."""
  for name, text in (
    ("setgroups", "deny"),
    ("uid_map", f"{uid} {uid} 1"),
    ("gid_map", f"{gid} {gid} 1"),
  ):
    with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
      f.write(text)


def _raise_loopback() -> None:
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    request = struct.pack("16sh", b"lo", _IFF_UP)
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
