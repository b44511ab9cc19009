// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A user's C++ program: one softmax through the installed library.
#include <cmath>
#include <cstdio>
#include <perseid/perseid.hpp>

int main() {
  try {
    float row[3] = {0, 0, 0};
    const perseid::Context context = perseid::Context::cpu(1);
    const perseid::Softmax softmax(context, {.dtype = perseid::f32, .shape = {3}});
    perseid::Workspace workspace;
    const perseid::Tensor tensor(row, {3});
    softmax.forward(nullptr, {.input = tensor, .output = tensor}, workspace);
    std::printf("%g %g %g\n", row[0], row[1], row[2]);
    return std::fabs(row[0] - 1.0f / 3.0f) < 1e-6f ? 0 : 1;
  } catch (const perseid::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
