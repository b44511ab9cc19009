// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// .safetensors: the length of a header (8 bytes), the header (a JSON object that names every
// tensor's type, shape and bytes, and holds strings under __metadata__), and one buffer that the
// tensors cover without gaps.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "io/tensor_file.hpp"

namespace perseid::internal::io {

// Reads the header and holds every number in it to the file's size. A tensor of a type that is not
// readable is listed, with a type of ElementKind::kOther.
Status parse_safetensors(std::span<const std::byte> file, FileIndex* index);

// Everything before the buffer, and the order in which the tensors follow: by falling element size,
// so that each of them is aligned for its type, while the header keeps the order they are given in.
// The buffer begins at a multiple of 64 bytes. INVALID_ARGUMENT where a name or a key is used
// twice, is reserved, or is not UTF-8.
struct SafetensorsLayout {
  std::string header;
  std::vector<size_t> order;
};
Status safetensors_layout(std::span<const SourceTensor> tensors,
                          std::span<const std::pair<std::string, std::string>> metadata,
                          SafetensorsLayout* layout);

}  // namespace perseid::internal::io
