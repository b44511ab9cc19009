// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "api/guard.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace perseid::internal::api {
namespace {

constexpr const char* kOutOfMemory =
    "memory is exhausted; make the problem smaller or free some memory";

// A thread keeps the text of its last sentence in a block of malloc under a key, which the thread
// gives to free() when it ends. The destructor of a thread_local std::string would keep the library
// loaded after dlclose() until every thread with an error has ended.
class Sentences {
 public:
  Sentences() : made_(pthread_key_create(&key_, std::free) == 0) {}
  ~Sentences() {
    if (made_) pthread_key_delete(key_);
  }
  Sentences(const Sentences&) = delete;
  Sentences& operator=(const Sentences&) = delete;

  // The calling thread's, instead of the one before. Null: there is no memory to keep it in.
  const char* keep(std::string_view before, std::string_view after) const {
    if (!made_) return nullptr;
    auto* text = static_cast<char*>(std::malloc(before.size() + after.size() + 1));
    if (text == nullptr) return nullptr;
    char* end = std::copy(before.begin(), before.end(), text);
    *std::copy(after.begin(), after.end(), end) = '\0';
    void* last = pthread_getspecific(key_);
    if (pthread_setspecific(key_, text) != 0) {
      std::free(text);
      return nullptr;
    }
    std::free(last);
    return text;
  }

 private:
  pthread_key_t key_{};
  const bool made_;
};

thread_local const char* last_sentence = "";

perseid_status keep(perseid_status code, std::string_view before, std::string_view after) noexcept {
  static const Sentences kSentences;
  const char* kept = kSentences.keep(before, after);
  last_sentence = kept == nullptr ? kOutOfMemory : kept;
  return code;
}

}  // namespace

perseid_status report(const Status& status) noexcept {
  return status.ok() ? PERSEID_OK : keep(status.code(), status.sentence(), "");
}

perseid_status report_out_of_memory() noexcept {
  last_sentence = kOutOfMemory;
  return PERSEID_OUT_OF_MEMORY;
}

perseid_status report_internal(const char* what) noexcept {
  return keep(PERSEID_INTERNAL, "a defect of the library, please report it: ", what);
}

}  // namespace perseid::internal::api

extern "C" const char* perseid_last_error(void) { return perseid::internal::api::last_sentence; }
