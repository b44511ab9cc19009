// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// perseid_file_*: tensor files as DLTensors.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/guard.hpp"
#include "base/header_reader.hpp"
#include "io/input_file.hpp"
#include "io/npy.hpp"
#include "io/output_file.hpp"
#include "io/safetensors.hpp"
#include "io/tensor_file.hpp"
#include "perseid/perseid.h"

struct perseid_file {
  std::string path;
  perseid::internal::io::InputFile content;
  perseid::internal::io::FileIndex index;
  std::vector<DLTensor> tensors;  // they point at the shapes and strides of index.tensors
};

namespace perseid::internal::api {
namespace {

using io::ElementKind;
using io::ElementType;

constexpr size_t kMostNamesListed = 16;

DLDataTypeCode code_of(ElementKind kind) {
  switch (kind) {
    case ElementKind::kBool:
      return kDLBool;
    case ElementKind::kInt:
      return kDLInt;
    case ElementKind::kUint:
      return kDLUInt;
    case ElementKind::kFloat:
      return kDLFloat;
    case ElementKind::kBfloat:
      return kDLBfloat;
    case ElementKind::kFloat8E4M3:
      return kDLFloat8_e4m3fn;
    case ElementKind::kFloat8E5M2:
      return kDLFloat8_e5m2;
    case ElementKind::kOther:
      break;
  }
  return kDLOpaqueHandle;
}

// A type that files do not hold has ElementKind::kOther.
ElementType element_type_of(DLDataType dtype) {
  const auto bytes = static_cast<uint8_t>(dtype.bits / 8);
  const bool is_integer_size = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
  if (dtype.lanes != 1 || dtype.bits % 8 != 0 || !is_integer_size) return {};
  if (dtype.code == kDLBool && bytes == 1) return {ElementKind::kBool, bytes};
  if (dtype.code == kDLInt) return {ElementKind::kInt, bytes};
  if (dtype.code == kDLUInt) return {ElementKind::kUint, bytes};
  if (dtype.code == kDLFloat && bytes > 1) return {ElementKind::kFloat, bytes};
  if (dtype.code == kDLBfloat && bytes == 2) return {ElementKind::kBfloat, bytes};
  if (dtype.code == kDLFloat8_e4m3fn && bytes == 1) return {ElementKind::kFloat8E4M3, bytes};
  if (dtype.code == kDLFloat8_e5m2 && bytes == 1) return {ElementKind::kFloat8E5M2, bytes};
  return {};
}

DLTensor view_of(io::StoredTensor* tensor, std::span<const std::byte> file) {
  // The content is read-only, which DLTensor cannot express.
  auto* data = const_cast<std::byte*>(file.data() + tensor->offset);
  const DLDataType dtype{static_cast<uint8_t>(code_of(tensor->type.kind)),
                         static_cast<uint8_t>(8 * tensor->type.bytes), 1};
  return {.data = data,
          .device = {kDLCPU, 0},
          .ndim = static_cast<int32_t>(tensor->shape.size()),
          .dtype = dtype,
          .shape = tensor->shape.data(),
          .strides = tensor->stride.data(),
          .byte_offset = 0};
}

Status with_path(std::string_view path, const Status& status) {
  return Status::error(status.code(), "file '", path, "': ", status.sentence());
}

Status parse(const char* path, std::span<const std::byte> bytes, io::FileIndex* index) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min(bytes.size(), io::kNpyMagic.size()));
  // The content decides; the name matters only for what is expected of a file that is neither.
  if (text == io::kNpyMagic || std::string_view(path).ends_with(".npy"))
    return io::parse_npy(bytes, index);
  return io::parse_safetensors(bytes, index);
}

Status open(const char* path, perseid_file_t* result) {
  auto file = std::make_unique<perseid_file>();
  file->path = path;
  Status status = file->content.open(path);
  if (status.ok()) status = parse(path, file->content.bytes(), &file->index);
  if (!status.ok()) return with_path(path, status);
  for (io::StoredTensor& tensor : file->index.tensors)
    file->tensors.push_back(view_of(&tensor, file->content.bytes()));
  *result = file.release();
  return {};
}

Status tensor_at(perseid_file_t file, size_t index, const DLTensor** tensor) {
  const io::StoredTensor& stored = file->index.tensors[index];
  if (!stored.type.readable())
    return Status::error(PERSEID_IO_ERROR, "file '", file->path, "': tensor ", quoted(stored.name),
                         " has the type ", quoted(stored.stored_type),
                         ", expected one out of F16, BF16, F32, F64, BOOL, I8 to I64 and U8 to "
                         "U64; convert it before saving it");
  *tensor = &file->tensors[index];
  return {};
}

