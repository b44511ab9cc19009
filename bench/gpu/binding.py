# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""The library for measuring scripts: plans over PyTorch's tensors by the C ABI, and the times of
what is to be compared, interleaved."""
import ctypes
import time

import torch

DTYPES = {"f16": (torch.float16, 1), "bf16": (torch.bfloat16, 2), "f32": (torch.float32, 3),
          "f64": (torch.float64, 4),
          "f8e4m3": (torch.float8_e4m3fn, 5), "f8e5m2": (torch.float8_e5m2, 6)}


class Refused(Exception):
    """A call failed; the text is the library's sentence."""


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32),
                ("dtype", DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("device_type", ctypes.c_uint32),
                ("device_index", ctypes.c_int32), ("threads", ctypes.c_int32),
                ("run", ctypes.c_void_p), ("user", ctypes.c_void_p), ("workers", ctypes.c_int32)]


class SoftmaxDescription(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("kind", ctypes.c_uint32),
                ("dtype", ctypes.c_uint32), ("out_dtype", ctypes.c_uint32),
                ("ndim", ctypes.c_int32), ("dim", ctypes.c_int32), ("shape", ctypes.c_int64 * 8),
                ("scale", ctypes.c_double), ("visible", ctypes.c_uint32),
                ("empty_rows", ctypes.c_uint32), ("implementation", ctypes.c_char_p)]


class SoftmaxArguments(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("first", ctypes.POINTER(Tensor)), ("second", ctypes.POINTER(Tensor)),
                ("third", ctypes.POINTER(Tensor)), ("fourth", ctypes.POINTER(Tensor))]


class AttentionDescription(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint32),
                ("layout", ctypes.c_uint32), ("causal", ctypes.c_uint32),
                ("batch", ctypes.c_int64), ("heads", ctypes.c_int64),
                ("kv_heads", ctypes.c_int64), ("q_len", ctypes.c_int64),
                ("kv_len", ctypes.c_int64), ("head_dim", ctypes.c_int64),
                ("value_dim", ctypes.c_int64), ("scale", ctypes.c_double),
                ("dropout", ctypes.c_double), ("window", ctypes.c_uint32),
                ("visible", ctypes.c_uint32), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("bias", ctypes.c_uint32),
                ("bias_dtype", ctypes.c_uint32), ("bias_shape", ctypes.c_int64 * 4),
                ("ragged", ctypes.c_uint32), ("kv_lens", ctypes.c_uint32),
                ("total_q", ctypes.c_int64), ("total_kv", ctypes.c_int64),
                ("gradients", ctypes.c_uint32), ("deterministic", ctypes.c_uint32),
                ("implementation", ctypes.c_char_p), ("zero_batch", ctypes.c_uint32),
                ("accumulate", ctypes.c_uint32), ("async_kv", ctypes.c_void_p)]


