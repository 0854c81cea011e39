"""Finds libattune.so, checks that it speaks this package's interface, and declares its functions."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p

from attune import _structs
from attune._errors import UnavailableError, error_of_status

# The functions and fields that this package uses: attune.h of this version has them.
_MAJOR, _MINOR = 0, 2

_SPEC_OUT = POINTER(c_void_p)
_SHAPE = POINTER(_structs.Shape)
_TUNE_OPTIONS = POINTER(_structs.TuneOptions)
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "att_version": (c_char_p, []),
    "att_last_error": (c_char_p, []),
    "att_runtime_create": (c_int, [POINTER(_structs.RuntimeOptions), POINTER(c_void_p)]),
    "att_runtime_destroy": (None, [c_void_p]),
    "att_runtime_device": (c_char_p, [c_void_p]),
    "att_runtime_refresh": (c_int, [c_void_p]),
    "att_runtime_tell_lengths": (
        c_int,
        [c_void_p, c_void_p, POINTER(_structs.Shape), POINTER(ctypes.c_int32), ctypes.c_int64],
    ),
    "att_runtime_tell_shares": (c_int, [c_void_p, c_void_p, ctypes.c_double, ctypes.c_double]),
    "att_runtime_wait": (None, [c_void_p]),
    "att_runtime_status": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "att_spec_from_yaml": (c_int, [c_char_p, _SPEC_OUT]),
    "att_spec_from_file": (c_int, [c_char_p, _SPEC_OUT]),
    "att_spec_with_device_seed": (c_int, [c_void_p, _SPEC_OUT]),
    "att_spec_destroy": (None, [c_void_p]),
    "att_spec_describe": (c_int, [c_void_p, POINTER(_structs.SpecInfo)]),
    "att_spec_describe_scalar": (c_int, [c_void_p, c_int, POINTER(_structs.ScalarInfo)]),
    "att_spec_describe_tensor": (c_int, [c_void_p, c_int, POINTER(_structs.TensorInfo)]),
    "att_spec_tensor_sizes": (c_int, [c_void_p, c_int, _SHAPE, POINTER(c_int64), c_int]),
    "att_kernel_get_for_pass": (c_int, [c_void_p, c_void_p, _SHAPE, c_int, POINTER(c_void_p)]),
    "att_kernel_destroy": (None, [c_void_p]),
    "att_kernel_plan": (c_char_p, [c_void_p]),
    "att_kernel_source": (c_char_p, [c_void_p]),
    "att_kernel_workspace_bytes": (c_size_t, [c_void_p, _SHAPE]),
    "att_forward": (c_int, [c_void_p, POINTER(_structs.ForwardArgs), c_void_p]),
    "att_backward": (c_int, [c_void_p, POINTER(_structs.BackwardArgs), c_void_p]),
    "att_fill_untouched": (c_int, [c_void_p, c_void_p, c_void_p]),
    "att_append_kernel_get": (c_int, [c_void_p, POINTER(_structs.AppendOptions), POINTER(c_void_p)]),
    "att_append_kernel_destroy": (None, [c_void_p]),
    "att_append": (c_int, [c_void_p, POINTER(_structs.AppendArgs), c_void_p]),
    "att_tune": (c_int, [c_void_p, c_void_p, POINTER(_structs.ForwardArgs), _TUNE_OPTIONS, POINTER(c_void_p)]),
    "att_tune_backward": (
        c_int,
        [c_void_p, c_void_p, POINTER(_structs.BackwardArgs), _TUNE_OPTIONS, POINTER(c_void_p)],
    ),
    "att_tuning_wait": (c_int, [c_void_p]),
    "att_tuning_cancel": (None, [c_void_p]),
    "att_tuning_result": (c_int, [c_void_p, POINTER(_structs.TuneResult)]),
    "att_tuning_destroy": (None, [c_void_p]),
}


def _candidates() -> list[str]:
    """Where the library may be, best first. ATTUNE_LIBRARY, where it is set, is the only one."""
    if chosen := os.environ.get("ATTUNE_LIBRARY"):
        return [chosen]
    inside = pathlib.Path(__file__).with_name("libattune.so")
    return ([str(inside)] if inside.exists() else []) + [f"libattune.so.{_MAJOR}"]


def _open() -> ctypes.CDLL:
    tried = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as problem:
            tried.append(f"{name}: {problem}")
    raise UnavailableError(
        "libattune.so cannot be opened: " + "; ".join(tried),
        "name it in ATTUNE_LIBRARY, or install the package with the library inside",
    )


def check_version(version: str) -> None:
    """Raises UnavailableError unless a library of `version` ("0.2.0") has what this package calls."""
    major, minor = (int(number) for number in version.split(".")[:2])
    if major != _MAJOR or minor < _MINOR:
        raise UnavailableError(
            f"libattune is {version}, and this package needs {_MAJOR}.{_MINOR} or a later {_MAJOR}.x",
            "take the library and the package of one version",
        )


@functools.cache
def library() -> ctypes.CDLL:
    """The library with its functions declared; opened at the first call. Thread-safe."""
    c = _open()
    try:
        c.att_version.restype = c_char_p
        check_version(c.att_version().decode())
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as missing:
        raise UnavailableError(f"{c._name} is no libattune: {missing}") from None
    return c


def version() -> str:
    """ "major.minor.patch" of the library that is used."""
    return library().att_version().decode()


def last_report() -> str:
    """The report of this thread's last failed call."""
    return library().att_last_error().decode(errors="replace")


def check(status: int) -> None:
    """Raises what a call's att_status says."""
    if status:
        raise error_of_status(status, last_report())