Status no_such_name(perseid_file_t file, std::string_view name) {
  const auto& tensors = file->index.tensors;
  std::string names;
  for (size_t i = 0; i < std::min(tensors.size(), kMostNamesListed); ++i)
    names += (i == 0 ? "" : ", ") + quoted(tensors[i].name);
  if (tensors.empty()) names = "no tensors";
  if (tensors.size() > kMostNamesListed)
    names += " and " + std::to_string(tensors.size() - kMostNamesListed) + " more";
  return Status::error(PERSEID_IO_ERROR, "file '", file->path, "' has no tensor ", quoted(name),
                       "; it holds ", names);
}

// Checks that the offsets and addresses of a tensor with elements fit into 64 bits.
Status check_reach(const DLTensor& tensor, const io::SourceTensor& source) {
  const auto refused = [&source](const char* where) {
    return Status::error(PERSEID_INVALID_ARGUMENT, "the strides ", io::text_of(source.stride),
                         " of the shape ", io::text_of(source.shape), " lead ", where);
  };
  constexpr const char* kTooFar = "further than 2^63 - 1 bytes";
  int64_t before = 0, behind = source.type.bytes;  // from the first element, in bytes
  for (size_t i = 0; i < source.shape.size(); ++i) {
    int64_t extent = 0;
    if (source.shape[i] == 1) continue;
    if (__builtin_mul_overflow(source.stride[i], source.shape[i], &extent) ||
        __builtin_mul_overflow(extent, int64_t{source.type.bytes}, &extent) || extent == INT64_MIN)
      return refused(kTooFar);
    const int64_t last = extent / source.shape[i] * (source.shape[i] - 1);
    int64_t& reach = last < 0 ? before : behind;
    if (__builtin_add_overflow(reach, std::abs(last), &reach)) return refused(kTooFar);
  }
  uintptr_t first = 0, end = 0;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(tensor.data), tensor.byte_offset, &first))
    return Status::error(PERSEID_INVALID_ARGUMENT, "the byte_offset ", tensor.byte_offset,
                         " leads beyond the last address");
  if (__builtin_add_overflow(first, behind, &end) || static_cast<uintptr_t>(before) > first)
    return refused("beyond the last address");
  return {};
}

// Checks that a caller's tensor can be written.
Status source_of(const DLTensor* tensor, io::SourceTensor* source) {
  if (tensor == nullptr) return Status::error(PERSEID_INVALID_ARGUMENT, "is a NULL pointer");
  if (tensor->device.device_type != kDLCPU)
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "expected memory of the CPU (device type 1), got device type ",
                         tensor->device.device_type, "; copy it to the CPU first");
  source->type = element_type_of(tensor->dtype);
  if (!source->type.readable())
    return Status::error(
        PERSEID_INVALID_ARGUMENT,
        "expected f16, bf16, f32, f64, bool, or integers of 8 to 64 bits, got DLPack type code ",
        tensor->dtype.code, " of ", tensor->dtype.bits, " bits and ", tensor->dtype.lanes,
        " lanes; convert it first");
  const int32_t ndim = tensor->ndim;
  if (ndim < 0 || static_cast<size_t>(ndim) > io::kMaxFileDims ||
      (ndim > 0 && tensor->shape == nullptr))
    return Status::error(PERSEID_INVALID_ARGUMENT, "expected 0 to 64 dimensions and a shape, got ",
                         ndim, tensor->shape == nullptr ? " and no shape" : "");
  source->shape.assign(tensor->shape, tensor->shape + ndim);
  for (const int64_t size : source->shape)
    if (size < 0)
      return Status::error(PERSEID_INVALID_ARGUMENT,
                           "expected a shape without negative sizes, got ",
                           io::text_of(source->shape));
  const std::optional<uint64_t> bytes = io::dense_bytes(source->shape, source->type.bytes);
  if (!bytes)
    return Status::error(PERSEID_INVALID_ARGUMENT, "the shape ", io::text_of(source->shape),
                         " has more than 2^63 - 1 bytes");
  if (tensor->strides == nullptr)
    source->stride = io::row_major_strides(source->shape);
  else
    source->stride.assign(tensor->strides, tensor->strides + ndim);
  if (*bytes == 0) return {};
  if (tensor->data == nullptr)
    return Status::error(PERSEID_INVALID_ARGUMENT, "has NULL data, but ", *bytes,
                         " bytes to be written");
  if (Status status = check_reach(*tensor, *source); !status.ok()) return status;
  source->data = static_cast<const std::byte*>(tensor->data) + tensor->byte_offset;
  return {};
}

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Refuses all that it can before it creates a file.
Status layout_of(std::string_view path, std::span<const io::SourceTensor> tensors,
                 const Metadata& metadata, io::SafetensorsLayout* layout) {
  if (path.ends_with(".safetensors")) return io::safetensors_layout(tensors, metadata, layout);
  if (!path.ends_with(".npy"))
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "expected a name that ends in .npy or .safetensors");
  if (tensors.size() != 1 || !metadata.empty())
    return Status::error(PERSEID_INVALID_ARGUMENT, "npy takes one tensor and no metadata, got ",
                         tensors.size(), " tensors and ", metadata.size(),
                         " metadata entries; write a .safetensors file");
  layout->order = {0};
  return io::npy_header(tensors[0], &layout->header);
}

