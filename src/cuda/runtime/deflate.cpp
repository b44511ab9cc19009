// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/deflate.hpp"

#include <mutex>

#include "base/log.hpp"
#include "cuda/runtime/library.hpp"

namespace perseid::internal::cuda {
namespace {

// As zlib.h declares them since version 1.0.
struct Zlib {
  unsigned long (*bound)(unsigned long) = nullptr;
  int (*compress)(unsigned char*, unsigned long*, const unsigned char*, unsigned long) = nullptr;
  int (*uncompress)(unsigned char*, unsigned long*, const unsigned char*, unsigned long) = nullptr;
  Status status;
};
constexpr int kOk = 0;

const Zlib& zlib() {
  // Never destroyed: threads may still make plans while the process ends.
  static const Zlib* const kZlib = [] {
    auto* const zlib = new Zlib;
    SharedLibrary library;
    zlib->status = library.open("zlib", "install it (Debian: zlib1g)", {"libz.so.1"});
    if (!zlib->status.ok()) return zlib;
    library.find("compressBound", &zlib->bound);
    library.find("compress", &zlib->compress);
    library.find("uncompress", &zlib->uncompress);
    zlib->status = library.result();
    return zlib;
  }();
  return *kZlib;
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

std::string deflate(std::string content) {
  if (!zlib().status.ok()) return content;
  unsigned long bytes = zlib().bound(content.size());
  std::string deflated(bytes, '\0');
  const int result = zlib().compress(bytes_of(deflated), &bytes,
                                     bytes_of(std::string_view(content)), content.size());
  if (result != kOk || bytes >= content.size()) return content;
  deflated.resize(bytes);
  return deflated;
}

bool inflate(std::string_view deflated, size_t size, std::string* content) {
  if (deflated.size() == size) {
    *content = deflated;
    return true;
  }
  if (!zlib().status.ok()) {
    static std::once_flag warned;
    std::call_once(warned, [] {
      log(PERSEID_LOG_WARNING, concatenate("compiled kernels on disk are not used: ",
                                           zlib().status.sentence(), "; they are compiled again"));
    });
    return false;
  }
  content->resize(size);
  unsigned long bytes = size;
  return zlib().uncompress(bytes_of(*content), &bytes, bytes_of(deflated), deflated.size()) ==
             kOk &&
         bytes == size;
}

}  // namespace perseid::internal::cuda
