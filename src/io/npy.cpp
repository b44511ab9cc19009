// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "io/npy.hpp"

#include <cstring>

#include "base/header_reader.hpp"

namespace perseid::internal::io {
namespace {

constexpr size_t kMagicBytes = 8;  // with the two bytes of the version
constexpr size_t kAlignment = 64;
// 64 dimensions take less than 2 KiB; beyond this a length is a mistake or an attack.
constexpr uint64_t kLongestHeader = 1 << 20;

template <class... Pieces>
Status malformed(const Pieces&... pieces) {
  return Status::error(PERSEID_IO_ERROR, "not a valid npy file: ", pieces...);
}

// What stands between the magic and the elements.
struct Preamble {
  std::string_view header;
  size_t data_offset = 0;
};

Status read_preamble(std::span<const std::byte> file, Preamble* preamble) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kNpyMagic))
    return malformed("expected it to begin with the bytes 93 'NUMPY', got ",
                     quoted(text.substr(0, kNpyMagic.size())));
  if (text.size() < kMagicBytes)
    return malformed("expected a version after the magic bytes, got a file of ", text.size(),
                     " bytes");
  const unsigned major = static_cast<unsigned char>(text[6]);
  const unsigned minor = static_cast<unsigned char>(text[7]);
  if (major < 1 || major > 3 || minor != 0)
    return malformed("expected version 1.0, 2.0 or 3.0, got ", major, ".", minor);
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t header_offset = kMagicBytes + length_bytes;
  if (text.size() < header_offset)
    return malformed("expected the length of the header in bytes 8 to ", header_offset - 1,
                     ", got a file of ", text.size(), " bytes");
  uint32_t length = 0;
  std::memcpy(&length, file.data() + kMagicBytes, length_bytes);
  if (length > kLongestHeader)
    return malformed("expected a header of at most ", kLongestHeader, " bytes, got a length of ",
                     length);
  if (length > text.size() - header_offset)
    return malformed("its header is said to take ", length, " bytes, but ",
                     text.size() - header_offset,
                     " bytes follow; the file is cut short or damaged");
  *preamble = {text.substr(header_offset, length), header_offset + length};
  return {};
}

// The dictionary, before it is judged.
struct Header {
  bool has_type = false, has_order = false, has_shape = false;
  std::string type;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

bool read_shape(HeaderReader* reader, std::vector<int64_t>* shape) {
  bool comma = true;
  reader->expect('(');
  while (comma && !reader->at(')')) {
    int64_t size = 0;
    if (!reader->read_integer(&size)) return false;
    if (shape->size() == kMaxFileDims)
      return reader->fail("expected at most 64 dimensions, got one more");
    shape->push_back(size);
    comma = reader->at(',') && reader->expect(',');
  }
  // In Python (3) is a number; a tuple of one has a comma.
  if (shape->size() == 1 && !comma) return reader->expect(',');
  return reader->expect(')');
}

bool read_entry(HeaderReader* reader, Header* header) {
  std::string key;
  if (!reader->read_string(&key)) return false;
  bool* seen = key == "descr"           ? &header->has_type
               : key == "fortran_order" ? &header->has_order
               : key == "shape"         ? &header->has_shape
                                        : nullptr;
  if (seen == nullptr)
    return reader->fail("expected the keys 'descr', 'fortran_order' and 'shape', got " +
                        quoted(key));
  if (*seen) return reader->fail("the key " + quoted(key) + " appears twice");
  *seen = true;
  if (!reader->expect(':')) return false;
  if (seen == &header->has_order) return reader->read_bool(&header->fortran_order);
  if (seen == &header->has_shape) return read_shape(reader, &header->shape);
  if (reader->at('['))
    return reader->fail(
        "the type is a structure of several fields; store each in a file of its own");
  return reader->read_string(&header->type);
}

Status read_header(std::string_view text, Header* header) {
  HeaderReader reader(Dialect::kPython, text);
  reader.expect('{');
  size_t entries = 0;
  while (reader.next_item('}', &entries)) read_entry(&reader, header);
  reader.expect_end();
  if (reader.failed()) return malformed(reader.error());
  if (!header->has_type || !header->has_order || !header->has_shape)
    return malformed("the header lacks the key '",
                     std::string(!header->has_type    ? "descr"
                                 : !header->has_order ? "fortran_order"
                                                      : "shape"),
                     "'");
  return {};
}

// '<f4': byte order, kind, bytes. NumPy writes '|' where there is no order to have.
Status read_type(const std::string& text, ElementType* type) {
  const std::string got = "got " + quoted(text);
  const size_t order_bytes = !text.empty() && std::strchr("<>=|", text[0]) != nullptr ? 1 : 0;
  const char order = order_bytes == 1 ? text[0] : '=';
  const std::string_view body = std::string_view(text).substr(order_bytes);
  if (body.size() == 2) {
    const char size = body[1];
    const bool is_size = size == '1' || size == '2' || size == '4' || size == '8';
    const auto bytes = static_cast<uint8_t>(is_size ? size - '0' : 0);
    if (body[0] == 'b' && bytes == 1) *type = {ElementKind::kBool, bytes};
    if (body[0] == 'i' && is_size) *type = {ElementKind::kInt, bytes};
    if (body[0] == 'u' && is_size) *type = {ElementKind::kUint, bytes};
    if (body[0] == 'f' && is_size && bytes > 1) *type = {ElementKind::kFloat, bytes};
  }
  if (body == "V2")
    return Status::error(PERSEID_IO_ERROR, "expected a numeric npy type, ", got,
                         ", two bytes without a meaning (NumPy writes bfloat16 so, because npy has "
                         "no type for it); store bfloat16 in a .safetensors file, or as float32");
  if (body.starts_with('O'))
    return Status::error(PERSEID_IO_ERROR, "expected a numeric npy type, ", got,
                         ", pickled Python objects, which are programs and are never loaded");
  if (!type->readable())
    return Status::error(PERSEID_IO_ERROR,
                         "expected an npy type out of b1, i1 to i8, u1 to u8, f2, f4 and f8, ", got,
                         "; convert the array with astype before saving it");
  if (order == '>' && type->bytes > 1)
    return Status::error(PERSEID_IO_ERROR, "expected little-endian elements, ", got,
                         ", which is big-endian; convert the array with astype('<", body,
                         "') before saving it");
  return {};
}

}  // namespace