Status write(const char* path, std::span<const io::SourceTensor> tensors,
             const Metadata& metadata) {
  io::SafetensorsLayout layout;
  if (Status status = layout_of(path, tensors, metadata, &layout); !status.ok()) return status;
  io::OutputFile file;
  if (Status status = file.open(path); !status.ok()) return status;
  Status status = file.write(std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < layout.order.size() && status.ok(); ++i)
    status = file.write_row_major(tensors[layout.order[i]]);
  return status.ok() ? file.commit() : status;
}

}  // namespace
}  // namespace perseid::internal::api

using namespace perseid::internal;

perseid_status perseid_file_open(const char* path, perseid_file_t* file) {
  return api::guarded([&] {
    if (path == nullptr) return api::null_argument("perseid_file_open", "path");
    if (file == nullptr) return api::null_argument("perseid_file_open", "file");
    *file = nullptr;
    return api::open(path, file);
  });
}

void perseid_file_close(perseid_file_t file) { delete file; }

perseid_status perseid_file_count(perseid_file_t file, size_t* count) {
  return api::guarded([&] {
    if (file == nullptr) return api::null_argument("perseid_file_count", "file");
    if (count == nullptr) return api::null_argument("perseid_file_count", "count");
    *count = file->tensors.size();
    return Status{};
  });
}

perseid_status perseid_file_tensor(perseid_file_t file, size_t index, const char** name,
                                   const DLTensor** tensor) {
  return api::guarded([&] {
    if (file == nullptr) return api::null_argument("perseid_file_tensor", "file");
    if (index >= file->tensors.size())
      return Status::error(PERSEID_INVALID_ARGUMENT, "file '", file->path, "' holds ",
                           file->tensors.size(), " tensors, got the index ", index);
    if (name != nullptr) *name = file->index.tensors[index].name.c_str();
    return tensor == nullptr ? Status{} : api::tensor_at(file, index, tensor);
  });
}

perseid_status perseid_file_find(perseid_file_t file, const char* name, const DLTensor** tensor) {
  return api::guarded([&] {
    if (file == nullptr) return api::null_argument("perseid_file_find", "file");
    if (name == nullptr) return api::null_argument("perseid_file_find", "name");
    if (tensor == nullptr) return api::null_argument("perseid_file_find", "tensor");
    const io::StoredTensor* found = file->index.find(name);
    if (found == nullptr) return api::no_such_name(file, name);
    return api::tensor_at(file, static_cast<size_t>(found - file->index.tensors.data()), tensor);
  });
}

perseid_status perseid_file_metadata(perseid_file_t file, const char* key, const char** value) {
  return api::guarded([&] {
    if (file == nullptr) return api::null_argument("perseid_file_metadata", "file");
    if (key == nullptr) return api::null_argument("perseid_file_metadata", "key");
    if (value == nullptr) return api::null_argument("perseid_file_metadata", "value");
    const std::string* found = file->index.find_metadata(key);
    *value = found == nullptr ? nullptr : found->c_str();
    return Status{};
  });
}

perseid_status perseid_file_write(const char* path, const perseid_named_tensor* tensors,
                                  size_t count, const perseid_key_value* metadata,
                                  size_t metadata_count) {
  return api::guarded([&] {
    if (path == nullptr) return api::null_argument("perseid_file_write", "path");
    if (tensors == nullptr && count > 0) return api::null_argument("perseid_file_write", "tensors");
    if (metadata == nullptr && metadata_count > 0)
      return api::null_argument("perseid_file_write", "metadata");
    std::vector<io::SourceTensor> sources;
    if (count > sources.max_size() || metadata_count > api::Metadata().max_size())
      return Status::error(PERSEID_OUT_OF_MEMORY, "perseid_file_write: ", count, " tensors and ",
                           metadata_count, " metadata entries do not fit into memory");
    sources.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (tensors[i].name != nullptr) sources[i].name = tensors[i].name;
      if (Status status = api::source_of(tensors[i].tensor, &sources[i]); !status.ok())
        return Status::error(status.code(), "file '", path, "': tensor ", i, " (",
                             quoted(sources[i].name), ") ", status.sentence());
    }
    api::Metadata pairs(metadata_count);
    for (size_t i = 0; i < metadata_count; ++i) {
      if (metadata[i].key == nullptr || metadata[i].value == nullptr)
        return api::null_argument("perseid_file_write", "a metadata key or value");
      pairs[i] = {metadata[i].key, metadata[i].value};
    }
    const Status status = api::write(path, sources, pairs);
    return status.ok() ? Status{} : api::with_path(path, status);
  });
}
