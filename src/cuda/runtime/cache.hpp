// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Compiled modules on disk: one file for each in the cache folder, and the kernel pack, which is
// many such entries in one file beside the library.
//
// A file is written under a name of its own and then renamed, so that a reader sees all of it or
// nothing, whoever else writes. An entry carries its whole key and a hash of its content: what does
// not match is passed over as if it were missing. So is what others than this user and root can
// write, as it is code that runs with this user's rights; the log has a warning. Nothing here fails
// a plan; a cache that cannot be written is a warning in the log.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cuda/runtime/compiler.hpp"

namespace perseid::internal::cuda {

// $PERSEID_CACHE_DIR, else $XDG_CACHE_HOME/perseid, else ~/.cache/perseid; "": none of them.
std::string cache_folder();

// What an image is the compilation of. `compiler` is left out in the kernel pack, whose compiler is
// the build's.
std::string key_of(const Program& program, const Version* compiler);

// An entry as it stands in a file.
std::string write_entry(const std::string& key, const Image& image);
// The image of the entry that `text` is. False: it is damaged, another key's, or without names.
bool read_entry(std::string_view text, const std::string& key, Image* image);

bool load_cached(const std::string& folder, const std::string& key, Image* image);
void store_cached(const std::string& folder, const std::string& key, const Image& image);

// The kernel pack: many entries in one file. The keys are read at once, an entry when it is asked
// for: a file that is cut short or replaced meanwhile has lost its entries, no more.
class Pack {
 public:
  Pack() = default;
  // Empty where there is no such file, or not one of this user, of root or of `owner` that others
  // cannot write. What is damaged is left out, with all that is behind it.
  explicit Pack(const std::string& path, uint32_t owner = 0);

  bool find(const std::string& key, Image* image) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t offset, bytes;
  };
  std::string path_;
  uint32_t owner_ = 0;
  std::unordered_map<std::string, Entry> entries_;  // by their keys
};
// Of the library that this code is in: perseid.pack beside it, or PERSEID_PACK.
const Pack& kernel_pack();

}  // namespace perseid::internal::cuda
