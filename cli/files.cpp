// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common.hpp"

namespace perseid::cli {
namespace {

// An outright maximum, so that a wrong shape ends in a sentence and not in std::length_error.
constexpr int64_t kMostFileBytes = std::numeric_limits<int64_t>::max() / 2;

// The same bytes: between uint8 and the 8-bit types.
Tensor as_type(const Tensor& tensor, DType dtype) {
  const harness::Shape strides = [&] {
    harness::Shape each;
    for (int32_t i = 0; i < tensor.ndim(); ++i) each.push_back(tensor.stride(i));
    return each;
  }();
  return Tensor(tensor.data<std::byte>(), dtype, tensor.shape(), Dims(strides));
}

}  // namespace

FileReference parse_reference(const std::string& flag, const std::string& text) {
  const std::string extension = ".safetensors";
  if (const size_t at = text.rfind(extension + ":"); at != std::string::npos) {
    const size_t end = at + extension.size();
    if (end + 1 == text.size())
      bad_input(fmt::format("{}: '{}' names no tensor after the colon", flag, text));
    return {text.substr(0, end), text.substr(end + 1), true};
  }
  if (text.ends_with(extension))
    bad_input(
        fmt::format("{}: a safetensors file holds several tensors; say which one, as in "
                    "{}:NAME",
                    flag, text));
  if (!text.ends_with(".npy"))
    bad_input(fmt::format("{}: expected FILE.npy or FILE.safetensors:NAME, got '{}'", flag, text));
  return {text, "", false};
}

const File& TensorFiles::open(const std::string& path) {
  const auto found = files_.find(path);
  return found != files_.end() ? found->second : files_.emplace(path, File(path)).first->second;
}

Tensor TensorFiles::read(const std::string& flag, const std::string& reference, DType convert) {
  const FileReference parsed = parse_reference(flag, reference);
  try {
    const File& file = open(parsed.path);
    Tensor tensor = parsed.safetensors ? file[parsed.name] : file[size_t{0}];
    if (tensor.dtype() == u8 && harness::is_float8(convert)) tensor = as_type(tensor, convert);
    if (!harness::is_floating(tensor.dtype()))
      bad_input(fmt::format("expected a tensor of f16, bf16, f32 or f64, got {}{}",
                            harness::name_of(tensor.dtype()),
                            tensor.dtype() == u8 ? "; say with --dtype f8e4m3 or f8e5m2 that its "
                                                   "bytes are numbers of 8 bits"
                                                 : ""));
    return convert == DType::kNone || convert == tensor.dtype() ? aligned(tensor)
                                                                : converted(tensor, convert);
  } catch (const Error& error) {
    throw Error(error.status(), fmt::format("{} {}: {}", flag, reference, error.what()));
  }
}

Tensor TensorFiles::read_lengths(const std::string& flag, const std::string& reference) {
  const FileReference parsed = parse_reference(flag, reference);
  const File& file = open(parsed.path);
  const Tensor tensor = parsed.safetensors ? file[parsed.name] : file[size_t{0}];
  if ((tensor.dtype() != i32 && tensor.dtype() != i64) || tensor.ndim() != 1)
    bad_input(fmt::format("{} {}: expected int32 or int64 of 1 dimension, got {} of shape {}", flag,
                          reference, harness::name_of(tensor.dtype()),
                          harness::to_text(shape_of(tensor))));
  return aligned(tensor);
}

Tensor TensorFiles::read_mask(const std::string& flag, const std::string& reference) {
  const FileReference parsed = parse_reference(flag, reference);
  const File& file = open(parsed.path);
  const Tensor tensor = parsed.safetensors ? file[parsed.name] : file[size_t{0}];
  if (tensor.dtype() != boolean && tensor.dtype() != u8)
    bad_input(fmt::format("{} {}: expected a mask of bool or uint8, true where visible; got {}",
                          flag, reference, harness::name_of(tensor.dtype())));
  return tensor;
}

Tensor TensorFiles::aligned(const Tensor& tensor) {
  const auto size = static_cast<size_t>(harness::size_of(tensor.dtype()));
  if (reinterpret_cast<uintptr_t>(tensor.data()) % size == 0) return tensor;
  const Tensor copy = scratch(tensor.dtype(), shape_of(tensor));
  auto* to = copy.data<std::byte>();
  harness::for_each_element(tensor, [&](const std::byte* element) {
    std::copy_n(element, size, to);
    to += size;
  });
  return copy;
}

Tensor TensorFiles::converted(const Tensor& tensor, DType dtype) {
  const Tensor copy = scratch(dtype, shape_of(tensor));
  auto* to = copy.data<std::byte>();
  const DType from = tensor.dtype();
  harness::for_each_element(tensor, [&](const std::byte* element) {
    harness::store(dtype, to, harness::load(from, element));
    to += harness::size_of(dtype);
  });
  return copy;
}

Tensor TensorFiles::scratch(DType dtype, const harness::Shape& shape) {
  const int64_t elements = harness::elements_of(shape);
  if (elements > kMostFileBytes / harness::size_of(dtype))
    bad_input(fmt::format("a tensor of shape {} does not fit into memory; split the problem",
                          harness::to_text(shape)));
  memory_.emplace_back(static_cast<size_t>(elements * harness::size_of(dtype)));
  return Tensor(memory_.back().data(), dtype, Dims(shape));
}

Tensor TensorFiles::result(const std::string& flag, const std::string& reference, DType dtype,
                           const harness::Shape& shape) {
  const FileReference parsed = parse_reference(flag, reference);
  for (const Result& other : results_) {
    if (other.reference.path == parsed.path && other.reference.name == parsed.name)
      bad_input(
          fmt::format("{} and {} both write {}; give each its own", other.flag, flag, reference));
  }
  results_.push_back({flag, reference, parsed, scratch(dtype, shape)});
  return results_.back().tensor;
}

void TensorFiles::write() {
  std::map<std::string, std::vector<NamedTensor>> by_path;
  for (const Result& result : results_) {
    const DType dtype = result.tensor.dtype();
    const bool npy = !result.reference.safetensors;
    const Tensor tensor = npy && dtype == bf16               ? converted(result.tensor, f32)
                          : npy && harness::is_float8(dtype) ? as_type(result.tensor, u8)
                                                             : result.tensor;
    by_path[result.reference.path].emplace_back(result.reference.name, tensor);
    written_.push_back({result.flag, result.text, tensor.dtype(), shape_of(tensor)});
  }
  for (const auto& [path, tensors] : by_path) write_file(path, tensors);
}

Tensor with_leading_ones(const Tensor& tensor, int32_t dims) {
  if (tensor.ndim() >= dims) return tensor;
  const auto missing = static_cast<size_t>(dims - tensor.ndim());
  harness::Shape shape(missing, 1), strides(missing, 0);
  for (int32_t i = 0; i < tensor.ndim(); ++i) {
    shape.push_back(tensor.size(i));
    strides.push_back(tensor.stride(i));
  }
  return Tensor(tensor.data(), tensor.dtype(), Dims(shape), Dims(strides));
}

harness::Shape shape_of(const Tensor& tensor) {
  const Dims dims = tensor.shape();
  return harness::Shape(dims.begin(), dims.end());
}

}  // namespace perseid::cli
