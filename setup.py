"""The one thing that pyproject.toml cannot say: the kernel in C, which is built where a compiler is."""

from __future__ import annotations

import os

from setuptools import Extension, setup

# OPSLOG_KERNEL_FLAGS: more of the compiler's flags, as CI and the build with sanitizers have them.
FLAGS = os.environ.get("OPSLOG_KERNEL_FLAGS", "").split()

setup(
    ext_modules=[
        Extension(
            "opslog.kernel._kernel",
            ["opslog/kernel/_kernel.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O2", *FLAGS],
            extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
            py_limited_api=True,
            optional=True,  # Python does the same without it
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
