// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/header_reader.hpp"
#include "base/json.hpp"

namespace perseid::internal::io {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 64;
constexpr uint64_t kLongestHeader = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeName {
  std::string_view name;
  ElementType type;
};
constexpr TypeName kTypes[] = {
    {"F16", {ElementKind::kFloat, 2}},
    {"BF16", {ElementKind::kBfloat, 2}},
    {"F32", {ElementKind::kFloat, 4}},
    {"F64", {ElementKind::kFloat, 8}},
    {"BOOL", {ElementKind::kBool, 1}},
    {"I8", {ElementKind::kInt, 1}},
    {"I16", {ElementKind::kInt, 2}},
    {"I32", {ElementKind::kInt, 4}},
    {"I64", {ElementKind::kInt, 8}},
    {"U8", {ElementKind::kUint, 1}},
    {"U16", {ElementKind::kUint, 2}},
    {"U32", {ElementKind::kUint, 4}},
    {"U64", {ElementKind::kUint, 8}},
    {"F8_E4M3", {ElementKind::kFloat8E4M3, 1}},
    {"F8_E5M2", {ElementKind::kFloat8E5M2, 1}},
};

ElementType type_of(std::string_view name) {
  for (const TypeName& known : kTypes)
    if (known.name == name) return known.type;
  return {};
}

template <class... Pieces>
Status malformed(const Pieces&... pieces) {
  return Status::error(PERSEID_IO_ERROR, "not a valid safetensors file: ", pieces...);
}

// The buffer's bytes [begin, end), as the header gives them.
struct Range {
  int64_t begin = 0, end = 0;
};

std::string interval_of(Range range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

bool read_shape(HeaderReader* reader, std::vector<int64_t>* shape) {
  reader->expect('[');
  size_t dims = 0;
  while (reader->next_item(']', &dims)) {
    int64_t size = 0;
    if (!reader->read_integer(&size)) return false;
    if (dims > kMaxFileDims) return reader->fail("expected at most 64 dimensions, got one more");
    shape->push_back(size);
  }
  return !reader->failed();
}

bool read_range(HeaderReader* reader, Range* range) {
  return reader->expect('[') && reader->read_integer(&range->begin) && reader->expect(',') &&
         reader->read_integer(&range->end) && reader->expect(']');
}

// The object of one tensor: its three keys, each once, in any order.
bool read_tensor(HeaderReader* reader, StoredTensor* tensor, Range* range) {
  bool has_type = false, has_shape = false, has_range = false;
  std::string key;
  size_t keys = 0;
  reader->expect('{');
  while (reader->next_item('}', &keys)) {
    if (!reader->read_string(&key)) return false;
    bool* seen = key == "dtype"          ? &has_type
                 : key == "shape"        ? &has_shape
                 : key == "data_offsets" ? &has_range
                                         : nullptr;
    if (seen == nullptr)
      return reader->fail("tensor " + quoted(tensor->name) +
                          ": expected the keys 'dtype', 'shape' and 'data_offsets', got " +
                          quoted(key));
    if (*seen)
      return reader->fail("tensor " + quoted(tensor->name) + " has the key " + quoted(key) +
                          " twice");
    *seen = true;
    reader->expect(':');
    if (seen == &has_type) reader->read_string(&tensor->stored_type);
    if (seen == &has_shape) read_shape(reader, &tensor->shape);
    if (seen == &has_range) read_range(reader, range);
  }
  if (reader->failed() || (has_type && has_shape && has_range)) return !reader->failed();
  return reader->fail("tensor " + quoted(tensor->name) + " lacks the key '" +
                      std::string(!has_type    ? "dtype"
                                  : !has_shape ? "shape"
                                               : "data_offsets") +
                      "'");
}

bool read_metadata(HeaderReader* reader, FileIndex* index) {
  size_t entries = 0;
  reader->expect('{');
  while (reader->next_item('}', &entries)) {
    auto& [key, value] = index->metadata.emplace_back();
    if (!reader->read_string(&key) || !reader->expect(':') || !reader->read_string(&value))
      return false;
  }
  return !reader->failed();
}

Status read_header(std::string_view text, FileIndex* index, std::vector<Range>* ranges) {
  HeaderReader reader(Dialect::kJson, text);
  bool has_metadata = false;
  std::string name;
  size_t entries = 0;
  if (!text.starts_with('{')) reader.fail("expected the header to begin with '{'");
  reader.expect('{');
  while (reader.next_item('}', &entries)) {
    if (!reader.read_string(&name) || !reader.expect(':')) break;
    if (name == kMetadataKey) {
      if (has_metadata) reader.fail("the key '__metadata__' appears twice");
      has_metadata = true;
      read_metadata(&reader, index);
    } else {
      StoredTensor tensor;
      Range range;
      tensor.name = name;
      read_tensor(&reader, &tensor, &range);
      index->tensors.push_back(std::move(tensor));
      ranges->push_back(range);
    }
  }
  reader.expect_end();
  return reader.failed() ? malformed(reader.error()) : Status{};
}

// Sorts the two look-up tables; a name must be in its own only once.
Status sort_names(FileIndex* index) {
  std::vector<size_t>& order = index->by_name;
  order.resize(index->tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [index](size_t a, size_t b) {
    return index->tensors[a].name < index->tensors[b].name;
  });
  for (size_t i = 1; i < order.size(); ++i)
    if (const std::string& name = index->tensors[order[i]].name;
        name == index->tensors[order[i - 1]].name)
      return malformed("the tensor name ", quoted(name), " appears twice");
  std::sort(index->metadata.begin(), index->metadata.end());
  for (size_t i = 1; i < index->metadata.size(); ++i)
    if (const std::string& key = index->metadata[i].first; key == index->metadata[i - 1].first)
      return malformed("the metadata key ", quoted(key), " appears twice");
  return {};
}

// Type, shape and range of one tensor must agree with each other and with the buffer.
Status place_tensor(Range range, uint64_t buffer_offset, uint64_t buffer_bytes,
                    StoredTensor* tensor) {
  const auto refused = [tensor](const auto&... pieces) {
    return malformed("tensor ", quoted(tensor->name), " of ", quoted(tensor->stored_type), " ",
                     text_of(tensor->shape), " ", pieces...);
  };
  if (range.begin > range.end || static_cast<uint64_t>(range.end) > buffer_bytes)
    return refused("has data_offsets ", interval_of(range),
                   ", expected two rising ones of at most ", buffer_bytes,
                   ", the number of bytes after the header");
  tensor->type = type_of(tensor->stored_type);
  tensor->offset = buffer_offset + static_cast<uint64_t>(range.begin);
  tensor->bytes = static_cast<uint64_t>(range.end - range.begin);
  // Where the type has no known size, only the shape itself can be checked.
  const bool readable = tensor->type.readable();
  const std::optional<uint64_t> bytes =
      dense_bytes(tensor->shape, readable ? tensor->type.bytes : 1);
  if (!bytes) return refused("has more than 2^63 - 1 bytes");
  if (readable && *bytes != tensor->bytes)
    return refused("takes ", *bytes, " bytes, but its data_offsets ", interval_of(range), " hold ",
                   tensor->bytes);
  tensor->stride = row_major_strides(tensor->shape);
  return {};
}

// In the order of their bytes, every tensor begins where the one before it ends.
Status check_cover(const FileIndex& index, const std::vector<Range>& ranges,
                   uint64_t buffer_bytes) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&ranges](size_t a, size_t b) {
    return std::pair(ranges[a].begin, ranges[a].end) < std::pair(ranges[b].begin, ranges[b].end);
  });
  int64_t covered = 0;
  for (const size_t i : order) {
    if (ranges[i].begin != covered)
      return malformed("tensor ", quoted(index.tensors[i].name), " has data_offsets ",
                       interval_of(ranges[i]), ", expected them to begin at ", covered,
                       ", where the tensor before it ends (",
                       (ranges[i].begin < covered ? "two tensors overlap)"
                                                  : "bytes in between "
                                                    "belong to none)"));
    covered = ranges[i].end;
  }
  if (static_cast<uint64_t>(covered) != buffer_bytes)
    return malformed("its tensors end at byte ", covered, " of the buffer, but ", buffer_bytes,
                     " bytes follow the header");
  return {};
}

