// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernel sources, as the build embeds them (cmake/EmbedSources.cmake).
#pragma once

#include <span>

namespace perseid::internal::cuda {

struct Source {
  const char* path;  // from src/
  const char* text;
};

std::span<const Source> sources();

}  // namespace perseid::internal::cuda
