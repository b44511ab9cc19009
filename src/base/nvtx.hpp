// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranges of NVTX, which NVIDIA's profilers show with the kernels that were launched within them.
// A profiler names its library in NVTX_INJECTION64_PATH; without that variable nothing is loaded.
#pragma once

namespace perseid::internal {

// Whether there is a profiler that takes ranges. Called once.
bool open_nvtx();
// Opens and closes a range of the calling thread; ranges nest. The name is copied.
void nvtx_push(const char* name);
void nvtx_pop();

}  // namespace perseid::internal