Status parse_npy(std::span<const std::byte> file, FileIndex* index) {
  Preamble preamble;
  if (Status status = read_preamble(file, &preamble); !status.ok()) return status;
  Header header;
  if (Status status = read_header(preamble.header, &header); !status.ok()) return status;
  StoredTensor tensor;
  if (Status status = read_type(header.type, &tensor.type); !status.ok()) return status;
  const std::string what = name_of(tensor.type) + " " + text_of(header.shape);
  const std::optional<uint64_t> bytes = dense_bytes(header.shape, tensor.type.bytes);
  if (!bytes) return malformed(what, " has more than 2^63 - 1 bytes");
  if (const uint64_t rest = file.size() - preamble.data_offset; *bytes != rest)
    return malformed(what, " takes ", *bytes, " bytes, but ", rest,
                     " bytes follow the header; the file is ",
                     (rest < *bytes ? "cut short or damaged" : "damaged or holds several arrays"));
  tensor.stored_type = std::move(header.type);
  tensor.stride =
      header.fortran_order ? column_major_strides(header.shape) : row_major_strides(header.shape);
  tensor.shape = std::move(header.shape);
  tensor.offset = preamble.data_offset;
  tensor.bytes = *bytes;
  index->tensors.push_back(std::move(tensor));
  index->by_name.push_back(0);
  return {};
}

Status npy_header(const SourceTensor& tensor, std::string* header) {
  static constexpr std::string_view kLetters = "?biuf";  // in the order of ElementKind
  if (tensor.type.kind == ElementKind::kBfloat)
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "npy has no bfloat16 type; write a .safetensors file, or convert to "
                         "float32 first");
  if (tensor.type.kind == ElementKind::kFloat8E4M3 || tensor.type.kind == ElementKind::kFloat8E5M2)
    return Status::error(PERSEID_INVALID_ARGUMENT, "npy has no type for ", name_of(tensor.type),
                         "; write a .safetensors file, or the bytes as uint8");
  std::string text = "{'descr': '";
  text += tensor.type.bytes == 1 ? '|' : '<';
  text += kLetters[static_cast<size_t>(tensor.type.kind)];
  text += std::to_string(tensor.type.bytes) + "', 'fortran_order': False, 'shape': (";
  for (const int64_t size : tensor.shape) text += std::to_string(size) + ", ";
  // "(3, )" and "(3, 4, )" are tuples as well as "(3,)" and "(3, 4)"; write them as NumPy does.
  if (!tensor.shape.empty()) text.resize(text.size() - (tensor.shape.size() == 1 ? 1 : 2));
  text += "), }";
  // The last byte is a line end. kMaxFileDims sizes stay far below the 65535 bytes of version 1.
  constexpr size_t kPreamble = kMagicBytes + 2;
  const size_t data_offset = (kPreamble + text.size() + kAlignment) / kAlignment * kAlignment;
  text.resize(data_offset - kPreamble - 1, ' ');
  text += '\n';
  *header = std::string(kNpyMagic) + '\x01' + '\x00';
  header->push_back(static_cast<char>(text.size() & 0xff));
  header->push_back(static_cast<char>(text.size() >> 8));
  *header += text;
  return {};
}

}  // namespace perseid::internal::io
