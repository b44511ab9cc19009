// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Fewer bytes for the same content, by zlib (RFC 1950), which is opened where it is, as the driver
// and NVRTC are.
#pragma once

#include <string>
#include <string_view>

namespace perseid::internal::cuda {

// As it is where that would not be smaller, and without zlib.
std::string deflate(std::string content);
// The content of `size` bytes that deflate() was given. False: these are not its bytes, or there is
// no zlib, which is a warning in the log.
bool inflate(std::string_view deflated, size_t size, std::string* content);

}  // namespace perseid::internal::cuda
