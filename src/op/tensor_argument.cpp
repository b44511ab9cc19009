// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/tensor_argument.hpp"

#include <algorithm>
#include <string_view>

#include "base/log.hpp"
#include "base/observe.hpp"

namespace perseid::internal::op {
namespace {

DType dtype_of(const DLDataType& dtype) {
  if (dtype.lanes != 1) return DType::kNone;
  switch (dtype.code) {
    case kDLFloat:
      return dtype.bits == 16   ? DType::kF16
             : dtype.bits == 32 ? DType::kF32
             : dtype.bits == 64 ? DType::kF64
                                : DType::kNone;
    case kDLBfloat:
      return dtype.bits == 16 ? DType::kBF16 : DType::kNone;
    case kDLFloat8_e4m3fn:
      return dtype.bits == 8 ? DType::kF8E4M3 : DType::kNone;
    case kDLFloat8_e5m2:
      return dtype.bits == 8 ? DType::kF8E5M2 : DType::kNone;
    case kDLBool:
    case kDLUInt:
      return dtype.bits == 8 ? DType::kBool : DType::kNone;
    case kDLInt:
      return dtype.bits == 32 ? DType::kI32 : dtype.bits == 64 ? DType::kI64 : DType::kNone;
    default:
      return DType::kNone;
  }
}

std::string text_of(const DLDataType& dtype) {
  if (const DType known = dtype_of(dtype); known != DType::kNone) return name_of(known);
  return concatenate("of DLPack code ", dtype.code, ", ", dtype.bits, " bits and ", dtype.lanes,
                     " lanes");
}

std::string text_of(const DTypes& dtypes) {
  if (dtypes.first == DType::kNone) return "a type of this library";
  if (dtypes.first == DType::kBool) return "bool or uint8";
  std::string text = name_of(dtypes.first);
  if (dtypes.second != DType::kNone && dtypes.second != dtypes.first)
    text += concatenate(" or ", name_of(dtypes.second));
  return text;
}

std::string text_of(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += concatenate(i == 0 ? "" : ", ", sizes[i]);
  return text + "]";
}

std::string text_of(std::span<const Extent> extents) {
  std::string text = "[";
  for (const Extent& extent : extents) {
    text += concatenate(text.size() == 1 ? "" : ", ", extent.name);
    if (extent.size != kAnySize) text += concatenate(" ", extent.size);
  }
  return text + "]";
}

std::span<const int64_t> shape_of(const DLTensor& tensor) {
  return {tensor.shape, static_cast<size_t>(tensor.ndim)};
}

// The stride of a dimension of size 1 means nothing and may be anything. It becomes what it would
// be in row-major order, so that kernels find contiguous rows by looking at strides. A tensor
// without elements may have NULL data: strides of 0 keep kernels from computing with it.
void normalise_strides(Tensor* view) {
  if (is_empty(*view)) {
    std::fill(view->stride, view->stride + view->rank, int64_t{0});
    return;
  }
  uint64_t natural = 1;
  for (int32_t d = view->rank - 1; d >= 0; --d) {
    if (view->shape[d] <= 1) view->stride[d] = static_cast<int64_t>(natural);
    natural = static_cast<uint64_t>(view->stride[d]) *
              static_cast<uint64_t>(max(view->shape[d], int64_t{1}));
  }
}

}  // namespace

ArgumentReader::ArgumentReader(const char* subject, DLDevice device, Owner owner)
    : Check(subject),
      device_(device),
      owner_(owner),
      logging_(log_enabled(PERSEID_LOG_DEBUG) || observed_by(kVerboseExecutions | kTrace)) {}

const char* ArgumentReader::fit_shape() const {
  return owner_ == Owner::kPlan ? "; pass a tensor of that shape, or make a plan for this one"
                                : "; pass a tensor of that shape";
}

Tensor ArgumentReader::read(Access access, const char* name, const DLTensor* tensor, DTypes dtypes,
                            std::span<const Extent> extents) {
  if (!ok()) return {};
  if (tensor == nullptr) {
    require(false, name, " is NULL, expected a tensor ", text_of(extents), "; pass one");
    return {};
  }
  const Tensor view = convert(name, *tensor, dtypes);
  if (!ok()) return {};
  if (view.rank != static_cast<int32_t>(extents.size())) {
    require(false, name, " has shape ", text_of(shape_of(*tensor)), ", expected ", extents.size(),
            " dimensions: ", text_of(extents), fit_shape());
    return {};
  }
  for (int32_t d = 0; d < view.rank; ++d) {
    const Extent& extent = extents[static_cast<size_t>(d)];
    if (extent.size == kAnySize || view.shape[d] == extent.size) continue;
    require(false, name, " has ", extent.name, " ", view.shape[d], ", expected ", extent.size,
            "; its shape is ", text_of(shape_of(*tensor)),
            owner_ == Owner::kPlan ? ", the plan's " : ", expected ", text_of(extents),
            fit_shape());
    return {};
  }
  if (access == Access::kWrite && !elements_are_distinct(view)) {
    require(false, name, " is written, but its strides ",
            text_of(std::span(view.stride, extents.size())), " for shape ",
            text_of(shape_of(*tensor)),
            " let elements share memory; pass a tensor without repeated elements");
    return {};
  }
  record(access, name, view);
  return view;
}

Tensor ArgumentReader::read_broadcast(const char* name, const DLTensor* tensor, DTypes dtypes,
                                      std::span<const Extent> extents) {
  if (!ok()) return {};
  if (tensor == nullptr) {
    require(false, name, " is NULL, expected a tensor that broadcasts against ", text_of(extents));
    return {};
  }
  const Tensor given = convert(name, *tensor, dtypes);
  if (!ok()) return {};
  const auto rank = static_cast<int32_t>(extents.size());
  const int32_t missing = rank - given.rank;
  Tensor view = given;
  view.rank = rank;
  bool fits = missing >= 0;
  for (int32_t d = rank - 1; d >= 0 && fits; --d) {
    const int64_t size = extents[static_cast<size_t>(d)].size;
    const int64_t given_size = d < missing ? 1 : given.shape[d - missing];
    fits = given_size == size || given_size == 1;
    view.shape[d] = size;
    view.stride[d] = given_size == 1 ? 0 : given.stride[d - missing];
  }
  if (!fits) {
    require(false, name, " has shape ", text_of(shape_of(*tensor)),
            ", expected one that broadcasts against ", text_of(extents),
            ": make each dimension that size or 1");
    return {};
  }
  record(Access::kRead, name, given);
  return view;
}

void ArgumentReader::refuse(const char* name, const DLTensor* tensor, const char* field) {
  require(tensor == nullptr, name, " is given, but the plan's descriptor says ", field,
          "; pass NULL, or make a plan that uses it");
}

void ArgumentReader::note(const char* name, uint64_t value) {
  if (logging_) log_ += concatenate(", ", name, " ", value);
}

bool ArgumentReader::check_device(const char* name, const DLDevice& device) {
  const auto type = static_cast<int>(device.device_type);
  const char* const copy_there = owner_ == Owner::kPlan
                                     ? ", the device of the plan; copy it there"
                                     : ", the device of the context; copy it there";
  if (device_.device_type == kDLCPU)
    return require(device.device_type == kDLCPU || device.device_type == kDLCUDAHost, name,
                   " is on DLPack device type ", type, ", expected kDLCPU (1)", copy_there);
  return require(device.device_type == kDLCUDAManaged ||
                     (device.device_type == kDLCUDA && device.device_id == device_.device_id),
                 name, " is on DLPack device type ", type, ", number ", device.device_id,
                 ", expected kDLCUDA (2), number ", device_.device_id, copy_there);
}

// Everything about a tensor but the sizes it should have.
Tensor ArgumentReader::convert(const char* name, const DLTensor& from, DTypes dtypes) {
  Tensor view;
  view.dtype = dtype_of(from.dtype);
  view.rank = from.ndim;
  if (!check_device(name, from.device)) return {};
  const bool fits =
      dtypes.first == DType::kNone || view.dtype == dtypes.first || view.dtype == dtypes.second;
  if (view.dtype == DType::kNone || !fits) {
    require(false, name, " has dtype ", text_of(from.dtype), ", expected ", text_of(dtypes));
    return {};
  }
  if (!require(0 <= from.ndim && from.ndim <= kMaxDims, name, " has ", from.ndim,
               " dimensions, expected 0 to ", kMaxDims) ||
      !require(from.shape != nullptr || from.ndim == 0, name, " has a NULL shape; point it to ",
               from.ndim, " sizes"))
    return {};
  int64_t row_major = 1;
  for (int32_t d = from.ndim - 1; d >= 0; --d) {
    if (!require(from.shape[d] >= 0, name, " has size ", from.shape[d], " in dimension ", d,
                 ", expected at least 0"))
      return {};
    view.shape[d] = from.shape[d];
    view.stride[d] = from.strides == nullptr ? row_major : from.strides[d];
    if (!require(!__builtin_mul_overflow(row_major, max(from.shape[d], int64_t{1}), &row_major) ||
                     from.strides != nullptr,
                 name, " has more elements than 64 bits can count"))
      return {};
  }
  set_data(name, from, &view);
  normalise_strides(&view);
  return view;
}

// Sets the address of the elements, checked against the address space and the type's alignment.
void ArgumentReader::set_data(const char* name, const DLTensor& from, Tensor* view) {
  if (is_empty(*view)) return;
  if (!require(from.data != nullptr, name, " has NULL data, expected ",
               "a pointer to its elements"))
    return;
  uintptr_t address = 0;
  const bool wraps =
      __builtin_add_overflow(reinterpret_cast<uintptr_t>(from.data), from.byte_offset, &address);
  view->data = reinterpret_cast<void*>(address);
  AddressRange range;
  if (!require(!wraps && address_range(*view, &range), name,
               " reaches outside of the address space with byte_offset ", from.byte_offset,
               "; check its strides and byte_offset"))
    return;
  const auto bytes = static_cast<uintptr_t>(size_of(view->dtype));
  require(address % bytes == 0, name, " begins at an address that is ", address % bytes,
          " bytes past a multiple of ", bytes, ", the size of its ", name_of(view->dtype),
          " elements; align it to that");
}

void ArgumentReader::record(Access access, const char* name, const Tensor& view) {
  Argument& argument = arguments_[count_++];
  argument = {name, access, view, {}};
  address_range(view, &argument.range);
  if (!logging_) return;
  const auto rank = static_cast<size_t>(view.rank);
  log_ += concatenate(log_.empty() ? "" : ", ", name, " ", name_of(view.dtype), " ",
                      text_of(std::span(view.shape, rank)), " strides ",
                      text_of(std::span(view.stride, rank)));
}

void ArgumentReader::check_overlap(const Argument& output, const Argument& other,
                                   const InPlace& allowed) {
  if (output.range.end <= other.range.begin || other.range.end <= output.range.begin) return;
  const bool in_place = std::string_view(output.name) == allowed.output &&
                        std::string_view(other.name) == allowed.input;
  if ((in_place && is_same(output.tensor, other.tensor)) || !overlap(output.tensor, other.tensor))
    return;
  require(false, output.name, " is written, but shares memory with ", other.name,
          in_place ? "; that is allowed only where data, strides and dtype are the same, else "
                     "pass separate memory"
                   : "; pass separate memory");
}

Status ArgumentReader::verify(const InPlace& allowed) {
  for (size_t i = 0; i < count_ && ok(); ++i) {
    if (arguments_[i].access != Access::kWrite) continue;
    for (size_t j = 0; j < count_ && ok(); ++j) {
      const bool counted = arguments_[j].access == Access::kRead || j < i;
      if (counted) check_overlap(arguments_[i], arguments_[j], allowed);
    }
  }
  return result();
}

Status ArgumentReader::finish(const InPlace& allowed) {
  Status status = verify(allowed);
  if (status.ok() && logging_) log(PERSEID_LOG_DEBUG, concatenate(subject(), ": ", log_));
  return status;
}

bool ArgumentReader::writes() const {
  return std::any_of(arguments_.begin(), arguments_.begin() + count_, [](const Argument& argument) {
    return argument.access == Access::kWrite && !is_empty(argument.tensor);
  });
}

Status ArgumentReader::check_workspace(void* data, size_t bytes) {
  const Tensor workspace{.data = data,
                         .dtype = DType::kBool,
                         .rank = 1,
                         .shape = {static_cast<int64_t>(bytes)},
                         .stride = {1}};
  for (size_t i = 0; i < count_; ++i)
    require(!overlap(workspace, arguments_[i].tensor), "the workspace shares memory with ",
            arguments_[i].name, "; pass separate memory");
  return result();
}

}  // namespace perseid::internal::op
