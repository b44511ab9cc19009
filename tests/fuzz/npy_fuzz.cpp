// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused as npy with a sentence, or give one tensor that lies within them and
// whose header survives being written and read again.
#include "io/npy.hpp"

#include "index_checks.hpp"

using perseid_fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  perseid::internal::io::FileIndex index;
  if (const perseid::internal::Status status = perseid::internal::io::parse_npy(file, &index);
      !status.ok()) {
    require(status.code() == PERSEID_IO_ERROR && !status.sentence().empty(), "IO_ERROR, and why");
    return 0;
  }
  require(index.tensors.size() == 1, "npy holds one tensor");
  perseid_fuzz::check_index(index, file);

  const perseid::internal::io::StoredTensor& tensor = index.tensors[0];
  std::string written;
  require(perseid::internal::io::npy_header(perseid_fuzz::source_of(tensor, file), &written).ok(),
          "what was read can be written");
  written.append(reinterpret_cast<const char*>(data) + tensor.offset, tensor.bytes);
  perseid::internal::io::FileIndex again;
  require(perseid::internal::io::parse_npy(std::as_bytes(std::span(written)), &again).ok() &&
              again.tensors[0].type == tensor.type && again.tensors[0].shape == tensor.shape &&
              again.tensors[0].offset % 64 == 0,
          "what was written can be read");
  return 0;
}

std::vector<std::string> perseid_fuzz::seeds() {
  const auto file = [](int version, const std::string& header, size_t data) {
    std::string text = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
    for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
      text += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return text + header + std::string(data, 'x');
  };
  return {file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", 24),
          file(2, "{'descr': '|u1', 'fortran_order': True, 'shape': (5,), }\n", 5),
          file(3, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", 8),
          file(1, "{\"shape\":(0,4L),'descr':'|b1','fortran_order':False}", 0),
          file(1, "{'descr': '>i8', 'fortran_order': False, 'shape': (1, 1, 1), }\n", 8),
          file(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", 4)};
}
