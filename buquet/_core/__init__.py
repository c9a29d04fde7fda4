"""What every request and every task passes through, compiled with Cython where that was possible.

Each module is one plain Python source; the extension built from it, with the C types of the
`.pxd` beside it, shadows it. The modules define no classes of exceptions, and import each other
relatively, so that a second, plain copy can be loaded beside the compiled one.
"""

from importlib.machinery import ExtensionFileLoader, PathFinder

MODULES = ("ident", "record", "rfc3339", "shard", "sign", "value")


def _is_compiled(name: str) -> bool:
    spec = PathFinder.find_spec(f"{__name__}.{name}", __path__)
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


COMPILED: bool = all(map(_is_compiled, MODULES))
"""Whether the extensions of all these modules are there, and so in use."""
