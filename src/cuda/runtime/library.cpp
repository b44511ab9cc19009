// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/library.hpp"

#include <dlfcn.h>

namespace perseid::internal::cuda {

Status SharedLibrary::open(const char* what, const char* advice,
                           const std::vector<std::string>& names) {
  what_ = what;
  std::string tried;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = name;
      return {};
    }
    tried += concatenate(tried.empty() ? "" : ", ", name);
  }
  const char* last = dlerror();
  return Status::error(PERSEID_UNSUPPORTED, what, " was not found; tried ", tried,
                       " (the last: ", last == nullptr ? "no reason given" : last, "); ", advice);
}

void* SharedLibrary::symbol(const char* name) {
  void* found = handle_ == nullptr ? nullptr : dlsym(handle_, name);
  if (found == nullptr && missing_.empty()) missing_ = name;
  return found;
}

Status SharedLibrary::result() const {
  if (missing_.empty()) return {};
  return Status::error(PERSEID_UNSUPPORTED, what_, " in ", path_, " is too old: it lacks ",
                       missing_, "; install version 12 or newer");
}

}  // namespace perseid::internal::cuda
