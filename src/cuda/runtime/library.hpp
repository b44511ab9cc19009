// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A shared library that is opened at run time, for as long as the process lives.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace perseid::internal::cuda {

class SharedLibrary {
 public:
  // Opens the first of `names` that exists. `what` names the library in messages; `advice` says
  // what to do if none exists.
  Status open(const char* what, const char* advice, const std::vector<std::string>& names);
  // Finds a function; the first one that is missing is remembered for result().
  template <class Function>
  void find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(symbol(name));
  }
  Status result() const;

 private:
  void* symbol(const char* name);

  const char* what_ = "";
  void* handle_ = nullptr;
  std::string path_, missing_;
};

}  // namespace perseid::internal::cuda
