# SPDX-License-Identifier: Apache-2.0
"""Every private or version-dependent name of torch that the binding uses, each guarded.

The fast path must know that nothing is active that wants to see the operation: a dispatch mode, a
functorch transform, a forward-mode level, a tracer, a function mode. torch has no public and cheap
question for these, so private ones are asked. Where a name is missing the answer is the one that
sends every call to the dispatcher, which is slower and always right.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from typing import Any

import torch
from torch.autograd import Function, forward_ad

_lost: list[str] = []


def find(*paths: str, lost: str = "") -> Any:
    """The first of these attributes of torch that exists, or None; `lost` says what is lost without them."""
    for path in paths:
        found: Any = torch
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    if lost:
        _lost.append(f"torch.{paths[0]} ({lost})")
    return None


SLOW = "every call goes through the dispatcher"

is_dynamo_compiling = torch.compiler.is_dynamo_compiling

def check_value(condition: Any, message: str) -> None:
    """Raise ValueError unless the condition holds, which may be known at run time only.

    Dynamo would put a message, which is a function, into its graph: export fails on it, and it cannot be pickled as
    part of a cache key.
    """
    if is_dynamo_compiling():
        torch._check_value(condition)
    else:
        torch._check_value(condition, lambda: message)


def differ(a: Any, b: Any) -> bool:
    """Whether two sizes, or two shapes, differ.

    Where that is known at run time only, as of two slices by one number from the data, they do not, and the program
    checks it.
    """
    if isinstance(a, tuple):
        return len(a) != len(b) or any([differ(i, j) for i, j in zip(a, b, strict=True)])
    if not (is_dynamo_compiling() or isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt)):
        return a != b
    from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true  # imports SymPy

    if guard_or_false(a != b):
        return True
    if not statically_known_true(a == b):
        check_value(a == b, "sizes do not agree")
    return False


# ---- what the fast route asks

dispatch_modes = find("_C._len_torch_dispatch_stack", lost=SLOW) or (lambda: 1)
functorch_active = find(
    "_C._are_functorch_transforms_active", "_C._functorch.peek_interpreter_stack", lost=SLOW
) or (lambda: True)
tracing = find("_C._get_tracing_state") or (lambda: torch.jit.is_tracing() or None)
profiling = find("_C._autograd._profiler_enabled", lost="a profiler does not name calls without gradients") or (
    lambda: False
)
_function_modes = find("_C._len_torch_function_stack", lost=SLOW)
count_function_modes = _function_modes or (lambda: 1)
_function_mode_at = find("_C._get_function_stack_at", lost="slow under torch.set_default_device")


def function_modes() -> bool:
    """Whether a torch function mode is active other than `torch.set_default_device`."""
    if _function_modes is None or _function_mode_at is None:
        return True
    return any(type(_function_mode_at(i)).__name__ != "DeviceContext" for i in range(_function_modes()))


if not hasattr(forward_ad, "_current_level"):
    _lost.append(f"torch.autograd.forward_ad._current_level ({SLOW}, compositions in compiled graphs)")

    class forward_ad:  # type: ignore[no-redef]  # noqa: N801
        _current_level = 0
        unpack_dual = staticmethod(forward_ad.unpack_dual)
        make_dual = staticmethod(forward_ad.make_dual)


# Where it is missing, DTensor's own error says that it does not know the operation.
register_torch_dispatch = find("library.register_torch_dispatch") or (lambda *args: None)


# ---- functorch's wrappers

_is_grad_wrapper = find("_C._functorch.is_gradtrackingtensor", lost="an idx that torch.func wraps is not checked")
_unwrap = find("_C._functorch.get_unwrapped", lost="an idx that torch.func wraps is not checked")


def concrete(tensor: Any) -> Any:
    """What the levels of grad, vjp and jvp have wrapped; a batch of vmap stays what it is.

    `torch.func.grad(f)(x, idx)` wraps idx, too, though it is not differentiated.
    """
    if _is_grad_wrapper is not None and _unwrap is not None:
        while _is_grad_wrapper(tensor):
            tensor = _unwrap(tensor)
    return tensor


# ---- how large a storage is: nothing of torch looks before it reads a tensor whose storage was freed

_UNSEEN = "a freed storage is not noticed in some transforms"
_is_wrapper = find("_C._functorch.is_functorch_wrapped_tensor", lost=_UNSEEN)
_is_functional = find("_is_functional_tensor", lost=_UNSEEN)


def memory_of(tensor: Any) -> Any:
    """The tensor that has the memory of this one, below all of functorch's levels; None if there is none to look at."""
    if _is_wrapper is None or _unwrap is None or _is_functional is None or tracing() is not None:
        return None
    while _is_wrapper(tensor):
        tensor = _unwrap(tensor)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not _is_functional(tensor)
    return tensor if plain else None