Status check_utf8(std::string_view what, std::string_view text) {
  if (is_utf8(text)) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "expected ", what, " in UTF-8, got ",
                       quoted(text));
}

Status check_unique(std::string_view what, std::vector<std::string_view> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "expected every ", what, " only once, got ",
                       quoted(*twice), " twice");
}

Status check_names(std::span<const SourceTensor> tensors,
                   std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<std::string_view> names, keys;
  for (const SourceTensor& tensor : tensors) {
    if (Status status = check_utf8("a tensor name", tensor.name); !status.ok()) return status;
    if (tensor.name == kMetadataKey)
      return Status::error(PERSEID_INVALID_ARGUMENT,
                           "expected a tensor name other than '__metadata__', which safetensors "
                           "reserves; choose another");
    names.push_back(tensor.name);
  }
  for (const auto& [key, value] : metadata) {
    if (Status status = check_utf8("a metadata key", key); !status.ok()) return status;
    if (Status status = check_utf8("a metadata value", value); !status.ok()) return status;
    keys.push_back(key);
  }
  if (Status status = check_unique("tensor name", names); !status.ok()) return status;
  return check_unique("metadata key", keys);
}

// By falling element size, so that what comes before a tensor is a multiple of its element size.
Status place_sources(std::span<const SourceTensor> tensors, std::vector<size_t>* order,
                     std::vector<Range>* ranges) {
  order->resize(tensors.size());
  std::iota(order->begin(), order->end(), size_t{0});
  std::stable_sort(order->begin(), order->end(), [tensors](size_t a, size_t b) {
    return tensors[a].type.bytes > tensors[b].type.bytes;
  });
  ranges->resize(tensors.size());
  int64_t covered = 0;
  for (const size_t i : *order) {
    const std::optional<uint64_t> bytes = dense_bytes(tensors[i].shape, tensors[i].type.bytes);
    const int64_t begin = covered;
    if (!bytes || __builtin_add_overflow(covered, *bytes, &covered))
      return Status::error(PERSEID_INVALID_ARGUMENT, "the tensors up to ", quoted(tensors[i].name),
                           " have more than 2^63 - 1 bytes");
    (*ranges)[i] = {begin, covered};
  }
  return {};
}

