// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Compiled modules on disk: one file for each in the cache folder, and the kernel pack, one file of
// many entries in the library's folder.
//
// A file is written under a temporary name and then renamed, so that a reader sees all of it or
// none. An entry holds its whole key and a hash of its content; one that does not match is ignored.
// So is a file that users other than this one and root can write, with a warning in the log, since
// it is code that runs with this user's rights. Nothing here fails a plan: a cache that cannot be
// written is a warning in the log.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cuda/runtime/compiler.hpp"

namespace perseid::internal::cuda {

// $PERSEID_CACHE_DIR, else $XDG_CACHE_HOME/perseid, else ~/.cache/perseid; "": none of them.
std::string cache_folder();

// The key of an image: source, kernels, architecture and compiler. The kernel pack passes null for
// `compiler`: it is the build's.
std::string key_of(const Program& program, const Version* compiler);

// An entry in the format of a file.
std::string write_entry(const std::string& key, const Image& image);
// Reads the image of an entry. False: it is damaged, has another key, or has no names.
bool read_entry(std::string_view text, const std::string& key, Image* image);

bool load_cached(const std::string& folder, const std::string& key, Image* image);
void store_cached(const std::string& folder, const std::string& key, const Image& image);

// The kernel pack: many entries in one file. The heads are read at once, an entry when find() needs
// it: if the file was truncated or replaced meanwhile, find() misses, and the kernel is compiled.
class Pack {
 public:
  Pack() = default;
  // Empty without such a file, and if it belongs to anyone but this user, root and `owner`, or
  // others can write it. Entries from the first damaged one on are ignored.
  explicit Pack(const std::string& path, uint32_t owner = 0);

  bool find(const std::string& key, Image* image) const;
  // Whether there is an entry, which may still be damaged.
  bool has(const std::string& key) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t offset, bytes;
  };
  std::string path_;
  uint32_t owner_ = 0;
  std::unordered_map<uint64_t, Entry> entries_;  // by the hashes of their keys
};
// The pack of this library: perseid.pack in its folder, or $PERSEID_PACK.
const Pack& kernel_pack();

}  // namespace perseid::internal::cuda