class MatmulDescription(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint32),
                ("out_dtype", ctypes.c_uint32), ("bias", ctypes.c_uint32),
                ("batch", ctypes.c_int64), ("m", ctypes.c_int64), ("n", ctypes.c_int64),
                ("k", ctypes.c_int64), ("alpha", ctypes.c_double), ("beta", ctypes.c_double),
                ("async_a", ctypes.c_void_p), ("implementation", ctypes.c_char_p),
                ("zero_alpha", ctypes.c_uint32), ("zero_batch", ctypes.c_uint32),
                ("async_b", ctypes.c_void_p), ("sink_c", ctypes.c_void_p),
                ("b_dtype", ctypes.c_uint32), ("scaling", ctypes.c_uint32),
                ("accumulation", ctypes.c_uint32), ("scale_result", ctypes.c_uint32),
                ("activation", ctypes.c_uint32), ("amax", ctypes.c_uint32),
                ("precision", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


class AsyncOperand(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dim", ctypes.c_uint32),
                ("count", ctypes.c_int64), ("begin", ctypes.POINTER(ctypes.c_int64))]


class Arrival(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("signals", ctypes.c_void_p),
                ("epoch", ctypes.c_uint32), ("epoch_ptr", ctypes.c_void_p),
                ("first_chunk", ctypes.c_int64), ("deadline_ns", ctypes.c_uint64),
                ("abort", ctypes.c_void_p), ("record", ctypes.c_void_p)]


MATMUL_TENSORS = ("a", "b", "c0", "bias", "c")
MATMUL_SCALES = ("scale_a", "scale_b", "scale_result", "amax")


class MatmulArguments(ctypes.Structure):
    _fields_ = ([("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] +
                [(name, ctypes.POINTER(Tensor)) for name in MATMUL_TENSORS] +
                [("arrival_a", ctypes.c_void_p), ("arrival_b", ctypes.c_void_p),
                 ("departure_c", ctypes.c_void_p)] +
                [(name, ctypes.POINTER(Tensor)) for name in MATMUL_SCALES])


FORWARD_TENSORS = ("query", "key", "value", "bias", "visible", "cu_seqlens_q", "cu_seqlens_kv",
                   "kv_lens", "out", "lse")
BACKWARD_TENSORS = FORWARD_TENSORS + ("grad_out", "grad_lse", "grad_query", "grad_key",
                                      "grad_value", "grad_bias")


def attention_arguments(names, *more):
    """The struct of a direction's arguments, which has these tensors, and more fields behind."""

    class Arguments(ctypes.Structure):
        _fields_ = ([("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] +
                    [(name, ctypes.POINTER(Tensor)) for name in names] +
                    [("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64),
                     ("rng", ctypes.c_void_p)] + list(more))

    return Arguments


DIRECTIONS = ("forward", "backward")
# plan, arguments, workspace, its bytes, stream
EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                           ctypes.c_size_t, ctypes.c_void_p)
ATTENTION_ARGUMENTS = (attention_arguments(FORWARD_TENSORS, ("arrival_kv", ctypes.c_void_p)),
                       attention_arguments(BACKWARD_TENSORS))


def view(tensor):
    codes = {torch.float64: (2, 64), torch.float32: (2, 32), torch.float16: (2, 16),
             torch.bfloat16: (4, 16), torch.bool: (6, 8), torch.int32: (0, 32), torch.float8_e4m3fn: (10, 8),
             torch.float8_e5m2: (12, 8)}
    code, bits = codes[tensor.dtype]
    shape = (ctypes.c_int64 * tensor.ndim)(*tensor.shape)
    strides = (ctypes.c_int64 * tensor.ndim)(*tensor.stride())
    made = Tensor(tensor.data_ptr(), Device(2, 0), tensor.ndim, DataType(code, bits, 1), shape,
                  strides, 0)
    made.keep = (shape, strides, tensor)
    return made


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.perseid_last_error.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()
        options = Options(ctypes.sizeof(Options), 2, 0, 0)
        self.call("perseid_context_create", ctypes.byref(options), ctypes.byref(self.context))

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments) != 0:
            raise Refused(name + ": " + self.library.perseid_last_error().decode())

    def softmax(self, shape, dtype, log=False, masked=False, dim=-1):
        description = SoftmaxDescription(
            ctypes.sizeof(SoftmaxDescription), int(log), DTYPES[dtype][1], 0, len(shape), dim,
            (ctypes.c_int64 * 8)(*shape), 0.0, int(masked))
        return Plan(self, "softmax", description)

    def attention(self, dtype, **problem):
        """For tensors in the layout [batch, length, heads, dim]."""
        description = AttentionDescription(struct_size=ctypes.sizeof(AttentionDescription),
                                           dtype=DTYPES[dtype][1], **problem)
        return Plan(self, "attention", description)


    def matmul(self, dtype, **problem):
        description = MatmulDescription(struct_size=ctypes.sizeof(MatmulDescription),
                                        dtype=DTYPES[dtype][1], **problem)
        return Plan(self, "matmul", description)


class Plan:
    def __init__(self, library, operation, description):
        self.library, self.operation, self.plan = library, operation, ctypes.c_void_p()
        begin = time.perf_counter()
        library.call(f"perseid_{operation}_plan_create", library.context,
                     ctypes.byref(description), ctypes.byref(self.plan))
        self.seconds = time.perf_counter() - begin

    def __del__(self):
        self.library.library.perseid_plan_destroy(self.plan)

    def prepare(self, direction, arguments, keep):
        """A call without arguments that executes on PyTorch's stream, with a workspace of its own,
        which holds nothing of use before; `keep` lives as long."""
        size = ctypes.c_size_t()
        self.library.call("perseid_plan_workspace_size", self.plan, direction, ctypes.byref(size))
        work = torch.randint(0, 256, (max(size.value, 1),), dtype=torch.uint8, device="cuda")
        # The time of a single launch has that of this call in it: what can be converted before is.
        name = "execute" if self.operation == "matmul" else DIRECTIONS[direction]
        function = EXECUTE((f"perseid_{self.operation}_{name}", self.library.library))
        packed = (self.plan.value, ctypes.addressof(arguments), work.data_ptr(), work.numel())
        stream_of, device = torch._C._cuda_getCurrentRawStream, work.device.index

        def execute():
            if function(*packed, stream_of(device)) != 0:
                raise Refused(self.library.library.perseid_last_error().decode())

        execute.plan, execute.keep = self, (arguments, work, keep)
        return execute

    def softmax_call(self, direction, *tensors):
        """None stands for an argument that is absent."""
        views = [None if tensor is None else view(tensor) for tensor in tensors]
        pointers = [None if each is None else ctypes.pointer(each) for each in views]
        arguments = SoftmaxArguments(ctypes.sizeof(SoftmaxArguments), 0, *pointers)
        return self.prepare(direction, arguments, (views, pointers))

    def matmul_call(self, arrival_a=None, **tensors):
        views = {name: view(tensor) for name, tensor in tensors.items()}
        arguments = MatmulArguments(struct_size=ctypes.sizeof(MatmulArguments),
                                    **{name: ctypes.pointer(each) for name, each in views.items()})
        if arrival_a is not None:
            arguments.arrival_a = ctypes.addressof(arrival_a)
        return self.prepare(0, arguments, (views, arrival_a))

    def attention_call(self, direction, arrival_kv=None, **tensors):
        views = {name: view(tensor) for name, tensor in tensors.items()}
        struct = ATTENTION_ARGUMENTS[direction]
        arguments = struct(struct_size=ctypes.sizeof(struct),
                           **{name: ctypes.pointer(each) for name, each in views.items()})
        if arrival_kv is not None:
            arguments.arrival_kv = ctypes.addressof(arrival_kv)
        return self.prepare(direction, arguments, (views, arrival_kv))


def between_events(call, count):
    """Events before and after so many launches, and their number."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    return begin, end, count


def medians(times):
    """Milliseconds of a launch by contender."""
    torch.cuda.synchronize()
    return {name: sorted(b.elapsed_time(e) / n for b, e, n in pairs)[len(pairs) // 2]
            for name, pairs in times.items()}


def measure_single(contenders, turns, rest):
    """The median milliseconds of one launch between two events, each when the one before it has
    ended: what the public peers' figures are too. After so many seconds of rest, and a launch that
    is not timed."""
    times = {}
    for name, call in contenders.items():
        torch.cuda.synchronize()
        time.sleep(rest)
        call()
        times[name] = []
        for _ in range(turns):
            torch.cuda.synchronize()
            times[name].append(between_events(call, 1))
    return medians(times)


def measure_in_turns(contenders, turns, launches=None, ahead=0):
    """The median milliseconds of a launch of each contender, one after another without a rest: one,
    or as many back to back as `launches` has by name. The GPU waits for `ahead` cycles before, so
    that short kernels do not wait for the host."""
    times = {name: [] for name in contenders}
    for call in contenders.values():
        call()
        call()
    for _ in range(turns):
        for name, call in contenders.items():
            if ahead > 0:
                torch.cuda._sleep(ahead)
            times[name].append(between_events(call, launches[name] if launches else 1))
    return medians(times)
