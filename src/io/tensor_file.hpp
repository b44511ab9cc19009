// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the file formats have in common: element types, the tensors found in a file, the tensors to
// be written into one, and the arithmetic on sizes that come out of a hostile header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace perseid::internal::io {

// The most dimensions of a tensor in a file: as many as NumPy has.
inline constexpr size_t kMaxFileDims = 64;

enum class ElementKind : uint8_t {
  kOther,
  kBool,
  kInt,
  kUint,
  kFloat,
  kBfloat,
  kFloat8E4M3,
  kFloat8E5M2
};

struct ElementType {
  ElementKind kind = ElementKind::kOther;
  uint8_t bytes = 0;  // 0 for kOther

  bool readable() const { return kind != ElementKind::kOther; }
  bool operator==(const ElementType&) const = default;
};

// Such as "bf16" or "int32".
std::string name_of(ElementType type);

// A tensor found in a file.
struct StoredTensor {
  std::string name;
  ElementType type;
  std::string stored_type;  // as the file spells it, for messages about types that are not readable
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;  // in elements
  uint64_t offset = 0;          // of the first element, from the beginning of the file
  uint64_t bytes = 0;
};

struct FileIndex {
  std::vector<StoredTensor> tensors;  // in the order of the header
  std::vector<size_t> by_name;        // positions in `tensors`, sorted by name
  std::vector<std::pair<std::string, std::string>> metadata;  // sorted by key

  const StoredTensor* find(std::string_view name) const;
  const std::string* find_metadata(std::string_view key) const;
};

// A tensor to be written: any strides, any alignment.
struct SourceTensor {
  std::string name;
  ElementType type;
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;  // in elements
  const std::byte* data = nullptr;
};

// The number of bytes that a dense tensor takes, or nothing where its non-zero dimensions alone
// multiply beyond int64 (such a shape is refused even where another dimension is 0: its strides
// have no value).
std::optional<uint64_t> dense_bytes(std::span<const int64_t> shape, size_t element_bytes);

// For a shape that dense_bytes takes. Dimensions of size 0 count as 1, so that no stride is 0.
std::vector<int64_t> row_major_strides(std::span<const int64_t> shape);
std::vector<int64_t> column_major_strides(std::span<const int64_t> shape);

// Such as "[2, 3]".
std::string text_of(std::span<const int64_t> shape);

}  // namespace perseid::internal::io