void append_tensor(const SourceTensor& tensor, Range range, std::string* json) {
  const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const TypeName& t) { return t.type == tensor.type; });
  append_json_string(tensor.name, json);
  *json += ":{\"dtype\":\"" + std::string(known->name) + "\",\"shape\":[";
  for (size_t i = 0; i < tensor.shape.size(); ++i)
    *json += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
  *json +=
      "],\"data_offsets\":[" + std::to_string(range.begin) + "," + std::to_string(range.end) + "]}";
}

}  // namespace

Status parse_safetensors(std::span<const std::byte> file, FileIndex* index) {
  if (file.size() < kLengthBytes)
    return malformed("expected the length of the header in its first 8 bytes, got a file of ",
                     file.size(), " bytes");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kLongestHeader)
    return malformed("expected a header of at most ", kLongestHeader, " bytes, got a length of ",
                     length);
  const uint64_t rest = file.size() - kLengthBytes;
  if (length > rest)
    return malformed("its header is said to take ", length, " bytes, but ", rest,
                     " bytes follow; the file is cut short or damaged");
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                                static_cast<size_t>(length));
  std::vector<Range> ranges;
  if (Status status = read_header(header, index, &ranges); !status.ok()) return status;
  if (Status status = sort_names(index); !status.ok()) return status;
  for (size_t i = 0; i < ranges.size(); ++i)
    if (Status status =
            place_tensor(ranges[i], kLengthBytes + length, rest - length, &index->tensors[i]);
        !status.ok())
      return status;
  return check_cover(*index, ranges, rest - length);
}

Status safetensors_layout(std::span<const SourceTensor> tensors,
                          std::span<const std::pair<std::string, std::string>> metadata,
                          SafetensorsLayout* layout) {
  if (Status status = check_names(tensors, metadata); !status.ok()) return status;
  std::vector<Range> ranges;
  if (Status status = place_sources(tensors, &layout->order, &ranges); !status.ok()) return status;

  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":";
    for (size_t i = 0; i < metadata.size(); ++i) {
      json += i == 0 ? '{' : ',';
      append_json_string(metadata[i].first, &json);
      json += ':';
      append_json_string(metadata[i].second, &json);
    }
    json += '}';
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (json.size() > 1) json += ',';
    append_tensor(tensors[i], ranges[i], &json);
  }
  json += '}';
  // Spaces after the object are allowed.
  const size_t buffer_offset =
      (kLengthBytes + json.size() + kAlignment - 1) / kAlignment * kAlignment;
  json.resize(buffer_offset - kLengthBytes, ' ');
  const uint64_t length = json.size();
  if (length > kLongestHeader)
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "expected names and metadata that fit a header of ", kLongestHeader,
                         " bytes, got ", length, "; spread the tensors over several files");
  layout->header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout->header += json;
  return {};
}

}  // namespace perseid::internal::io
