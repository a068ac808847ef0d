"""Builds the optional compiled kernel. Everything declarative is in pyproject.toml.

PENSTOCK_KERNEL_BUILD=auto     (default) build it where a C compiler works, else go on without it
PENSTOCK_KERNEL_BUILD=require  fail when it cannot be built
PENSTOCK_KERNEL_BUILD=skip     do not try
"""

import os
from glob import glob

from setuptools import Extension, setup


def kernel_extensions() -> list[Extension]:
    policy = os.environ.get("PENSTOCK_KERNEL_BUILD", "auto")
    if policy not in {"auto", "require", "skip"}:
        raise SystemExit(f"PENSTOCK_KERNEL_BUILD must be auto, require or skip, not {policy!r}")
    if policy == "skip":
        return []
    from Cython.Build import cythonize

    extension = Extension(
        "penstock.records._kernel",
        ["src/penstock/records/_kernel.pyx"],
        depends=sorted(glob("src/penstock/records/_kernel*.pxi")),
        extra_compile_args=["-O3", "-fno-strict-aliasing"],
    )
    extensions = list(cythonize([extension], build_dir="build/cython", language_level=3))
    for made in extensions:  # cythonize makes new ones, and drops this
        made.optional = policy == "auto"
    return extensions


setup(ext_modules=kernel_extensions())
