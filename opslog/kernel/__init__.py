"""The kernel: functions in C that read and write bytes, if they were built.

Python decides, and is the reference. Each caller of a function in this module also has a Python path that does the
same. It takes that path if the function is None here, or if the call returns None. With `OPSLOG_KERNEL=0` in the
environment of the process, all functions are None.
"""

from __future__ import annotations

import os

# The number that the C file must have. A build with another number is not used, such as one from an older checkout.
_INTERFACE = 10

try:
    from opslog.kernel import _kernel

    IS_USED = _kernel.INTERFACE == _INTERFACE and os.environ.get("OPSLOG_KERNEL") != "0"
except ImportError:  # there was no compiler at the install, or this Python has no stable ABI
    _kernel = None  # type: ignore[assignment]
    IS_USED = False

# The name in `stats()`.
NAME = "C" if IS_USED else "Python"

encode = _kernel.encode if IS_USED else None
copy = _kernel.copy if IS_USED else None
find_document = _kernel.find_document if IS_USED else None
time_text = _kernel.time_text if IS_USED else None
set_line = _kernel.set_line if IS_USED else None
scan = _kernel.scan if IS_USED else None
fields = _kernel.fields if IS_USED else None
columns = _kernel.columns if IS_USED else None
split = _kernel.split if IS_USED else None
find_line = _kernel.find_line if IS_USED else None
crc32 = _kernel.crc32 if IS_USED else None
HashedIds = _kernel.HashedIds if IS_USED else None
Table = _kernel.Table if IS_USED else None
rows = _kernel.rows if IS_USED else None
Winners = _kernel.Winners if IS_USED else None
Merger = _kernel.Merger if IS_USED else None
