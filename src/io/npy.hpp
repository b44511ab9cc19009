// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy: six magic bytes, a version, the length of a header, the header (a Python literal
// that names the type, the order and the shape), and the elements.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.hpp"
#include "io/tensor_file.hpp"

namespace perseid::internal::io {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

// Reads the header of a file of versions 1 to 3 and holds every number in it to the file's size.
// The index names one tensor, "".
Status parse_npy(std::span<const std::byte> file, FileIndex* index);

// Everything before the elements of a row-major tensor: a version 1 header, padded so that the
// elements begin at a multiple of 64 bytes. INVALID_ARGUMENT where npy has no such type.
Status npy_header(const SourceTensor& tensor, std::string* header);

}  // namespace perseid::internal::io
