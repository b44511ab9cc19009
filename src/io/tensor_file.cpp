// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_file.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace perseid::internal::io {

// Both formats store little-endian numbers, and tensors are used where they lie in the file.
static_assert(std::endian::native == std::endian::little);

std::string name_of(ElementType type) {
  const std::string bits = std::to_string(8 * type.bytes);
  switch (type.kind) {
    case ElementKind::kBool:
      return "bool";
    case ElementKind::kInt:
      return "int" + bits;
    case ElementKind::kUint:
      return "uint" + bits;
    case ElementKind::kFloat:
      return "f" + bits;
    case ElementKind::kBfloat:
      return "bf" + bits;
    case ElementKind::kFloat8E4M3:
      return "f8e4m3";
    case ElementKind::kFloat8E5M2:
      return "f8e5m2";
    case ElementKind::kOther:
      break;
  }
  return "other";
}

const StoredTensor* FileIndex::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name.begin(), by_name.end(), name,
      [this](size_t index, std::string_view wanted) { return tensors[index].name < wanted; });
  if (found == by_name.end() || tensors[*found].name != name) return nullptr;
  return &tensors[*found];
}

const std::string* FileIndex::find_metadata(std::string_view key) const {
  const auto found = std::lower_bound(
      metadata.begin(), metadata.end(), key,
      [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  if (found == metadata.end() || found->first != key) return nullptr;
  return &found->second;
}

std::optional<uint64_t> dense_bytes(std::span<const int64_t> shape, size_t element_bytes) {
  int64_t bytes = static_cast<int64_t>(element_bytes);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size == 0) empty = true;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

std::vector<int64_t> row_major_strides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

std::vector<int64_t> column_major_strides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

std::string text_of(std::span<const int64_t> shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    result += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return result + "]";
}

}  // namespace perseid::internal::io
