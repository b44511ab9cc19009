// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused as safetensors with a sentence, or give tensors that cover the
// buffer and whose header survives being written and read again.
#include "io/safetensors.hpp"

#include <algorithm>

#include "index_checks.hpp"

using perseid_fuzz::require;

namespace {

std::vector<perseid::internal::io::SourceTensor> sources_of(
    const perseid::internal::io::FileIndex& index, std::span<const std::byte> file) {
  std::vector<perseid::internal::io::SourceTensor> sources;
  for (const perseid::internal::io::StoredTensor& tensor : index.tensors)
    if (tensor.type.readable()) sources.push_back(perseid_fuzz::source_of(tensor, file));
  return sources;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  perseid::internal::io::FileIndex index;
  if (const perseid::internal::Status status =
          perseid::internal::io::parse_safetensors(file, &index);
      !status.ok()) {
    require(status.code() == PERSEID_IO_ERROR && !status.sentence().empty(), "IO_ERROR, and why");
    return 0;
  }
  perseid_fuzz::check_index(index, file);
  uint64_t bytes = 0;
  for (const perseid::internal::io::StoredTensor& tensor : index.tensors) bytes += tensor.bytes;
  require(bytes < size, "tensors do not overlap");

  const std::vector<perseid::internal::io::SourceTensor> sources = sources_of(index, file);
  perseid::internal::io::SafetensorsLayout layout;
  require(perseid::internal::io::safetensors_layout(sources, index.metadata, &layout).ok(),
          "what was read can be written");
  std::string written = layout.header;
  for (const size_t i : layout.order) {
    const size_t source_bytes =
        *perseid::internal::io::dense_bytes(sources[i].shape, sources[i].type.bytes);
    written.append(reinterpret_cast<const char*>(sources[i].data), source_bytes);
  }
  perseid::internal::io::FileIndex again;
  const std::span rewritten = std::as_bytes(std::span(written));
  require(perseid::internal::io::parse_safetensors(rewritten, &again).ok(),
          "what was written can be read");
  require(again.metadata == index.metadata, "metadata is kept");
  require(again.tensors.size() == sources.size(), "every tensor is kept");
  for (size_t i = 0; i < sources.size(); ++i) {
    const perseid::internal::io::StoredTensor& tensor = again.tensors[i];
    require(tensor.name == sources[i].name && tensor.type == sources[i].type &&
                tensor.shape == sources[i].shape,
            "names, types, shapes and the order are kept");
    require(tensor.offset % tensor.type.bytes == 0, "a written tensor is aligned");
    require(std::equal(rewritten.data() + tensor.offset,
                       rewritten.data() + tensor.offset + tensor.bytes, sources[i].data),
            "data is kept");
  }
  return 0;
}

std::vector<std::string> perseid_fuzz::seeds() {
  const auto file = [](const std::string& header, size_t data) {
    std::string text;
    for (int i = 0; i < 8; ++i)
      text += static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xff);
    return text + header + std::string(data, 'x');
  };
  return {
      file("{}  ", 0), file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      file(R"({"__metadata__":{"format":"pt","\u00e9\ud83c\udf20":"\n"},)"
           R"("b":{"dtype":"BF16","shape":[],"data_offsets":[3,5]},)"
           R"("a":{"data_offsets":[0,3],"dtype":"BOOL","shape":[1,3]},)"
           R"("c":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[5,7]}})",
           7),
      file(R"({ "x" : { "dtype" : "I64", "shape" : [ 0 , 5 ], "data_offsets" : [ 0 , 0 ] } })", 0)};
}
