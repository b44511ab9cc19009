// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/deflate.hpp"

#ifdef PERSEID_HAVE_ZLIB
#include <zlib.h>
#endif

namespace perseid::internal {

#ifdef PERSEID_HAVE_ZLIB
std::string deflate(std::string content) {
  uLongf bytes = compressBound(content.size());
  std::string deflated(bytes, '\0');
  const int result = compress(reinterpret_cast<Bytef*>(deflated.data()), &bytes,
                              reinterpret_cast<const Bytef*>(content.data()), content.size());
  if (result != Z_OK || bytes >= content.size()) return content;
  deflated.resize(bytes);
  return deflated;
}

bool inflate(std::string_view deflated, size_t size, std::string* content) {
  if (deflated.size() == size) {
    *content = deflated;
    return true;
  }
  content->resize(size);
  uLongf bytes = size;
  return uncompress(reinterpret_cast<Bytef*>(content->data()), &bytes,
                    reinterpret_cast<const Bytef*>(deflated.data()), deflated.size()) == Z_OK &&
         bytes == size;
}
#else
std::string deflate(std::string content) { return content; }

bool inflate(std::string_view deflated, size_t size, std::string* content) {
  *content = deflated;
  return deflated.size() == size;
}
#endif

}  // namespace perseid::internal
