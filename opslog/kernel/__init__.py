"""What moves bytes, in C, where that was built.

Python decides, and is the reference. Whoever uses something of this module has a Python path beside it that does the
same, and takes that wherever the name is None here, or the call returns None. With `OPSLOG_KERNEL=0` in the environment
of the process all of it is None.
"""

from __future__ import annotations

import os

# What the C file must say of itself. Another number is another build, such as one that an older checkout has left.
_INTERFACE = 7

try:
    from opslog.kernel import _kernel

    IS_USED = _kernel.INTERFACE == _INTERFACE and os.environ.get("OPSLOG_KERNEL") != "0"
except ImportError:  # no compiler was there at the install, or this Python has no stable ABI
    _kernel = None  # type: ignore[assignment]
    IS_USED = False

# What `stats()` says.
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
Table = _kernel.Table if IS_USED else None
rows = _kernel.rows if IS_USED else None
Winners = _kernel.Winners if IS_USED else None
Merger = _kernel.Merger if IS_USED else None
