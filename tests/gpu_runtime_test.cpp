// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the GPU backend does before it reaches a GPU: the sentences where something is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "cuda/runtime/gpu.hpp"
#include "cuda/runtime/library.hpp"
#include "cuda/runtime/sources.hpp"
#include "perseid/perseid.h"

namespace perseid::internal::cuda {
namespace {

TEST(Sources, AreEmbeddedWhole) {
  bool found = false;
  for (const Source& source : sources()) {
    const std::string text = source.text;
    EXPECT_NE(text.find("#pragma once"), std::string::npos) << source.path;
    EXPECT_EQ(text.back(), '\n') << source.path;
    found = found || std::string(source.path) == "cuda/device/softmax/rows.hpp";
  }
  EXPECT_TRUE(found);
}

// A kernel's key changes with what it includes, and with nothing else.
TEST(Sources, AreToldApart) {
  std::set<uint64_t> hashes;
  for (const Source& source : sources()) {
    EXPECT_TRUE(hashes.insert(source_hash(source.path)).second) << source.path;
    EXPECT_EQ(source_hash(source.path), source_hash(source.path));
    const std::string_view text = source.text;
    constexpr std::string_view kInclude = "#include \"";
    for (size_t at = text.find(kInclude); at != std::string_view::npos;
         at = text.find(kInclude, at + 1)) {
      EXPECT_TRUE(at == 0 || text[at - 1] == '\n') << source.path;
      const std::string_view rest = text.substr(at + kInclude.size());
      const std::string included(rest.substr(0, rest.find('"')));
      EXPECT_TRUE(std::any_of(sources().begin(), sources().end(),
                              [&](const Source& other) { return included == other.path; }))
          << source.path << " includes " << included;
    }
  }
}

TEST(Contexts, OfDisabledGpusSayWhy) {
  setenv("PERSEID_DISABLE_CUDA", "1", 1);
  perseid_context_options options{};
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = nullptr;
  EXPECT_EQ(perseid_context_create(&options, &context), PERSEID_UNSUPPORTED);
  EXPECT_NE(std::string(perseid_last_error()).find("PERSEID_DISABLE_CUDA"), std::string::npos);
  unsetenv("PERSEID_DISABLE_CUDA");
}

// Where there is no driver; and of any library that is missing.
TEST(Contexts, SayWhatToDoWithoutADriver) {
  SharedLibrary library;
  const Status missing = library.open("the library", "install it", {"libperseid_none.so.7"});
  EXPECT_EQ(missing.code(), PERSEID_UNSUPPORTED);
  EXPECT_TRUE(
      missing.sentence().starts_with("the library was not found; tried libperseid_none.so.7"));
  EXPECT_TRUE(missing.sentence().ends_with("; install it"));

  std::shared_ptr<Gpu> gpu;
  const Status status = Gpu::open(0, &gpu);
  if (status.sentence().find("was not found") == std::string::npos)
    GTEST_SKIP() << "a driver is here";
  EXPECT_TRUE(status.sentence().ends_with("install the GPU's driver, or use kDLCPU"));
}

// ---- On a GPU ----

}  // namespace
}  // namespace perseid::internal::cuda
