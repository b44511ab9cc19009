// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The attention kernels that GPU tests try, as PERSEID_TEST_KERNELS names them: "sm90" (the
// default), "portable", those of any GPU, "float32", where every problem is of that type and is
// tried by both, if both take it, or "reference". Problems of float64 have kernels of their own in
// each but the last.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace perseid::internal::tests {

enum class TestedKernels { kSm90, kPortable, kFloat32, kReference };

inline TestedKernels tested_kernels() {
  static const TestedKernels kTested = [] {
    const char* const asked = std::getenv("PERSEID_TEST_KERNELS");
    const std::string name = asked != nullptr ? asked : "sm90";
    if (name == "sm90") return TestedKernels::kSm90;
    if (name == "portable") return TestedKernels::kPortable;
    if (name == "float32") return TestedKernels::kFloat32;
    if (name == "reference") return TestedKernels::kReference;
    throw std::invalid_argument("PERSEID_TEST_KERNELS: no kernels are called " + name);
  }();
  return kTested;
}

// The compute capability that they need, or 0 for any.
inline int32_t major_of(TestedKernels kernels) { return kernels == TestedKernels::kSm90 ? 9 : 0; }

// A fixture of what the portable kernels alone take.
template <class Fixture>
class OfAnyGpu : public Fixture {
 protected:
  void SetUp() override {
    if (tested_kernels() == TestedKernels::kSm90) GTEST_SKIP() << "the portable kernels alone";
    Fixture::SetUp();
  }
};

}  // namespace perseid::internal::tests