def storage_functions() -> tuple[int, int, int] | None:
    """Addresses of the functions of torch's C interface that say how large a tensor's storage is and where the tensor
    starts in it, and where the object of a tensor has the pointer that they take; None where that is not certain.
    """
    handles, tensors = find("_C._aoti.unsafe_alloc_void_ptrs_from_tensors"), [torch.empty(3), torch.empty(2, 5)]
    steal = find("_C._aoti.alloc_tensors_by_stealing_from_void_ptrs")
    try:
        library = ctypes.CDLL(torch._C.__file__)
        functions = library.aoti_torch_get_storage_size, library.aoti_torch_get_storage_offset
        pointers = [t._cdata for t in tensors]
        capsules = handles(tensors)
    except (AttributeError, OSError, TypeError):
        return None
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # What a function takes is the address of a pointer; the same pointer is in the object, past its head.
    fit = [ctypes.c_void_p.from_address(address(c, None)).value for c in capsules] == pointers
    steal(capsules)
    for at in range(object.__basicsize__, torch._C.TensorBase.__basicsize__, 8):
        if fit and [ctypes.c_void_p.from_address(id(t) + at).value for t in tensors] == pointers:
            size, start = (ctypes.cast(f, ctypes.c_void_p).value for f in functions)
            return size or 0, start or 0, at
    return None


# ---- lowering one level, from inside an Autograd kernel of the dispatcher

below_autograd = find("_C._AutoDispatchBelowAutograd")
if below_autograd is None:  # what it is made of
    _autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    below_autograd = functools.partial(torch._C._ExcludeDispatchKeyGuard, _autograd)

# Without these, all of functorch's levels are taken for forward-mode ones, which `unpack_dual` then sorts out.
_JVP = find("_C._functorch.TransformType.Jvp")
_interpreter_stack = find("_C._functorch.get_interpreter_stack") if _JVP is not None else None
_peek_interpreter = find("_C._functorch.peek_interpreter_stack") if _JVP is not None else None

# A ctx-style Function inside one functorch level: since torch 2.14 Function.apply refuses it there,
# and _SingleLevelFunction, which Function is made of, does not.
_COMPOSED = "derivatives under torch.func are compositions of torch's operations"
OneLevelFunction = find("autograd.function._SingleLevelFunction", lost=_COMPOSED)
single_level = find("_functorch.autograd_function.enable_single_level_autograd_function", lost=_COMPOSED)
_set_forward_grad = find("autograd.forward_ad._set_fwd_grad_enabled", "_C._set_fwd_grad_enabled", lost=_COMPOSED)
if OneLevelFunction is None or single_level is None or _set_forward_grad is None:
    OneLevelFunction, single_level = Function, None


class LowerFunctorch:
    """Below autograd at one functorch level, with the levels underneath still recording.

    Function.forward runs without gradients; the outer levels must record what it calls. (A user's own
    no_grad is kept: functorch stores the mode of every level.)
    """

    def __enter__(self) -> None:
        self.contexts = [torch.enable_grad(), _set_forward_grad(True), below_autograd()]
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


def lower() -> Any:
    return LowerFunctorch() if functorch_active() else below_autograd()


def forward_mode_active() -> bool:
    """Whether a forward-mode level may be active here.

    A graph that Dynamo made enters its level in C++, past `forward_ad._current_level`; then the
    functorch stack knows.
    """
    if forward_ad._current_level >= 0:
        return True
    if not functorch_active():
        return False
    return _interpreter_stack is None or any(i.key() == _JVP for i in _interpreter_stack() or ())


def innermost_is_forward_mode() -> bool:
    """Under functorch: whether the innermost transform is jvp."""
    return not functorch_active() or _peek_interpreter is None or _peek_interpreter().key() == _JVP


def fast_apply(cls: Any) -> Any:
    """The C-level `apply`, past the Python in Function.apply; the backward likewise, past that in its node."""
    node = getattr(cls, "_backward_cls", None)
    if node is not None:
        node.apply = cls.backward
    return getattr(super(Function, cls), "apply", None) or cls.apply if issubclass(cls, Function) else cls.apply


if _lost:
    warnings.warn(
        f"segmentops.torch: this torch lacks {'; '.join(_lost)}. Results are right, but for what the brackets say.",
        stacklevel=1,
    )
